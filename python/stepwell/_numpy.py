"""NumPy twins of the torch operators: the same arguments and results, without torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _binding
from ._arguments import (
    INT32_MAX,
    INT32_MIN,
    check_int32_list,
    check_integer,
    check_number,
    check_seed,
    refuse_masked,
)

Array = np.ndarray
ARRAY_NAME = "numpy.ndarray"


class _Memory:
    """An array's memory under a writable interface: DLPack refuses read-only arrays."""

    def __init__(self, array: np.ndarray) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array


def readable(name: str, array: np.ndarray | None) -> np.ndarray | None:
    """The array as the binding takes it; it is only read, never copied."""
    if array is None:
        return None
    refuse_masked(name, array)
    if not array.dtype.isnative or array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}; accepted: native float32, float16")
    return array if array.flags.writeable else np.asarray(_Memory(array))


def int_array(name: str, value: Any, q: Any = None) -> np.ndarray | None:
    """A contiguous int32 array for an array, list or tuple of integers."""
    if value is None:
        return None
    refuse_masked(name, value)
    if isinstance(value, np.ndarray):
        if value.dtype not in (np.int32, np.int64):
            raise TypeError(f"{name} has dtype {value.dtype}; accepted: int32, int64")
        wrong = value[(value < INT32_MIN) | (value > INT32_MAX)]
        if wrong.size:
            raise ValueError(f"{name} holds {wrong[0]}; accepted: integers of 32 bits")
        return readable(name, np.ascontiguousarray(value, dtype=np.int32))
    if isinstance(value, (list, tuple)):
        check_int32_list(name, value)
        return np.asarray(value, dtype=np.int32)
    raise TypeError(
        f"{name} is of type {type(value).__name__}; accepted with NumPy arrays: numpy.ndarray of "
        "int32 or int64, or a list of integers"
    )


def offset(name: str, value: Any, q: Any = None) -> tuple[int, np.ndarray | None]:
    """A number for all samples, or an array with one for each."""
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0):
        return 0, int_array(name, value)
    return check_integer(name, value), None


def dropout(p: Any, seed: Any, q: Any = None) -> tuple[float, int, np.ndarray | None]:
    """Probability, seed, and the array (seed, offset) that replaces the seed."""
    p = check_number("dropout_p", p)
    if isinstance(seed, np.ndarray) and seed.ndim > 0:
        return p, 0, readable("dropout_seed", seed)
    if seed is not None:
        return p, check_seed(seed), None
    if p == 0.0:
        return p, 0, None
    raise ValueError(
        "dropout_seed is None and dropout_p is not 0; accepted with NumPy arrays: an integer, or "
        "an int64 array (seed, offset)"
    )


def _outputs(
    name: str, q: np.ndarray, v: np.ndarray, lse: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    shape = q.shape
    if len(shape) == 4:
        lse_shape = (shape[0], shape[2], shape[1])
    elif len(shape) == 3:
        lse_shape = (shape[1], shape[0])
    else:
        raise TypeError(
            f"{name} has shape {list(shape)}; accepted: rank 4 (batch, rows, heads, head_dim), or "
            "rank 3 (rows, heads, head_dim) where samples are packed"
        )
    out = np.empty((*shape[:-1], *v.shape[-1:]), q.dtype)
    return out, np.empty(lse_shape, np.float32) if lse else None


def _last_dim_contiguous(array: np.ndarray) -> np.ndarray:
    ok = array.ndim > 0 and array.strides[-1] == array.itemsize
    return array if ok else np.ascontiguousarray(array)


def _gradient(array: np.ndarray) -> np.ndarray:
    return np.empty(array.shape, array.dtype)


def _plain(prefix: Any, args: tuple[Any, ...], lse: bool) -> tuple[np.ndarray, np.ndarray | None]:
    q, k, v = (readable(*named) for named in zip("qkv", args[:3], strict=True))
    out, row_lse = _outputs("q", q, v, lse)
    _binding.attention_forward(*prefix(q, k, v, *args[3:], 0), out, row_lse, None, None)
    return out, row_lse


def _plain_backward(prefix, dout, dlse, out, lse, args):
    q, k, v = (readable(*named) for named in zip("qkv", args[:3], strict=True))
    dq, dk, dv = _gradient(q), _gradient(k), _gradient(v)
    _binding.attention_backward(
        *prefix(q, k, v, *args[3:], 0),
        readable("out", out), readable("lse", lse),
        _last_dim_contiguous(readable("dout", dout)), readable("dlse", dlse),
        None, None, None, None, dq, dk, dv, None, None, None,
    )  # fmt: skip
    return dq, dk, dv


def diffusion_attention(*args, lse):
    return _plain(_binding.joint_prefix, args, lse)


def diffusion_attention_backward(dout, dlse, out, lse, *args):
    return _plain_backward(_binding.joint_prefix, dout, dlse, out, lse, args)


def sequence_attention(*args, lse):
    return _plain(_binding.sequence_prefix, args, lse)


def sequence_attention_backward(dout, dlse, out, lse, *args):
    return _plain_backward(_binding.sequence_prefix, dout, dlse, out, lse, args)


_SPLIT = ("q_noisy", "k_noisy", "v_noisy", "k_clean", "v_clean", "q_clean")


def _split_inputs(args: tuple[Any, ...]) -> list[np.ndarray | None]:
    return [readable(name, array) for name, array in zip(_SPLIT, args[:6], strict=True)]


def split_attention(*args, lse):
    inputs = _split_inputs(args)
    out, lse_noisy = _outputs("q_noisy", inputs[0], inputs[2], lse)
    prefix = _binding.split_prefix(*inputs, *args[6:], 0)
    if inputs[5] is None:
        _binding.attention_forward(*prefix, out, lse_noisy, None, None)
        return out, lse_noisy, None, None
    out_clean, lse_clean = _outputs("q_clean", inputs[5], inputs[4], lse)
    _binding.attention_forward(*prefix, out, lse_noisy, out_clean, lse_clean)
    return out, lse_noisy, out_clean, lse_clean


def split_attention_backward(
    dout, dlse, out, lse, dout_clean, dlse_clean, out_clean, lse_clean, *args
):  # fmt: skip
    inputs = _split_inputs(args)
    gradients = [None if array is None else _gradient(array) for array in inputs]
    dq, dk, dv, dk_clean, dv_clean, dq_clean = gradients
    clean = (None, None, None, None)
    if inputs[5] is not None:
        clean = (
            readable("out_clean", out_clean),
            readable("lse_clean", lse_clean),
            _last_dim_contiguous(readable("dout_clean", dout_clean)),
            readable("dlse_clean", dlse_clean),
        )
    _binding.attention_backward(
        *_binding.split_prefix(*inputs, *args[6:], 0),
        readable("out_noisy", out), readable("lse_noisy", lse),
        _last_dim_contiguous(readable("dout_noisy", dout)), readable("dlse_noisy", dlse),
        *clean, dq, dk, dv, dq_clean, dk_clean, dv_clean,
    )  # fmt: skip
    return gradients
