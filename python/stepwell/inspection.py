"""What masks look like: boolean masks, counts of visible pairs, and lengths of packed samples.

The masks and the counts are made on the host, in time and memory quadratic in the rows
(:func:`visible_pairs`: linear), for documentation and tests. Masks may be made inside
``torch.compile(fullgraph=True)``; the counts and lengths, whose results are numbers and shapes that
depend on values, are for outside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _host_masks, _numpy
from ._arguments import (
    DIFFUSION_LAYOUT,
    INT32_MAX,
    MAX_LENGTH,
    check_choice,
    check_flag,
    check_integer,
    clean_window_number,
    is_compiling,
    is_zero,
    refuse_masked,
)
from .functional import _refuse_layout, _torch, torch
from .masks import MASKS, Diffusion, Mask, as_mask, sequence_numbers

if TYPE_CHECKING:
    from .functional import Array

__all__ = ["attention_mask", "cu_seqlens_from_position_ids", "diffusion_mask", "visible_pairs"]

# Optional arguments of the functions of masks, in the order of _host_masks.
_ARRAYS = (
    "prefix_lens", "seqused", "seqused_kv", "seqused_noisy", "seqused_clean",
    "cu_seqlens", "cu_seqlens_kv", "cu_seqlens_noisy", "cu_seqlens_clean", "cu_seqlens_clean_q",
    "block_ranges",
)  # fmt: skip
_OFFSETS = ("q_offset", "noisy_offset", "clean_q_offset")
_DEFAULTS = {
    "batch": None, "layout": None, "rows_kv": None, "rows_clean": None, "rows_clean_q": None,
    **dict.fromkeys(_OFFSETS, 0), **dict.fromkeys(_ARRAYS),
}  # fmt: skip

# Those that only some layouts have.
_SEQUENCE = ("rows_kv", "q_offset", "seqused_kv", "cu_seqlens_kv")
_SPLIT = (
    "rows_clean", "rows_clean_q", "noisy_offset", "clean_q_offset", "seqused_noisy",
    "seqused_clean", "cu_seqlens_noisy", "cu_seqlens_clean", "cu_seqlens_clean_q", "block_ranges",
)  # fmt: skip
_NOT_SPLIT = ("seqused", "cu_seqlens")


def _count(name: str, count: Any, most: int = MAX_LENGTH) -> int:
    count = check_integer(name, count)
    if not 0 <= count <= most:
        raise ValueError(f"{name} is {count}; accepted: integers in [0, {most}]")
    return count


def _layout(layout: str | None, mask: Mask, cu_seqlens: Any) -> str:
    if not isinstance(mask, Diffusion):
        _refuse_layout(layout, mask)
        return "sequence"
    if layout is None:
        return "batched" if cu_seqlens is None else "interleaved"
    check_choice("layout", layout, DIFFUSION_LAYOUT)
    if layout == "batched" and cu_seqlens is not None:
        raise ValueError(
            'cu_seqlens is given, but layout is "batched"; accepted: "interleaved", "halves"'
        )
    if layout in ("interleaved", "halves") and cu_seqlens is None:
        raise ValueError(f'cu_seqlens is None; layout "{layout}" takes an array (batch + 1,)')
    return layout


def _refuse_others(layout: str, given: dict[str, Any]) -> None:
    """Refuses arguments of layouts other than this one."""
    for names, applies, owners in (
        (_SEQUENCE, layout == "sequence", "masks of one sequence"),
        (_SPLIT, layout == "split", 'layout="split"'),
        (
            _NOT_SPLIT,
            layout != "split",
            "joint layouts (batched, interleaved, halves) and masks of one sequence",
        ),
    ):
        for name in () if applies else names:
            value = given[name]
            if value is not None and not (name in _OFFSETS and is_zero(name, value)):
                raise ValueError(f"{name} is given, but the layout is {layout}; accepted: {owners}")


def _batch(given: dict[str, Any], per_sample: list[Any], block_ranges: Any) -> int:
    batch = given["batch"]
    if batch is not None:
        for name in ("cu_seqlens", "cu_seqlens_noisy"):
            if given[name] is not None:
                raise ValueError(
                    f"batch is given, but so is {name}, which says how many samples are packed; "
                    "accepted: one of them"
                )
        return _count("batch", batch, INT32_MAX)
    for array in per_sample:
        if array is not None and array.ndim:
            return array.shape[0]
    if block_ranges is not None and block_ranges.ndim == 3:
        return block_ranges.shape[0]
    return 1


def _host_arguments(
    function: str, backend: Any, rows: int, mask: Mask | str | int, arguments: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of _host_masks for those of a public function, with the backend's arrays."""
    for name in arguments:
        if name not in _DEFAULTS:
            raise TypeError(
                f"{function}() got an unexpected keyword argument '{name}'; accepted: "
                + ", ".join(_DEFAULTS)
            )
    given = {**_DEFAULTS, **arguments}
    mask = as_mask(mask) if isinstance(mask, (str, *MASKS)) else Diffusion(mask)
    rows = _count("rows", rows)
    layout = _layout(given["layout"], mask, given["cu_seqlens"])
    _refuse_others(layout, given)

    arrays = [backend.int_array(name, given[name]) for name in _ARRAYS]
    offsets, offset_arrays = [], []
    for name in _OFFSETS:
        number, array = backend.offset(name, given[name])
        offsets.append(number)
        offset_arrays.append(array)
    batch = _batch(given, [*arrays[:5], *offset_arrays], arrays[-1])

    def count(name: str, default: int) -> int:
        return default if given[name] is None else _count(name, given[name])

    rows_clean = count("rows_clean", rows)
    counts = (count("rows_kv", rows), rows_clean, count("rows_clean_q", rows_clean))
    if isinstance(mask, Diffusion):
        numbers = (
            "diffusion", mask.block_size, -1, -1, mask.order, mask.clean, mask.noisy,
            clean_window_number(mask.clean_window), mask.num_views,
        )  # fmt: skip
    else:
        numbers = (*sequence_numbers(mask), "noisy_clean", "block", "bidirectional", 0, 1)
    return (*arrays, *offset_arrays, layout, batch, rows, *counts, *offsets, *numbers)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


def _to_numpy(value: Any) -> Any:
    return value.cpu().numpy() if torch is not None and isinstance(value, torch.Tensor) else value


def _to_torch(name: str, value: Any) -> Any:
    if not _is_array(value):
        return value
    # A compiler's arrays are tensors, which the operator's arguments are checked as.
    return torch.from_numpy(value if is_compiling() else _numpy.int_array(name, value))


def attention_mask(
    rows: int,
    mask: Mask | str | int,
    *,
    device: Any = None,
    as_numpy: bool | None = None,
    **arguments: Any,
) -> Array:
    """The boolean mask (True: visible) that the attention functions apply.

    It compiles with ``torch.compile(fullgraph=True)``, unless the result is a NumPy array: NumPy's
    array arguments need ``as_numpy=False`` there, and numbers must be Python's, since torch's
    compiler takes those of NumPy, such as ``np.int64(4)``, for tensors.

    Args:
        rows: rows of q (all parts of the tensor; layout "split": of q_noisy).
        mask: "full", "causal", an object of stepwell.masks, or a block size for Diffusion(...).
        device: the torch device of the result.
        as_numpy: return a NumPy array; None: if torch is missing or an array argument is NumPy's.
        batch: samples of batched layouts; None: as many as the per-sample arrays have, or 1. Not
            with cu_seqlens or cu_seqlens_noisy, which say how many there are.
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
    return _attention_mask("attention_mask", rows, mask, device, as_numpy, arguments)


def _attention_mask(
    function: str,
    rows: int,
    mask: Mask | str | int,
    device: Any,
    as_numpy: bool | None,
    arguments: dict[str, Any],
) -> Array:
    if as_numpy is None:
        as_numpy = torch is None or any(isinstance(x, np.ndarray) for x in arguments.values())
    if check_flag("as_numpy", as_numpy):
        if device is not None:
            raise ValueError(f"device is {device}; accepted with NumPy results: None")
        arguments = {name: _to_numpy(value) for name, value in arguments.items()}
        return _host_masks.attention_mask(*_host_arguments(function, _numpy, rows, mask, arguments))
    if torch is None:
        raise ValueError("as_numpy is False but torch is missing; accepted: True or None")
    arguments = {name: _to_torch(name, value) for name, value in arguments.items()}
    visible = _torch.attention_mask(*_host_arguments(function, _torch, rows, mask, arguments))
    return visible if device is None else visible.to(device)


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
    return _attention_mask("diffusion_mask", rows, mask, device, as_numpy, arguments)


def visible_pairs(rows: int, mask: Mask | str | int, **arguments: Any) -> int:
    """The number of visible (query, key) pairs of all samples, of one head, in closed form.

    It is a number of the host: compiled code cannot ask for it.

    Args:
        rows, mask, and the other arguments: as in :func:`attention_mask`.

    Returns:
        The sum of ``attention_mask(...)``; 4 * head_dim times it are the FLOPs of a forward pass of
        one query head.

    Raises:
        TypeError, ValueError: as the attention functions.
    """
    arguments = {name: _to_numpy(value) for name, value in arguments.items()}
    return _host_masks.visible_pairs(
        *_host_arguments("visible_pairs", _numpy, rows, mask, arguments)
    )


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
    refuse_masked("position_ids", position_ids)
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
