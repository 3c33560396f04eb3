// Attention forward in float32, with fused multiply-adds: any GPU. For checking and for small
// models: exact before fast.
//
// A CTA owns a tile of query rows of one segment and head and walks the key tiles that any of its
// rows sees, own view first, then clean keys. 4 warps, each with rows of its own; one without a
// visible pair in a tile takes no part in it.
//
// Shared memory: Q, one K tile, one V tile, P, the rows' intervals (f32_config.hpp).
//
// One key tile:
//   K is here, barrier       | S = Q K^T | barrier, request the next K | P
//   V and P are here, barrier | O += P V | barrier, request the next V
//
// Accuracy: as the CPU backend. Exponents are differences to the row maximum, taken first, exp2 is
// a polynomial (math_f32.cuh), and the sums of a tile are rounded by themselves before they are
// added to those of the row.
#pragma once

#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/key_walk_f32.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/attention/query_rows.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/dropout_f32.cuh"
#include "cuda/tile/math_f32.cuh"
#include "cuda/tile/multiply_f32.cuh"
#include "cuda/tile/softmax.cuh"

namespace stepwell::cuda {

template <F32Config C>
__device__ __forceinline__ void attention_forward_f32(const ForwardParamsF32& p) {
  static constexpr ForwardF32Plan kPlan = forward_f32_plan(C);
  constexpr int kDimBytes = padded_row_bytes_f32(C.head_dim);
  constexpr int kDimVBytes = padded_row_bytes_f32(C.head_dim_v);
  constexpr int kRows = C.rows;
  constexpr int kColumns = C.columns;
  const u32 shared = ptx::shared_base();
  const int lane = static_cast<int>(ptx::thread_index()) % 32;
  const int warp_row = static_cast<int>(ptx::thread_index()) / 32 * C.warp_rows();
  const int first_row = warp_row + lane / 8;  // the lane's, in the tile

  // ---- which tile
  QueryRows rows;
  const bool any_row = find_query_rows<C.tile_rows()>(
      p, rows, [&](int h, i64 batch, i32 head, i64 first, i64 count) {
        write_zero_rows<C.threads()>(p.out[h], batch, head, first, count, p.head_dim_v);
        write_values<C.threads()>(p.lse[h], batch, head, first, count, minus_infinity());
      });
  if (!any_row) return;
  const int h = static_cast<int>(rows.half);
  const i64 batch = rows.sample.batch_index;
  const i64 first = rows.first + rows.valid.begin;
  const int rows_left = rows.valid.size() - first_row;

  request_tile_f32<C.tile_rows(), C.head_dim, C.threads()>(
      shared + kPlan.q, p.q[h].at(batch, first, rows.head), p.q[h].row_stride, 0, rows.valid.size(),
      p.head_dim);
  KeyWalkF32<C> walk{shared + kPlan.row_bounds, shared + kPlan.phases, 0, 0, 0};
  walk.prepare(p, rows);
  DropoutTile dropout{};
  if constexpr (C.dropout) {
    dropout = dropout_tile(p.dropout, rows.sample_index * p.heads_q + rows.head, rows.segment, 0);
  }
  ptx::bar_sync(0, C.threads());

  // ---- the walk
  float out[kRows][C.head_dim_v / 8];
  float row_max[kRows];  // of the raw scores
  float row_sum[kRows];  // of this lane's columns
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    row_max[i] = minus_infinity();
    row_sum[i] = 0.0f;
#pragma unroll
    for (int n = 0; n < C.head_dim_v / 8; ++n) out[i][n] = 0.0f;
  }
  const u32 p_row = shared + kPlan.p + first_row * C.score_bytes();

  walk.start();
  bool more = walk.find();
  if (more) walk.request_k(p, shared + kPlan.k);
  ptx::cp_async_commit_group();
  if (more) walk.request_v(p, shared + kPlan.v);
  ptx::cp_async_commit_group();
  while (more) {
    const i32 first_key = walk.tile * C.tile_columns();
    const int phase = walk.phase;
    const bool sees = ptx::ballot(lane < C.warp_rows() && walk.meets(warp_row + lane)) != 0;
    ptx::cp_async_wait_group<1>();
    ptx::bar_sync(0, C.threads());  // K is here
    float s[kRows][kColumns];
    if (sees) {
      multiply_rows_f32(s, shared + kPlan.q + first_row * kDimBytes, kDimBytes,
                        shared + kPlan.k + lane % 8 * kDimBytes, kDimBytes, p.head_dim);
    }
    ptx::bar_sync(0, C.threads());  // all are done with K
    ++walk.tile;
    more = walk.find();
    if (more) walk.request_k(p, shared + kPlan.k);
    ptx::cp_async_commit_group();

    float rescale[kRows];
    if (sees) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        geometry::Interval seen;
        ptx::ld_shared_v2(
            shared + kPlan.row_bounds + (phase * C.tile_rows() + first_row + i * 4) * 8, seen.begin,
            seen.end);
        float top = row_max[i];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          if constexpr (C.softcap) {
            s[i][j] = tanh_f32(s[i][j] * p.softcap_scale);
          } else {
            s[i][j] *= p.score_sign;
          }
          // A hidden pair may hold anything, NaN included.
          if (!seen.contains(first_key + j * 8 + lane % 8)) s[i][j] = minus_infinity();
          top = ptx::max_f32(top, s[i][j]);
        }
        top = max_of_row(top);
        // Of a row that has seen nothing, where -inf + inf would be NaN.
        const float reference = top == minus_infinity() ? 0.0f : top;
        rescale[i] = exp2_f32((row_max[i] - reference) * p.scale_log2);
        row_max[i] = top;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          s[i][j] = exp2_f32((s[i][j] - reference) * p.scale_log2);
          sum += s[i][j];
        }
        row_sum[i] = ptx::fma_f32(row_sum[i], rescale[i], sum);
      }
      if constexpr (C.dropout) {  // of P alone: the sum is of all pairs
        dropout.clean_keys = phase;
        const u32 dropped = dropped_bits_f32<kRows, kColumns, false>(
            dropout, rows.valid.begin + warp_row, first_key);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            if ((dropped >> (i * kColumns + j) & 1) != 0) s[i][j] = 0.0f;
          }
        }
      }
      store_scores_f32(p_row + lane % 8 * 4, C.score_bytes(), s);
    }
    ptx::cp_async_wait_group<1>();
    ptx::bar_sync(0, C.threads());  // V is here, and P
    if (sees) {
      add_product_f32<C.tile_columns()>(out, rescale, p_row, C.score_bytes(),
                                        shared + kPlan.v + lane % 8 * 16, kDimVBytes, p.head_dim_v);
    }
    ptx::bar_sync(0, C.threads());  // all are done with V
    if (more) walk.request_v(p, shared + kPlan.v);
    ptx::cp_async_commit_group();
  }
  ptx::cp_async_wait_group<0>();

  // ---- output
  float factor[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sum = sum_of_row(row_sum[i]);
    const bool sees_nothing = sum == 0.0f;  // a NaN sum is not 0 and passes on
    factor[i] = sees_nothing ? 0.0f : (C.dropout ? p.dropout.keep_scale : 1.0f) / sum;
    if (p.lse[h].data != nullptr && lane % 8 == 0 && i * 4 < rows_left) {
      const double top = static_cast<double>(row_max[i]) * p.scale_log2;
      *p.lse[h].at(batch, rows.head, first + first_row + i * 4) =
          sees_nothing ? minus_infinity()
                       : static_cast<float>(top * 0.69314718055994530942 + log_f64(sum));
    }
  }
  const int column = lane % 8 * 4;
  write_rows_f32(p.out[h].at(batch, first + first_row, rows.head) + column, p.out[h].row_stride,
                 rows_left, column, p.head_dim_v, out, factor);
}

}  // namespace stepwell::cuda
