// What turns S and dP into P and dS.
#pragma once

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/softmax.cuh"

namespace stepwell::cuda {

/// What turns a warp's S and dP into P and dS.
struct ScoreParams {
  float scale_log2;
  float softcap_scale;
  float keep_scale;  // of dropout
};

/// Calls hide(i, j) for each element of the lane in an accumulator of rows of queries, in which its
/// row does not see `key` + 8 i + j % 2; rows' intervals of keys lie at `bounds` in shared memory.
template <int kTiles, class Hide>
__device__ __forceinline__ void for_each_hidden_key(u32 bounds, int key, Hide&& hide) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    geometry::Interval seen;
    ptx::ld_shared_v2(bounds + r * 64, seen.begin, seen.end);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (!seen.contains(key + i * 8 + j)) hide(i, 2 * r + j);
      }
    }
  }
}

/// The same of an accumulator of rows of keys: `key` and `key` + 8, and columns of queries.
template <int kTiles, class Hide>
__device__ __forceinline__ void for_each_hidden_query(u32 bounds, int key, Hide&& hide) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      geometry::Interval seen;
      ptx::ld_shared_v2(bounds + (i * 8 + j) * 8, seen.begin, seen.end);
      if (!seen.contains(key)) hide(i, j);
      if (!seen.contains(key + 8)) hide(i, 2 + j);
    }
  }
}

/// 16 rows of a warp's tile, as pairs of elements, to shared memory at `to`: with the lane's
/// rows_first if kMatrix, else its own row and column.
template <bool kMatrix, int kRowBytes, int kTiles>
__device__ __forceinline__ void store_scores(u32 to, const u32 (&pairs)[kTiles][2]) {
  static_assert(kTiles % 2 == 0);
#pragma unroll
  for (int i = 0; i < kTiles; i += 2) {
    if constexpr (kMatrix) {
      ptx::stmatrix_x4(to + i * 16, {pairs[i][0], pairs[i][1], pairs[i + 1][0], pairs[i + 1][1]});
    } else {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        ptx::st_shared_u32(to + (i + j) * 16, pairs[i + j][0]);
        ptx::st_shared_u32(to + 8 * kRowBytes + (i + j) * 16, pairs[i + j][1]);
      }
    }
  }
}

/// An accumulator's S becomes P: `kept` as dV takes it, and `factor`, what dP - delta is multiplied
/// with (P before dropout, times the slope of the cap). lse(i, j) is that of an element's row;
/// for_each_hidden(hide) calls hide(i, j) for hidden ones, `dropped` has a bit for each.
template <auto C, int kTiles, class Lse, class ForEachHidden>
__device__ __forceinline__ void probabilities(const ScoreParams& p, float (&s)[kTiles][4],
                                              Lse&& lse, ForEachHidden&& for_each_hidden,
                                              u32 dropped, u32 (&kept)[kTiles][2],
                                              u32 (&factor)[kTiles][2]) {
  // P is at most 1. Scores past 2^24 leave more than that between them and their rounded
  // log-sum-exp. Two at a time where P goes nowhere else first.
  constexpr bool kPackedLimit = !C.softcap && !C.dropout;
  if constexpr (C.softcap) cap_scores(s, p.softcap_scale);
  float slope[C.softcap ? kTiles : 1][4];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (C.softcap) slope[i][j] = 1.0f - s[i][j] * s[i][j];
      s[i][j] = ptx::ex2_approx(ptx::fma_f32(s[i][j], p.scale_log2, -lse(i, j)));
      if constexpr (!kPackedLimit) s[i][j] = ptx::min_nan_f32(s[i][j], 1.0f);
    }
  }
  // A hidden pair may hold anything, infinities and NaN included.
  for_each_hidden([&](int i, int j) { s[i][j] = 0.0f; });
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float x = s[i][2 * r];
      float y = s[i][2 * r + 1];
      if constexpr (C.softcap) {
        factor[i][r] = ptx::cvt_x2_f32<C.element>(x * slope[i][2 * r], y * slope[i][2 * r + 1]);
      } else {
        factor[i][r] = ptx::cvt_x2_f32<C.element>(x, y);
      }
      if constexpr (kPackedLimit) {
        factor[i][r] = ptx::min_nan_x2<C.element>(factor[i][r], ptx::ones_x2<C.element>());
      }
      if constexpr (C.dropout) {
        x = (dropped >> dropped_bit(i, 2 * r) & 1) != 0 ? 0.0f : x * p.keep_scale;
        y = (dropped >> dropped_bit(i, 2 * r + 1) & 1) != 0 ? 0.0f : y * p.keep_scale;
      }
      kept[i][r] = C.dropout || C.softcap ? ptx::cvt_x2_f32<C.element>(x, y) : factor[i][r];
    }
  }
}

/// The same accumulator's dS = factor (dP - delta).
template <auto C, int kTiles, class Delta, class ForEachHidden>
__device__ __forceinline__ void score_gradients(const ScoreParams& p, float (&dp)[kTiles][4],
                                                const u32 (&factor)[kTiles][2], Delta&& delta,
                                                ForEachHidden&& for_each_hidden, u32 dropped,
                                                u32 (&ds)[kTiles][2]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float x = dp[i][j];
      if constexpr (C.dropout)
        x = (dropped >> dropped_bit(i, j) & 1) != 0 ? 0.0f : x * p.keep_scale;
      const u32 pair = factor[i][j / 2];
      dp[i][j] = (x - delta(i, j)) *
                 (j % 2 == 0 ? ptx::low_f32<C.element>(pair) : ptx::high_f32<C.element>(pair));
    }
  }
  for_each_hidden([&](int i, int j) { dp[i][j] = 0.0f; });
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ds[i][r] = ptx::cvt_x2_f32<C.element>(dp[i][2 * r], dp[i][2 * r + 1]);
    }
  }
}

}  // namespace stepwell::cuda
