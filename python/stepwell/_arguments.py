"""What C++ cannot check: Python types, and strings that stand for enumerations."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

try:
    from torch import compiler
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    compiler = None

LAYOUT = {"batched": 0, "interleaved": 1, "halves": 2, "split": 3, "sequence": 4}
MASK_KIND = {"diffusion": 0, "full": 1, "causal": 2, "window": 3, "block_causal": 4}
ORDER = {"noisy_clean": 0, "clean_noisy": 1}
CLEAN = {"block": 0, "causal": 1}
NOISY = {"bidirectional": 0, "causal": 1}
JOINT_LAYOUT = {name: LAYOUT[name] for name in ("batched", "interleaved", "halves")}
DIFFUSION_LAYOUT = {**JOINT_LAYOUT, "split": LAYOUT["split"]}
PACKED_LAYOUT = {name: LAYOUT[name] for name in ("interleaved", "halves")}

MAX_LENGTH = 2**28  # kMaxLength of src/geometry/interval.hpp

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def check_choice(name: str, value: Any, accepted: dict[str, int]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is of type {type(value).__name__}; accepted: {_quoted(accepted)}")
    if value not in accepted:
        raise ValueError(f'{name} is "{value}"; accepted: {_quoted(accepted)}')
    return value


def check_integer(name: str, value: Any) -> Any:
    """`value` as an int (or symbolic int) of 64 bits; its range is checked in C++."""
    if type(value) is not int:
        if _is_symbolic(value):
            return value
        value = _plain_integer(name, value)
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"{name} is {_short(value)}; accepted: integers of 64 bits")
    return value


def _plain_integer(name: str, value: Any, accepted: str = "an integer") -> int:
    if not isinstance(value, bool) and not _is_array(value):
        try:
            return operator.index(value)  # NumPy's scalars
        except TypeError:
            pass
    raise TypeError(f"{name} must be {accepted}, got {_text(value)}")


def check_length(name: str, value: Any) -> Any:
    """`value` as an int (or symbolic int) in [1, MAX_LENGTH].

    While compiling the range is left to the operator: an error raised there is a ValueError, one
    raised here is torch's about what it cannot compile.
    """
    value = check_integer(name, value)
    if not is_compiling() and not 1 <= value <= MAX_LENGTH:
        raise ValueError(f"{name} is {value}; it must be an integer in [1, {MAX_LENGTH}]")
    return value


def is_zero(name: str, value: Any) -> bool:
    """Whether `value`, a number or an array or list of them, is the number 0."""
    if type(value) is int or _is_symbolic(value):
        return value == 0
    if isinstance(value, (list, tuple)) or _is_array(value):
        return False
    return check_integer(name, value) == 0


def check_flag(name: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {_text(value)}")


def check_number(name: str, value: Any) -> float:
    """`value` as a float; its range is checked in C++."""
    if type(value) is float or _is_symbolic(value):
        # A default of 0 that a compiler took for an input is a constant again.
        return 0.0 if value == 0.0 else value
    # NumPy's scalars and arrays without dimensions are numbers where their type is one.
    of_numpy = isinstance(value, (np.generic, np.ndarray))
    if (
        isinstance(value, (bool, str))
        or _is_array(value)
        or (of_numpy and value.dtype.kind not in "iuf")
        or not hasattr(value, "__float__")
    ):
        raise TypeError(f"{name} must be a number, got {_text(value)}")
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name} is {_short(value)}; accepted: numbers that a float can hold"
        ) from error


def scale_number(softmax_scale: Any) -> float | None:
    return None if softmax_scale is None else check_number("softmax_scale", softmax_scale)


def clean_window_number(clean_window: Any) -> int:
    """The binding's number: 0 stands for no window."""
    if clean_window is None:
        return 0
    clean_window = check_integer("clean_window", clean_window)
    if not 1 <= clean_window <= MAX_LENGTH:
        raise ValueError(
            f"clean_window is {clean_window}; it must be an integer in [1, {MAX_LENGTH}], or None "
            "for no window"
        )
    return clean_window


def max_seqlen_number(max_seqlen: Any) -> int:
    """The binding's number: -1 stands for not known."""
    if max_seqlen is None:
        return -1
    max_seqlen = check_integer("max_seqlen", max_seqlen)
    if max_seqlen < 0:
        raise ValueError(f"max_seqlen is {max_seqlen}; accepted: 0 or more, or None if not known")
    return max_seqlen


def check_seed(seed: Any) -> int:
    """A seed of 64 bits, signed or unsigned, as the signed number of the same bits."""
    if type(seed) is not int and not _is_symbolic(seed):
        accepted = "an integer, an int64 array (2,) of seed and offset, or None"
        seed = _plain_integer("dropout_seed", seed, accepted)
    if type(seed) is int and INT64_MAX < seed < 2**64:
        seed -= 2**64
    return check_integer("dropout_seed", seed)


def check_int32_list(name: str, values: Any) -> list[int]:
    """The shape of a (nested) list or tuple of integers of 32 bits."""
    first: list[int] = []
    for i, value in enumerate(values):
        shape: list[int] = []
        if isinstance(value, (list, tuple)):
            shape = check_int32_list(name, value)
        elif not INT32_MIN <= check_integer(name, value) <= INT32_MAX:
            raise ValueError(f"{name} holds {value}; accepted: integers of 32 bits")
        if i == 0:
            first = shape
        elif shape != first:
            raise ValueError(
                f"{name} is a ragged list: its parts 0 and {i} have shapes {first} and {shape}; "
                "accepted: parts of one shape"
            )
    return [len(values), *first]


def is_compiling() -> bool:
    return compiler is not None and compiler.is_compiling()


def _is_symbolic(value: Any) -> bool:
    return type(value).__name__ in ("SymInt", "SymFloat")


def refuse_masked(name: str, value: Any) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a numpy.ma.MaskedArray, whose masked values would count; accepted: "
            "numpy.ndarray"
        )


def _is_array(value: Any) -> bool:
    return (
        getattr(value, "ndim", 0) != 0
        or type(value).__module__.partition(".")[0] == "torch"
        or isinstance(value, np.ma.MaskedArray)
    )


def _quoted(names: dict[str, int]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _text(value: Any) -> str:
    if _is_array(value):
        return f"an array of type {type(value).__name__}"
    return f"{value!r} of type {type(value).__name__}"


def _short(value: Any) -> str:
    """The value; Python writes integers of a few thousand digits at most."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return str(value)
