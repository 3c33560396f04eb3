"""What masks look like: boolean masks, counts of visible pairs, and lengths of packed samples.

These run on the host, in time and memory quadratic in the rows (:func:`visible_pairs`: linear), for
documentation and tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _binding, _numpy
from ._arguments import DIFFUSION_LAYOUT, check_choice, check_integer, clean_window_number
from .functional import _refuse_layout, torch
from .masks import Diffusion, Mask, as_mask, sequence_numbers

if TYPE_CHECKING:
    from .functional import Array, IntArray

__all__ = ["attention_mask", "cu_seqlens_from_position_ids", "diffusion_mask", "visible_pairs"]


def _rows(name: str, rows: Any) -> int:
    rows = int(check_integer(name, rows))
    if rows < 0:
        raise ValueError(f"{name} is {rows}; accepted: 0 or more")
    return rows


def _on_host(value: Any) -> Any:
    return value.cpu().numpy() if torch is not None and isinstance(value, torch.Tensor) else value


def _layout(layout: str | None, mask: Mask, cu_seqlens: Any) -> str:
    if not isinstance(mask, Diffusion):
        _refuse_layout(layout, mask)
        return "sequence"
    if layout is None:
        return "batched" if cu_seqlens is None else "interleaved"
    return check_choice("layout", layout, DIFFUSION_LAYOUT)


def _refuse_others(layout: str, **groups: dict[str, Any]) -> None:
    """Refuses arguments of layouts other than this one."""
    group = layout if layout in ("sequence", "split") else "joint"
    for owners, arguments in groups.items():
        if group in owners.split("_or_"):
            continue
        for name, value in arguments.items():
            default = 0 if name.endswith("offset") else None
            if value is not default:
                raise ValueError(
                    f"{name} is given, but the layout is {layout}; accepted: "
                    + " and ".join(_OWNERS[owner] for owner in owners.split("_or_"))
                )


_OWNERS = {
    "sequence": "masks of one sequence",
    "split": 'layout="split"',
    "joint": "joint layouts (batched, interleaved, halves)",
}


def _prefix(
    rows: int,
    mask: Mask | str | int,
    *,
    batch: int | None = None,
    layout: str | None = None,
    rows_kv: int | None = None,
    rows_clean: int | None = None,
    rows_clean_q: int | None = None,
    q_offset: int | IntArray = 0,
    noisy_offset: int | IntArray = 0,
    clean_q_offset: int | IntArray = 0,
    prefix_lens: IntArray | None = None,
    seqused: IntArray | None = None,
    seqused_kv: IntArray | None = None,
    seqused_noisy: IntArray | None = None,
    seqused_clean: IntArray | None = None,
    cu_seqlens: IntArray | None = None,
    cu_seqlens_kv: IntArray | None = None,
    cu_seqlens_noisy: IntArray | None = None,
    cu_seqlens_clean: IntArray | None = None,
    cu_seqlens_clean_q: IntArray | None = None,
    block_ranges: IntArray | None = None,
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The binding's arguments, with stand-ins for the tensors, and the shape of the mask."""
    mask = as_mask(mask) if isinstance(mask, (str, Mask)) else Diffusion(mask)
    rows = _rows("rows", rows)
    layout = _layout(layout, mask, cu_seqlens)
    _refuse_others(
        layout,
        sequence={
            "rows_kv": rows_kv, "q_offset": q_offset, "seqused_kv": seqused_kv,
            "cu_seqlens_kv": cu_seqlens_kv,
        },
        split={
            "rows_clean": rows_clean, "rows_clean_q": rows_clean_q, "noisy_offset": noisy_offset,
            "clean_q_offset": clean_q_offset, "seqused_noisy": seqused_noisy,
            "seqused_clean": seqused_clean, "cu_seqlens_noisy": cu_seqlens_noisy,
            "cu_seqlens_clean": cu_seqlens_clean, "cu_seqlens_clean_q": cu_seqlens_clean_q,
            "block_ranges": block_ranges,
        },
        joint_or_sequence={"seqused": seqused, "cu_seqlens": cu_seqlens},
    )  # fmt: skip

    def array(name: str, value: Any) -> np.ndarray | None:
        return _numpy.int_array(name, _on_host(value))

    prefix_lens = array("prefix_lens", prefix_lens)
    seqused = array("seqused", seqused)
    seqused_kv = array("seqused_kv", seqused_kv)
    seqused_noisy = array("seqused_noisy", seqused_noisy)
    seqused_clean = array("seqused_clean", seqused_clean)
    cu_seqlens = array("cu_seqlens", cu_seqlens)
    cu_seqlens_kv = array("cu_seqlens_kv", cu_seqlens_kv)
    cu_seqlens_noisy = array("cu_seqlens_noisy", cu_seqlens_noisy)
    cu_seqlens_clean = array("cu_seqlens_clean", cu_seqlens_clean)
    cu_seqlens_clean_q = array("cu_seqlens_clean_q", cu_seqlens_clean_q)
    block_ranges = array("block_ranges", block_ranges)
    q_offset, q_offsets = _numpy.offset("q_offset", _on_host(q_offset))
    noisy_offset, noisy_offsets = _numpy.offset("noisy_offset", _on_host(noisy_offset))
    clean_q_offset, clean_q_offsets = _numpy.offset("clean_q_offset", _on_host(clean_q_offset))

    packed = cu_seqlens is not None or cu_seqlens_noisy is not None
    if batch is None:
        per_sample = [prefix_lens, seqused, seqused_kv, seqused_noisy, seqused_clean]
        per_sample += [q_offsets, noisy_offsets, clean_q_offsets]
        if block_ranges is not None and block_ranges.ndim == 3:
            per_sample.append(block_ranges)
        batch = next((len(a) for a in per_sample if a is not None and a.ndim), 1)
    else:
        batch = _rows("batch", batch)

    stand_in_row = np.zeros(8, np.float32)

    def stand_in(count: int) -> np.ndarray:
        shape = (count, 1, 8) if packed else (batch, count, 1, 8)
        strides = (0,) * (len(shape) - 1) + (4,)
        return np.lib.stride_tricks.as_strided(stand_in_row, shape, strides)

    numerics = (None, 0.0, 0.0, 0, False, 0)
    q = stand_in(rows)
    if layout == "sequence":
        rows_kv = rows if rows_kv is None else _rows("rows_kv", rows_kv)
        k = stand_in(rows_kv)
        prefix = _binding.sequence_prefix(
            q, k, k, cu_seqlens, cu_seqlens_kv, prefix_lens, seqused, seqused_kv, q_offsets, None,
            *sequence_numbers(mask), q_offset, -1, *numerics,
        )  # fmt: skip
        shape = (rows, rows_kv)
    elif layout == "split":
        rows_clean = rows if rows_clean is None else _rows("rows_clean", rows_clean)
        rows_clean_q = rows_clean if rows_clean_q is None else _rows("rows_clean_q", rows_clean_q)
        k_clean = stand_in(rows_clean)
        prefix = _binding.split_prefix(
            q, q, q, k_clean, k_clean, stand_in(rows_clean_q) if rows_clean_q else None,
            cu_seqlens_noisy, cu_seqlens_clean, cu_seqlens_clean_q, prefix_lens,
            seqused_noisy, seqused_clean, block_ranges, noisy_offsets, clean_q_offsets, None,
            mask.block_size, mask.clean, mask.noisy, clean_window_number(mask.clean_window),
            mask.num_views, noisy_offset, clean_q_offset, -1, *numerics,
        )  # fmt: skip
        shape = (rows + rows_clean_q, rows + rows_clean)
    else:
        prefix = _binding.joint_prefix(
            q, q, q, cu_seqlens, prefix_lens, seqused, None,
            layout, mask.block_size, mask.order, mask.clean, mask.noisy,
            clean_window_number(mask.clean_window), mask.num_views, -1, *numerics,
        )  # fmt: skip
        shape = (rows, rows)
    return prefix, shape if packed else (batch, *shape)


def _is_numpy(arguments: dict[str, Any]) -> bool:
    return any(isinstance(value, np.ndarray) for value in arguments.values())


def attention_mask(
    rows: int,
    mask: Mask | str | int,
    *,
    device: Any = None,
    as_numpy: bool | None = None,
    **arguments: Any,
) -> Array:
    """The boolean mask (True: visible) that the attention functions apply.

    Args:
        rows: rows of q (all parts of the tensor; layout "split": of q_noisy).
        mask: "full", "causal", an object of stepwell.masks, or a block size for Diffusion(...).
        device: the torch device of the result.
        as_numpy: return a NumPy array; None: if torch is missing or an array argument is NumPy's.
        batch: samples of batched layouts; None: as many as the per-sample arrays have, or 1.
        layout: Diffusion masks: "batched", "interleaved", "halves" or "split"; None:
            "interleaved" with cu_seqlens, else "batched".
        rows_kv: rows of k, for masks of one sequence; None: rows.
        rows_clean: layout "split": rows of k_clean; None: rows.
        rows_clean_q: layout "split": rows of q_clean; None: rows_clean; 0: no clean queries.
        q_offset, seqused_kv, cu_seqlens_kv: masks of one sequence, as in
            :func:`block_causal_attn_func`.
        noisy_offset, clean_q_offset, seqused_noisy, seqused_clean, cu_seqlens_noisy,
        cu_seqlens_clean, cu_seqlens_clean_q, block_ranges: layout "split", as in
            :func:`diffusion_attn_split_func`.
        prefix_lens: as in :func:`diffusion_attn_func`.
        seqused, cu_seqlens: as in the attention functions; not for layout "split".

    Returns:
        bool ``(batch, rows_q, rows_kv)``; packed ``(rows_q, rows_kv)``. Layout "split": noisy rows,
        then clean ones, for queries and keys.

    Raises:
        TypeError, ValueError: as the attention functions.
    """
    if not isinstance(as_numpy, bool):
        as_numpy = torch is None or _is_numpy(arguments)
    prefix, shape = _prefix(rows, mask, **arguments)
    visible = np.empty(shape, np.uint8)
    _binding.attention_mask(*prefix, visible.reshape(-1))
    visible = visible.view(np.bool_)
    if as_numpy:
        if device is not None:
            raise ValueError(f"device is {device}; accepted with NumPy results: None")
        return visible
    return torch.from_numpy(visible).to(device)


def diffusion_mask(
    rows: int,
    block_size: int,
    *,
    order: str = "noisy_clean",
    clean: str = "block",
    noisy: str = "bidirectional",
    clean_window: int | None = None,
    num_views: int = 1,
    device: Any = None,
    as_numpy: bool | None = None,
    **arguments: Any,
) -> Array:
    """The boolean mask of block diffusion attention; with SDPA, pass ``mask[:, None]``.

    Args:
        rows: rows of q: ``(num_views + 1) * n`` for batched tensors, the total for packed ones,
            those of q_noisy for layout "split".
        block_size, order, clean, noisy, clean_window, num_views: as in :func:`diffusion_attn_func`.
        device, as_numpy, and the other arguments: as in :func:`attention_mask`.

    Returns:
        bool ``(batch, rows, rows)``; packed ``(rows, rows)``; see :func:`attention_mask` for
        layout "split".

    Raises:
        TypeError, ValueError: as the attention functions.
    """
    mask = Diffusion(block_size, order, clean, noisy, clean_window, num_views)
    return attention_mask(rows, mask, device=device, as_numpy=as_numpy, **arguments)


def visible_pairs(rows: int, mask: Mask | str | int, **arguments: Any) -> int:
    """The number of visible (query, key) pairs of all samples, of one head, in closed form.

    Args:
        rows, mask, and the other arguments: as in :func:`attention_mask`.

    Returns:
        The sum of ``attention_mask(...)``; 4 * head_dim times it are the FLOPs of a forward pass of
        one query head.

    Raises:
        TypeError, ValueError: as the attention functions.
    """
    prefix, _ = _prefix(rows, mask, **arguments)
    return int(_binding.visible_pairs(*prefix))


def cu_seqlens_from_position_ids(position_ids: Array, *, parts: int = 1) -> Array:
    """Running row counts of packed samples, from the positions of their tokens.

    A run starts at position 0, wherever a position is not the one before plus 1, and at the start
    of each row of `position_ids`; a sample is `parts` runs. For layout "interleaved" pass
    ``parts=num_views + 1``; for layout "halves" pass the positions of one half.

    Args:
        position_ids: integer array ``(total,)``, or ``(batch, len)``, which is read row by row.
        parts: runs per sample, >= 1.

    Returns:
        int32 ``(samples + 1,)`` from 0 to the number of positions, on the device of position_ids.
        On a GPU the host waits for the number of samples.

    Raises:
        TypeError: position_ids is not an integer array.
        ValueError: parts does not divide the number of runs.
    """
    if torch is not None and isinstance(position_ids, torch.Tensor):
        is_integer = not (position_ids.is_floating_point() or position_ids.is_complex())
        is_integer = is_integer and position_ids.dtype != torch.bool
    elif isinstance(position_ids, np.ndarray):
        is_integer = position_ids.dtype.kind in "iu"
    else:
        raise TypeError(
            f"position_ids is of type {type(position_ids).__name__}; accepted: torch.Tensor or "
            "numpy.ndarray of integers"
        )
    if not is_integer:
        raise TypeError(f"position_ids has dtype {position_ids.dtype}; accepted: integers")
    if position_ids.ndim not in (1, 2):
        raise TypeError(f"position_ids has shape {list(position_ids.shape)}; accepted: rank 1 or 2")
    parts = check_integer("parts", parts)
    if parts < 1:
        raise ValueError(f"parts is {parts}; accepted: 1 or more")

    length = position_ids.shape[-1]
    flat = position_ids.reshape(-1)
    total = flat.shape[0]
    if isinstance(position_ids, np.ndarray):
        starts = np.ones(total, np.bool_)
        starts[1:] = (flat[1:] == 0) | (flat[1:] != flat[:-1] + 1)
        if length:
            starts[::length] = True
        runs = np.flatnonzero(starts)
        samples = np.concatenate([runs[::parts], [total]]).astype(np.int32)
    else:
        starts = torch.ones(total, dtype=torch.bool, device=flat.device)
        starts[1:] = (flat[1:] == 0) | (flat[1:] != flat[:-1] + 1)
        if length:
            starts[::length] = True
        runs = starts.nonzero().flatten()
        samples = torch.cat([runs[::parts], runs.new_full((1,), total)]).to(torch.int32)
    if runs.shape[0] % parts:
        raise ValueError(
            f"parts is {parts} but position_ids has {runs.shape[0]} runs; accepted: a divisor"
        )
    return samples
