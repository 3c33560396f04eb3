// Attention backward in float32: row values and dQ.
//
// A CTA owns a tile of query rows of one segment and head, as in forward_f32.cuh, and walks the key
// tiles that they see twice:
//
//   1  row values. The caller's lse and out are rounded to float32, and all P of a row are off by
//   up
//      to |lse| 2^-24; the sum of P over a row says how far, and that of P (dP - delta) how far
//      delta is. Both are mended here, and kept for dK and dV. As cpu/row_values-inl.hpp.
//   2  dQ += dS K, with dS = P (dP - delta + dlse).
//
// Shared memory: Q, dO, one K tile, one V tile, dS, the rows' intervals (f32_config.hpp).
//
// One key tile:
//   V is here, barrier | dP = dO V^T      | barrier, request the next V
//   K is here, barrier | S = Q K^T, dQ    | barrier, request the next K
#pragma once

#include "cuda/attention/backward_f32.cuh"
#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/key_walk_f32.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/attention/query_rows.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/dropout_f32.cuh"
#include "cuda/tile/math_f32.cuh"
#include "cuda/tile/multiply_f32.cuh"

namespace stepwell::cuda {

/// A row's sums over the keys that it sees.
struct RowSumsF32 {
  float p;  // of P, and what rounding took from it
  float p_error;
  float rest;  // of P (dP - delta)
  float size;  // of P |dP - delta| and of |dout * out|
};

/// Mends a row's values by its sums, where they are as small as rounding makes them: out and lse
/// may be those of more keys than these (a sequence's shard), or of scores past the precision of a
/// float.
__device__ __forceinline__ void mend_row_values(RowValuesF32& values, const RowSumsF32& sums) {
  const float excess = (sums.p - 1.0f) + sums.p_error;
  const float correction = sums.rest / (1.0f + excess);
  const float lse_rounding = 0x1p-21f + 0x1p-23f * abs_f32(values.lse);
  if (!(abs_f32(excess) <= (lse_rounding < 0x1p-6f ? lse_rounding : 0x1p-6f))) return;
  if (!(abs_f32(correction) <= 0x1p-20f * sums.size)) return;  // a few roundings of its terms
  values.delta += correction;
  values.factor = 1.0f / (1.0f + excess);
}

template <F32Config C>
__device__ __forceinline__ void attention_backward_dq_f32(const BackwardParamsF32& p) {
  static constexpr BackwardDqF32Plan kPlan = backward_dq_f32_plan(C);
  constexpr int kDimBytes = padded_row_bytes_f32(C.head_dim);
  constexpr int kDimVBytes = padded_row_bytes_f32(C.head_dim_v);
  constexpr int kRows = C.rows;
  constexpr int kColumns = C.columns;
  const u32 shared = ptx::shared_base();
  const int lane = static_cast<int>(ptx::thread_index()) % 32;
  const int warp_row = static_cast<int>(ptx::thread_index()) / 32 * C.warp_rows();
  const int first_row = warp_row + lane / 8;  // the lane's, in the tile
  const int column = lane % 8 * 4;            // the lane's, of head dims

  // ---- which tile
  QueryRows rows;
  const bool any_row = find_query_rows<C.tile_rows()>(
      p, rows, [&](int h, i64 batch, i32 head, i64 first, i64 count) {
        write_zero_rows<C.threads()>(p.dq[h], batch, head, first, count, p.head_dim);
      });
  if (!any_row) return;
  const int h = static_cast<int>(rows.half);
  const i64 batch = rows.sample.batch_index;
  const i64 first = rows.first + rows.valid.begin;
  const int rows_left = rows.valid.size() - first_row;

  request_tile_f32<C.tile_rows(), C.head_dim, C.threads()>(
      shared + kPlan.q, p.q[h].at(batch, first, rows.head), p.q[h].row_stride, 0, rows.valid.size(),
      p.head_dim);
  request_tile_f32<C.tile_rows(), C.head_dim_v, C.threads()>(
      shared + kPlan.dout, p.dout[h].at(batch, first, rows.head), p.dout[h].row_stride, 0,
      rows.valid.size(), p.head_dim_v);
  ptx::cp_async_commit_group();
  KeyWalkF32<C> walk{shared + kPlan.row_bounds, shared + kPlan.phases, 0, 0, 0};
  walk.prepare(p, rows);
  DropoutTile dropout{};
  if constexpr (C.dropout) {
    dropout = dropout_tile(p.dropout, rows.sample_index * p.heads_q + rows.head, rows.segment, 0);
  }
  ptx::cp_async_wait_group<0>();
  ptx::bar_sync(0, C.threads());

  // ---- row values as the caller has them
  RowValuesF32 values[kRows];
  RowSumsF32 sums[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const bool inside = i * 4 < rows_left;
    const i64 row = first + first_row + i * 4;
    float delta = 0.0f;
    float size = 0.0f;
    if (inside) {
      const float* out = p.out[h].at(batch, row, rows.head);
      const u32 dout = shared + kPlan.dout + (first_row + i * 4) * kDimVBytes;
#pragma unroll
      for (int g = 0; g < C.head_dim_v / 32; ++g) {
        if (g * 32 + column >= p.head_dim_v) continue;
        const F32x4 x = ld_global_f32x4(out + g * 32 + column);
        const F32x4 y = ld_shared_f32x4(dout + (g * 32 + column) * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          delta = ptx::fma_f32(x.x[e], y.x[e], delta);
          size += abs_f32(x.x[e] * y.x[e]);
        }
      }
    }
    values[i].delta = sum_of_row(delta);
    sums[i] = {0.0f, 0.0f, 0.0f, size};
    // In units of log 2 as a float, and the factor exp2(-rest) that makes up for its rounding.
    // Beyond 2^23 a float has no fraction left and the factor could be anything: such a row is as
    // it is.
    const double lse = inside ? *p.lse[h].at(batch, rows.head, row) * 1.44269504088896340736 : 0.0;
    values[i].lse = static_cast<float>(lse);
    const float rest = static_cast<float>(values[i].lse - lse);
    values[i].factor = abs_f32(rest) <= 1.0f ? exp2_f32(rest) : 1.0f;
    values[i].dlse =
        inside && p.dlse[h].data != nullptr ? *p.dlse[h].at(batch, rows.head, row) : 0.0f;
  }

  // ---- the walk, with visit(s, dp, seen) for each tile of which the warp sees something
  const auto walk_keys = [&](auto&& visit) {
    walk.start();
    bool more = walk.find();
    if (more) walk.request_v(p, shared + kPlan.v);
    ptx::cp_async_commit_group();
    if (more) walk.request_k(p, shared + kPlan.k);
    ptx::cp_async_commit_group();
    while (more) {
      const i32 first_key = walk.tile * C.tile_columns();
      const int phase = walk.phase;
      const bool sees = ptx::ballot(lane < C.warp_rows() && walk.meets(warp_row + lane)) != 0;
      ptx::cp_async_wait_group<1>();
      ptx::bar_sync(0, C.threads());  // V is here
      float dp[kRows][kColumns];
      if (sees) {
        multiply_rows_f32(dp, shared + kPlan.dout + first_row * kDimVBytes, kDimVBytes,
                          shared + kPlan.v + lane % 8 * kDimVBytes, kDimVBytes, p.head_dim_v);
      }
      ptx::bar_sync(0, C.threads());  // all are done with V
      ++walk.tile;
      more = walk.find();
      if (more) walk.request_v(p, shared + kPlan.v);
      ptx::cp_async_commit_group();
      ptx::cp_async_wait_group<1>();
      ptx::bar_sync(0, C.threads());  // K is here
      if (sees) {
        float s[kRows][kColumns];
        multiply_rows_f32(s, shared + kPlan.q + first_row * kDimBytes, kDimBytes,
                          shared + kPlan.k + lane % 8 * kDimBytes, kDimBytes, p.head_dim);
        if constexpr (C.dropout) {
          dropout.clean_keys = phase;
          const u32 dropped = dropped_bits_f32<kRows, kColumns, false>(
              dropout, rows.valid.begin + warp_row, first_key);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
              const bool gone = (dropped >> (i * kColumns + j) & 1) != 0;
              dp[i][j] = gone ? 0.0f : dp[i][j] * p.dropout.keep_scale;
            }
          }
        }
        geometry::Interval seen[kRows];  // from the lane's first key on
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          ptx::ld_shared_v2(
              shared + kPlan.row_bounds + (phase * C.tile_rows() + first_row + i * 4) * 8,
              seen[i].begin, seen[i].end);
          seen[i].begin -= first_key + lane % 8;
          seen[i].end -= first_key + lane % 8;
        }
        visit(s, dp, seen);
      }
      ptx::bar_sync(0, C.threads());  // all are done with K
      if (more) walk.request_k(p, shared + kPlan.k);
      ptx::cp_async_commit_group();
    }
  };

  // ---- row values
  walk_keys([&](auto& s, auto& dp, auto& seen) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float sum = 0.0f;  // few enough to be nearly exact
      float rest = 0.0f;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (!seen[i].contains(j * 8)) continue;
        const ProbabilityF32 x = probability_f32<C>(p, s[i][j], values[i].lse);
        const float term = x.p * (dp[i][j] - values[i].delta);
        sum += x.p;
        rest += term;
        sums[i].size += abs_f32(term);
      }
      add_exactly(sums[i].p, sums[i].p_error, sum);
      sums[i].rest += rest;
    }
  });
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    RowSumsF32& row = sums[i];
#pragma unroll
    for (u32 step = 1; step < 8; step *= 2) {
      const float other = ptx::shfl_xor_f32(row.p, step);
      row.p_error += ptx::shfl_xor_f32(row.p_error, step);
      add_exactly(row.p, row.p_error, other);
    }
    row.rest = sum_of_row(row.rest);
    row.size = sum_of_row(row.size);
    mend_row_values(values[i], row);
    if (lane % 8 == 0 && i * 4 < rows_left) {
      const i64 row_at = padded_row(p.layout, rows.sample_index, rows.segment, rows.first) +
                         rows.valid.begin + first_row + i * 4;
      st_global_f32x4(p.row_values[h].at(batch, rows.head) + row_at * 4, values[i].lse,
                      values[i].factor, values[i].delta, values[i].dlse);
    }
  }

  // ---- dQ
  float dq[kRows][C.head_dim / 8];
  float factor[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    factor[i] = 1.0f;
#pragma unroll
    for (int n = 0; n < C.head_dim / 8; ++n) dq[i][n] = 0.0f;
  }
  const u32 ds_row = shared + kPlan.ds + first_row * C.score_bytes();
  walk_keys([&](auto& s, auto& dp, auto& seen) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const ProbabilityF32 x = probability_f32<C>(p, s[i][j], values[i].lse);
        const float ds = x.p * values[i].factor * ((dp[i][j] - values[i].delta) + values[i].dlse);
        // A hidden pair may hold anything, NaN included.
        s[i][j] = seen[i].contains(j * 8) ? ds * x.slope : 0.0f;
      }
    }
    store_scores_f32(ds_row + lane % 8 * 4, C.score_bytes(), s);
    ptx::syncwarp();
    add_product_f32<C.tile_columns()>(dq, factor, ds_row, C.score_bytes(),
                                      shared + kPlan.k + lane % 8 * 16, kDimBytes, p.head_dim);
  });
#pragma unroll
  for (int i = 0; i < kRows; ++i) factor[i] = p.softmax_scale;
  write_rows_f32(p.dq[h].at(batch, first + first_row, rows.head) + column, p.dq[h].row_stride,
                 rows_left, column, p.head_dim, dq, factor);
}

}  // namespace stepwell::cuda
