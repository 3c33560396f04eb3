// What the 16-bit backward kernels prepare of a query row: delta and its log-sum-exp.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

/// Turns a log-sum-exp into units of log 2.
inline constexpr float kLog2OfE = 1.4426950408889634f;

/// The sums of a * b over kCount rows of `dim` columns, `row` and every kStep-th after it, by
/// kLanes lanes with 8 columns each, in all of them; 0 for those from `valid` rows after `row` on.
/// Loads of all rows are in flight together.
template <Element kElement, u32 kLanes, i32 kStep, int kCount>
__device__ __forceinline__ void row_products(float (&sums)[kCount], const HalfRows& a,
                                             const HalfRows& b, i64 batch, i64 row, i32 head,
                                             int lane, i32 valid, i32 dim) {
  U32x4 x[kCount] = {};
  U32x4 y[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i * kStep >= valid || lane * 8 >= dim) continue;
    x[i] = ptx::ld_global_v4(a.at(batch, row + i * kStep, head) + lane * 8);
    y[i] = ptx::ld_global_v4(b.at(batch, row + i * kStep, head) + lane * 8);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    sums[i] = ptx::dot_x2<kElement>(x[i].x, y[i].x) + ptx::dot_x2<kElement>(x[i].y, y[i].y) +
              ptx::dot_x2<kElement>(x[i].z, y[i].z) + ptx::dot_x2<kElement>(x[i].w, y[i].w);
#pragma unroll
    for (u32 step = 1; step < kLanes; step *= 2) sums[i] += ptx::shfl_xor_f32(sums[i], step);
  }
}

}  // namespace stepwell::cuda
