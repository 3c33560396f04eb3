"""What wgmma and other instructions of an SM cost each other.

In every CTA one warpgroup multiplies 64 x 128 x 16 tiles whose accumulators are in its registers,
and one or two others do nothing but one instruction, on registers. Prints, for a scheduler, the
clocks from one such instruction to the next, and of a product (64 where nothing is in its way).
Needs nvcc and a GPU of compute capability 9.0.

Usage:
    python benchmarks/beside_wgmma.py --output benchmarks/results/beside_wgmma_cuda.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import subprocess
import tempfile

UNROLLED = 192
REGISTERS = 16

# Name: register type, PTX of one step on operand %{r}, with the constants %16 and %17, and how many
# registers take turns: as many instructions do not depend on each other.
INSTRUCTIONS = {
    "fma, 1 chain": ("float", "fma.rn.f32 %{r}, %{r}, %16, %17;", 1),
    "fma, 2 chains": ("float", "fma.rn.f32 %{r}, %{r}, %16, %17;", 2),
    "fma, 3 chains": ("float", "fma.rn.f32 %{r}, %{r}, %16, %17;", 3),
    "fma, 16 chains": ("float", "fma.rn.f32 %{r}, %{r}, %16, %17;", 16),
    "max": ("float", "max.f32 %{r}, %{r}, %17;", 16),
    "lop3": ("unsigned", "lop3.b32 %{r}, %{r}, %16, %17, 0x96;", 16),
    "ex2": ("float", "ex2.approx.ftz.f32 %{r}, %{r};", 16),
    "tanh": ("float", "tanh.approx.f32 %{r}, %{r};", 16),
    "mul.wide and xor": (
        "unsigned",
        "{{.reg .u64 w; .reg .u32 a, b; mul.wide.u32 w, %{r}, %16; mov.b64 {{a, b}}, w;"
        " xor.b32 %{r}, a, b;}}",
        8,
    ),
}

SOURCE = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>

__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%(accumulators)s}, %%64,"
               " %%65, 1, 1, 1, 0, 0;" : %(bound)s : "l"(a), "l"(b));
}

// clocks[0]: of 1000 instructions; clocks[1]: of 100 products.
template <class Steps>
__device__ void measure(float* out, long long* clocks, bool products, int repeats) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ volatile int stop;
  if (threadIdx.x == 0) stop = 0;
  __syncthreads();
  float sum = 0.0f;
  if (threadIdx.x < 128) {
    if (!products) return;
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    // 128-byte swizzle, 1024 bytes from 8 rows to the next.
    const uint64_t tile = (uint64_t{1} << 62) | (uint64_t{64} << 32) | (uint64_t{1} << 16) |
                          ((address >> 4) & 0x3fff);
    float d[64] = {};
    long long count = 0;
    const long long begin = clock64();
    asm volatile("wgmma.fence.sync.aligned;");
    while (!stop) {
#pragma unroll
      for (int i = 0; i < 16; ++i) multiply(d, tile, tile + 1024);
      asm volatile("wgmma.commit_group.sync.aligned;\n"
                   "wgmma.wait_group.sync.aligned 0;" ::: "memory");
      count += 16;
    }
    const long long end = clock64();
    if (threadIdx.x == 0) clocks[2 * blockIdx.x + 1] = count ? (end - begin) * 100 / count : 0;
    for (float x : d) sum += x;
  } else {
    sum = Steps::run(clocks, repeats);
    asm volatile("bar.sync 1, %%0;" ::"r"(static_cast<int>(blockDim.x) - 128));
    if (threadIdx.x == 128) stop = 1;
  }
  out[blockIdx.x * 384 + threadIdx.x] = sum;
}
%(kernels)s
int main(int, char** arguments) {
  float* out;
  long long* clocks;
  cudaMalloc(&out, 1 << 22);
  cudaMalloc(&clocks, 1 << 16);
  const int chosen = atoi(arguments[1]);
  for (int warps = 1; warps <= 2; ++warps) {
    for (int products = 0; products < 2; ++products) {
      for (int round = 0; round < 2; ++round) {
        cudaMemset(clocks, 0, 1 << 16);
        switch (chosen) { %(launches)s }
      }
      long long result[2];
      cudaMemcpy(result, clocks, sizeof result, cudaMemcpyDeviceToHost);
      if (cudaGetLastError() != cudaSuccess) return 1;
      printf("%%d %%d %%.2f %%.2f\n", warps, products, result[0] / 1000.0, result[1] / 100.0);
    }
  }
}
"""

KERNEL = r"""
struct Steps%(number)d {
  static __device__ float run(long long* clocks, int repeats) {
    %(type)s r[16];
    for (int i = 0; i < 16; ++i) r[i] = static_cast<%(type)s>(threadIdx.x + i);
    const auto a = static_cast<%(type)s>(threadIdx.x & 1);
    const auto b = static_cast<%(type)s>(threadIdx.x & 3);
    const long long begin = clock64();
#pragma unroll 1
    for (int i = 0; i < repeats; ++i) asm volatile(%(steps)s : %(outputs)s : %(inputs)s);
    const long long end = clock64();
    if (threadIdx.x == 128) clocks[2 * blockIdx.x] = (end - begin) * 1000 / (repeats * %(count)dLL);
    float sum = 0.0f;
    for (const auto x : r) sum += static_cast<float>(x);
    return sum;
  }
};
__global__ void __launch_bounds__(384)
    kernel%(number)d(float* out, long long* clocks, bool products, int repeats) {
  measure<Steps%(number)d>(out, clocks, products, repeats);
}
"""


def source() -> str:
    kernels, launches = [], []
    for number, (kind, step, chains) in enumerate(INSTRUCTIONS.values()):
        bound = "f" if kind == "float" else "r"
        steps = "".join(f'"{step.format(r=i % chains)}\\n"' for i in range(UNROLLED))
        outputs = ", ".join(f'"+{bound}"(r[{i}])' for i in range(REGISTERS))
        values = {
            "number": number,
            "type": kind,
            "steps": steps,
            "outputs": outputs,
            "inputs": f'"{bound}"(a), "{bound}"(b)',
            "count": UNROLLED,
        }
        kernels.append(KERNEL % values)
        launches.append(
            f"case {number}: cudaFuncSetAttribute(kernel{number},"
            " cudaFuncAttributeMaxDynamicSharedMemorySize, 65536);"
            f" kernel{number}<<<132, 128 + warps * 128, 65536>>>(out, clocks, products != 0, 200);"
            " break;"
        )
    return SOURCE % {
        "accumulators": ", ".join(f"%{i}" for i in range(64)),
        "bound": ", ".join(f'"+f"(d[{i}])' for i in range(64)),
        "kernels": "".join(kernels),
        "launches": " ".join(launches),
    }


def build(folder: pathlib.Path) -> pathlib.Path:
    code = folder / "beside_wgmma.cu"
    code.write_text(source())
    program = folder / "beside_wgmma"
    options = ["-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a"]
    subprocess.run(["nvcc", *options, "-o", program, code], check=True, capture_output=True)
    return program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(pathlib.Path(folder))
        for number, name in enumerate(INSTRUCTIONS):
            command = [str(program), str(number)]
            run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
            for line in run.stdout.splitlines():
                warps, products, clocks, of_product = line.split()
                row = {
                    "instruction": name,
                    "warps": int(warps),
                    "products": products == "1",
                    "clocks": round(float(clocks) / int(warps), 2),
                    "clocks_of_product": float(of_product),
                }
                rows.append(row)
                print(row)
    if args.output:
        result = {"date": datetime.date.today().isoformat(), "rows": rows}
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
