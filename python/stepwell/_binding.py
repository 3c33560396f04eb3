"""The compiled library, and its functions' positional arguments.

Every attention function of the library takes the same prefix of arguments (the fields of
``AttentionArgs`` in ``include/stepwell/attention.hpp``); the three functions below build it for the
three families of operators, from the arguments that the torch operators and their NumPy twins
share.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import tvm_ffi

from ._arguments import CLEAN, LAYOUT, MASK_KIND, NOISY, ORDER, check_choice

_LIBRARY = "_stepwell.so"


class _Codes(dict[str, int]):
    """The numbers of an argument's strings. The operators take any string, so others end here."""

    def __init__(self, name: str, codes: dict[str, int]) -> None:
        super().__init__(codes)
        self._name = name

    def __missing__(self, value: str) -> int:
        check_choice(self._name, value, self)
        raise AssertionError  # not reached: the value is none of the accepted


_LAYOUT = _Codes("layout", LAYOUT)
_MASK_KIND = _Codes("mask", MASK_KIND)
_ORDER = _Codes("order", ORDER)
_CLEAN = _Codes("clean", CLEAN)
_NOISY = _Codes("noisy", NOISY)

# Tensors at the head of each family's arguments; the rest are numbers and strings.
JOINT_TENSORS = 7
SPLIT_TENSORS = 16
SEQUENCE_TENSORS = 10


# tvm-ffi turns errors of kinds it does not know into RuntimeError.
tvm_ffi.register_error("NotImplementedError", NotImplementedError)


def _load() -> Any:
    path = Path(__file__).with_name(_LIBRARY)
    if not path.exists():
        raise ImportError(
            f"stepwell's compiled library {path} is missing; install the package with "
            "`pip install .` in the repository, or build it with -DSTEPWELL_BUILD_PYTHON=ON"
        )
    return tvm_ffi.load_module(str(path))


def _nvidia_library_dirs() -> list[str]:
    """Folders of NVRTC in NVIDIA's wheels, which torch's builds for CUDA bring; newest first."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else spec.submodule_search_locations or []
    parts = ("cu13/lib", "cuda_nvrtc/lib")
    return [
        str(Path(place, part)) for part in parts for place in places if Path(place, part).is_dir()
    ]


_logger = logging.getLogger("stepwell")


def _log(level: int, line: str) -> None:
    _logger.log(logging.WARNING if level else logging.INFO, "%s", line)


_module = _load()
_module.set_library_dirs(":".join(_nvidia_library_dirs()))
_module.set_log_callback(_log)
attention_forward = _module.attention_forward
attention_backward = _module.attention_backward
# Of the same arguments, what the plan of the call says of itself.
attention_forward_plan = _module.attention_forward_plan
attention_backward_plan = _module.attention_backward_plan
attention_mask = _module.attention_mask
visible_pairs = _module.visible_pairs
version: str = _module.version()


def joint_prefix(
    q, k, v, cu_seqlens, prefix_lens, seqused, dropout_state,
    layout, block_size, order, clean, noisy, clean_window, num_views, max_seqlen,
    softmax_scale, softcap, dropout_p, dropout_seed, deterministic, num_threads,
) -> tuple[Any, ...]:  # fmt: skip
    """Noisy and clean rows in one tensor."""
    return (
        _LAYOUT[layout], _MASK_KIND["diffusion"], block_size,
        _ORDER[order], _CLEAN[clean], _NOISY[noisy], clean_window, num_views, -1, -1,
        q, k, v, None, None, None,
        cu_seqlens, None, None, None,
        prefix_lens, seqused, None, None, None, None, None,
        0, 0, max_seqlen,
        softmax_scale, softcap, dropout_p, dropout_state, dropout_seed, 0,
        deterministic, num_threads,
    )  # fmt: skip


def split_prefix(
    q_noisy, k_noisy, v_noisy, k_clean, v_clean, q_clean,
    cu_seqlens_noisy, cu_seqlens_clean, cu_seqlens_clean_q,
    prefix_lens, seqused_noisy, seqused_clean, block_ranges,
    noisy_offsets, clean_q_offsets, dropout_state,
    block_size, clean, noisy, clean_window, num_views, noisy_offset, clean_q_offset, max_seqlen,
    softmax_scale, softcap, dropout_p, dropout_seed, deterministic, num_threads,
) -> tuple[Any, ...]:  # fmt: skip
    """Noisy and clean rows in tensors of their own."""
    return (
        _LAYOUT["split"], _MASK_KIND["diffusion"], block_size,
        _ORDER["noisy_clean"], _CLEAN[clean], _NOISY[noisy], clean_window, num_views, -1, -1,
        q_noisy, k_noisy, v_noisy, q_clean, k_clean, v_clean,
        cu_seqlens_noisy, cu_seqlens_clean, cu_seqlens_clean_q, None,
        prefix_lens, seqused_noisy, seqused_clean, None,
        block_ranges, noisy_offsets, clean_q_offsets,
        noisy_offset, clean_q_offset, max_seqlen,
        softmax_scale, softcap, dropout_p, dropout_state, dropout_seed, 0,
        deterministic, num_threads,
    )  # fmt: skip


def sequence_prefix(
    q, k, v, cu_seqlens, cu_seqlens_kv, prefix_lens, seqused, seqused_kv, q_offsets, dropout_state,
    mask, block_size, window_left, window_right, q_offset, max_seqlen,
    softmax_scale, softcap, dropout_p, dropout_seed, deterministic, num_threads,
) -> tuple[Any, ...]:  # fmt: skip
    """Full, causal, window and block-causal masks of one sequence."""
    return (
        _LAYOUT["sequence"], _MASK_KIND[mask], block_size,
        0, 0, 0, 0, 1, window_left, window_right,
        q, k, v, None, None, None,
        cu_seqlens, None, None, cu_seqlens_kv,
        prefix_lens, seqused, None, seqused_kv, None, None, q_offsets,
        0, q_offset, max_seqlen,
        softmax_scale, softcap, dropout_p, dropout_state, dropout_seed, 0,
        deterministic, num_threads,
    )  # fmt: skip
