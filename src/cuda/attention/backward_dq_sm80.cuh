// dQ by query rows, with mma.sync, ldmatrix and cp.async: the same bits each time.
//
// The main backward kernel (backward_sm80.cuh) walks over queries and would add to dQ in any order.
// Here a CTA owns query rows as in the forward pass, with the same walk over keys (key_walk.cuh),
// computes P and dS once more, and rounds dQ once: no sums in memory, two products more.
//
//   S = Q K^T   P = exp2(S - lse)   dP = dO V^T   dS = P (dP - delta)   dQ += dS K
//
// A warp owns 16 or 32 rows. dS goes from its accumulators into the last product as it is, 32 keys
// at a time (16 in tiles of 16), so that S and dP leave registers to dQ.
//
// Shared memory: Q (later dQ), dO, two K and V tiles, log-sum-exp and delta, the rows' intervals.
//
// Pipeline, one key tile:
//   wait for K and V | barrier | request the next K and V | steps of 32 keys
// The barrier after `wait` also says that all warps are done with the tile that the request
// overwrites.
//
// Registers: 32 rows x dim 128: 128 for dQ, 32 for S, then dP, 16 for P.
#pragma once

#include "cuda/attention/backward_dq_config.hpp"
#include "cuda/attention/backward_scores.cuh"
#include "cuda/attention/key_walk.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/attention/query_rows.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/multiply.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// Adds a warp's part of dQ for step_keys() keys, `key` on of the tile. `k` and `v` are the tiles'
/// shared addresses, `bounds` that of the warp's row intervals.
template <BackwardDqConfig C, bool kMasked>
__device__ __forceinline__ void dq_step(const BackwardParams& p,
                                        float (&dq)[C.rows_per_warp / 16][C.head_dim / 8][4],
                                        u32 shared, u32 k, u32 v, int key, u32 bounds,
                                        i32 first_key, const DropoutTile& dropout) {
  static constexpr BackwardDqPlan kPlan = backward_dq_plan(C);
  constexpr int kAtoms = C.rows_per_warp / 16;
  constexpr int kPieces = C.step_keys() / 16;
  constexpr int kTiles = kPieces * 2;
  constexpr int kDimBytes = padded_row_bytes(C.head_dim);
  constexpr int kDimVBytes = padded_row_bytes(C.head_dim_v);
  constexpr int kUnrolled = 4;
  const int thread = static_cast<int>(ptx::thread_index_again());
  const int lane = thread % 32;
  const int row = thread / 32 * C.rows_per_warp;
  const ScoreParams score{p.scale_log2, p.softcap_scale, p.dropout.keep_scale};
  const u32 values = shared + kPlan.row_values + (row + lane / 4) * 8;
  const auto hidden = [&](int m) {
    return [&, m](auto&& hide) {
      if constexpr (kMasked) {
        for_each_hidden_key<kTiles>(bounds + (m * 16 + lane / 4) * 8,
                                    first_key + key + lane % 4 * 2, hide);
      }
    };
  };
  u32 dropped[kAtoms] = {};
  if constexpr (C.dropout) {
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
      dropped[m] = dropped_bits<kTiles>(dropout, m * 16, first_key + key);
    }
  }

  u32 factor[kAtoms][kTiles][2];
  {
    float s[kAtoms][kTiles][4] = {};
    multiply_rows<C.element, kAtoms, kPieces, C.head_dim / 16, kUnrolled>(
        s, shared + kPlan.q + row * kDimBytes + rows_first(lane, kDimBytes), kDimBytes,
        k + key * kDimBytes + columns_first(lane, kDimBytes), kDimBytes);
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
      const float lse[2] = {ptx::ld_shared_f32(values + m * 128),
                            ptx::ld_shared_f32(values + m * 128 + 64)};
      u32 kept[kTiles][2];
      probabilities<C>(
          score, s[m], [&](int, int j) { return lse[j / 2]; }, hidden(m), dropped[m], kept,
          factor[m]);
    }
  }
  u32 ds[kAtoms][kTiles][2];
  {
    float dp[kAtoms][kTiles][4] = {};
    multiply_rows<C.element, kAtoms, kPieces, C.head_dim_v / 16, kUnrolled>(
        dp, shared + kPlan.dout + row * kDimVBytes + rows_first(lane, kDimVBytes), kDimVBytes,
        v + key * kDimVBytes + columns_first(lane, kDimVBytes), kDimVBytes);
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
      const float delta[2] = {ptx::ld_shared_f32(values + m * 128 + 4),
                              ptx::ld_shared_f32(values + m * 128 + 68)};
      score_gradients<C>(
          score, dp[m], factor[m], [&](int, int j) { return delta[j / 2]; }, hidden(m), dropped[m],
          ds[m]);
    }
  }
  multiply_pairs<C.element, kAtoms, C.head_dim / 16, kPieces>(
      dq, ds, k + key * kDimBytes + rows_first(lane, kDimBytes), kDimBytes);
}

template <BackwardDqConfig C>
__device__ __forceinline__ void attention_backward_dq_sm80(const BackwardParams& p) {
  static constexpr BackwardDqPlan kPlan = backward_dq_plan(C);
  constexpr int kAtoms = C.rows_per_warp / 16;
  constexpr int kDimBytes = padded_row_bytes(C.head_dim);
  constexpr int kDimVBytes = padded_row_bytes(C.head_dim_v);
  const u32 shared = ptx::shared_base();
  const int thread = static_cast<int>(ptx::thread_index());
  const int warp = thread / 32;
  const int warp_row = warp * C.rows_per_warp;

  // ---- which tile
  QueryRows rows;
  const bool any_row =
      find_query_rows<C.tile_q()>(p, rows, [&](int h, i64 batch, i32 head, i64 first, i64 count) {
        write_zero_rows<C.threads()>(p.dq[h], batch, head, first, count, p.head_dim);
      });
  if (!any_row) return;
  const int h = static_cast<int>(rows.half);
  const i64 batch = rows.sample.batch_index;

  request_tile<C.tile_q(), C.head_dim, C.threads()>(
      shared + kPlan.q, p.q[h].at(batch, rows.first, rows.head), p.q[h].row_stride,
      rows.valid.begin, rows.valid.end, p.head_dim);
  request_tile<C.tile_q(), C.head_dim_v, C.threads()>(
      shared + kPlan.dout, p.dout[h].at(batch, rows.first, rows.head), p.dout[h].row_stride,
      rows.valid.begin, rows.valid.end, p.head_dim_v);
  if (thread < C.tile_q() / 2) {  // two rows a thread
    const i64 padded = padded_row(p.layout, rows.sample_index, rows.segment, rows.first);
    const float* values = p.row_values[h].at(batch, rows.head) + (padded + rows.valid.begin) * 2;
    const i32 left = rows.valid.size() - thread * 2;
    ptx::cp_async_16(shared + kPlan.row_values + thread * 16,
                     left > 0 ? values + thread * 4 : values,
                     left > 1   ? 16
                     : left > 0 ? 8
                                : 0);
  }
  ptx::cp_async_commit_group();

  KeyWalk<C, kPlan, BackwardParams> walk{p, shared, 0, 0};
  walk.prepare_rows(rows);
  if (warp == 0 && thread < 2) {
    walk.prepare_phase(rows, thread);
  } else if (thread == 32) {
    ptx::st_shared_pointers(shared + kPlan.result,
                            p.dq[h].at(batch, rows.first + rows.valid.begin, rows.head), nullptr);
  }
  ptx::bar_sync(0, C.threads());  // the rows' intervals are here

  // ---- the walk
  bool more = walk.start();
  if (more) walk.request(0);
  ptx::cp_async_commit_group();
  const int row_count = rows.valid.size();
  const i64 row_stride = p.dq[h].row_stride;
  DropoutTile dropout{};
  if constexpr (C.dropout) {
    dropout = dropout_tile(p.dropout, rows.sample_index * p.heads_q + rows.head, rows.segment,
                           rows.valid.begin + warp_row);
  }
  float dq[kAtoms][C.head_dim / 8][4] = {};
  int stage = 0;
  while (more) {
    const i32 first_key = walk.first_key();
    const WarpKeys keys = walk.warp_keys(warp);
    const u32 bounds = walk.bounds_at(warp);
    const u32 k_tile = shared + kPlan.k + stage * (C.tile_kv * kDimBytes);
    const u32 v_tile = shared + kPlan.v + stage * (C.tile_kv * kDimVBytes);
    if constexpr (C.dropout) dropout.clean_keys = walk.phase;

    ptx::cp_async_wait_group<0>();
    ptx::bar_sync(0, C.threads());  // this tile is here, and all warps are done with the last one
    --walk.tile;
    more = walk.find();
    stage ^= 1;
    if (more) walk.request(stage);
    ptx::cp_async_commit_group();

    constexpr int kStep = C.step_keys();
    if (keys.full) {
#pragma unroll 1
      for (int key = 0; key < C.tile_kv; key += kStep) {
        dq_step<C, false>(p, dq, shared, k_tile, v_tile, key, bounds, first_key, dropout);
      }
    } else {
#pragma unroll 1
      for (int key = keys.first_piece * 16 / kStep * kStep; key < keys.last_piece * 16;
           key += kStep) {
        dq_step<C, true>(p, dq, shared, k_tile, v_tile, key, bounds, first_key, dropout);
      }
    }
  }
  ptx::cp_async_wait_group<0>();
  ptx::bar_sync(0, C.threads());  // Q is here also where no tile was visited; its place is reused

  write_accumulators<C.element>(
      dq, [&](int, int, float x) { return x * p.softmax_scale; },
      shared + kPlan.q + warp_row * kDimBytes,
      ptx::ld_shared_pointer<u16>(shared + kPlan.result) + warp_row * row_stride, row_stride,
      row_count - warp_row, p.head_dim, thread % 32);
}

}  // namespace stepwell::cuda
