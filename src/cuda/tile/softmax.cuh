// Online softmax on accumulator fragments of mma.m16n8k16: s[column / 8][4], where a lane holds
// columns 8 i + 2 (lane % 4) + {0, 1} of rows lane / 4 (values 0 and 1) and lane / 4 + 8 (values 2
// and 3).
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

__device__ __forceinline__ float minus_infinity() { return ptx::float_of(0xff800000u); }
inline constexpr float kLargestFloat = 3.40282347e38f;

/// Two rows' running state.
struct RowState {
  float reference[2];  // P is exp2(scale_log2 * S - reference); softmax_exact keeps a maximum of S
  float row_sum[2];    // of this lane's own columns
};

/// Fast references up to here are within 2 of the maxima they are rounded from: P stays inside
/// float16.
inline constexpr float kLargestReference = 67108864.0f;  // 2^26

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

/// s becomes 1 / (1 + exp2(s * factor)). With factor = -2 log2(e) scale that is
/// (1 + tanh(s * scale)) / 2 with the same absolute error as there and two instructions less; what
/// the softmax makes of it is the same, but for the logarithm of its sum.
template <int Tiles>
__device__ __forceinline__ void cap_scores_by_half(float (&s)[Tiles][4], float factor) {
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[i][j] = ptx::rcp_approx(1.0f + ptx::ex2_approx(s[i][j] * factor));
    }
  }
}

/// Exponents of 2 that P may reach before a row's reference is moved up to its maximum: sums of 2^8
/// are as exact in float32 as sums of 1, P stays inside float16, and O is rescaled in few tiles.
inline constexpr float kExponentSlack = 8.0f;

template <int Tiles>
__device__ __forceinline__ float row_maximum(const float (&s)[Tiles][4], int r) {
  float top = s[0][2 * r];
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
    top = ptx::max_f32(top, ptx::max_f32(s[i][2 * r], s[i][2 * r + 1]));
  }
  top = ptx::max_f32(top, ptx::shfl_xor_f32(top, 1));
  return ptx::max_f32(top, ptx::shfl_xor_f32(top, 2));
}

/// Moves the rows' references up to their maxima in s where these are kExponentSlack above, from
/// -kLargestReference on. A reference is rounded, once: all terms of its row carry the same error,
/// and so does their sum. Returns whether some row of the warp has moved; O must then be multiplied
/// with `rescale`. Wrong where scores exceed kLargestReference: see softmax_lost().
template <int Tiles>
__device__ __forceinline__ bool softmax_references(const float (&s)[Tiles][4], RowState& state,
                                                   float scale_log2, float (&rescale)[2]) {
  float top[2];
  bool moves[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = ptx::mul_rn_f32(row_maximum(s, r), scale_log2);
    moves[r] = top[r] - state.reference[r] > kExponentSlack;
  }
  const bool any = ptx::ballot(moves[0] || moves[1]) != 0;
  if (any) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // A row whose reference stays is multiplied with exactly 1.
      const float reference = moves[r] ? top[r] : state.reference[r];
      rescale[r] = ptx::ex2_approx(state.reference[r] - reference);
      state.row_sum[r] *= rescale[r];
      state.reference[r] = reference;
    }
  }
  return any;
}

/// s becomes P, and is added to the rows' sums.
template <int Tiles>
__device__ __forceinline__ void softmax_terms(float (&s)[Tiles][4], RowState& state,
                                              float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
#pragma unroll
      for (int j = 2 * r; j < 2 * r + 2; ++j) {
        s[i][j] = ptx::ex2_approx(ptx::fma_f32(s[i][j], scale_log2, -state.reference[r]));
        state.row_sum[r] += s[i][j];
      }
    }
  }
}

/// A row's sum over all lanes.
__device__ __forceinline__ float whole_sum(const RowState& state, int r) {
  float sum = state.row_sum[r];
  sum += ptx::shfl_xor_f32(sum, 1);
  return sum + ptx::shfl_xor_f32(sum, 2);
}

/// Whether a row must be done again by softmax_exact, from its first key on: its reference is too
/// large, or its scores are too far below the first one though it `sees` keys. (A NaN looks the
/// same.)
__device__ __forceinline__ bool softmax_lost(float reference, float sum, bool sees) {
  // The term of a reference that moved is 2^-2 at least.
  return reference > kLargestReference || (sum < 0.25f && sees) ||
         !(sum < ptx::float_of(0x7f800000u));
}

/// References and terms for scores of any size. A row's reference is a maximum of S, from -inf on,
/// and scale_log2 times it in the end. Calls rescale_output(factors) for O's two rows where some
/// row has moved.
template <int Tiles, typename RescaleOutput>
__device__ __forceinline__ void softmax_exact(float (&s)[Tiles][4], RowState& state,
                                              float scale_log2,
                                              const RescaleOutput& rescale_output) {
  // Past this the rounding of a product of reference and scale counts, and differences come first.
  constexpr float kLarge = 8192.0f;
  bool rare = false;
  bool large[2];
  float top[2];
  float product[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = ptx::max_f32(state.reference[r], row_maximum(s, r));
    // From -inf, where nothing was visible yet, any maximum moves it; -inf to -inf is NaN and does
    // not.
    const bool moves = (top[r] - state.reference[r]) * scale_log2 > kExponentSlack;
    if (!moves) top[r] = state.reference[r];
    product[r] = top[r] == minus_infinity() ? 0.0f : top[r] * scale_log2;
    large[r] = product[r] > kLarge || product[r] < -kLarge;
    rare = rare || moves || large[r];
  }
  // One branch for all that is rare: each keeps the products before and after it apart.
  if (ptx::ballot(rare) != 0) {
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = top[r] == minus_infinity() ? 0.0f : top[r];
      rescale[r] = ptx::ex2_approx((state.reference[r] - base) * scale_log2);
      state.row_sum[r] *= rescale[r];
      state.reference[r] = top[r];
      if (!large[r]) continue;
#pragma unroll
      for (int i = 0; i < Tiles; ++i) {
        s[i][2 * r] -= top[r];
        s[i][2 * r + 1] -= top[r];
      }
      product[r] = 0.0f;
    }
    rescale_output(rescale);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
#pragma unroll
      for (int j = 2 * r; j < 2 * r + 2; ++j) {
        s[i][j] = ptx::ex2_approx(ptx::fma_f32(s[i][j], scale_log2, -product[r]));
        state.row_sum[r] += s[i][j];
      }
    }
  }
}

/// The two rows' factor of O and natural log-sum-exp (-inf for a row that saw nothing).
__device__ __forceinline__ void softmax_finish(const RowState& state, float (&inverse)[2],
                                               float (&lse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = whole_sum(state, r);
    const bool sees_nothing = sum == 0.0f;  // a NaN sum is not 0 and passes on
    inverse[r] = sees_nothing ? 0.0f : 1.0f / sum;
    lse[r] = sees_nothing ? minus_infinity()
                          : (state.reference[r] + ptx::lg2_approx(sum)) * 0.6931471805599453f;
  }
}

}  // namespace stepwell::cuda
