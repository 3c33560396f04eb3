"""The compiled library's own boundary: positional arguments, tensors, errors, shared libraries."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm_ffi

import stepwell
from stepwell import _binding

Q = torch.zeros(1, 16, 2, 8)
ARGUMENTS = {
    "layout": 0,
    "mask": 0,
    "block_size": 4,
    "order": 0,
    "clean": 0,
    "noisy": 0,
    "clean_window": 0,
    "num_views": 1,
    "window_left": -1,
    "window_right": -1,
    "q": Q,
    "k": Q,
    "v": Q,
    "q_clean": None,
    "k_clean": None,
    "v_clean": None,
    "cu_seqlens": None,
    "cu_seqlens_clean": None,
    "cu_seqlens_clean_q": None,
    "cu_seqlens_kv": None,
    "prefix_lens": None,
    "seqused": None,
    "seqused_clean": None,
    "seqused_kv": None,
    "block_ranges": None,
    "noisy_offsets": None,
    "q_offsets": None,
    "noisy_offset": 0,
    "q_offset": 0,
    "max_seqlen": -1,
    "softmax_scale": None,
    "softcap": 0.0,
    "dropout_p": 0.0,
    "dropout_state": None,
    "dropout_seed": 0,
    "dropout_offset": 0,
    "deterministic": False,
    "num_threads": 0,
}


def prefix(**changes):
    """Arguments of a batched call on zeros, 8 tokens in blocks of 4."""
    assert not changes.keys() - ARGUMENTS.keys()
    return tuple((ARGUMENTS | changes).values())


def test_forward_and_version():
    out = torch.full((1, 16, 2, 8), float("nan"))
    lse = torch.full((1, 2, 16), float("nan"))
    _binding.attention_forward(*prefix(), out, lse, None, None)
    assert (out == 0).all()
    # Equal scores: a row's lse is the logarithm of the keys it sees.
    expected = torch.tensor([4.0] * 4 + [8.0] * 4 + [4.0] * 4 + [8.0] * 4).log()
    torch.testing.assert_close(lse, expected.expand(1, 2, 16))
    assert _binding.visible_pairs(*prefix()) == 8 * 8 + 2 * 4 * 4
    assert re.fullmatch(r"\d+\.\d+\.\d+", _binding.version)
    assert _binding.version == stepwell.__version__


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_mask(dtype):
    visible = torch.empty(1, 16, 16, dtype=dtype)
    _binding.attention_mask(*prefix(), visible)
    assert visible.sum() == _binding.visible_pairs(*prefix())


Q5 = torch.zeros(1, 1, 16, 2, 8)
Q64 = torch.zeros(1, 16, 2, 8, dtype=torch.float64)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": Q5}, TypeError, "q has rank 5"),
        ({"q": Q5, "layout": 3}, TypeError, "q_noisy has rank 5"),
        ({"v": Q64}, TypeError, "v is float64; it must be float32, float16 or bfloat16"),
        ({"k": Q64.to(torch.complex64)}, TypeError, "k is complex64"),
        ({"seqused": torch.ones(1, dtype=torch.uint8)}, TypeError, "seqused is uint8.*int32"),
        ({"seqused": torch.ones(1, dtype=torch.bool)}, TypeError, "seqused is bool.*int32"),
        ({"seqused": torch.ones(1, dtype=torch.int64)}, TypeError, "seqused is int64.*int32"),
        ({"q": 3}, TypeError, "q must be a tensor"),
        ({"q": None}, ValueError, "q is missing"),
        ({"block_size": 4.0}, TypeError, "block_size must be an integer"),
        ({"block_size": "4"}, TypeError, "block_size must be an integer"),
        ({"block_size": 0}, ValueError, "block_size is 0"),
        ({"softcap": None}, TypeError, "softcap must be a number"),
        ({"softmax_scale": "1"}, TypeError, "softmax_scale must be a number"),
        ({"deterministic": None}, TypeError, "deterministic must be a bool"),
        ({"num_threads": 2**40}, ValueError, "num_threads is 1099511627776"),
        ({"layout": 5}, ValueError, "layout is 5"),
        ({"layout": -1}, ValueError, "layout is -1"),
        ({"mask": 5}, ValueError, "mask is 5"),
        ({"order": 2}, ValueError, "order is 2"),
        ({"clean": 2}, ValueError, "clean is 2"),
        ({"noisy": -1}, ValueError, "noisy is -1"),
        ({"window_left": 4}, ValueError, "window_left is 4"),
        ({"layout": 4, "mask": 2, "clean": 1, "block_size": 0}, ValueError, "clean is 1"),
        ({"layout": 4, "mask": 2, "num_views": 2, "block_size": 0}, ValueError, "num_views is 2"),
    ],
)
def test_errors_name_the_argument(changes, error, message):
    out = torch.empty(1, 16, 2, 8)
    with pytest.raises(error, match=message):
        _binding.attention_forward(*prefix(**changes), out, None, None, None)
    with pytest.raises(error, match=message):
        _binding.visible_pairs(*prefix(**changes))


def test_argument_counts():
    out = torch.empty(1, 16, 2, 8)
    with pytest.raises(TypeError, match=r"attention_forward got \d+ arguments, and lse_clean"):
        _binding.attention_forward(*prefix(), out, None, None)
    with pytest.raises(TypeError, match=r"attention_forward takes \d+ arguments and got"):
        _binding.attention_forward(*prefix(), out, None, None, None, None)
    with pytest.raises(TypeError, match="visible_pairs got 0 arguments, and layout"):
        _binding.visible_pairs()


@pytest.mark.parametrize(
    ("visible", "error", "message"),
    [
        (torch.empty(1, 16, 16), TypeError, "visible is float32"),
        (torch.empty(1, 16, 32, dtype=torch.uint8)[..., ::2], ValueError, "contiguous"),
        (torch.empty(1, 16, 15, dtype=torch.uint8), ValueError, "visible has 240 bytes"),
    ],
)
def test_mask_buffer(visible, error, message):
    with pytest.raises(error, match=message):
        _binding.attention_mask(*prefix(), visible)


def test_views_keep_their_offset_and_strides():
    rng = np.random.default_rng(0)
    fused = rng.standard_normal((1, 16, 3, 2, 8)).astype(np.float32)
    views = {name: fused[:, :, i] for i, name in enumerate("qkv")}
    out = np.full((1, 2, 16, 8), np.nan, np.float32).transpose(0, 2, 1, 3)
    _binding.attention_forward(*prefix(**views), out, None, None, None)
    expected = np.empty((1, 16, 2, 8), np.float32)
    copies = {name: view.copy() for name, view in views.items()}
    _binding.attention_forward(*prefix(**copies), expected, None, None, None)
    assert np.array_equal(out, expected)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps")
@pytest.mark.parametrize("order", [("torch", "stepwell"), ("stepwell", "torch")])
def test_one_openmp_runtime(order):
    """torch brings a libgomp of its own; two of them would keep two pools of threads."""
    program = f"""
import {order[0]}, {order[1]}
q = torch.ones(1, 512, 4, 64)
stepwell.diffusion_attn_func(q, q, q, 4)
q @ q.transpose(-1, -2)
names = {{line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}}
assert len(names) == 1, names
"""
    subprocess.run([sys.executable, "-c", program], check=True)


class _DeviceArray:
    """A float32 tensor that claims to lie on a GPU, through DLPack; nothing reads its memory."""

    class _Managed(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
            ("manager_ctx", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        )

    def __init__(self, shape: tuple[int, ...], device_type: int) -> None:
        strides = [1]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*strides)
        self._managed = self._Managed(
            64, device_type, 0, len(shape), 2, 32, 1, self._shape, self._strides, 0, None, None
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._managed.device_type, 0

    def __dlpack__(self, **_: object) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._managed), b"dltensor", None)


def test_a_device_without_a_backend_is_not_implemented():
    arrays = [_DeviceArray((1, 16, 2, 8), 10) for _ in range(4)]  # outlive their tensors
    q, k, v, out = (tvm_ffi.from_dlpack(array) for array in arrays)
    arguments = _binding.joint_prefix(
        q, k, v, None, None, None, None,
        "batched", 4, "noisy_clean", "block", "bidirectional", 0, 1, -1,
        None, 0.0, 0.0, 0, False, 1,
    )  # fmt: skip
    with pytest.raises(NotImplementedError, match=r"q is on .*no HIP backend"):
        _binding.attention_forward(*arguments, out, None, None, None)
