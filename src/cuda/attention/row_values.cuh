// What the 16-bit backward kernels prepare of a query row: delta and its log-sum-exp.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

/// Turns a log-sum-exp into units of log 2.
inline constexpr float kLog2OfE = 1.4426950408889634f;

/// The sum of a * b over a row of `dim` columns, by kLanes lanes with 8 columns each, in all of
/// them; 0 where the row is not `inside`.
template <Element kElement, u32 kLanes>
__device__ __forceinline__ float row_product(const HalfRows& a, const HalfRows& b, i64 batch,
                                             i64 row, i32 head, int lane, bool inside, i32 dim) {
  float sum = 0.0f;
  if (inside && lane * 8 < dim) {
    const U32x4 x = ptx::ld_global_v4(a.at(batch, row, head) + lane * 8);
    const U32x4 y = ptx::ld_global_v4(b.at(batch, row, head) + lane * 8);
    sum = ptx::dot_x2<kElement>(x.x, y.x) + ptx::dot_x2<kElement>(x.y, y.y) +
          ptx::dot_x2<kElement>(x.z, y.z) + ptx::dot_x2<kElement>(x.w, y.w);
  }
#pragma unroll
  for (u32 step = 1; step < kLanes; step *= 2) sum += ptx::shfl_xor_f32(sum, step);
  return sum;
}

}  // namespace stepwell::cuda
