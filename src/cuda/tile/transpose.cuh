// Trading words between lanes.
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

/// word[j] of lane i of four becomes word[i] of lane j; the four are kStride lanes apart.
template <u32 kStride>
__device__ __forceinline__ void transpose_quad(u32 (&word)[4]) {
  const u32 lane = ptx::thread_index() / kStride % 4;
#pragma unroll
  for (u32 step = 1; step < 4; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      if ((j & step) != 0) continue;
      const u32 given = ptx::shfl_xor_u32(upper ? word[j] : word[j + step], step * kStride);
      word[j] = upper ? given : word[j];
      word[j + step] = upper ? word[j + step] : given;
    }
  }
}

}  // namespace stepwell::cuda
