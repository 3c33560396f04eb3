#!/usr/bin/env python3
"""Runs the micro kernels of the host model's tests on a GPU and compares what each wrapper of
cuda/ptx/sm80.cuh gives there with what the model gives (tests/host_model/micro_expected.txt).

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


def load(names: list[str], patterns: list[str] = ()) -> ctypes.CDLL:
    """The first library found by name, or by pattern below the Python path (NVIDIA's wheels)."""
    found = [p for folder in sys.path for t in patterns for p in glob.glob(f"{folder}/{t}")]
    for name in [*names, *sorted(found, reverse=True)]:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    raise SystemExit(f"none of {', '.join(names)} can be loaded")


def compile_kernels(arch: str, version: list[int]) -> bytes:
    """The cubin of all micro kernels."""
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
        (TESTS / "micro_kernels.cuh").read_bytes(),
        b"micro_kernels.cu",
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


def expected() -> list[dict]:
    """The kernels of micro_expected.txt: how to launch them, and their words."""
    kernels = []
    for line in (TESTS / "micro_expected.txt").read_text().splitlines():
        fields = line.split()
        if fields[0].startswith("micro_"):
            at = {key: fields.index(key) for key in fields if key.isalpha()}
            kernels.append(
                {
                    "name": fields[0],
                    "grid": [int(x) for x in fields[at["grid"] + 1 : at["grid"] + 4]],
                    "threads": int(fields[at["threads"] + 1]),
                    "shared": int(fields[at["shared"] + 1]),
                    "relative": float(fields[at["relative"] + 1]),
                    "absolute": float(fields[at["absolute"] + 1]),
                    "words": [],
                }
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

    def call(self, function: str, *args: object) -> None:
        if result := getattr(self.driver, function)(*args):
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(result, ctypes.byref(text))
            raise SystemExit(f"{function}: {text.value.decode() if text.value else result}")

    def allocate(self, words: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4 * words))
        return pointer

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
            params = (ctypes.c_void_p * 2)(ctypes.addressof(source), ctypes.addressof(target))
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
            self.call("cuCtxSynchronize")
            got = (ctypes.c_uint32 * count)()
            self.call("cuMemcpyDtoH_v2", got, target, ctypes.c_size_t(4 * count))
            results.append(list(got))
        return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile-only", metavar="ARCH", help="such as sm_80; runs nothing")
    args = parser.parse_args()
    version: list[int] = []
    if args.compile_only:
        size = len(compile_kernels(args.compile_only, version))
        print(f"{size} bytes for {args.compile_only}, NVRTC {version[0]}.{version[1]}")
        return 0
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  brings NVRTC into the process
    gpu = Gpu()
    kernels = expected()
    results = gpu.run(compile_kernels(gpu.arch, version), kernels)
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
