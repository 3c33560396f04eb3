// Attention backward with mma.sync, ldmatrix and cp.async.
//
// Three kernels: `prepare` (per query row: delta, log-sum-exp in log2 units, zeros where dQ is
// summed), the main kernel, `finish_dq` (rounds dQ's sums).
//
// Main kernel: a CTA owns a tile of keys of one segment and KV head, and walks all query heads of
// the KV head and all query tiles that see its keys; dK and dV stay in registers, so that grouped
// queries need no sums in memory.
//
//   S = Q K^T   P = exp2(S - lse)   dP = dO V^T   dS = P (dP - delta)
//   dV += P^T dO   dK += dS^T Q   dQ += dS K (added to float32 sums in global memory)
//
// Barriers of a query tile (all threads, bar 0):
//   A  Q, dO and the row intervals are here; everybody is done with the last P and dS, and with two
//   stages
//      the next Q and dO are requested
//   B  P and dS are written
//   C  (one stage) everybody is done with Q and dO: the next are requested, dQ is computed
//   meanwhile
//
// Masked tiles are skipped in pieces of one warp's part of S (32 x 32): a piece without a visible
// pair takes part in no product.
#pragma once

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/softmax.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// c[m][n] += A B^T for a warp: A rows at `a` (row-major, k contiguous), B rows at `b` (k
/// contiguous).
template <Element kElement, int kAtoms, int kPieces, int kSteps>
__device__ __forceinline__ void multiply_rows(float (&c)[kAtoms][kPieces * 2][4], u32 a,
                                              int a_bytes, u32 b, int b_bytes) {
  const int lane = static_cast<int>(ptx::thread_index_again()) % 32;
  a += lane % 16 * a_bytes + lane / 16 * 16;
  b += (lane / 16 * 8 + lane % 8) * b_bytes + lane / 8 % 2 * 16;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    u32 ra[kAtoms][4];
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) ptx::ldmatrix_x4(ra[m], a + m * 16 * a_bytes + step * 32);
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      u32 rb[4];
      ptx::ldmatrix_x4(rb, b + n * 16 * b_bytes + step * 32);
#pragma unroll
      for (int m = 0; m < kAtoms; ++m) {
        ptx::mma_m16n8k16<kElement>(c[m][2 * n], ra[m], {rb[0], rb[1]});
        ptx::mma_m16n8k16<kElement>(c[m][2 * n + 1], ra[m], {rb[2], rb[3]});
      }
    }
  }
}

/// c[m][n] += A B over kSteps * 16 of the inner dimension: B [inner][columns] row-major at `b`; A
/// either [rows][inner] row-major, or [inner][rows] (kTransposedA).
template <Element kElement, int kAtoms, int kPieces, int kSteps, bool kTransposedA>
__device__ __forceinline__ void multiply_columns(float (&c)[kAtoms][kPieces * 2][4], u32 a,
                                                 int a_bytes, u32 b, int b_bytes) {
  const int lane = static_cast<int>(ptx::thread_index_again()) % 32;
  if constexpr (kTransposedA) {
    a += (lane / 16 * 8 + lane % 8) * a_bytes + lane / 8 % 2 * 16;
  } else {
    a += lane % 16 * a_bytes + lane / 16 * 16;
  }
  b += lane % 16 * b_bytes + lane / 16 * 16;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    u32 ra[kAtoms][4];
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
      if constexpr (kTransposedA) {
        ptx::ldmatrix_x4<true>(ra[m], a + step * 16 * a_bytes + m * 32);
      } else {
        ptx::ldmatrix_x4(ra[m], a + m * 16 * a_bytes + step * 32);
      }
    }
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      u32 rb[4];
      ptx::ldmatrix_x4<true>(rb, b + step * 16 * b_bytes + n * 32);
#pragma unroll
      for (int m = 0; m < kAtoms; ++m) {
        ptx::mma_m16n8k16<kElement>(c[m][2 * n], ra[m], {rb[0], rb[1]});
        ptx::mma_m16n8k16<kElement>(c[m][2 * n + 1], ra[m], {rb[2], rb[3]});
      }
    }
  }
}

/// A number as a type.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

/// What turns a warp's S and dP into P and dS.
struct ScoreParams {
  float scale_log2;
  float softcap_scale;
  float keep_scale;  // of dropout
};

/// P and dS of 16 query rows of a warp, written to shared memory at `p_to` and `ds_to`. kMasked:
/// `bounds` is the shared address of the rows' intervals, `key` the first key's index in the tile.
template <BackwardConfig C, bool kMasked, int kTiles>
__device__ __forceinline__ void finish_scores(const ScoreParams& p, float (&s)[kTiles][4],
                                              float (&dp)[kTiles][4], const float (&lse)[2],
                                              const float (&delta)[2], u32 bounds, int key,
                                              const DropoutTile& dropout, int row, int first_key,
                                              u32 p_to, u32 ds_to) {
  constexpr int kScoreBytes = padded_row_bytes(C.tile_kv);
  const int column = static_cast<int>(ptx::thread_index()) % 4 * 2;
  if constexpr (C.softcap) cap_scores(s, p.softcap_scale);
  float slope[C.softcap ? kTiles : 1][4];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (C.softcap) slope[i][j] = 1.0f - s[i][j] * s[i][j];
      s[i][j] = ptx::ex2_approx(s[i][j] * p.scale_log2 - lse[j / 2]);
      if constexpr (C.dropout) dp[i][j] *= p.keep_scale;
    }
  }
  // dS first, from P before dropout; then P as dV takes it.
  float kept[C.dropout ? kTiles : 1][4];
  if constexpr (C.dropout) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) kept[i][j] = s[i][j] * p.keep_scale;
    }
    for_each_dropped<kTiles>(dropout, row, first_key, [&](int i, int j) {
      kept[i][j] = 0.0f;
      dp[i][j] = 0.0f;
    });
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      dp[i][j] = s[i][j] * (dp[i][j] - delta[j / 2]);
      if constexpr (C.softcap) dp[i][j] *= slope[i][j];
      if constexpr (C.dropout) s[i][j] = kept[i][j];
    }
  }
  if constexpr (kMasked) {
    // A hidden pair may hold anything, infinities and NaN included.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      geometry::Interval seen;
      ptx::ld_shared_v2(bounds + r * 64, seen.begin, seen.end);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (seen.contains(key + i * 8 + column + j)) continue;
          s[i][2 * r + j] = 0.0f;
          dp[i][2 * r + j] = 0.0f;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ptx::st_shared_u32(p_to + r * 8 * kScoreBytes + i * 16,
                         ptx::cvt_x2_f32<C.element>(s[i][2 * r], s[i][2 * r + 1]));
      ptx::st_shared_u32(ds_to + r * 8 * kScoreBytes + i * 16,
                         ptx::cvt_x2_f32<C.element>(dp[i][2 * r], dp[i][2 * r + 1]));
    }
  }
}

/// Query tiles of one segment that a key tile meets: tiles [begin, end), of which rows in `full`
/// see every key of the tile.
struct QueryWalk {
  i32 tile_begin;
  i32 tile_end;
  geometry::Interval full;
  i32 len;
  i32 position;
  geometry::IntervalRule rule;
};

template <BackwardConfig C>
__device__ __forceinline__ QueryWalk query_walk(const geometry::SampleMask& mask,
                                                geometry::Half query_half, geometry::Half key_half,
                                                geometry::Interval keys) {
  QueryWalk walk;
  walk.rule = geometry::rule_between(mask, query_half, key_half);
  walk.position = geometry::query_position(mask, query_half);
  walk.len = geometry::query_len(mask, query_half);
  const geometry::Interval tiles = geometry::covering_tiles(
      geometry::query_hull(walk.rule, walk.position, walk.len, keys), C.tile_q);
  walk.tile_begin = tiles.begin;
  walk.tile_end = tiles.end;
  // A tile that reaches past the last key is masked there.
  walk.full = {0, 0};
  if (walk.rule.table == nullptr && keys.size() == C.tile_kv) {
    const i32 first = keys.begin + walk.rule.key_position;
    const i32 last = keys.end - 1 + walk.rule.key_position;
    walk.full.begin =
        geometry::first_position_above(walk.rule, walk.rule.end, last) - walk.position;
    walk.full.end =
        geometry::first_position_above(walk.rule, walk.rule.begin, first) - walk.position;
  }
  return walk;
}

/// A CTA's tile of keys.
struct KeyTile {
  geometry::Sample sample;
  geometry::Half half;
  i32 view;
  i32 head_kv;
  i32 sample_index;
  i64 first_row;  // of the segment
  geometry::Interval keys;
  geometry::Interval padding;
};

/// Worked out from the CTA's index. Called again where it is needed again: kept in registers
/// through the main loop it would push others out to memory.
template <BackwardConfig C>
__device__ __forceinline__ KeyTile locate_key_tile(const BackwardParams& p, const TileItem& item) {
  using geometry::Half;
  KeyTile tile;
  // Clean keys, segment 0 here, have the longest walks.
  tile.half = item.segment == 0 ? Half::kClean : Half::kNoisy;
  tile.view = item.segment - 1;
  tile.head_kv = item.head_kv;
  tile.sample_index = item.sample;
  tile.sample = geometry::sample_at(p.layout, item.sample);
  const geometry::SegmentRows segment =
      tile.half == Half::kNoisy ? tile.sample.noisy : tile.sample.clean_kv;
  tile.first_row =
      segment.first + (tile.half == Half::kNoisy ? tile.view * tile.sample.view_stride : 0);
  // The first tiles are seen by the most rows.
  const i32 index = p.grid.tiles - 1 - item.tile;
  const i32 len = geometry::key_len(tile.sample.mask, tile.half);
  tile.keys = geometry::tile_interval(index, C.tile_kv, len);
  tile.padding = {geometry::max_of(index * C.tile_kv, len),
                  geometry::min_of((index + 1) * C.tile_kv, segment.count)};
  return tile;
}

__device__ __forceinline__ u16* head_rows(const HalfRows& rows, i64 batch, i64 row, i32 head) {
  return rows.data + batch * rows.batch_stride + row * rows.row_stride + head * rows.head_stride;
}

template <BackwardConfig C>
__device__ __forceinline__ void attention_backward_sm80(const BackwardParams& p) {
  using geometry::Half;
  using geometry::Interval;
  static constexpr BackwardPlan kPlan = backward_plan(C);
  constexpr int kDimBytes = padded_row_bytes(C.head_dim);
  constexpr int kDimVBytes = padded_row_bytes(C.head_dim_v);
  constexpr int kScoreBytes = padded_row_bytes(C.tile_kv);
  constexpr int kQStageBytes = C.tile_q * kDimBytes;
  constexpr int kDoutStageBytes = C.tile_q * kDimVBytes;
  constexpr int kWarpsKv = C.warps / C.warps_q;  // of S along the keys
  constexpr int kScoreAtoms = C.score_rows() / 16;
  constexpr int kScorePieces = C.score_keys() / 16;
  constexpr int kKeyAtoms = C.tile_kv / C.warps_key / 16;  // of dK and dV, a warp's keys
  constexpr int kDimPieces = C.head_dim / (C.warps / C.warps_key) / 16;
  constexpr int kDimVPieces = C.head_dim_v / (C.warps / C.warps_key) / 16;
  constexpr int kDqAtoms = C.tile_q / C.warps_dq / 16;
  constexpr int kDqPieces = C.head_dim / (C.warps / C.warps_dq) / 16;
  const u32 shared = ptx::shared_base();
  const int thread = static_cast<int>(ptx::thread_index());
  const int warp = thread / 32;
  const int lane = thread % 32;

  // ---- which tile of keys
  const i32 views = p.layout.mask.num_views;
  Half key_half;
  i32 key_view;
  Interval keys;
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
    const KeyTile tile = locate_key_tile<C>(p, item);
    const i64 batch = tile.sample.batch_index;
    if (!tile.padding.empty()) {
      const i64 row = tile.first_row + tile.padding.begin;
      const i32 count = tile.padding.size();
      write_zero_rows<C.threads()>(p.dk[kh], batch, item.head_kv, row, count, p.head_dim);
      write_zero_rows<C.threads()>(p.dv[kh], batch, item.head_kv, row, count, p.head_dim_v);
    }
    if (tile.keys.empty()) return;
    key_half = tile.half;
    key_view = tile.view;
    keys = tile.keys;

    request_tile<C.tile_kv, C.head_dim, C.threads()>(
        shared + kPlan.k, head_rows(p.k[kh], batch, tile.first_row, item.head_kv),
        p.k[kh].row_stride, keys.begin, keys.end, p.head_dim);
    request_tile<C.tile_kv, C.head_dim_v, C.threads()>(
        shared + kPlan.v, head_rows(p.v[kh], batch, tile.first_row, item.head_kv),
        p.v[kh].row_stride, keys.begin, keys.end, p.head_dim_v);
    ptx::cp_async_commit_group();
    // The walks over noisy and over clean queries.
    static_assert(sizeof(QueryWalk) <= 128);
    if (thread < 2) {
      const Half half = thread == 0 ? Half::kNoisy : Half::kClean;
      QueryWalk walk{};
      if (half == Half::kNoisy || key_half == Half::kClean) {
        walk = query_walk<C>(tile.sample.mask, half, key_half, keys);
      }
      ptx::st_shared_object(shared + kPlan.walks + thread * 128, walk);
    }
    ptx::bar_sync(0, C.threads());
  }

  // ---- the walk: query heads, in each the views (of noisy keys: their own), then clean queries
  const i32 group = p.group();
  const i32 first_segment = key_half == Half::kNoisy ? key_view : 0;
  const i32 last_segment = key_half == Half::kNoisy ? key_view : views;  // views: clean queries

  // The tile that is requested next. Where the rows of its head and segment begin lies in one of
  // the warp's two slots of shared memory (registers are short): q, dout, lse, delta, dq, length.
  const u32 runs = shared + kPlan.runs + warp * 96;
  i32 next_head = 0;  // of the group
  i32 next_segment = first_segment - 1;
  i32 next_tile = 0;
  i32 next_end = 0;
  int next_slot = 0;
  // Goes on to a tile at or after next_tile, in this segment or a later one; false at the end. A
  // later one takes the slot that `slot`, of the tile at hand, leaves free.
  const auto find = [&](int slot) {
    while (next_tile >= next_end) {
      if (++next_segment > last_segment) {
        next_segment = first_segment;
        if (++next_head == group) return false;
      }
      const int h = next_segment < views ? 0 : 1;
      const u32 walk = shared + kPlan.walks + h * 128;
      ptx::ld_shared_v2(walk, next_tile, next_end);
      next_slot = slot ^ 1;
      if (lane == 0) {
        const KeyTile tile = locate_key_tile<C>(
            p, tile_item(p.grid, p.heads_kv, static_cast<i32>(ptx::cta_index_again<0>())));
        const i64 batch = tile.sample.batch_index;
        const i64 row = h == 0 ? tile.sample.noisy.first + next_segment * tile.sample.view_stride
                               : tile.sample.clean_q.first;
        const i32 head = tile.head_kv * group + next_head;
        const u32 at = runs + next_slot * 48;
        ptx::st_shared_pointers(at, head_rows(p.q[h], batch, row, head),
                                head_rows(p.dout[h], batch, row, head));
        ptx::st_shared_pointers(at + 16, p.lse_log2[h].at(batch, head, row),
                                p.delta[h].at(batch, head, row));
        ptx::st_shared_pointers(at + 32, p.dq_sum[h].at(batch, head, row), nullptr);
        ptx::st_shared_u32(at + 40, static_cast<u32>(tile.sample_index * p.heads_q + head));
      }
      ptx::syncwarp();
    }
    return true;
  };
  const auto request_queries = [&](int stage) {
    const int h = next_segment < views ? 0 : 1;
    const i32 len = static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.walks + h * 128 + 16));
    request_tile<C.tile_q, C.head_dim, C.threads()>(
        shared + kPlan.q + stage * kQStageBytes, ptx::ld_shared_pointer<u16>(runs + next_slot * 48),
        p.q[h].row_stride, next_tile * C.tile_q, len, p.head_dim);
    request_tile<C.tile_q, C.head_dim_v, C.threads()>(
        shared + kPlan.dout + stage * kDoutStageBytes,
        ptx::ld_shared_pointer<u16>(runs + next_slot * 48 + 8), p.dout[h].row_stride,
        next_tile * C.tile_q, len, p.head_dim_v);
  };
  bool more = find(1);
  if (more) request_queries(0);
  ptx::cp_async_commit_group();

  float dk[kKeyAtoms][kDimPieces * 2][4] = {};
  float dv[kKeyAtoms][kDimVPieces * 2][4] = {};
  const int score_row = warp / kWarpsKv * C.score_rows();  // this warp's part of S
  const int score_key = warp % kWarpsKv * C.score_keys();
  const int grad_key = warp % C.warps_key * (kKeyAtoms * 16);  // its part of dK and dV
  const int grad_dim = warp / C.warps_key * (kDimPieces * 16);
  const int grad_dim_v = warp / C.warps_key * (kDimVPieces * 16);
  const int dq_row = warp % C.warps_dq * (kDqAtoms * 16);  // and of dQ
  const int dq_dim = warp / C.warps_dq * (kDqPieces * 16);

  int stage = 0;
  while (more) {
    const i32 query_tile = next_tile;
    const i32 query_segment = next_segment;
    const int h = query_segment < views ? 0 : 1;
    const int slot = next_slot;
    const u32 run = runs + slot * 48;
    const u32 walk_at = shared + kPlan.walks + h * 128;
    const i32 len = static_cast<i32>(ptx::ld_shared_u32(walk_at + 16));
    Interval full_rows;
    ptx::ld_shared_v2(walk_at + 8, full_rows.begin, full_rows.end);
    const Interval rows = geometry::tile_interval(query_tile, C.tile_q, len);
    const bool full = rows.size() == C.tile_q && full_rows.contains(rows);
    if (!full && thread < C.tile_q) {
      Interval seen{0, 0};
      if (rows.begin + thread < rows.end) {
        QueryWalk walk;
        ptx::ld_shared_object(walk_at, walk);
        seen = geometry::row_interval(walk.rule, walk.position + rows.begin + thread);
      }
      ptx::st_shared_v2(shared + kPlan.row_bounds + thread * 8, seen.begin - keys.begin,
                        seen.end - keys.begin);
    }
    // Per-row values of this lane's rows of S, on their way while the products run.
    const float* lse_rows = ptx::ld_shared_pointer<const float>(run + 16);
    const float* delta_rows = ptx::ld_shared_pointer<const float>(run + 24);
    float lse[kScoreAtoms][2];
    float delta[kScoreAtoms][2];
#pragma unroll
    for (int m = 0; m < kScoreAtoms; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i32 row = rows.begin + score_row + m * 16 + r * 8 + lane / 4;
        const bool inside = row < rows.end;
        lse[m][r] = inside ? lse_rows[row * p.lse_log2[h].row_stride] : 0.0f;
        delta[m][r] = inside ? delta_rows[row * p.delta[h].row_stride] : 0.0f;
      }
    }
    ptx::cp_async_wait_group<0>();
    ptx::bar_sync(0, C.threads());  // A
    const u32 q_tile = shared + kPlan.q + stage * kQStageBytes;
    const u32 dout_tile = shared + kPlan.dout + stage * kDoutStageBytes;
    if constexpr (C.stages == 2) {
      ++next_tile;
      more = find(slot);
      stage ^= 1;
      if (more) request_queries(stage);
      ptx::cp_async_commit_group();
    }

    bool sees = true;
    if (!full) {
      bool meets = false;
      for (int row = lane; row < C.score_rows(); row += 32) {
        Interval seen;
        ptx::ld_shared_v2(shared + kPlan.row_bounds + (score_row + row) * 8, seen.begin, seen.end);
        meets = meets || seen.meets({score_key, score_key + C.score_keys()});
      }
      sees = ptx::ballot(meets) != 0;
      if (lane == 0) ptx::st_shared_u32(shared + kPlan.visible + warp * 4, sees ? 1 : 0);
    }
    if (sees) {
      float s[kScoreAtoms][kScorePieces * 2][4] = {};
      float dp[kScoreAtoms][kScorePieces * 2][4] = {};
      multiply_rows<C.element, kScoreAtoms, kScorePieces, C.head_dim / 16>(
          s, q_tile + score_row * kDimBytes, kDimBytes, shared + kPlan.k + score_key * kDimBytes,
          kDimBytes);
      multiply_rows<C.element, kScoreAtoms, kScorePieces, C.head_dim_v / 16>(
          dp, dout_tile + score_row * kDimVBytes, kDimVBytes,
          shared + kPlan.v + score_key * kDimVBytes, kDimVBytes);
      const ScoreParams score{p.scale_log2, p.softcap_scale, p.dropout.keep_scale};
      DropoutTile dropout{};
      if constexpr (C.dropout) {
        dropout = dropout_tile(p.dropout, static_cast<int>(ptx::ld_shared_u32(run + 40)),
                               query_segment, rows.begin + score_row);
        dropout.clean_keys = key_half == Half::kClean ? 1 : 0;
      }
      const auto finish = [&](auto masked) {
#pragma unroll
        for (int m = 0; m < kScoreAtoms; ++m) {
          const u32 at =
              (score_row + m * 16 + lane / 4) * kScoreBytes + score_key * 2 + lane % 4 * 4;
          finish_scores<C, decltype(masked)::value>(
              score, s[m], dp[m], lse[m], delta[m],
              shared + kPlan.row_bounds + (score_row + m * 16 + lane / 4) * 8, score_key, dropout,
              m * 16, keys.begin + score_key, shared + kPlan.p + at, shared + kPlan.ds + at);
        }
      };
      full ? finish(Constant<false>{}) : finish(Constant<true>{});
    }
    ptx::bar_sync(0, C.threads());  // B

    // One bit for each warp's part of S. Straight code where all are visible: branches between the
    // products would keep loads of one from starting during another.
    u32 visible = ~0u;
    if (!full) {
      visible = ptx::ballot(lane < C.warps &&
                            ptx::ld_shared_u32(shared + kPlan.visible + lane % C.warps * 4) != 0);
    }
    const auto piece_visible = [&](int row, int key) {
      return (visible >> (row / C.score_rows() * kWarpsKv + key / C.score_keys()) & 1) != 0;
    };
    const auto add_dkv = [&](int row, auto rows_at_once) {
      constexpr int kSteps = decltype(rows_at_once)::value / 16;
      multiply_columns<C.element, kKeyAtoms, kDimVPieces, kSteps, true>(
          dv, shared + kPlan.p + row * kScoreBytes + grad_key * 2, kScoreBytes,
          dout_tile + row * kDimVBytes + grad_dim_v * 2, kDimVBytes);
      multiply_columns<C.element, kKeyAtoms, kDimPieces, kSteps, true>(
          dk, shared + kPlan.ds + row * kScoreBytes + grad_key * 2, kScoreBytes,
          q_tile + row * kDimBytes + grad_dim * 2, kDimBytes);
    };
    if (full) {
      add_dkv(0, Constant<C.tile_q>{});
    } else {
#pragma unroll 1
      for (int row = 0; row < C.tile_q; row += C.score_rows()) {
        if (piece_visible(row, grad_key)) add_dkv(row, Constant<C.score_rows()>{});
      }
    }
    if constexpr (C.stages == 1) {
      ptx::bar_sync(0, C.threads());  // C
      ++next_tile;
      more = find(slot);
      if (more) request_queries(0);
      ptx::cp_async_commit_group();
    }

    float dq[kDqAtoms][kDqPieces * 2][4] = {};
    const auto add_dq = [&](int key, auto keys_at_once) {
      multiply_columns<C.element, kDqAtoms, kDqPieces, decltype(keys_at_once)::value / 16, false>(
          dq, shared + kPlan.ds + dq_row * kScoreBytes + key * 2, kScoreBytes,
          shared + kPlan.k + key * kDimBytes + dq_dim * 2, kDimBytes);
    };
    bool any = full;
    if (full) {
      add_dq(0, Constant<C.tile_kv>{});
    } else {
#pragma unroll 1
      for (int key = 0; key < C.tile_kv; key += C.score_keys()) {
        if (!piece_visible(dq_row, key)) continue;
        any = true;
        add_dq(key, Constant<C.score_keys()>{});
      }
    }
    if (any) {
      const i64 dq_stride = p.dq_sum[h].row_stride;
      const int row = dq_row + lane / 4;
      float* to = ptx::ld_shared_pointer<float>(run + 32) + (rows.begin + row) * dq_stride +
                  dq_dim + lane % 4 * 2;
#pragma unroll
      for (int m = 0; m < kDqAtoms; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (rows.begin + row + m * 16 + r * 8 < rows.end) {
#pragma unroll
            for (int i = 0; i < kDqPieces * 2; ++i) {
              ptx::red_add_x2_f32(to + i * 8, dq[m][i][2 * r], dq[m][i][2 * r + 1]);
            }
          }
          to += 8 * dq_stride;
        }
      }
    }
  }
  ptx::cp_async_wait_group<0>();
  ptx::bar_sync(0, C.threads());  // K and V are not needed any more: their place takes dK and dV

  const auto store = [&](auto& sums, int pieces, u32 to, int row_bytes, int dim, float scale) {
#pragma unroll
    for (int m = 0; m < kKeyAtoms; ++m) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(sums[0]) / sizeof(sums[0][0])); ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          ptx::st_shared_u32(
              to + (grad_key + m * 16 + r * 8 + lane / 4) * row_bytes + dim * 2 + i * 16 +
                  lane % 4 * 4,
              ptx::cvt_x2_f32<C.element>(sums[m][i][2 * r] * scale, sums[m][i][2 * r + 1] * scale));
        }
      }
    }
    static_cast<void>(pieces);
  };
  store(dk, kDimPieces, shared + kPlan.k, kDimBytes, grad_dim, p.softmax_scale);
  store(dv, kDimVPieces, shared + kPlan.v, kDimVBytes, grad_dim_v, 1.0f);
  ptx::bar_sync(0, C.threads());
  const KeyTile tile = locate_key_tile<C>(
      p, tile_item(p.grid, p.heads_kv, static_cast<i32>(ptx::cta_index_again<0>())));
  const int kh = static_cast<int>(tile.half);
  const i64 row = tile.first_row + tile.keys.begin;
  write_tile<C.tile_kv, C.head_dim, C.threads()>(
      head_rows(p.dk[kh], tile.sample.batch_index, row, tile.head_kv), p.dk[kh].row_stride,
      shared + kPlan.k, tile.keys.size(), p.head_dim);
  write_tile<C.tile_kv, C.head_dim_v, C.threads()>(
      head_rows(p.dv[kh], tile.sample.batch_index, row, tile.head_kv), p.dv[kh].row_stride,
      shared + kPlan.v, tile.keys.size(), p.head_dim_v);
}

}  // namespace stepwell::cuda
