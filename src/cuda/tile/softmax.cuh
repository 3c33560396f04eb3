// Online softmax on accumulator fragments of mma.m16n8k16: s[column / 8][4], where a lane holds
// columns 8 i + 2 (lane % 4) + {0, 1} of rows lane / 4 (values 0 and 1) and lane / 4 + 8 (values 2
// and 3).
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

__device__ __forceinline__ float minus_infinity() { return ptx::float_of(0xff800000u); }

/// Two rows' running state: a maximum of the raw scores, and the sum of this lane's own columns.
struct RowState {
  float row_max[2];
  float row_sum[2];
};

__device__ __forceinline__ RowState row_state_start() {
  return {{minus_infinity(), minus_infinity()}, {0.0f, 0.0f}};
}

/// Scores outside keys [begin, end), counted from the tile's first key, become -inf; rows r of the
/// lane.
template <int Tiles>
__device__ __forceinline__ void mask_row(float (&s)[Tiles][4], int r, int begin, int end) {
  const int column = static_cast<int>(ptx::thread_index()) % 4 * 2;
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = 8 * i + column + j;
      if (key < begin || key >= end) s[i][2 * r + j] = minus_infinity();
    }
  }
}

/// s becomes tanh(s * scale), through exp2: absolute error a few 2^-23, which is what the softmax
/// needs.
template <int Tiles>
__device__ __forceinline__ void cap_scores(float (&s)[Tiles][4], float scale) {
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float e = ptx::ex2_approx(s[i][j] * scale * 2.885390081777927f);  // exp(2 x)
      s[i][j] = 1.0f - 2.0f * ptx::rcp_approx(1.0f + e);
    }
  }
}

/// Exponents of 2 that P may reach before a row's reference is moved up to its maximum: sums of 2^8
/// are as exact in float32 as sums of 1, P stays inside float16, and O is rescaled in few tiles.
inline constexpr float kExponentSlack = 8.0f;

/// The largest reference whose rounding, 2^-10 at most, is of no account beside the dtype's.
inline constexpr float kLargeExponent = 8192.0f;

/// s becomes exp2(scale_log2 * (s - reference)), where a row's reference (state.row_max) is a
/// maximum it had, at most kExponentSlack below the present one. Returns whether some row of the
/// warp has moved its reference; O must then be multiplied with `rescale`. Without kLazy references
/// follow their maxima and the answer is always true.
template <bool kLazy, int Tiles>
__device__ __forceinline__ bool softmax_step(float (&s)[Tiles][4], RowState& state,
                                             float scale_log2, float (&rescale)[2]) {
  bool any = true;
  bool moves[2];
  float top[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = state.row_max[r];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
      top[r] = ptx::max_f32(top[r], ptx::max_f32(s[i][2 * r], s[i][2 * r + 1]));
    }
    top[r] = ptx::max_f32(top[r], ptx::shfl_xor_f32(top[r], 1));
    top[r] = ptx::max_f32(top[r], ptx::shfl_xor_f32(top[r], 2));
    // From -inf, where nothing was visible yet, any maximum moves it; -inf to -inf is NaN and does
    // not.
    moves[r] = (top[r] - state.row_max[r]) * scale_log2 > kExponentSlack;
  }
  if constexpr (kLazy) {
    any = ptx::ballot(moves[0] || moves[1]) != 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!moves[r]) top[r] = state.row_max[r];
    }
  }
  float reference[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    reference[r] = top[r] == minus_infinity() ? 0.0f : top[r] * scale_log2;
    if (any) {
      // A row that has seen nothing keeps 0 sums; one whose reference stays is multiplied with 1.
      const float base = top[r] == minus_infinity() ? 0.0f : top[r];
      rescale[r] = ptx::ex2_approx((state.row_max[r] - base) * scale_log2);
      state.row_sum[r] *= rescale[r];
      state.row_max[r] = top[r];
    }
  }
  // One fused operation, exact but for the rounding of `reference`. In rows where that is not small
  // the difference comes first.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (reference[r] > kLargeExponent || reference[r] < -kLargeExponent) {  // rare
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
        s[i][2 * r] -= top[r];
        s[i][2 * r + 1] -= top[r];
      }
      reference[r] = 0.0f;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.row_sum[r];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
#pragma unroll
      for (int j = 2 * r; j < 2 * r + 2; ++j) {
        s[i][j] = ptx::ex2_approx(s[i][j] * scale_log2 - reference[r]);
        sum += s[i][j];
      }
    }
    state.row_sum[r] = sum;
  }
  return any;
}

/// The two rows' factor of O and natural log-sum-exp (-inf for a row that saw nothing).
__device__ __forceinline__ void softmax_finish(const RowState& state, float scale_log2,
                                               float (&inverse)[2], float (&lse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.row_sum[r];
    sum += ptx::shfl_xor_f32(sum, 1);
    sum += ptx::shfl_xor_f32(sum, 2);
    const bool sees_nothing = sum == 0.0f;  // a NaN sum is not 0 and passes on
    inverse[r] = sees_nothing ? 0.0f : 1.0f / sum;
    lse[r] = sees_nothing
                 ? minus_infinity()
                 : (state.row_max[r] * scale_log2 + ptx::lg2_approx(sum)) * 0.6931471805599453f;
  }
}

}  // namespace stepwell::cuda
