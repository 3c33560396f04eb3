"""Attention for diffusion models: fast kernels whose masks are part of the operator.

The functions take torch tensors, or NumPy arrays where torch is missing or not wanted; with torch
they are operators with autograd, autocast and ``torch.compile(fullgraph=True)``. In compiled
functions numbers must be Python's: torch's compiler takes NumPy's, such as ``np.int64(4)``, for
tensors, whose values it does not know.
"""

from . import masks
from ._binding import version as __version__
from .functional import (
    attention,
    attention_backward,
    block_causal_attn_func,
    diffusion_attn_backward,
    diffusion_attn_func,
    diffusion_attn_split_backward,
    diffusion_attn_split_func,
    diffusion_attn_varlen_func,
)
from .inspection import (
    attention_mask,
    cu_seqlens_from_position_ids,
    diffusion_mask,
    visible_pairs,
)

__all__ = [
    "__version__",
    "attention",
    "attention_backward",
    "attention_mask",
    "block_causal_attn_func",
    "cu_seqlens_from_position_ids",
    "diffusion_attn_backward",
    "diffusion_attn_func",
    "diffusion_attn_split_backward",
    "diffusion_attn_split_func",
    "diffusion_attn_varlen_func",
    "diffusion_mask",
    "masks",
    "visible_pairs",
]
