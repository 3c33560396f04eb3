// Online softmax on accumulator fragments of mma.m16n8k16: s[column / 8][4], where a lane holds
// columns 8 i + 2 (lane % 4) + {0, 1} of rows lane / 4 (values 0 and 1) and lane / 4 + 8 (values 2
// and 3).
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

__device__ __forceinline__ float minus_infinity() { return ptx::float_of(0xff800000u); }

/// Two rows' running state: the maximum of the raw scores, and the sum of this lane's own columns.
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

/// s becomes exp2(scale_log2 * (s - row maximum)); `rescale` is what O has to be multiplied with.
template <int Tiles>
__device__ __forceinline__ void softmax_step(float (&s)[Tiles][4], RowState& state,
                                             float scale_log2, float (&rescale)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = state.row_max[r];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
      top = ptx::max_f32(top, ptx::max_f32(s[i][2 * r], s[i][2 * r + 1]));
    }
    top = ptx::max_f32(top, ptx::shfl_xor_f32(top, 1));
    top = ptx::max_f32(top, ptx::shfl_xor_f32(top, 2));
    const float base = top == minus_infinity() ? 0.0f : top * scale_log2;  // nothing visible yet
    rescale[r] = ptx::ex2_approx(state.row_max[r] * scale_log2 - base);
    state.row_max[r] = top;
    float sum = state.row_sum[r] * rescale[r];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
#pragma unroll
      for (int j = 2 * r; j < 2 * r + 2; ++j) {
        s[i][j] = ptx::ex2_approx(s[i][j] * scale_log2 - base);
        sum += s[i][j];
      }
    }
    state.row_sum[r] = sum;
  }
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
