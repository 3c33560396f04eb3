"""Masks of given rows, without tensors: what :mod:`stepwell.inspection` and its operator compute.

All functions take the same arguments: arrays in host memory, ``NUM_ARRAYS`` of them, then numbers
and strings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _binding

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
    packed = cu_seqlens is not None or cu_seqlens_noisy is not None
    stand_in_row = np.zeros(8, np.float32)

    def stand_in(count: int) -> np.ndarray:
        shape = (count, 1, 8) if packed else (batch, count, 1, 8)
        strides = (0,) * (len(shape) - 1) + (4,)
        return np.lib.stride_tricks.as_strided(stand_in_row, shape, strides)

    numerics = (None, 0.0, 0.0, 0, False, 0)
    q = stand_in(rows)
    if layout == "sequence":
        k = stand_in(rows_kv)
        return _binding.sequence_prefix(
            q, k, k, cu_seqlens, cu_seqlens_kv, prefix_lens, seqused, seqused_kv, q_offsets, None,
            kind, block_size, window_left, window_right, q_offset, -1, *numerics,
        )  # fmt: skip
    if layout == "split":
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
    visible = np.empty(mask_shape(*arguments), np.uint8)
    _binding.attention_mask(*_prefix(*arguments), visible.reshape(-1))
    return visible.view(np.bool_)


def visible_pairs(*arguments: Any) -> int:
    return int(_binding.visible_pairs(*_prefix(*arguments)))
