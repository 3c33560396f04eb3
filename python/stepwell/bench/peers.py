"""What Stepwell is measured against: the same problem, or one with as many visible pairs.

A peer does a case in one of two ways, and its own visible pairs are counted:

* the mask itself;
* the causal yardstick, where it has no such mask: of block diffusion, causal attention on the 2B
  halves of B samples, and of a block-causal mask, causal attention on its sequences. That is as
  many visible pairs, within n * block_size of n * n a sample.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import stepwell
from stepwell.masks import BlockCausal, Causal, Diffusion, Full, Window

from .cases import Case
from .options import PEERS

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Tensors:
    """Inputs of a case: ``(batch, rows, heads, head_dim)``; packed ``(total, heads, head_dim)``."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        """The same tensors in another layout."""
        return Tensors(*(change(x) for x in (self.q, self.k, self.v, self.dout)))


@dataclass(frozen=True)
class Problem:
    """What one side computes.

    Attributes:
        attention: a function of q, k and v.
        tensors: its inputs, in the layout that it takes.
        pairs: its visible pairs of one head.
        same_mask: the mask is the case's, and so is the output; False: the causal yardstick's.
        is_transposed: its layout is ``(batch, heads, rows, head_dim)``.
    """

    attention: Attention
    tensors: Tensors
    pairs: int
    same_mask: bool = True
    is_transposed: bool = False


@dataclass(frozen=True)
class Peer:
    """Another implementation.

    Attributes:
        why_not: the reason why it does not do a case, or None where it does.
        prepare: its problem for a case and the inputs of that.
    """

    why_not: Callable[[Case], str | None]
    prepare: Callable[[Case, Tensors], Problem]


def random_tensors(case: Case, device: str) -> Tensors:
    """Inputs of a case: normal numbers, bfloat16 on a GPU and float32 on a CPU."""
    shape = (sum(case.rows),) if case.packed else (len(case.lengths), case.rows[0])
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def randn(heads: int) -> torch.Tensor:
        return torch.randn(*shape, heads, case.head_dim, device=device, dtype=dtype)

    return Tensors(randn(case.heads_q), randn(case.heads_kv), randn(case.heads_kv),
                   randn(case.heads_q))  # fmt: skip


def stepwell_problem(case: Case, tensors: Tensors) -> Problem:
    """Stepwell's own."""
    packed = {}
    if case.packed:
        packed["cu_seqlens"] = _cu_seqlens(case.rows, tensors.q.device)
        packed["max_seqlen"] = max(case.lengths)

    def attention(q, k, v):
        return stepwell.attention(q, k, v, case.mask, **packed)

    return Problem(attention, tensors, case.pairs())


def _cu_seqlens(rows: tuple[int, ...], device) -> torch.Tensor:
    return torch.tensor([0, *rows]).cumsum(0).int().to(device)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    """``(batch, heads, rows, head_dim)``, as torch's attentions take it."""
    return x.transpose(1, 2)


def _halves(case: Case, tensors: Tensors) -> Tensors:
    """The sequences of the causal yardstick as a batch ``(sequences, rows, heads, head_dim)``."""
    return tensors.map(lambda x: x.reshape(len(case.sequences), case.sequences[0], *x.shape[-2:]))


def _yardstick(case: Case, attention: Attention, tensors: Tensors, **layout: bool) -> Problem:
    """Of a peer that does causal attention where the mask is one by blocks."""
    same_mask = not isinstance(case.mask, (Diffusion, BlockCausal))
    pairs = case.pairs() if same_mask else case.causal_pairs()
    return Problem(attention, tensors, pairs, same_mask, **layout)


# ------------------------------------------------------------ scaled_dot_product_attention


def _sdpa_why_not(case: Case) -> str | None:
    if case.packed:
        return "scaled_dot_product_attention has no packed samples"
    if isinstance(case.mask, Window):
        return "scaled_dot_product_attention has no windows"
    return None


def _sdpa(case: Case, tensors: Tensors, backend: SDPBackend | None) -> Problem:
    is_causal = not isinstance(case.mask, Full)
    grouped = case.heads_q != case.heads_kv

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=grouped)

    def with_backend(q, k, v):
        with sdpa_kernel(backend):
            return attention(q, k, v)

    return _yardstick(
        case,
        attention if backend is None else with_backend,
        _halves(case, tensors).map(_transposed),
        is_transposed=True,
    )


def _dense_why_not(case: Case) -> str | None:
    if case.packed:
        return "the dense mask of packed samples has all pairs of all samples"
    return None


def _dense(case: Case, tensors: Tensors) -> Problem:
    mask = stepwell.attention_mask(case.rows[0], case.mask)
    grouped = case.heads_q != case.heads_kv

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)

    return Problem(attention, tensors.map(_transposed), case.pairs(), is_transposed=True)


# -------------------------------------------------------------------------- FlexAttention


def visible(case: Case, q, k, number=int):
    """The element rule of a batched case, for indices of rows and keys of one sample.

    Only arithmetic, comparisons, & and |, so that torch's and other compilers take it; `number`
    makes their constants of integers.
    """
    mask = case.mask
    if isinstance(mask, Diffusion):
        n, b = number(case.lengths[0]), number(mask.block_size)
        q_block, k_block = (q % n) // b, (k % n) // b
        own = (q < n) & (k < n) & (q_block == k_block)
        noisy_to_clean = (q < n) & (k >= n) & (k_block < q_block)
        return own | noisy_to_clean | ((q >= n) & (k >= n) & (k_block <= q_block))
    if isinstance(mask, BlockCausal):
        b = number(mask.block_size)
        return k // b <= q // b
    if isinstance(mask, Window):
        return (k >= q - number(mask.left)) & (k <= q + number(mask.right))
    if isinstance(mask, Causal):
        return k <= q
    raise AssertionError(mask)  # why_not has the others


def _mask_why_not(case: Case) -> str | None:
    if case.packed:
        return "this benchmark has no mask function of packed samples"
    if isinstance(case.mask, Full):
        return "a full mask needs no mask function"
    return None


def _block_mask(case: Case, device: torch.device, **options):
    from torch.nn.attention.flex_attention import create_block_mask

    def mask_mod(batch, head, q, k):
        return visible(case, q, k)

    return create_block_mask(
        mask_mod, None, None, case.rows[0], case.rows[0], device=device, **options
    )


def _flex(case: Case, tensors: Tensors) -> Problem:
    from torch.nn.attention.flex_attention import flex_attention

    # Every mask is compiled anew, and past eight of them torch would run the eager version.
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    block_mask = _block_mask(case, tensors.q.device)

    def attention(q, k, v):
        return compiled(q, k, v, block_mask=block_mask, enable_gqa=case.heads_q != case.heads_kv)

    return Problem(attention, tensors.map(_transposed), case.pairs(), is_transposed=True)


# ---------------------------------------------------------------------------- varlen_attn


def _varlen_why_not(case: Case) -> str | None:
    if find_spec("torch.nn.attention.varlen") is None:
        return f"torch {torch.__version__} has no torch.nn.attention.varlen"
    if case.heads_q != case.heads_kv and not _varlen_has("enable_gqa"):
        return f"varlen_attn of torch {torch.__version__} has no grouped heads"
    return None


def _varlen_has(argument: str) -> bool:
    from torch.nn.attention.varlen import varlen_attn

    return argument in inspect.signature(varlen_attn).parameters


def _window(case: Case) -> tuple[int, int]:
    """(left, right); -1: no bound."""
    if isinstance(case.mask, Window):
        return case.mask.left, case.mask.right
    return (-1, -1) if isinstance(case.mask, Full) else (-1, 0)


def _varlen(case: Case, tensors: Tensors) -> Problem:
    from torch.nn.attention.varlen import varlen_attn

    cu_seqlens, longest = _cu_seqlens(case.sequences, tensors.q.device), max(case.sequences)
    options = {"enable_gqa": True} if case.heads_q != case.heads_kv else {}

    def attention(q, k, v):
        return varlen_attn(
            q, k, v, cu_seqlens, cu_seqlens, longest, longest, window_size=_window(case), **options
        )

    return _yardstick(case, attention, tensors.map(lambda x: x.reshape(-1, *x.shape[-2:])))


# ----------------------------------------------------------------------- FlashAttention-4

_FA4_TILE = 128  # queries and keys of its tiles on Hopper up to head dim 128


def fa4_version() -> str | None:
    """The version of the package flash-attn-4; None: not installed."""
    try:
        return version("flash-attn-4")
    except PackageNotFoundError:
        return None


def _fa4_why_not(case: Case) -> str | None:
    if fa4_version() is None:
        return "the package flash-attn-4 is not installed (pip install flash-attn-4)"
    if torch.cuda.get_device_capability()[0] < 9:
        return f"flash-attn-4 {fa4_version()} is for compute capability 9.0 and newer"
    return None


def _first(result):
    """flash-attn-4 returns out, or out and the log-sum-exp."""
    return result[0] if isinstance(result, tuple) else result


def _fa4(case: Case, tensors: Tensors) -> Problem:
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    options = {"causal": not isinstance(case.mask, (Full, Window))}
    if isinstance(case.mask, Window):
        options["window_size"] = _window(case)
    if not case.packed:
        return _yardstick(
            case,
            lambda q, k, v: _first(flash_attn_func(q, k, v, **options)),
            _halves(case, tensors),
        )
    cu_seqlens, longest = _cu_seqlens(case.sequences, tensors.q.device), max(case.sequences)
    options |= {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
    options |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
    return _yardstick(
        case, lambda q, k, v: _first(flash_attn_varlen_func(q, k, v, **options)), tensors
    )


def _fa4_mask_why_not(case: Case) -> str | None:
    why_not = _fa4_why_not(case) or _mask_why_not(case)
    if why_not is None and case.head_dim > _FA4_TILE:
        return f"its tiles at head dim {case.head_dim} are not those of the list of tiles here"
    return why_not


def _fa4_mask(case: Case, tensors: Tensors) -> Problem:
    """With the mask as mask_mod, and the tiles that it leaves as block_sparse_tensors."""
    import cutlass
    from cutlass import cute
    from flash_attn.cute import flash_attn_func, utils
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    @cute.jit
    def mask_mod(batch, head, q, k, seqlen_info, aux_tensors):
        return visible(case, q, k, lambda x: utils.scalar_to_ssa(x, cutlass.Int32))

    tiles = _block_mask(case, tensors.q.device, BLOCK_SIZE=(_FA4_TILE, _FA4_TILE))
    size = {"block_size": (_FA4_TILE, _FA4_TILE)}
    if "block_size" not in BlockSparseTensorsTorch._fields:
        size = {}
    by_query = BlockSparseTensorsTorch(
        tiles.kv_num_blocks, tiles.kv_indices, tiles.full_kv_num_blocks, tiles.full_kv_indices,
        **size,
    )  # fmt: skip
    by_key = BlockSparseTensorsTorch(
        tiles.q_num_blocks, tiles.q_indices, tiles.full_q_num_blocks, tiles.full_q_indices, **size
    )

    def attention(q, k, v):
        return _first(
            flash_attn_func(
                q, k, v, mask_mod=mask_mod, block_sparse_tensors=by_query,
                block_sparse_tensors_bwd=by_key,
            )
        )  # fmt: skip

    return Problem(attention, tensors, case.pairs())


_PEERS = {
    "fa2": Peer(_sdpa_why_not, functools.partial(_sdpa, backend=SDPBackend.FLASH_ATTENTION)),
    "cudnn": Peer(_sdpa_why_not, functools.partial(_sdpa, backend=SDPBackend.CUDNN_ATTENTION)),
    "flex": Peer(_mask_why_not, _flex),
    "varlen": Peer(_varlen_why_not, _varlen),
    "fa4": Peer(_fa4_why_not, _fa4),
    "fa4_mask": Peer(_fa4_mask_why_not, _fa4_mask),
    "dense": Peer(_dense_why_not, _dense),
    "causal_halves": Peer(_sdpa_why_not, functools.partial(_sdpa, backend=None)),
}


def peers_of(device: str) -> dict[str, Peer]:
    """The peers that run on a kind of device, "cuda" or "cpu"."""
    return {name: _PEERS[name] for name in PEERS[device]}
