"""Attention functions. Tensors are torch tensors, or all of them NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _numpy
from ._arguments import (
    CLEAN,
    JOINT_LAYOUT,
    NOISY,
    ORDER,
    PACKED_LAYOUT,
    check_choice,
    check_flag,
    check_integer,
    check_number,
    clean_window_number,
    is_zero,
    max_seqlen_number,
    refuse_masked,
    scale_number,
)
from .masks import BlockCausal, Diffusion, Mask, as_mask, sequence_numbers

try:
    import torch

    from . import _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    torch = None
    _torch = None

if TYPE_CHECKING:
    Array = Any  # torch.Tensor or numpy.ndarray
    IntArray = Any  # an array of int32 or int64, or a list of integers

__all__ = [
    "attention",
    "attention_backward",
    "block_causal_attn_func",
    "diffusion_attn_backward",
    "diffusion_attn_func",
    "diffusion_attn_split_backward",
    "diffusion_attn_split_func",
    "diffusion_attn_varlen_func",
]


def _backend(name: str, array: Any) -> Any:
    """The module that computes with arrays like this one."""
    if torch is not None and isinstance(array, torch.Tensor):
        return _torch
    refuse_masked(name, array)
    if isinstance(array, np.ndarray):
        return _numpy
    raise TypeError(
        f"{name} is of type {type(array).__name__}; accepted: torch.Tensor or numpy.ndarray"
    )


def _check_arrays(backend: Any, **arrays: Any) -> None:
    for name, array in arrays.items():
        refuse_masked(name, array)
        if not isinstance(array, backend.Array):
            raise TypeError(
                f"{name} is of type {type(array).__name__}; accepted: {backend.ARRAY_NAME}, as of "
                "the first array argument"
            )


def _joint(
    backend: Any,
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens: IntArray | None,
    prefix_lens: IntArray | None,
    seqused: IntArray | None,
    layout: str,
    block_size: int,
    order: str,
    clean: str,
    noisy: str,
    clean_window: int | None,
    num_views: int,
    max_seqlen: int | None,
    softmax_scale: float | None,
    softcap: float,
    dropout_p: float,
    dropout_seed: int | Array | None,
    deterministic: bool,
) -> tuple[Any, ...]:
    """Arguments of the operator diffusion_attention."""
    if not type(k) is type(v) is backend.Array:
        _check_arrays(backend, k=k, v=v)
    dropout_p, seed, state = backend.dropout(dropout_p, dropout_seed, q)
    return (
        q, k, v,
        backend.int_array("cu_seqlens", cu_seqlens, q),
        backend.int_array("prefix_lens", prefix_lens, q),
        backend.int_array("seqused", seqused, q),
        state,
        layout,
        check_integer("block_size", block_size),
        check_choice("order", order, ORDER),
        check_choice("clean", clean, CLEAN),
        check_choice("noisy", noisy, NOISY),
        clean_window_number(clean_window),
        check_integer("num_views", num_views),
        max_seqlen_number(max_seqlen),
        scale_number(softmax_scale),
        check_number("softcap", softcap),
        dropout_p, seed, check_flag("deterministic", deterministic),
    )  # fmt: skip


def _sequence(
    backend: Any,
    q: Array,
    k: Array,
    v: Array,
    mask: Mask,
    cu_seqlens: IntArray | None,
    cu_seqlens_kv: IntArray | None,
    prefix_lens: IntArray | None,
    seqused: IntArray | None,
    seqused_kv: IntArray | None,
    q_offset: int | IntArray,
    max_seqlen: int | None,
    softmax_scale: float | None,
    softcap: float,
    dropout_p: float,
    dropout_seed: int | Array | None,
    deterministic: bool,
) -> tuple[Any, ...]:
    """Arguments of the operator sequence_attention."""
    _check_arrays(backend, k=k, v=v)
    dropout_p, seed, state = backend.dropout(dropout_p, dropout_seed, q)
    q_offset, q_offsets = backend.offset("q_offset", q_offset, q)
    return (
        q, k, v,
        backend.int_array("cu_seqlens", cu_seqlens, q),
        backend.int_array("cu_seqlens_kv", cu_seqlens_kv, q),
        backend.int_array("prefix_lens", prefix_lens, q),
        backend.int_array("seqused", seqused, q),
        backend.int_array("seqused_kv", seqused_kv, q),
        q_offsets,
        state,
        *sequence_numbers(mask),
        q_offset,
        max_seqlen_number(max_seqlen),
        scale_number(softmax_scale),
        check_number("softcap", softcap),
        dropout_p, seed, check_flag("deterministic", deterministic),
    )  # fmt: skip


def _split(
    backend: Any,
    q_noisy: Array,
    k_noisy: Array,
    v_noisy: Array,
    k_clean: Array,
    v_clean: Array,
    block_size: int,
    q_clean: Array | None,
    block_ranges: IntArray | None,
    cu_seqlens_noisy: IntArray | None,
    cu_seqlens_clean: IntArray | None,
    cu_seqlens_clean_q: IntArray | None,
    max_seqlen: int | None,
    noisy_offset: int | IntArray,
    clean_q_offset: int | IntArray,
    softmax_scale: float | None,
    clean: str,
    noisy: str,
    prefix_lens: IntArray | None,
    seqused_noisy: IntArray | None,
    seqused_clean: IntArray | None,
    clean_window: int | None,
    num_views: int,
    softcap: float,
    dropout_p: float,
    dropout_seed: int | Array | None,
    deterministic: bool,
) -> tuple[Any, ...]:
    """Arguments of the operator split_attention."""
    q = q_noisy
    _check_arrays(backend, k_noisy=k_noisy, v_noisy=v_noisy, k_clean=k_clean, v_clean=v_clean)
    if q_clean is not None:
        _check_arrays(backend, q_clean=q_clean)
    dropout_p, seed, state = backend.dropout(dropout_p, dropout_seed, q)
    noisy_offset, noisy_offsets = backend.offset("noisy_offset", noisy_offset, q)
    clean_q_offset, clean_q_offsets = backend.offset("clean_q_offset", clean_q_offset, q)
    return (
        q_noisy, k_noisy, v_noisy, k_clean, v_clean, q_clean,
        backend.int_array("cu_seqlens_noisy", cu_seqlens_noisy, q),
        backend.int_array("cu_seqlens_clean", cu_seqlens_clean, q),
        backend.int_array("cu_seqlens_clean_q", cu_seqlens_clean_q, q),
        backend.int_array("prefix_lens", prefix_lens, q),
        backend.int_array("seqused_noisy", seqused_noisy, q),
        backend.int_array("seqused_clean", seqused_clean, q),
        backend.int_array("block_ranges", block_ranges, q),
        noisy_offsets, clean_q_offsets, state,
        check_integer("block_size", block_size),
        check_choice("clean", clean, CLEAN),
        check_choice("noisy", noisy, NOISY),
        clean_window_number(clean_window),
        check_integer("num_views", num_views),
        noisy_offset, clean_q_offset,
        max_seqlen_number(max_seqlen),
        scale_number(softmax_scale),
        check_number("softcap", softcap),
        dropout_p, seed, check_flag("deterministic", deterministic),
    )  # fmt: skip


def _joint_layout(layout: str | None, cu_seqlens: Any) -> str:
    if layout is None:
        return "batched" if cu_seqlens is None else "interleaved"
    return check_choice("layout", layout, JOINT_LAYOUT)


def diffusion_attn_func(
    q: Array,
    k: Array,
    v: Array,
    block_size: int,
    *,
    softmax_scale: float | None = None,
    order: str = "noisy_clean",
    clean: str = "block",
    noisy: str = "bidirectional",
    prefix_lens: IntArray | None = None,
    seqused: IntArray | None = None,
    clean_window: int | None = None,
    num_views: int = 1,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: int | Array | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Block diffusion attention on batched ``[noisy | clean]`` rows (BD3-LM, arXiv:2503.09573).

    A sample has n tokens per half. A noisy row sees the noisy tokens of its own block and the clean
    tokens before its block; a clean row sees the clean tokens up to the end of its block.

    Arrays are float32, float16 or bfloat16 (NumPy: float32, float16), all the same, with any
    strides whose last dimension is contiguous; on CUDA, those whose rows do not start at multiples
    of 16 bytes are copied first. Sums are float32. Integer arrays are int32 or int64, on the device
    of q, or lists.

    Args:
        q: queries ``(batch, (num_views + 1) * n, heads_q, head_dim)``; head_dim a multiple of 8 in
            [8, 256].
        k: keys ``(batch, (num_views + 1) * n, heads_kv, head_dim)``; heads_q is a multiple of
            heads_kv.
        v: values ``(batch, (num_views + 1) * n, heads_kv, head_dim_v)``.
        block_size: tokens of a diffusion block, >= 1. It need not divide n.
        softmax_scale: factor of the scores; None: 1 / sqrt(head_dim).
        order: "noisy_clean", or "clean_noisy" where the clean half comes first.
        clean: clean rows see clean tokens up to the end of their block ("block") or up to
            themselves ("causal").
        noisy: noisy rows see their whole block ("bidirectional") or the part up to themselves
            ("causal").
        prefix_lens: ``(batch,)`` position at which a block starts, such as the prompt's length;
            blocks count backward before it. None: 0.
        seqused: ``(batch,)`` valid tokens of each half; the rest is padding, whose output is 0 and
            whose lse is -inf. None: n.
        clean_window: noisy rows see only the clean tokens [start - clean_window + 1, start) before
            the start of their block; None: all before it.
        num_views: noisy copies ahead of one clean half that they share, each seeing itself only.
        softcap: scores become softcap * tanh(score / softcap) after scaling; 0: unchanged.
        dropout_p: probability that a visible pair is dropped after the softmax, in [0, 1); rounded
            to a multiple of 1/256, at least one.
        dropout_seed: an integer of 64 bits; or an int64 tensor ``(2,)`` of seed and offset on the
            device of q, which captured graphs may change between replays; or None: drawn from
            torch's generator (torch.manual_seed makes it reproducible). Backward drops the same
            pairs.
        deterministic: results are bitwise equal from run to run, gradients too.
        return_lse: return the log-sum-exp as well.

    Returns:
        out ``(batch, (num_views + 1) * n, heads_q, head_dim_v)``, like q; with return_lse also lse,
        float32 ``(batch, heads_q, (num_views + 1) * n)``: natural logarithm of the sum of the
        exponentials of the scaled, capped scores. A row that sees no key has out 0 and lse -inf.
        With torch both are differentiable (once).

    Raises:
        TypeError: a wrong type, dtype, rank or device; torch and NumPy arrays mixed.
        ValueError: a value or shape that is not accepted; the message names the argument.
        NotImplementedError: a feature or device that this build lacks.
    """
    check_flag("return_lse", return_lse)
    backend = _backend("q", q)
    out, lse = backend.diffusion_attention(
        *_joint(
            backend, q, k, v, None, prefix_lens, seqused,
            "batched", block_size, order, clean, noisy, clean_window, num_views, None,
            softmax_scale, softcap, dropout_p, dropout_seed, deterministic,
        ),
        lse=return_lse,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def diffusion_attn_varlen_func(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens: IntArray,
    max_seqlen: int | None,
    block_size: int,
    *,
    layout: str = "interleaved",
    softmax_scale: float | None = None,
    order: str = "noisy_clean",
    clean: str = "block",
    noisy: str = "bidirectional",
    prefix_lens: IntArray | None = None,
    seqused: IntArray | None = None,
    clean_window: int | None = None,
    num_views: int = 1,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: int | Array | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Block diffusion attention on packed samples of different lengths.

    Block origins are local to each sample. Rows beyond the last sample are padding: out 0, lse
    -inf, gradients 0.

    Args:
        q: queries ``(total, heads_q, head_dim)``.
        k: keys ``(total, heads_kv, head_dim)``.
        v: values ``(total, heads_kv, head_dim_v)``.
        cu_seqlens: ``(batch + 1,)`` running row counts from 0. Layout "interleaved": they count
            all rows of a sample, (num_views + 1) * n_i. Layout "halves": they count n_i.
        max_seqlen: an upper bound of n_i, the tokens of one half; None: not known. On CUDA it sizes
            the launch: None costs time where there are many samples, and rows of a sample past a
            bound that is too small are undefined.
        block_size: tokens of a diffusion block, >= 1.
        layout: "interleaved" for ``[n_1 c_1 n_2 c_2 ...]``; "halves" for all noisy rows, then all
            clean rows (with views: view 0 of all samples, view 1 of all samples, ..., then clean):
            each part takes total / (num_views + 1) rows, tail padding included.
        softmax_scale, order, clean, noisy, prefix_lens, seqused, clean_window, num_views, softcap,
        dropout_p, dropout_seed, deterministic, return_lse: as in :func:`diffusion_attn_func`.

    Returns:
        out ``(total, heads_q, head_dim_v)``; with return_lse also lse, float32
        ``(heads_q, total)``.

    Raises:
        As :func:`diffusion_attn_func`. Values of cu_seqlens are checked where they lie in host
        memory; on a device, kernels clamp them to the tensors' bounds, and the environment variable
        STEPWELL_DEBUG_SYNC=1 has them checked at the price of waiting for the device.
    """
    check_flag("return_lse", return_lse)
    backend = _backend("q", q)
    check_choice("layout", layout, PACKED_LAYOUT)
    if cu_seqlens is None:
        raise TypeError("cu_seqlens is None; accepted: an integer array (batch + 1,)")
    out, lse = backend.diffusion_attention(
        *_joint(
            backend, q, k, v, cu_seqlens, prefix_lens, seqused,
            layout, block_size, order, clean, noisy, clean_window, num_views, max_seqlen,
            softmax_scale, softcap, dropout_p, dropout_seed, deterministic,
        ),
        lse=return_lse,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def diffusion_attn_split_func(
    q_noisy: Array,
    k_noisy: Array,
    v_noisy: Array,
    k_clean: Array,
    v_clean: Array,
    block_size: int,
    *,
    q_clean: Array | None = None,
    block_ranges: IntArray | None = None,
    cu_seqlens_noisy: IntArray | None = None,
    cu_seqlens_clean: IntArray | None = None,
    cu_seqlens_clean_q: IntArray | None = None,
    max_seqlen: int | None = None,
    noisy_offset: int | IntArray = 0,
    clean_q_offset: int | IntArray = 0,
    softmax_scale: float | None = None,
    clean: str = "block",
    noisy: str = "bidirectional",
    prefix_lens: IntArray | None = None,
    seqused_noisy: IntArray | None = None,
    seqused_clean: IntArray | None = None,
    clean_window: int | None = None,
    num_views: int = 1,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: int | Array | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> tuple[Any, ...]:
    """Block diffusion attention with noisy and clean rows in tensors of their own.

    For halves of unequal length, trainers without clean queries, tables of clean intervals and
    sequences sharded over devices. Tensors are batched (rank 4), or packed (rank 3) with
    cu_seqlens_noisy and cu_seqlens_clean.

    Args:
        q_noisy: ``(batch, num_views * n, heads_q, head_dim)`` or
            ``(total_noisy, heads_q, head_dim)``; views one after the other within a sample.
        k_noisy, v_noisy: the same rows, heads_kv heads.
        k_clean, v_clean: ``(batch, clean rows, heads_kv, ...)`` or packed
            ``(total_clean, heads_kv, ...)``; they may have no rows.
        block_size: tokens of a diffusion block, >= 1.
        q_clean: ``(batch, clean queries, heads_q, head_dim)`` or packed; None: clean rows are keys
            only.
        block_ranges: ``(num_blocks, 2)`` or ``(batch, num_blocks, 2)``: noisy block j, counted
            from the first noisy row of its sample, sees the clean keys of indices [lo, hi) instead
            of those before its block.
        cu_seqlens_noisy: ``(batch + 1,)`` running counts of noisy rows, all views.
        cu_seqlens_clean: ``(batch + 1,)`` running counts of rows of k_clean (and of q_clean).
        cu_seqlens_clean_q: ``(batch + 1,)`` running counts of rows of q_clean, where they differ.
        max_seqlen: packed: an upper bound of the tokens of one half, as in
            :func:`diffusion_attn_varlen_func`; None: not known.
        noisy_offset: position of the first noisy row in its sample, or ``(batch,)`` of them.
        clean_q_offset: position of the first clean query, or ``(batch,)`` of them. Clean keys
            start at position 0.
        seqused_noisy: ``(batch,)`` valid tokens of each noisy view.
        seqused_clean: ``(batch,)`` valid clean tokens: keys, and queries at those positions.
        softmax_scale, clean, noisy, prefix_lens, clean_window, num_views, softcap, dropout_p,
        dropout_seed, deterministic: as in :func:`diffusion_attn_func`.
        return_lse: return the log-sum-exps as well.

    Returns:
        ``(out_noisy, out_clean)``, or with return_lse ``(out_noisy, out_clean, lse_noisy,
        lse_clean)``. out_clean and lse_clean are None without q_clean. lse is float32
        ``(batch, heads_q, rows)``, packed ``(heads_q, rows)``.

    Raises:
        As :func:`diffusion_attn_func`.
    """
    check_flag("return_lse", return_lse)
    backend = _backend("q_noisy", q_noisy)
    out, lse, out_clean, lse_clean = backend.split_attention(
        *_split(
            backend, q_noisy, k_noisy, v_noisy, k_clean, v_clean, block_size, q_clean,
            block_ranges, cu_seqlens_noisy, cu_seqlens_clean, cu_seqlens_clean_q, max_seqlen,
            noisy_offset, clean_q_offset, softmax_scale, clean, noisy, prefix_lens,
            seqused_noisy, seqused_clean, clean_window, num_views, softcap,
            dropout_p, dropout_seed, deterministic,
        ),
        lse=return_lse,
    )  # fmt: skip
    if q_clean is None:
        out_clean, lse_clean = None, None
    return (out, out_clean, lse, lse_clean) if return_lse else (out, out_clean)


def block_causal_attn_func(
    q: Array,
    k: Array,
    v: Array,
    block_size: int,
    *,
    q_offset: int | IntArray = 0,
    prefix_lens: IntArray | None = None,
    seqused: IntArray | None = None,
    seqused_kv: IntArray | None = None,
    cu_seqlens: IntArray | None = None,
    cu_seqlens_kv: IntArray | None = None,
    max_seqlen: int | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: int | Array | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Block-causal attention of one sequence: a row sees the keys up to the end of its block.

    For prefill, replay of log-probabilities and training without a noisy half.

    Args:
        q: queries ``(batch, len_q, heads_q, head_dim)`` or packed ``(total, heads_q, head_dim)``.
        k: keys ``(batch, len_kv, heads_kv, head_dim)`` or packed.
        v: values ``(batch, len_kv, heads_kv, head_dim_v)`` or packed.
        block_size: tokens of a block, >= 1.
        q_offset: position of the first query, or ``(batch,)`` of them. Keys start at position 0.
        prefix_lens: ``(batch,)`` position at which a block starts; blocks count backward before it.
        seqused: ``(batch,)`` valid queries.
        seqused_kv: ``(batch,)`` valid keys.
        cu_seqlens: ``(batch + 1,)`` running counts of queries; makes the tensors packed.
        cu_seqlens_kv: ``(batch + 1,)`` running counts of keys; None: as cu_seqlens.
        max_seqlen: packed: an upper bound of a sample's length, as in
            :func:`diffusion_attn_varlen_func`; None: not known.
        softmax_scale, softcap, dropout_p, dropout_seed, deterministic, return_lse: as in
            :func:`diffusion_attn_func`.

    Returns:
        out, like q with the last dimension of v; with return_lse also lse, float32
        ``(batch, heads_q, len_q)``, packed ``(heads_q, total)``.

    Raises:
        As :func:`diffusion_attn_func`.
    """
    return attention(
        q, k, v, BlockCausal(block_size), q_offset=q_offset, prefix_lens=prefix_lens,
        seqused=seqused, seqused_kv=seqused_kv, cu_seqlens=cu_seqlens, cu_seqlens_kv=cu_seqlens_kv,
        max_seqlen=max_seqlen, softmax_scale=softmax_scale, softcap=softcap, dropout_p=dropout_p,
        dropout_seed=dropout_seed, deterministic=deterministic, return_lse=return_lse,
    )  # fmt: skip


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | str = "full",
    *,
    layout: str | None = None,
    q_offset: int | IntArray = 0,
    prefix_lens: IntArray | None = None,
    seqused: IntArray | None = None,
    seqused_kv: IntArray | None = None,
    cu_seqlens: IntArray | None = None,
    cu_seqlens_kv: IntArray | None = None,
    max_seqlen: int | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: int | Array | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Attention under any mask of :mod:`stepwell.masks`.

    Args:
        q: queries ``(batch, len_q, heads_q, head_dim)`` or packed ``(total, heads_q, head_dim)``.
        k: keys ``(batch, len_kv, heads_kv, head_dim)`` or packed.
        v: values ``(batch, len_kv, heads_kv, head_dim_v)`` or packed.
        mask: "full", "causal", or an object of stepwell.masks. Causal masks count positions from
            the first key: the query of index i is at position q_offset + i.
        layout: Diffusion masks only: "batched", "interleaved" or "halves", as in
            :func:`diffusion_attn_varlen_func`; None: "interleaved" with cu_seqlens, else "batched".
        q_offset, seqused_kv, cu_seqlens_kv: as in :func:`block_causal_attn_func`; not accepted
            with Diffusion masks.
        prefix_lens: as in :func:`diffusion_attn_func`; BlockCausal and Diffusion masks only.
        seqused: ``(batch,)`` valid queries; Diffusion masks: valid tokens of each half.
        cu_seqlens: ``(batch + 1,)`` running counts of queries; makes the tensors packed.
        max_seqlen: packed: an upper bound of a sample's length (Diffusion: of one half's).
        softmax_scale, softcap, dropout_p, dropout_seed, deterministic, return_lse: as in
            :func:`diffusion_attn_func`.

    Returns:
        out, like q with the last dimension of v; with return_lse also lse, float32
        ``(batch, heads_q, len_q)``, packed ``(heads_q, total)``.

    Raises:
        As :func:`diffusion_attn_func`.
    """
    check_flag("return_lse", return_lse)
    mask = as_mask(mask)
    backend = _backend("q", q)
    if isinstance(mask, Diffusion):
        _refuse_sequence_arguments(q_offset, seqused_kv, cu_seqlens_kv)
        out, lse = backend.diffusion_attention(
            *_joint(
                backend, q, k, v, cu_seqlens, prefix_lens, seqused,
                _joint_layout(layout, cu_seqlens), mask.block_size, mask.order, mask.clean,
                mask.noisy, mask.clean_window, mask.num_views, max_seqlen,
                softmax_scale, softcap, dropout_p, dropout_seed, deterministic,
            ),
            lse=return_lse,
        )  # fmt: skip
    else:
        _refuse_layout(layout, mask)
        out, lse = backend.sequence_attention(
            *_sequence(
                backend, q, k, v, mask, cu_seqlens, cu_seqlens_kv, prefix_lens, seqused,
                seqused_kv, q_offset, max_seqlen,
                softmax_scale, softcap, dropout_p, dropout_seed, deterministic,
            ),
            lse=return_lse,
        )  # fmt: skip
    return (out, lse) if return_lse else out


def _refuse_sequence_arguments(q_offset: Any, seqused_kv: Any, cu_seqlens_kv: Any) -> None:
    for name, given in (
        ("q_offset", not is_zero("q_offset", q_offset)),
        ("seqused_kv", seqused_kv is not None),
        ("cu_seqlens_kv", cu_seqlens_kv is not None),
    ):
        if given:
            raise ValueError(f"{name} is given; accepted: masks other than Diffusion")


def _refuse_layout(layout: str | None, mask: Mask) -> None:
    if layout is not None:
        raise ValueError(
            f'layout is "{layout}" with the mask {mask!r}; accepted: None, or a Diffusion mask'
        )


def diffusion_attn_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    block_size: int,
    *,
    dlse: Array | None = None,
    cu_seqlens: IntArray | None = None,
    max_seqlen: int | None = None,
    layout: str | None = None,
    softmax_scale: float | None = None,
    order: str = "noisy_clean",
    clean: str = "block",
    noisy: str = "bidirectional",
    prefix_lens: IntArray | None = None,
    seqused: IntArray | None = None,
    clean_window: int | None = None,
    num_views: int = 1,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: int | Array | None = None,
    deterministic: bool = False,
) -> tuple[Array, Array, Array]:
    """Gradients of :func:`diffusion_attn_func` and :func:`diffusion_attn_varlen_func`.

    For NumPy, and for torch code that does without autograd.

    Args:
        dout: gradient of out, like out.
        q, k, v: inputs of the forward pass.
        out, lse: its results, with return_lse.
        block_size: as in the forward pass.
        dlse: gradient of lse, like lse; None: 0.
        cu_seqlens: given where samples are packed.
        layout: "batched", "interleaved" or "halves"; None: "interleaved" with cu_seqlens, else
            "batched".
        dropout_seed: as in the forward pass; with dropout it must be given.
        max_seqlen, softmax_scale, order, clean, noisy, prefix_lens, seqused, clean_window,
        num_views, softcap, dropout_p, deterministic: as in the forward pass.

    Returns:
        ``(dq, dk, dv)``, like q, k and v.

    Raises:
        As :func:`diffusion_attn_func`.
    """
    backend = _backend("q", q)
    _check_gradients(backend, dropout_p, dropout_seed, dout=dout, out=out, lse=lse, dlse=dlse)
    arguments = _joint(
        backend, q, k, v, cu_seqlens, prefix_lens, seqused,
        _joint_layout(layout, cu_seqlens), block_size, order, clean, noisy, clean_window,
        num_views, max_seqlen, softmax_scale, softcap, dropout_p, dropout_seed, deterministic,
    )  # fmt: skip
    return tuple(backend.diffusion_attention_backward(dout, dlse, out, lse, *arguments))


def diffusion_attn_split_backward(
    dout_noisy: Array,
    q_noisy: Array,
    k_noisy: Array,
    v_noisy: Array,
    k_clean: Array,
    v_clean: Array,
    out_noisy: Array,
    lse_noisy: Array,
    block_size: int,
    *,
    q_clean: Array | None = None,
    dout_clean: Array | None = None,
    out_clean: Array | None = None,
    lse_clean: Array | None = None,
    dlse_noisy: Array | None = None,
    dlse_clean: Array | None = None,
    block_ranges: IntArray | None = None,
    cu_seqlens_noisy: IntArray | None = None,
    cu_seqlens_clean: IntArray | None = None,
    cu_seqlens_clean_q: IntArray | None = None,
    max_seqlen: int | None = None,
    noisy_offset: int | IntArray = 0,
    clean_q_offset: int | IntArray = 0,
    softmax_scale: float | None = None,
    clean: str = "block",
    noisy: str = "bidirectional",
    prefix_lens: IntArray | None = None,
    seqused_noisy: IntArray | None = None,
    seqused_clean: IntArray | None = None,
    clean_window: int | None = None,
    num_views: int = 1,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: int | Array | None = None,
    deterministic: bool = False,
) -> tuple[Any, ...]:
    """Gradients of :func:`diffusion_attn_split_func`.

    Args:
        dout_noisy, out_noisy, lse_noisy: gradient of the noisy output, and the forward pass's
            results.
        dout_clean, out_clean, lse_clean: the same of the clean rows; given exactly when q_clean is.
        dlse_noisy, dlse_clean: gradients of the log-sum-exps; None: 0.
        dropout_seed: as in the forward pass; with dropout it must be given.
        The others are those of the forward pass.

    Returns:
        ``(dq_noisy, dk_noisy, dv_noisy, dk_clean, dv_clean, dq_clean)``; dq_clean is None without
        q_clean.

    Raises:
        As :func:`diffusion_attn_func`.
    """
    backend = _backend("q_noisy", q_noisy)
    _check_gradients(
        backend, dropout_p, dropout_seed, dout_noisy=dout_noisy, out_noisy=out_noisy,
        lse_noisy=lse_noisy, dlse_noisy=dlse_noisy,
    )  # fmt: skip
    results = {"dout_clean": dout_clean, "out_clean": out_clean, "lse_clean": lse_clean}
    if q_clean is not None:
        _check_gradients(backend, 0.0, None, **results, dlse_clean=dlse_clean)
    else:
        for name, array in {**results, "dlse_clean": dlse_clean}.items():
            if array is not None:
                raise ValueError(f"{name} is given; accepted: with q_clean only")
        dout_clean, out_clean, lse_clean = dout_noisy, out_noisy, lse_noisy
    arguments = _split(
        backend, q_noisy, k_noisy, v_noisy, k_clean, v_clean, block_size, q_clean, block_ranges,
        cu_seqlens_noisy, cu_seqlens_clean, cu_seqlens_clean_q, max_seqlen, noisy_offset,
        clean_q_offset, softmax_scale, clean, noisy, prefix_lens, seqused_noisy, seqused_clean,
        clean_window, num_views, softcap, dropout_p, dropout_seed, deterministic,
    )  # fmt: skip
    *gradients, dq_clean = backend.split_attention_backward(
        dout_noisy, dlse_noisy, out_noisy, lse_noisy,
        dout_clean, dlse_clean, out_clean, lse_clean, *arguments,
    )  # fmt: skip
    return (*gradients, None if q_clean is None else dq_clean)


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    mask: Mask | str = "full",
    *,
    dlse: Array | None = None,
    layout: str | None = None,
    q_offset: int | IntArray = 0,
    prefix_lens: IntArray | None = None,
    seqused: IntArray | None = None,
    seqused_kv: IntArray | None = None,
    cu_seqlens: IntArray | None = None,
    cu_seqlens_kv: IntArray | None = None,
    max_seqlen: int | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: int | Array | None = None,
    deterministic: bool = False,
) -> tuple[Array, Array, Array]:
    """Gradients of :func:`attention` and :func:`block_causal_attn_func`.

    Args:
        dout: gradient of out, like out.
        q, k, v: inputs of the forward pass.
        out, lse: its results, with return_lse.
        dlse: gradient of lse, like lse; None: 0.
        dropout_seed: as in the forward pass; with dropout it must be given.
        The others are those of the forward pass.

    Returns:
        ``(dq, dk, dv)``, like q, k and v.

    Raises:
        As :func:`diffusion_attn_func`.
    """
    mask = as_mask(mask)
    backend = _backend("q", q)
    _check_gradients(backend, dropout_p, dropout_seed, dout=dout, out=out, lse=lse, dlse=dlse)
    if isinstance(mask, Diffusion):
        _refuse_sequence_arguments(q_offset, seqused_kv, cu_seqlens_kv)
        arguments = _joint(
            backend, q, k, v, cu_seqlens, prefix_lens, seqused,
            _joint_layout(layout, cu_seqlens), mask.block_size, mask.order, mask.clean,
            mask.noisy, mask.clean_window, mask.num_views, max_seqlen,
            softmax_scale, softcap, dropout_p, dropout_seed, deterministic,
        )  # fmt: skip
        return tuple(backend.diffusion_attention_backward(dout, dlse, out, lse, *arguments))
    _refuse_layout(layout, mask)
    arguments = _sequence(
        backend, q, k, v, mask, cu_seqlens, cu_seqlens_kv, prefix_lens, seqused,
        seqused_kv, q_offset, max_seqlen,
        softmax_scale, softcap, dropout_p, dropout_seed, deterministic,
    )  # fmt: skip
    return tuple(backend.sequence_attention_backward(dout, dlse, out, lse, *arguments))


def _check_gradients(
    backend: Any, dropout_p: float, dropout_seed: Any, **arrays: Array | None
) -> None:
    for name, array in arrays.items():
        if array is not None or not name.startswith("dlse"):
            _check_arrays(backend, **{name: array})
    dropout_p = check_number("dropout_p", dropout_p)
    # What is no probability is refused later, under its own name.
    if dropout_seed is None and 0.0 < dropout_p < 1.0:
        raise ValueError(
            f"dropout_seed is None and dropout_p is {dropout_p}; accepted: the seed of the "
            "forward pass"
        )
