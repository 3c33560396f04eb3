"""Masks of given rows, without tensors: what :mod:`stepwell.inspection` and its operator compute.

All functions take the same arguments: arrays in host memory, ``NUM_ARRAYS`` of them, then numbers
and strings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _binding
from ._arguments import INT64_MAX

NUM_ARRAYS = 14


def mask_shape(
    prefix_lens, seqused, seqused_kv, seqused_noisy, seqused_clean,
    cu_seqlens, cu_seqlens_kv, cu_seqlens_noisy, cu_seqlens_clean, cu_seqlens_clean_q,
    block_ranges, q_offsets, noisy_offsets, clean_q_offsets,
    layout, batch, rows, rows_kv, rows_clean, rows_clean_q, *_,
) -> tuple[int, ...]:  # fmt: skip
    """The shape of the mask."""
    if layout == "sequence":
        shape = (rows, rows_kv)
    elif layout == "split":
        shape = (rows + rows_clean_q, rows + rows_clean)
    else:
        shape = (rows, rows)
    packed = cu_seqlens is not None or cu_seqlens_noisy is not None
    return shape if packed else (batch, *shape)


def _prefix(
    prefix_lens, seqused, seqused_kv, seqused_noisy, seqused_clean,
    cu_seqlens, cu_seqlens_kv, cu_seqlens_noisy, cu_seqlens_clean, cu_seqlens_clean_q,
    block_ranges, q_offsets, noisy_offsets, clean_q_offsets,
    layout, batch, rows, rows_kv, rows_clean, rows_clean_q, q_offset, noisy_offset, clean_q_offset,
    kind, block_size, window_left, window_right, order, clean, noisy, clean_window, num_views,
) -> tuple[Any, ...]:  # fmt: skip
    """The binding's arguments, with stand-ins for the tensors."""
    sequence, split = layout == "sequence", layout == "split"
    if sequence == (kind == "diffusion"):
        raise ValueError(
            f'layout is "{layout}", but mask is "{kind}"; accepted: "sequence" with "full", '
            '"causal", "window" and "block_causal", other layouts with "diffusion"'
        )
    for name, value, default, unused in (
        ("order", order, "noisy_clean", sequence or split),
        ("clean", clean, "block", sequence),
        ("noisy", noisy, "bidirectional", sequence),
        ("clean_window", clean_window, 0, sequence),
        ("num_views", num_views, 1, sequence),
        ("window_left", window_left, -1, not sequence),
        ("window_right", window_right, -1, not sequence),
    ):
        if unused and value != default:
            raise ValueError(
                f'{name} is {value!r}, but layout is "{layout}", where it has no effect; '
                f"accepted: {default!r}"
            )
    packed = cu_seqlens is not None or cu_seqlens_noisy is not None
    stand_in_row = np.zeros(8, np.float32)

    def stand_in(count: int) -> np.ndarray:
        shape = (count, 1, 8) if packed else (batch, count, 1, 8)
        strides = (0,) * (len(shape) - 1) + (4,)
        return np.lib.stride_tricks.as_strided(stand_in_row, shape, strides)

    numerics = (None, 0.0, 0.0, 0, False, 0)
    q = stand_in(rows)
    if sequence:
        k = stand_in(rows_kv)
        return _binding.sequence_prefix(
            q, k, k, cu_seqlens, cu_seqlens_kv, prefix_lens, seqused, seqused_kv, q_offsets, None,
            kind, block_size, window_left, window_right, q_offset, -1, *numerics,
        )  # fmt: skip
    if split:
        k_clean = stand_in(rows_clean)
        return _binding.split_prefix(
            q, q, q, k_clean, k_clean, stand_in(rows_clean_q) if rows_clean_q else None,
            cu_seqlens_noisy, cu_seqlens_clean, cu_seqlens_clean_q, prefix_lens,
            seqused_noisy, seqused_clean, block_ranges, noisy_offsets, clean_q_offsets, None,
            block_size, clean, noisy, clean_window, num_views, noisy_offset, clean_q_offset, -1,
            *numerics,
        )  # fmt: skip
    return _binding.joint_prefix(
        q, q, q, cu_seqlens, prefix_lens, seqused, None,
        layout, block_size, order, clean, noisy, clean_window, num_views, -1, *numerics,
    )  # fmt: skip


def attention_mask(*arguments: Any) -> np.ndarray:
    shape = mask_shape(*arguments)
    if math.prod(shape) > INT64_MAX:
        raise ValueError(
            f"batch and rows make a mask of shape {list(shape)}; accepted: at most 2**63 - 1 "
            "elements"
        )
    visible = np.empty(shape, np.uint8)
    _binding.attention_mask(*_prefix(*arguments), visible.reshape(-1))
    return visible.view(np.bool_)


def visible_pairs(*arguments: Any) -> int:
    return int(_binding.visible_pairs(*_prefix(*arguments)))
