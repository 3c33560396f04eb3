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

/// A lane's address offset in a tile of rows of `bytes` for ldmatrix: 16 rows and two pieces of 8
/// columns, rows first or (of A transposed, of B with the inner dimension contiguous) columns
/// first.
__device__ __forceinline__ u32 rows_first(int lane, int bytes) {
  return lane % 16 * bytes + lane / 16 * 16;
}
__device__ __forceinline__ u32 columns_first(int lane, int bytes) {
  return (lane / 16 * 8 + lane % 8) * bytes + lane / 8 % 2 * 16;
}

/// c[m][n] += A B^T for a warp: A rows at `a` (row-major, k contiguous), B rows at `b` (k
/// contiguous); `a` with the lane's rows_first, `b` with its columns_first. kUnrolled steps are
/// straight code: the more, the more registers the compiler fills with loads that are early.
template <Element kElement, int kAtoms, int kPieces, int kSteps, int kUnrolled>
__device__ __forceinline__ void multiply_rows(float (&c)[kAtoms][kPieces * 2][4], u32 a,
                                              int a_bytes, u32 b, int b_bytes) {
#pragma unroll kUnrolled
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
/// either [rows][inner] row-major, or [inner][rows] (kTransposedA). `a` and `b` with the lane's
/// rows_first, `a` transposed with its columns_first.
template <Element kElement, int kAtoms, int kPieces, int kSteps, bool kTransposedA>
__device__ __forceinline__ void multiply_columns(float (&c)[kAtoms][kPieces * 2][4], u32 a,
                                                 int a_bytes, u32 b, int b_bytes) {
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

/// c[m][n] += A B over kSteps * 16 of the inner dimension, A the pairs of accumulators
/// [rows][inner] and B as in multiply_columns.
template <Element kElement, int kAtoms, int kPieces, int kSteps>
__device__ __forceinline__ void multiply_pairs(float (&c)[kAtoms][kPieces * 2][4],
                                               const u32 (&a)[kAtoms][kSteps * 2][2], u32 b,
                                               int b_bytes) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      u32 rb[4];
      ptx::ldmatrix_x4<true>(rb, b + step * 16 * b_bytes + n * 32);
#pragma unroll
      for (int m = 0; m < kAtoms; ++m) {
        const u32 ra[4] = {a[m][2 * step][0], a[m][2 * step][1], a[m][2 * step + 1][0],
                           a[m][2 * step + 1][1]};
        ptx::mma_m16n8k16<kElement>(c[m][2 * n], ra, {rb[0], rb[1]});
        ptx::mma_m16n8k16<kElement>(c[m][2 * n + 1], ra, {rb[2], rb[3]});
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
template <BackwardConfig C, int kTiles, class Lse, class ForEachHidden>
__device__ __forceinline__ void probabilities(const ScoreParams& p, float (&s)[kTiles][4],
                                              Lse&& lse, ForEachHidden&& for_each_hidden,
                                              u32 dropped, u32 (&kept)[kTiles][2],
                                              u32 (&factor)[kTiles][2]) {
  if constexpr (C.softcap) cap_scores(s, p.softcap_scale);
  float slope[C.softcap ? kTiles : 1][4];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (C.softcap) slope[i][j] = 1.0f - s[i][j] * s[i][j];
      s[i][j] = ptx::ex2_approx(s[i][j] * p.scale_log2 - lse(i, j));
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
      if constexpr (C.dropout) {
        x = (dropped >> (i * 4 + 2 * r) & 1) != 0 ? 0.0f : x * p.keep_scale;
        y = (dropped >> (i * 4 + 2 * r + 1) & 1) != 0 ? 0.0f : y * p.keep_scale;
      }
      kept[i][r] = C.dropout || C.softcap ? ptx::cvt_x2_f32<C.element>(x, y) : factor[i][r];
    }
  }
}

/// The same accumulator's dS = factor (dP - delta).
template <BackwardConfig C, int kTiles, class Delta, class ForEachHidden>
__device__ __forceinline__ void score_gradients(const ScoreParams& p, float (&dp)[kTiles][4],
                                                const u32 (&factor)[kTiles][2], Delta&& delta,
                                                ForEachHidden&& for_each_hidden, u32 dropped,
                                                u32 (&ds)[kTiles][2]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float x = dp[i][j];
      if constexpr (C.dropout) x = (dropped >> (i * 4 + j) & 1) != 0 ? 0.0f : x * p.keep_scale;
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

/// Query tiles of one segment that a key tile meets: `tiles`, of which each row of those in `full`
/// sees every key of the tile.
struct QueryWalk {
  geometry::Interval tiles;
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
  walk.tiles = geometry::covering_tiles(
      geometry::query_hull(walk.rule, walk.position, walk.len, keys), C.tile_q);
  // A tile that reaches past the last key is masked there.
  walk.full = {0, 0};
  if (walk.rule.table == nullptr && keys.size() == C.tile_kv) {
    const i32 first = keys.begin + walk.rule.key_position;
    const i32 last = keys.end - 1 + walk.rule.key_position;
    const i32 begin =
        geometry::first_position_above(walk.rule, walk.rule.end, last) - walk.position;
    const i32 end =
        geometry::first_position_above(walk.rule, walk.rule.begin, first) - walk.position;
    walk.full = {geometry::ceil_div(geometry::max_of(begin, 0), C.tile_q),
                 geometry::max_of(geometry::min_of(end, walk.len), 0) / C.tile_q};
  }
  return walk;
}

inline constexpr u32 kWalkBytes = 128;

/// What the query tiles of one head and segment share.
struct QueryRun {
  const u16* q;  // row 0, as the others
  const u16* dout;
  const float* row_values;
  float* dq_sum;
  i64 q_row_stride;
  i64 dout_row_stride;
  geometry::Interval full;  // tiles, as in QueryWalk
  i32 len;
  i32 segment;
  u32 sample_head;
  i32 half;
};

// Offsets of its members, which NVRTC has no offsetof for.
inline constexpr u32 kRunRowValues = 16;
inline constexpr u32 kRunDqSum = 24;
inline constexpr u32 kRunStrides = 32;
inline constexpr u32 kRunFull = 48;
inline constexpr u32 kRunLen = 56;
inline constexpr u32 kRunSegment = 60;
inline constexpr u32 kRunSampleHead = 64;
inline constexpr u32 kRunHalf = 68;
inline constexpr u32 kRunBytes = 128;  // two of them at a multiple of 256
static_assert(sizeof(QueryRun) == 72 && sizeof(void*) == 8 && sizeof(geometry::Interval) == 8);

/// The walk of a CTA: query heads of its KV head, in each the views (of noisy keys: their own),
/// then clean queries.
struct KeyTileWalk {
  i32 first_segment;
  i32 segments;  // of a head
  i32 first_key;
  i32 clean_keys;  // 1 or 0
};

/// A thread's place in the products of a tile, and where its operands lie in shared memory.
template <BackwardConfig C>
struct ThreadPlace {
  u32 shared;
  int thread;

  static constexpr BackwardPlan kPlan = backward_plan(C);
  static constexpr int kDimBytes = padded_row_bytes(C.head_dim);
  static constexpr int kDimVBytes = padded_row_bytes(C.head_dim_v);
  static constexpr int kScoreBytes = padded_row_bytes(C.by_key() ? C.tile_q : C.tile_kv);
  static constexpr int kWarpsKv = C.tile_kv / C.score_keys();
  static constexpr int kDimWarps = C.warps / C.warps_key;

  __device__ __forceinline__ int warp() const { return thread / 32; }
  __device__ __forceinline__ int lane() const { return thread % 32; }

  // The warp's part of S: rows of queries, keys; of dK and dV; of dQ.
  __device__ __forceinline__ int score_row() const { return warp() / kWarpsKv * C.score_rows(); }
  __device__ __forceinline__ int score_key() const { return warp() % kWarpsKv * C.score_keys(); }
  __device__ __forceinline__ int grad_key() const {
    return warp() % C.warps_key * (C.tile_kv / C.warps_key);
  }
  __device__ __forceinline__ int grad_dim() const {
    return warp() / C.warps_key * (C.head_dim / kDimWarps);
  }
  __device__ __forceinline__ int grad_dim_v() const {
    return warp() / C.warps_key * (C.head_dim_v / kDimWarps);
  }
  __device__ __forceinline__ int dq_row() const {
    return warp() % C.warps_dq * (C.tile_q / C.warps_dq);
  }
  __device__ __forceinline__ int dq_dim() const {
    return warp() / C.warps_dq * (C.head_dim / (C.warps / C.warps_dq));
  }

  // S and dP: queries and keys; by key the keys are the rows.
  __device__ __forceinline__ u32 s_q() const {
    return shared + kPlan.q + score_row() * kDimBytes + query_offset(kDimBytes);
  }
  __device__ __forceinline__ u32 s_k() const {
    return shared + kPlan.k + score_key() * kDimBytes + key_offset(kDimBytes);
  }
  __device__ __forceinline__ u32 dp_dout() const {
    return shared + kPlan.dout + score_row() * kDimVBytes + query_offset(kDimVBytes);
  }
  __device__ __forceinline__ u32 dp_v() const {
    return shared + kPlan.v + score_key() * kDimVBytes + key_offset(kDimVBytes);
  }
  // P (dS lies kPlan.ds - kPlan.p behind) as written; by key dS.
  __device__ __forceinline__ u32 scores_at() const {
    const u32 at = C.by_key() ? kPlan.ds + score_key() * kScoreBytes
                              : kPlan.p + score_row() * kScoreBytes + score_key() * 2;
    return shared + at +
           (C.stmatrix ? rows_first(lane(), kScoreBytes)
                       : lane() / 4 * kScoreBytes + lane() % 4 * 4);
  }
  // dV and dK: P^T, dO and Q.
  __device__ __forceinline__ u32 dkv_a() const {
    return shared + kPlan.p + grad_key() * 2 + columns_first(lane(), kScoreBytes);
  }
  __device__ __forceinline__ u32 dv_b() const {
    return shared + kPlan.dout + grad_dim_v() * 2 + rows_first(lane(), kDimVBytes);
  }
  __device__ __forceinline__ u32 dk_b() const {
    return shared + kPlan.q + grad_dim() * 2 + rows_first(lane(), kDimBytes);
  }
  // dQ: dS and K.
  __device__ __forceinline__ u32 dq_a() const {
    return shared + kPlan.ds +
           (C.by_key() ? dq_row() * 2 + columns_first(lane(), kScoreBytes)
                       : dq_row() * kScoreBytes + rows_first(lane(), kScoreBytes));
  }
  __device__ __forceinline__ u32 dq_b() const {
    return shared + kPlan.k + dq_dim() * 2 + rows_first(lane(), kDimBytes);
  }
  // Log-sum-exp and delta of the lane's first row of S.
  __device__ __forceinline__ u32 values_at() const {
    return shared + kPlan.row_values + (score_row() + lane() / 4) * 8;
  }

 private:
  __device__ __forceinline__ u32 query_offset(int bytes) const {
    return C.by_key() ? columns_first(lane(), bytes) : rows_first(lane(), bytes);
  }
  __device__ __forceinline__ u32 key_offset(int bytes) const {
    return C.by_key() ? rows_first(lane(), bytes) : columns_first(lane(), bytes);
  }
};

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
    const KeyTile tile = locate_key_tile<C>(p, item);
    const i64 batch = tile.sample.batch_index;
    if (!tile.padding.empty()) {
      const i64 row = tile.first_row + tile.padding.begin;
      const i32 count = tile.padding.size();
      write_zero_rows<C.threads()>(p.dk[kh], batch, item.head_kv, row, count, p.head_dim);
      write_zero_rows<C.threads()>(p.dv[kh], batch, item.head_kv, row, count, p.head_dim_v);
    }
    if (tile.keys.empty()) return;

    request_tile<C.tile_kv, C.head_dim, C.threads()>(
        shared + kPlan.k, head_rows(p.k[kh], batch, tile.first_row, item.head_kv),
        p.k[kh].row_stride, tile.keys.begin, tile.keys.end, p.head_dim);
    request_tile<C.tile_kv, C.head_dim_v, C.threads()>(
        shared + kPlan.v, head_rows(p.v[kh], batch, tile.first_row, item.head_kv),
        p.v[kh].row_stride, tile.keys.begin, tile.keys.end, p.head_dim_v);
    ptx::cp_async_commit_group();
    // The walks over noisy and over clean queries.
    static_assert(sizeof(QueryWalk) <= kWalkBytes);
    if (thread < 2) {
      const Half half = thread == 0 ? Half::kNoisy : Half::kClean;
      QueryWalk walk{};
      if (half == Half::kNoisy || kh == 1) {
        walk = query_walk<C>(tile.sample.mask, half, tile.half, tile.keys);
      }
      ptx::st_shared_object(shared + kPlan.walks + thread * kWalkBytes, walk);
    }
    if (thread == 0) {
      ptx::st_shared_object(
          shared + kPlan.walk,
          KeyTileWalk{kh == 1 ? 0 : tile.view, kh == 1 ? views + 1 : 1, tile.keys.begin, kh});
    }
    ptx::bar_sync(0, C.threads());
  }

  // The tile that is requested next. What all tiles of its head and segment share lies in one of
  // the warp's two slots of shared memory (registers are short).
  i32 next_run = -1;  // head of the group and segment, as one number
  i32 next_tile = 0;
  i32 next_end = 0;
  u32 next_slot = shared + kPlan.runs + warp * (2 * kRunBytes);
  // Goes on to a tile at or after next_tile, in this run or a later one; at the end none is left. A
  // later one takes the slot that the tile at hand leaves free.
  const auto left = [&] { return next_tile < next_end; };
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
      const KeyTile tile = locate_key_tile<C>(
          p, tile_item(p.grid, p.heads_kv, static_cast<i32>(ptx::cta_index_again<0>())));
      const i64 batch = tile.sample.batch_index;
      const i64 row = h == 0 ? tile.sample.noisy.first + segment * tile.sample.view_stride
                             : tile.sample.clean_q.first;
      const i64 padded = padded_row(p.layout, tile.sample_index, segment, row);
      const i32 head = tile.head_kv * p.group() + next_run / walk.segments;
      QueryRun run;
      run.q = head_rows(p.q[h], batch, row, head);
      run.dout = head_rows(p.dout[h], batch, row, head);
      run.row_values = p.row_values[h].at(batch, head) + padded * 2;
      run.dq_sum = p.dq_sum[h].at(batch, head) + padded * C.head_dim;
      run.q_row_stride = p.q[h].row_stride;
      run.dout_row_stride = p.dout[h].row_stride;
      run.full = queries.full;
      run.len = queries.len;
      run.segment = segment;
      run.sample_head = static_cast<u32>(tile.sample_index * p.heads_q + head);
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
      const i32 first_key = static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.walk + 8));
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
      return static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.walk + 8));
    };
    const auto dropout_of = [&](int row) {
      DropoutTile dropout =
          dropout_tile(p.dropout, static_cast<int>(ptx::ld_shared_u32(run + kRunSampleHead)),
                       static_cast<int>(ptx::ld_shared_u32(run + kRunSegment)), first_row + row);
      dropout.clean_keys = static_cast<int>(ptx::ld_shared_u32(shared + kPlan.walk + 12));
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
        multiply_columns<C.element, kDqAtoms, kDqPieces, decltype(keys_at_once)::value / 16,
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
      if constexpr (C.stages == 2) request_next();
      const auto add_rows = [&](int row, auto masked) {
        constexpr bool kMasked = decltype(masked)::value;
        constexpr int kTiles = 4;  // 32 rows
        static_assert(!C.dropout);
        const ScoreParams score{p.scale_log2, p.softcap_scale, p.dropout.keep_scale};
        const int first = stage * C.tile_q + row;
        const u32 bounds = shared + kPlan.row_bounds + (first + here().lane() % 4 * 2) * 8;
        const int key = here().score_key() + here().lane() / 4;
        float s[kKeyAtoms][kTiles][4] = {};
        multiply_rows<C.element, kKeyAtoms, kTiles / 2, C.head_dim / 16, kUnrolled>(
            s, again().s_k(), kDimBytes, here().s_q() + q_at + row * kDimBytes, kDimBytes);
        const u32 values = shared + kPlan.row_values + (first + here().lane() % 4 * 2) * 8;
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
            dp, again().dp_v(), kDimVBytes, here().dp_dout() + dout_at + row * kDimVBytes,
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
          store_scores<C.stmatrix, kScoreBytes>(
              again().scores_at() + m * 16 * kScoreBytes + row * 2, ds[m]);
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
      if constexpr (C.stages == 1) request_next();
      see_pieces();
      add_dq();
    } else {
      // P and dS of this warp's part, straight from products to shared memory.
      const auto scores = [&](auto masked) {
        constexpr bool kMasked = decltype(masked)::value;
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
        constexpr int kSteps = decltype(rows_at_once)::value / 16;
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
        add_dq();
      } else if constexpr (C.ctas_per_sm > 1) {
        request_next();
        add_dkv();
        add_dq();
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

  const auto store = [&](auto& sums, int pieces, u32 to, int row_bytes, int dim, float scale) {
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
    static_cast<void>(pieces);
  };
  store(dk, kDimPieces, shared + kPlan.k, kDimBytes, here().grad_dim(), p.softmax_scale);
  store(dv, kDimVPieces, shared + kPlan.v, kDimVBytes, here().grad_dim_v(), 1.0f);
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
