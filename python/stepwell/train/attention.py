"""The attentions that the model runs with: Stepwell, SDPA with a dense mask, FlexAttention.

All take q ``(batch, rows, heads, head_dim)`` and k, v ``(batch, keys, kv_heads, head_dim)`` and
return ``(batch, rows, heads, head_dim)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stepwell

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # of a run's precision

Index = torch.Tensor
# Whether a query row sees a key, of their indices: the element rule of a mask.
Rule = Callable[[Index, Index], torch.Tensor]


class Attention(Protocol):
    """One way to compute the attention of training and of generation."""

    def training(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_size: int
    ) -> torch.Tensor:
        """Attention of ``[noisy | clean]`` rows."""
        ...

    def block_causal(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_size: int, q_offset: int
    ) -> torch.Tensor:
        """Attention of clean rows at positions q_offset, ...: keys up to the end of the block."""
        ...


class StepwellAttention:
    """Stepwell's operators: the mask is part of the kernel."""

    def training(self, q, k, v, block_size):
        return stepwell.diffusion_attn_func(q, k, v, block_size)

    def block_causal(self, q, k, v, block_size, q_offset):
        return stepwell.block_causal_attn_func(q, k, v, block_size, q_offset=q_offset)


class SdpaAttention:
    """torch's scaled_dot_product_attention with the boolean mask of all (row, key) pairs."""

    def training(self, q, k, v, block_size):
        return self._masked(q, k, v, _dense_training_mask(q.shape[1] // 2, block_size, q.device))

    def block_causal(self, q, k, v, block_size, q_offset):
        rule = block_causal_rule(block_size, q_offset)
        return self._masked(q, k, v, _dense(rule, q.shape[1], k.shape[1], q.device))

    def _masked(self, q, k, v, mask):
        if q.is_cuda:
            # With grouped heads and a mask only torch's plain formula would be left there.
            group = q.shape[2] // k.shape[2]
            k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            enable_gqa=q.shape[2] != k.shape[2],
        )
        return out.transpose(1, 2)


class FlexAttention:
    """torch's flex_attention, compiled where it trains; on a CPU it has no backward pass."""

    def training(self, q, k, v, block_size):
        n = q.shape[1] // 2
        mask = _flex_training_mask(n, block_size, q.device)
        out = _compiled_flex()(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            block_mask=mask,
            enable_gqa=q.shape[2] != k.shape[2],
        )
        return out.transpose(1, 2)

    def block_causal(self, q, k, v, block_size, q_offset):
        # Every key length is a new shape; not worth a compilation each while generating.
        return SdpaAttention().block_causal(q, k, v, block_size, q_offset)


def make_attention(name: str) -> Attention:
    """The attention of a name in config.ATTENTIONS."""
    return {"stepwell": StepwellAttention, "sdpa": SdpaAttention, "flex": FlexAttention}[name]()


def why_not(name: str, device: torch.device, precision: str) -> str | None:
    """Why an attention does not train on a device, or None where it does: it is tried."""
    dtype = DTYPES[precision]
    q = torch.randn(1, 16, 2, 16, device=device, dtype=dtype, requires_grad=True)
    k = torch.randn(1, 16, 1, 16, device=device, dtype=dtype, requires_grad=True)
    try:
        make_attention(name).training(q, k, k, 4).sum().backward()
    except Exception as error:
        return failure(name, error)
    return None


def failure(name: str, error: Exception) -> str:
    """Why an attention did not run, in a line; raises `error` again where it is a mistake of ours.

    FlexAttention's compilers fail in ways of their own, which must not end a finished run.
    """
    if isinstance(error, NotImplementedError):
        return str(error).strip().splitlines()[0]
    if name != "flex":
        raise error
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def training_rule(n: int, block_size: int) -> Rule:
    """Block diffusion's mask over ``[noisy | clean]`` rows of n tokens per half."""

    def visible(row: Index, key: Index) -> torch.Tensor:
        row_block, key_block = (row % n) // block_size, (key % n) // block_size
        row_noisy, key_noisy = row < n, key < n
        own_block = row_noisy & key_noisy & (row_block == key_block)
        clean_before = row_noisy & ~key_noisy & (key_block < row_block)
        clean_up_to = ~row_noisy & ~key_noisy & (key_block <= row_block)
        return own_block | clean_before | clean_up_to

    return visible


def block_causal_rule(block_size: int, q_offset: int) -> Rule:
    """Rows at positions q_offset, ... see the keys up to the end of their block."""

    def visible(row: Index, key: Index) -> torch.Tensor:
        return key // block_size <= (row + q_offset) // block_size

    return visible


def _dense(rule: Rule, rows: int, keys: int, device: torch.device) -> torch.Tensor:
    row = torch.arange(rows, device=device)[:, None]
    return rule(row, torch.arange(keys, device=device)[None])


@functools.lru_cache(maxsize=4)
def _dense_training_mask(n: int, block_size: int, device: torch.device) -> torch.Tensor:
    return _dense(training_rule(n, block_size), 2 * n, 2 * n, device)


@functools.lru_cache(maxsize=4)
def _flex_training_mask(n: int, block_size: int, device: torch.device):
    rule = training_rule(n, block_size)

    def mask_mod(batch, head, row, key):
        return rule(row, key)

    return create_block_mask(mask_mod, None, None, 2 * n, 2 * n, device=device)


@functools.cache
def _compiled_flex():
    return torch.compile(flex_attention, dynamic=False)  # masks are of one length
