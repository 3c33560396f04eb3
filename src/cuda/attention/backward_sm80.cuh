// Attention backward with mma.sync, ldmatrix and cp.async.
//
// Three kernels: `prepare` (per query row: delta, log-sum-exp in log2 units, zeros where dQ is
// summed), the main kernel here, and `finish` (rounds dQ's sums).
//
// A CTA owns a tile of keys of one segment and KV head, and walks all query heads of the KV head
// and all query tiles that see its keys; dK and dV stay in registers, so that grouped queries need
// no sums in memory.
//
//   S = Q K^T   P = exp2(S - lse)   dP = dO V^T   dS = P (dP - delta)
//   dV += P^T dO   dK += dS^T Q   dQ += dS K (added to float32 sums in global memory)
//
// The sums of dQ come in any order. Without `dq` they are left to a kernel of query rows
// (backward_dq_sm80.cuh), in place of `finish`.
//
// Two ways to divide the products among the warps:
//   by tile  each product in its own way; P and dS go through shared memory
//   by key   each warp has keys of its own and computes S^T for them: P and dS go on from its
//            registers, only dQ gets dS through shared memory. Takes dK and dV of 32 keys in a
//            warp's registers: up to head dim 64, without dropout; one stage
//
// Barriers of a query tile (all threads, bar 0):
//   A  Q, dO, row values and intervals are here; everybody is done with the last P and dS
//   B  P and dS are written; by key, everybody is done with Q and dO too
//   C  (by tile, one stage) everybody is done with Q and dO
// The next tile is requested after B, or C, where one stage is all there is.
//
// Masked tiles are skipped in pieces of one warp's part of S: a piece without a visible
// pair takes part in no product.
#pragma once

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/backward_scores.cuh"
#include "cuda/attention/backward_walk.cuh"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/multiply.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

template <BackwardConfig C>
__device__ __forceinline__ void attention_backward_sm80(const BackwardParams& p) {
  using geometry::Half;
  using geometry::Interval;
  static constexpr BackwardPlan kPlan = backward_plan(C);
  constexpr int kDimBytes = padded_row_bytes(C.head_dim);
  constexpr int kDimVBytes = padded_row_bytes(C.head_dim_v);
  constexpr int kScoreBytes = padded_row_bytes(C.by_key() ? C.tile_q : C.tile_kv);
  constexpr int kQStageBytes = C.tile_q * kDimBytes;
  constexpr int kDoutStageBytes = C.tile_q * kDimVBytes;
  constexpr int kWarpsKv = C.tile_kv / C.score_keys();  // of S along the keys
  constexpr int kScoreAtoms = C.score_rows() / 16;
  constexpr int kScorePieces = C.score_keys() / 16;
  constexpr int kKeyAtoms = C.tile_kv / C.warps_key / 16;  // of dK and dV, a warp's keys
  constexpr int kDimPieces = C.head_dim / (C.warps / C.warps_key) / 16;
  constexpr int kDimVPieces = C.head_dim_v / (C.warps / C.warps_key) / 16;
  constexpr int kDqAtoms = C.tile_q / C.warps_dq / 16;
  constexpr int kUnrolled = C.softcap || C.dropout ? 4 : 8;
  constexpr int kDqPieces = C.head_dim / (C.warps / C.warps_dq) / 16;
  const u32 shared = ptx::shared_base();
  const int thread = static_cast<int>(ptx::thread_index());
  const int warp = thread / 32;
  const int lane = thread % 32;

  // ---- which tile of keys
  const i32 views = p.layout.mask.num_views;
  {
    const TileItem item = tile_item(p.grid, p.heads_kv, static_cast<i32>(ptx::cta_index<0>()));
    const int kh = item.segment == 0 ? 1 : 0;
    if (item.sample == p.layout.batch) {
      const geometry::RowRun tail =
          geometry::packed_key_tail(p.layout, kh == 1 ? views : item.segment - 1);
      const i64 step = static_cast<i64>(p.grid.tiles) * C.tile_kv;
      for (i64 row = static_cast<i64>(item.tile) * C.tile_kv; row < tail.count; row += step) {
        const i64 count = geometry::min_of<i64>(C.tile_kv, tail.count - row);
        write_zero_rows<C.threads()>(p.dk[kh], 0, item.head_kv, tail.first + row, count,
                                     p.head_dim);
        write_zero_rows<C.threads()>(p.dv[kh], 0, item.head_kv, tail.first + row, count,
                                     p.head_dim_v);
      }
      return;
    }
    const KeyTile tile = locate_key_tile(p, item, C.tile_kv);
    const i64 batch = tile.sample.batch_index;
    if (!tile.padding.empty()) {
      const i64 row = tile.first_row + tile.padding.begin;
      const i32 count = tile.padding.size();
      write_zero_rows<C.threads()>(p.dk[kh], batch, item.head_kv, row, count, p.head_dim);
      write_zero_rows<C.threads()>(p.dv[kh], batch, item.head_kv, row, count, p.head_dim_v);
    }
    if (tile.keys.empty()) return;

    request_tile<C.tile_kv, C.head_dim, C.threads()>(
        shared + kPlan.k, p.k[kh].at(batch, tile.first_row, item.head_kv), p.k[kh].row_stride,
        tile.keys.begin, tile.keys.end, p.head_dim);
    request_tile<C.tile_kv, C.head_dim_v, C.threads()>(
        shared + kPlan.v, p.v[kh].at(batch, tile.first_row, item.head_kv), p.v[kh].row_stride,
        tile.keys.begin, tile.keys.end, p.head_dim_v);
    ptx::cp_async_commit_group();
    // The walks over noisy and over clean queries, by a warp each.
    static_assert(sizeof(QueryWalk) <= kWalkBytes && C.warps > 2);
    if (warp < 2 && lane == 0) {
      const Half half = warp == 0 ? Half::kNoisy : Half::kClean;
      QueryWalk walk{};
      if (half == Half::kNoisy || kh == 1) {
        walk = query_walk(tile.sample.mask, half, tile.half, tile.keys, C.tile_q, C.tile_kv);
      }
      ptx::st_shared_object(shared + kPlan.walks + warp * kWalkBytes, walk);
    } else if (warp == 2 && lane == 0) {
      ptx::st_shared_object(shared + kPlan.walk, key_tile_walk(tile, views));
    }
    ptx::bar_sync(0, C.threads());
  }

  // The tile that is requested next. What all tiles of its head and segment share lies in one of
  // the warp's two slots of shared memory (registers are short).
  i32 next_run = -1;  // head of the group and segment, as one number
  i32 next_tile = 0;
  i32 next_end = 0;
  u32 next_slot = shared + kPlan.runs + warp * (2 * kRunBytes);
  const auto left = [&] { return next_tile < next_end; };
  // Goes on to a tile at or after next_tile, in this run or a later one; at the end none is left. A
  // later one takes the slot that the tile at hand leaves free.
  const auto find = [&] {
    if (left()) return;
    KeyTileWalk walk;
    ptx::ld_shared_object(shared + kPlan.walk, walk);
    while (!left()) {
      if (++next_run == p.group() * walk.segments) return;
      const i32 segment = walk.first_segment + next_run % walk.segments;
      const u32 queries_at = shared + kPlan.walks + (segment < views ? 0 : kWalkBytes);
      ptx::ld_shared_v2(queries_at, next_tile, next_end);
    }
    next_slot ^= kRunBytes;
    if (lane == 0) {
      const i32 segment = walk.first_segment + next_run % walk.segments;
      const int h = segment < views ? 0 : 1;
      QueryWalk queries;
      ptx::ld_shared_object(shared + kPlan.walks + h * kWalkBytes, queries);
      const i64 batch = walk.batch;
      const i64 row = h == 0 ? walk.noisy_row + segment * walk.view_stride : walk.clean_row;
      const i64 padded = padded_row(p.layout, walk.sample, segment, row);
      const i32 head = walk.head_kv * p.group() + next_run / walk.segments;
      QueryRun run;
      run.q = p.q[h].at(batch, row, head);
      run.dout = p.dout[h].at(batch, row, head);
      run.row_values = p.row_values[h].at(batch, head) + padded * 2;
      if constexpr (C.dq) run.dq_sum = p.dq_sum[h].at(batch, head) + padded * C.head_dim;
      run.q_row_stride = p.q[h].row_stride;
      run.dout_row_stride = p.dout[h].row_stride;
      run.full = queries.full;
      run.len = queries.len;
      run.segment = segment;
      run.sample_head = static_cast<u32>(walk.sample * p.heads_q + head);
      run.half = h;
      ptx::st_shared_object(next_slot, run);
    }
    ptx::syncwarp();
  };
  bool next_full = false;  // whether each row of the next tile sees every key
  const auto request = [&](int stage) {
    Interval full_tiles;
    ptx::ld_shared_v2(next_slot + kRunFull, full_tiles.begin, full_tiles.end);
    next_full = full_tiles.contains(next_tile);
    const i32 first_row = next_tile * C.tile_q;
    const i32 len = static_cast<i32>(ptx::ld_shared_u32(next_slot + kRunLen));
    if (!next_full && thread < C.tile_q) {
      const u32 walk_at =
          shared + kPlan.walks + ptx::ld_shared_u32(next_slot + kRunHalf) * kWalkBytes;
      const i32 first_key =
          static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.walk + kWalkFirstKey));
      QueryWalk walk;
      ptx::ld_shared_object(walk_at, walk);
      Interval seen{0, 0};
      if (first_row + thread < len) {
        seen = geometry::row_interval(walk.rule, walk.position + first_row + thread);
      }
      ptx::st_shared_v2(shared + kPlan.row_bounds + (stage * C.tile_q + thread) * 8,
                        seen.begin - first_key, seen.end - first_key);
    }
    if (thread < C.tile_q / 2) {  // two rows a thread
      const float* row_values = ptx::ld_shared_pointer<const float>(next_slot + kRunRowValues);
      const i32 left = len - first_row - thread * 2;
      ptx::cp_async_16(shared + kPlan.row_values + (stage * C.tile_q + thread * 2) * 8,
                       left > 0 ? row_values + (first_row + thread * 2) * i64{2} : row_values,
                       left > 1   ? 16
                       : left > 0 ? 8
                                  : 0);
    }
    const u16* q;
    const u16* dout;
    ptx::ld_shared_pointers(next_slot, q, dout);
    i64 q_row_stride;
    i64 dout_row_stride;
    ptx::ld_shared_v2(next_slot + kRunStrides, q_row_stride, dout_row_stride);
    request_tile<C.tile_q, C.head_dim, C.threads()>(shared + kPlan.q + stage * kQStageBytes, q,
                                                    q_row_stride, first_row, len, p.head_dim);
    request_tile<C.tile_q, C.head_dim_v, C.threads()>(shared + kPlan.dout + stage * kDoutStageBytes,
                                                      dout, dout_row_stride, first_row, len,
                                                      p.head_dim_v);
    ptx::cp_async_commit_group();
  };
  find();
  if (left()) request(0);

  float dk[kKeyAtoms][kDimPieces * 2][4] = {};
  float dv[kKeyAtoms][kDimVPieces * 2][4] = {};
  // This thread's place in the products and its addresses in shared memory. Kernels with more to
  // hold work them out anew where they are needed.
  const auto here = [&] {
    constexpr bool kAgain = C.softcap || C.dropout;
    return ThreadPlace<C>{shared, kAgain ? static_cast<int>(ptx::thread_index_again()) : thread};
  };
  const auto again = [&] {
    return ThreadPlace<C>{shared, static_cast<int>(ptx::thread_index_again())};
  };
  static_assert(
      C.tile_kv / C.warps_key <= C.score_keys() && C.tile_q / C.warps_dq <= C.score_rows(),
      "a warp's keys of dK and rows of dQ lie in one piece of S");
  constexpr u32 kFromPToDs = kPlan.ds - kPlan.p;

  for (int turn = 0; left(); ++turn) {
    const i32 first_row = next_tile * C.tile_q;
    const u32 run = next_slot;
    const bool full = next_full;
    const int stage = C.stages == 2 ? turn % 2 : 0;
    ptx::cp_async_wait_group<0>();
    ptx::bar_sync(0, C.threads());  // A
    const u32 q_at = stage * kQStageBytes;
    const u32 dout_at = stage * kDoutStageBytes;

    const auto first_key = [&] {  // of the key tile
      return static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.walk + kWalkFirstKey));
    };
    const auto dropout_of = [&](int row) {
      DropoutTile dropout =
          dropout_tile(p.dropout, static_cast<int>(ptx::ld_shared_u32(run + kRunSampleHead)),
                       static_cast<int>(ptx::ld_shared_u32(run + kRunSegment)), first_row + row);
      dropout.clean_keys =
          static_cast<int>(ptx::ld_shared_u32(shared + kPlan.walk + kWalkCleanKeys));
      return dropout;
    };
    const auto request_next = [&] {
      ++next_tile;
      find();
      if (left()) request(C.stages == 2 ? stage ^ 1 : 0);
    };

    // One bit for each warp's part of S (by key: of the rows of this warp's dQ).
    // Straight code where all are visible: branches between the products would keep loads of one
    // from starting during another.
    u32 visible = ~0u;
    const auto see_pieces = [&] {
      if (full) return;
      const int piece = C.by_key() ? again().dq_row() / C.score_rows() : 0;
      const int from = again().lane();
      const u32 pieces = from < C.warps ? ptx::ld_shared_u32(shared + kPlan.visible + from * 4) : 0;
      visible = ptx::ballot((pieces >> piece & 1) != 0);
    };
    const auto piece_visible = [&](int row, int key) {
      const int first = C.by_key() ? 0 : row / C.score_rows() * kWarpsKv;
      return (visible >> (first + key / C.score_keys()) & 1) != 0;
    };
    const auto add_dq = [&] {
      float dq[kDqAtoms][kDqPieces * 2][4] = {};
      const auto add_keys = [&](int key, auto keys_at_once) {
        multiply_columns<C.element, kDqAtoms, kDqPieces, decltype(keys_at_once)::kValue / 16,
                         C.by_key()>(dq, again().dq_a() + key * (C.by_key() ? kScoreBytes : 2),
                                     kScoreBytes, again().dq_b() + key * kDimBytes, kDimBytes);
      };
      bool any = full;
      if (full) {
        add_keys(0, Constant<C.tile_kv>{});
      } else {
#pragma unroll 1
        for (int key = 0; key < C.tile_kv; key += C.score_keys()) {
          if (!piece_visible(again().dq_row(), key)) continue;
          any = true;
          add_keys(key, Constant<C.score_keys()>{});
        }
      }
      if (!any) return;
      const i32 row = first_row + again().dq_row();
      float* const to = ptx::ld_shared_pointer<float>(run + kRunDqSum) +
                        sum_index(row, again().dq_dim(), C.head_dim) + again().lane() * 4;
      const i32 left = full ? C.tile_q : static_cast<i32>(ptx::ld_shared_u32(run + kRunLen)) - row;
#pragma unroll
      for (int m = 0; m < kDqAtoms; ++m) {
        if (m * 16 >= left) break;  // padding is 16 rows at most
#pragma unroll
        for (int i = 0; i < kDqPieces * 2; ++i) {
          ptx::red_add_x4_f32(to + (m * (C.head_dim / 8) + i) * (kSumRows * 8), dq[m][i]);
        }
      }
    };
    if constexpr (C.by_key()) {
      static_assert(C.stages == 1 && !C.dropout);
      const auto add_rows = [&](int row, auto masked) {
        constexpr bool kMasked = decltype(masked)::kValue;
        constexpr int kTiles = 4;  // 32 rows
        const ScoreParams score{p.scale_log2, p.softcap_scale, p.dropout.keep_scale};
        const int first = stage * C.tile_q + row + here().lane() % 4 * 2;
        const u32 bounds = shared + kPlan.row_bounds + first * 8;
        const int key = here().score_key() + here().lane() / 4;
        float s[kKeyAtoms][kTiles][4] = {};
        multiply_rows<C.element, kKeyAtoms, kTiles / 2, C.head_dim / 16, kUnrolled>(
            s, again().s_k(), kDimBytes, here().s_q() + q_at + row * kDimBytes, kDimBytes);
        const u32 values = shared + kPlan.row_values + first * 8;
        float lse[kTiles][2];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          lse[i][0] = ptx::ld_shared_f32(values + i * 64);
          lse[i][1] = ptx::ld_shared_f32(values + i * 64 + 8);
        }
        const auto hidden = [&](int m) {
          return [&, m](auto&& hide) {
            if constexpr (kMasked) for_each_hidden_query<kTiles>(bounds, key + m * 16, hide);
          };
        };
        u32 kept[kKeyAtoms][kTiles][2];
        u32 factor[kKeyAtoms][kTiles][2];
#pragma unroll
        for (int m = 0; m < kKeyAtoms; ++m) {
          probabilities<C>(
              score, s[m], [&](int i, int j) { return lse[i][j % 2]; }, hidden(m), 0u, kept[m],
              factor[m]);
        }
        multiply_pairs<C.element, kKeyAtoms, kDimVPieces, kTiles / 2>(
            dv, kept, here().dv_b() + dout_at + row * kDimVBytes, kDimVBytes);
        float dp[kKeyAtoms][kTiles][4] = {};
        multiply_rows<C.element, kKeyAtoms, kTiles / 2, C.head_dim_v / 16, kUnrolled>(
            dp, again().dp_v(), kDimVBytes, again().dp_dout() + dout_at + row * kDimVBytes,
            kDimVBytes);
        float delta[kTiles][2];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          delta[i][0] = ptx::ld_shared_f32(values + i * 64 + 4);
          delta[i][1] = ptx::ld_shared_f32(values + i * 64 + 12);
        }
        u32 ds[kKeyAtoms][kTiles][2];
#pragma unroll
        for (int m = 0; m < kKeyAtoms; ++m) {
          score_gradients<C>(
              score, dp[m], factor[m], [&](int i, int j) { return delta[i][j % 2]; }, hidden(m), 0u,
              ds[m]);
          if constexpr (C.dq) {
            store_scores<C.stmatrix, kScoreBytes>(
                again().scores_at() + m * 16 * kScoreBytes + row * 2, ds[m]);
          }
        }
        multiply_pairs<C.element, kKeyAtoms, kDimPieces, kTiles / 2>(
            dk, ds, here().dk_b() + q_at + row * kDimBytes, kDimBytes);
      };
      if (full) {
#pragma unroll 1
        for (int row = 0; row < C.tile_q; row += 32) add_rows(row, Constant<false>{});
      } else {
        u32 seen_rows = 0;
#pragma unroll 1
        for (int row = 0; row < C.tile_q; row += 32) {
          Interval seen;
          ptx::ld_shared_v2(
              shared + kPlan.row_bounds + (stage * C.tile_q + row + here().lane()) * 8, seen.begin,
              seen.end);
          if (ptx::ballot(seen.meets({here().score_key(), here().score_key() + C.score_keys()})) ==
              0)
            continue;
          seen_rows |= 1u << row / 32;
          add_rows(row, Constant<true>{});
        }
        if (again().lane() == 0) {
          ptx::st_shared_u32(shared + kPlan.visible + again().warp() * 4, seen_rows);
        }
      }
      ptx::bar_sync(0, C.threads());  // B
      request_next();
      if constexpr (C.dq) {
        see_pieces();
        add_dq();
      }
    } else {
      // P and dS of this warp's part, straight from products to shared memory.
      const auto scores = [&](auto masked) {
        constexpr bool kMasked = decltype(masked)::kValue;
        const ScoreParams score{p.scale_log2, p.softcap_scale, p.dropout.keep_scale};
        u32 dropped[kScoreAtoms] = {};
        if constexpr (C.dropout) {
          static_assert(kScorePieces <= 4);
          const DropoutTile dropout = dropout_of(here().score_row());
#pragma unroll
          for (int m = 0; m < kScoreAtoms; ++m) {
            dropped[m] =
                dropped_bits<kScorePieces * 2>(dropout, m * 16, first_key() + here().score_key());
          }
        }
        const u32 bounds = shared + kPlan.row_bounds +
                           (stage * C.tile_q + here().score_row() + here().lane() / 4) * 8;
        const int key = here().score_key() + here().lane() % 4 * 2;
        float s[kScoreAtoms][kScorePieces * 2][4] = {};
        multiply_rows<C.element, kScoreAtoms, kScorePieces, C.head_dim / 16, kUnrolled>(
            s, here().s_q() + q_at, kDimBytes, here().s_k(), kDimBytes);
        float lse[kScoreAtoms][2];
        float delta[kScoreAtoms][2];
#pragma unroll
        for (int m = 0; m < kScoreAtoms; ++m) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            ptx::ld_shared_v2(here().values_at() + (stage * C.tile_q + m * 16 + r * 8) * 8,
                              lse[m][r], delta[m][r]);
          }
        }
        const auto hidden = [&](int m) {
          return [&, m](auto&& hide) {
            if constexpr (kMasked) {
              for_each_hidden_key<kScorePieces * 2>(bounds + m * 16 * 8, key, hide);
            }
          };
        };
        u32 factor[kScoreAtoms][kScorePieces * 2][2];
#pragma unroll
        for (int m = 0; m < kScoreAtoms; ++m) {
          u32 kept[kScorePieces * 2][2];
          probabilities<C>(
              score, s[m], [&](int, int j) { return lse[m][j / 2]; }, hidden(m), dropped[m], kept,
              factor[m]);
          store_scores<C.stmatrix, kScoreBytes>(here().scores_at() + m * 16 * kScoreBytes, kept);
        }
        float dp[kScoreAtoms][kScorePieces * 2][4] = {};
        multiply_rows<C.element, kScoreAtoms, kScorePieces, C.head_dim_v / 16, kUnrolled>(
            dp, here().dp_dout() + dout_at, kDimVBytes, here().dp_v(), kDimVBytes);
#pragma unroll
        for (int m = 0; m < kScoreAtoms; ++m) {
          u32 ds[kScorePieces * 2][2];
          score_gradients<C>(
              score, dp[m], factor[m], [&](int, int j) { return delta[m][j / 2]; }, hidden(m),
              dropped[m], ds);
          store_scores<C.stmatrix, kScoreBytes>(
              here().scores_at() + kFromPToDs + m * 16 * kScoreBytes, ds);
        }
      };
      if (full) {
        scores(Constant<false>{});
      } else {
        bool meets = false;
        for (int row = here().lane(); row < C.score_rows(); row += 32) {
          Interval seen;
          ptx::ld_shared_v2(
              shared + kPlan.row_bounds + (stage * C.tile_q + here().score_row() + row) * 8,
              seen.begin, seen.end);
          meets = meets || seen.meets({here().score_key(), here().score_key() + C.score_keys()});
        }
        const bool sees = ptx::ballot(meets) != 0;
        if (here().lane() == 0)
          ptx::st_shared_u32(shared + kPlan.visible + here().warp() * 4, sees ? 1 : 0);
        if (sees) scores(Constant<true>{});
      }
      ptx::bar_sync(0, C.threads());  // B
      see_pieces();
      const auto add_dkv_rows = [&](int row, auto rows_at_once) {
        constexpr int kSteps = decltype(rows_at_once)::kValue / 16;
        multiply_columns<C.element, kKeyAtoms, kDimVPieces, kSteps, true>(
            dv, here().dkv_a() + row * kScoreBytes, kScoreBytes,
            here().dv_b() + dout_at + row * kDimVBytes, kDimVBytes);
        multiply_columns<C.element, kKeyAtoms, kDimPieces, kSteps, true>(
            dk, here().dkv_a() + kFromPToDs + row * kScoreBytes, kScoreBytes,
            here().dk_b() + q_at + row * kDimBytes, kDimBytes);
      };
      const auto add_dkv = [&] {
        if (full) {
          add_dkv_rows(0, Constant<C.tile_q>{});
        } else {
#pragma unroll 1
          for (int row = 0; row < C.tile_q; row += C.score_rows()) {
            if (piece_visible(row, here().grad_key()))
              add_dkv_rows(row, Constant<C.score_rows()>{});
          }
        }
      };
      if constexpr (C.stages == 1) {
        add_dkv();
        ptx::bar_sync(0, C.threads());  // C
        request_next();
        if constexpr (C.dq) add_dq();
      } else if constexpr (C.ctas_per_sm > 1 || !C.dq) {
        request_next();
        add_dkv();
        if constexpr (C.dq) add_dq();
      } else {
        // Half of the warps go the other way round: while one half of a scheduler's warps works out
        // addresses and adds to dQ, the other multiplies.
        const bool late = here().warp() >= C.warps / 2;
        if (late) {
          request_next();
          add_dkv();
        }
        add_dq();
        if (!late) {
          request_next();
          add_dkv();
        }
      }
    }
  }
  ptx::cp_async_wait_group<0>();
  ptx::bar_sync(0, C.threads());  // K and V are not needed any more: their place takes dK and dV

  const auto store = [&](auto& sums, u32 to, int row_bytes, int dim, float scale) {
#pragma unroll
    for (int m = 0; m < kKeyAtoms; ++m) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(sums[0]) / sizeof(sums[0][0])); ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          ptx::st_shared_u32(
              to + (here().grad_key() + m * 16 + r * 8 + here().lane() / 4) * row_bytes + dim * 2 +
                  i * 16 + here().lane() % 4 * 4,
              ptx::cvt_x2_f32<C.element>(sums[m][i][2 * r] * scale, sums[m][i][2 * r + 1] * scale));
        }
      }
    }
  };
  store(dk, shared + kPlan.k, kDimBytes, here().grad_dim(), p.softmax_scale);
  store(dv, shared + kPlan.v, kDimVBytes, here().grad_dim_v(), 1.0f);
  ptx::bar_sync(0, C.threads());
  KeyTileWalk walk;
  ptx::ld_shared_object(shared + kPlan.walk, walk);
  const int kh = walk.clean_keys;
  write_tile<C.tile_kv, C.head_dim, C.threads()>(
      p.dk[kh].at(walk.batch, walk.first_key_row, walk.head_kv), p.dk[kh].row_stride,
      shared + kPlan.k, walk.keys, p.head_dim, thread);
  write_tile<C.tile_kv, C.head_dim_v, C.threads()>(
      p.dv[kh].at(walk.batch, walk.first_key_row, walk.head_kv), p.dv[kh].row_stride,
      shared + kPlan.v, walk.keys, p.head_dim_v, thread);
}

}  // namespace stepwell::cuda
