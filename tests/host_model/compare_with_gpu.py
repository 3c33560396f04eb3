#!/usr/bin/env python3
"""Runs the micro kernels of the host model's tests on a GPU and compares what each wrapper of
cuda/ptx gives there with what the model gives (tests/host_model/micro_expected.txt and, on GPUs of
compute capability 9.0, micro_expected_sm90.txt).

Needs Python, NVRTC and the CUDA driver; --compile-only needs no GPU. Exit code 1 on a difference.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import glob
import math
import struct
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
SOURCES = TESTS.parent.parent / "src"
# Kernels, what they give, and the architecture that they need.
FILES = [
    ("micro_kernels.cuh", "micro_expected.txt", None),
    ("micro_kernels_sm90.cuh", "micro_expected_sm90.txt", "sm_90a"),
]


def load(names: list[str], patterns: list[str] = ()) -> ctypes.CDLL:
    """The first library found by name, or by pattern below the Python path (NVIDIA's wheels)."""
    found = [p for folder in sys.path for t in patterns for p in glob.glob(f"{folder}/{t}")]
    for name in [*names, *sorted(found, reverse=True)]:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    raise SystemExit(f"none of {', '.join(names)} can be loaded")


def compile_kernels(file: str, arch: str, version: list[int]) -> bytes:
    """The cubin of a file's micro kernels."""
    wheels = ["nvidia/cu13/lib/", "nvidia/cuda_nvrtc/lib/"]
    for folder in wheels:  # NVRTC finds its builtins if they are loaded already
        for path in (p for d in sys.path for p in glob.glob(f"{d}/{folder}libnvrtc-builtins.so*")):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    rtc = load(
        ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
        [folder + "libnvrtc.so.1*" for folder in wheels],
    )
    major, minor = ctypes.c_int(), ctypes.c_int()
    rtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    version[:] = [major.value, minor.value]
    headers = {
        path.relative_to(SOURCES).as_posix().encode(): path.read_bytes()
        for path in [*SOURCES.glob("cuda/**/*.cuh"), *SOURCES.glob("cuda/**/*.hpp")]
    }
    program = ctypes.c_void_p()
    texts = ctypes.c_char_p * len(headers)
    rtc.nvrtcCreateProgram(
        ctypes.byref(program),
        (TESTS / file).read_bytes(),
        file.encode(),
        len(headers),
        texts(*headers.values()),
        texts(*headers.keys()),
    )
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++20", b"-default-device"]
    result = rtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )

    def fetch(what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(rtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(rtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    if result != 0:
        raise SystemExit(fetch("ProgramLog").decode())
    return fetch("CUBIN")


def noise() -> list[int]:
    """What micro_test.cpp gives the kernels."""
    words, x = [], 1
    for _ in range(4096):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        words.append(x ^ x >> 16)
    return words


def expected(file: str) -> list[dict]:
    """The kernels of an expected file: how to launch them, and their words."""
    kernels = []
    for line in (TESTS / file).read_text().splitlines():
        fields = line.split()
        if fields[0].startswith("micro_"):
            kernel, key = {"name": fields[0], "words": []}, ""
            for field in fields[1:]:
                if field.isalpha():
                    key = field
                    kernel[key] = []
                elif key != "words":  # their number is that of the words below
                    kernel[key].append(
                        float(field) if key in ("relative", "absolute") else int(field)
                    )
            kernels.append(
                {k: v[0] if len(v) == 1 and k != "name" else v for k, v in kernel.items()}
            )
        else:
            kernels[-1]["words"] += [int(word, 16) for word in fields]
    return kernels


def as_float(word: int) -> float:
    return struct.unpack("<f", struct.pack("<I", word))[0]


def agree(kernel: dict, got: int, want: int) -> bool:
    if got == want:
        return True
    if kernel["relative"] == 0:
        return False
    x, y = as_float(got), as_float(want)
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    return x == y or abs(x - y) <= kernel["relative"] * abs(y) + kernel["absolute"]


class Gpu:
    """A few calls of the driver, on the device's primary context."""

    def __init__(self) -> None:
        self.driver = load(["libcuda.so.1"])
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(major), 75, device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
        self.major = major.value
        self.arch = f"sm_{major.value}{minor.value}"
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()

    def call(self, function: str, *args: object, what: str = "") -> None:
        if result := getattr(self.driver, function)(*args):
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(result, ctypes.byref(text))
            error = text.value.decode() if text.value else result
            raise SystemExit(f"{function}: {error}" + (f" ({what})" if what else ""))

    def allocate(self, words: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4 * words))
        return pointer

    def tensor_map(self, kernel: dict, data: ctypes.c_uint64) -> ctypes.Array:
        """A CUtensorMap, which must lie at a multiple of 64 bytes."""
        buffer = ctypes.create_string_buffer(128 + 63)
        address = (ctypes.addressof(buffer) + 63) & ~63
        tensor_map = (ctypes.c_char * 128).from_address(address)
        tensor_map.owner = buffer
        rank = len(kernel["dims"])
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(address),
            1,  # CU_TENSOR_MAP_DATA_TYPE_UINT16
            rank,
            data,
            (ctypes.c_uint64 * rank)(*kernel["dims"]),
            (ctypes.c_uint64 * (rank - 1))(*kernel["strides"]),
            (ctypes.c_uint32 * rank)(*kernel["box"]),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,  # no interleave
            kernel["swizzle"],
            0,  # no L2 promotion
            0,  # elements outside are zero
        )
        return tensor_map

    def run(self, cubin: bytes, kernels: list[dict]) -> list[list[int]]:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        words = noise()
        source = self.allocate(len(words))
        target = self.allocate(len(words))
        host = (ctypes.c_uint32 * len(words))(*words)
        self.call("cuMemcpyHtoD_v2", source, host, ctypes.c_size_t(4 * len(words)))
        results = []
        for kernel in kernels:
            function = ctypes.c_void_p()
            self.call(
                "cuModuleGetFunction", ctypes.byref(function), module, kernel["name"].encode()
            )
            count = len(kernel["words"])
            self.call("cuMemsetD32_v2", target, 0, ctypes.c_size_t(count))
            arguments = [source, target]
            if "tensor" in kernel:
                tensor_map = self.tensor_map(kernel, (source, target)[kernel["tensor"]])
                box_words = ctypes.c_uint32(math.prod(kernel["box"]) // 2)
                arguments = [tensor_map, box_words, *arguments]
            params = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
            self.call(
                "cuLaunchKernel",
                function,
                *kernel["grid"],
                kernel["threads"],
                1,
                1,
                kernel["shared"],
                None,
                params,
                None,
            )
            self.call("cuCtxSynchronize", what=kernel["name"])
            got = (ctypes.c_uint32 * count)()
            self.call("cuMemcpyDtoH_v2", got, target, ctypes.c_size_t(4 * count))
            results.append(list(got))
        return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile-only", metavar="ARCH", help="such as sm_80; runs nothing")
    parser.add_argument("--kernel", metavar="NAME", action="append", help="only this; repeatable")
    args = parser.parse_args()
    version: list[int] = []
    if args.compile_only:
        for file, _, arch in FILES:
            if arch not in (None, args.compile_only):
                continue
            size = len(compile_kernels(file, args.compile_only, version))
            print(f"{file}: {size} bytes, {args.compile_only}, NVRTC {version[0]}.{version[1]}")
        return 0
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  brings NVRTC into the process
    gpu = Gpu()
    kernels, results = [], []
    for kernels_file, expected_file, arch in FILES:
        if arch not in (None, gpu.arch + "a"):
            continue
        cubin = compile_kernels(kernels_file, arch or gpu.arch, version)
        kernels += [
            kernel
            for kernel in expected(expected_file)
            if args.kernel is None or kernel["name"] in args.kernel
        ]
        results += gpu.run(cubin, kernels[len(results) :])
    print(f"{gpu.name}, {gpu.arch}, NVRTC {version[0]}.{version[1]}")
    failed = 0
    for kernel, got in zip(kernels, results, strict=True):
        if kernel["name"] == "micro_stmatrix" and gpu.major < 9:
            print("micro_stmatrix       not an instruction of this GPU")
            continue
        pairs = list(zip(got, kernel["words"], strict=True))
        wrong = [i for i, (x, y) in enumerate(pairs) if not agree(kernel, x, y)]
        same = sum(x == y for x, y in pairs)
        print(f"{kernel['name']:20} {len(pairs)} words, {same} the same, {len(wrong)} differ")
        for i in wrong[:4]:
            x, y = pairs[i]
            print(f"    word {i}: {x:08x} ({as_float(x):g}), model {y:08x} ({as_float(y):g})")
        failed += bool(wrong)
    print(f"{len(kernels)} kernels, {failed} differ")
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
