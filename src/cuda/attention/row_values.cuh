// What the 16-bit backward kernels prepare of a query row: delta and its log-sum-exp.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

/// Turns a log-sum-exp into units of log 2.
inline constexpr float kLog2OfE = 1.4426950408889634f;

template <Element kElement>
__device__ __forceinline__ float dot_x8(const U32x4& x, const U32x4& y) {
  return ptx::dot_x2<kElement>(x.x, y.x) + ptx::dot_x2<kElement>(x.y, y.y) +
         ptx::dot_x2<kElement>(x.z, y.z) + ptx::dot_x2<kElement>(x.w, y.w);
}

/// The sums over kLanes lanes, in all of them.
template <u32 kLanes>
__device__ __forceinline__ float sum_over_lanes(float x) {
#pragma unroll
  for (u32 step = 1; step < kLanes; step *= 2) x += ptx::shfl_xor_f32(x, step);
  return x;
}

/// The sum of a * b over a row of `dim` columns, by kLanes lanes with 8 columns each, in all of
/// them; 0 where the row is not `inside`.
template <Element kElement, u32 kLanes>
__device__ __forceinline__ float row_product(const HalfRows& a, const HalfRows& b, i64 batch,
                                             i64 row, i32 head, int lane, bool inside, i32 dim) {
  float sum = 0.0f;
  if (inside && lane * 8 < dim) {
    const U32x4 x = ptx::ld_global_v4(a.at(batch, row, head) + lane * 8);
    const U32x4 y = ptx::ld_global_v4(b.at(batch, row, head) + lane * 8);
    sum = dot_x8<kElement>(x, y);
  }
  return sum_over_lanes<kLanes>(sum);
}

/// The same of kCount rows, `row` and every kStep-th after it, whose loads are in flight together;
/// those from `valid` rows after `row` on are outside.
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
    sums[i] = sum_over_lanes<kLanes>(dot_x8<kElement>(x[i], y[i]));
  }
}

}  // namespace stepwell::cuda
