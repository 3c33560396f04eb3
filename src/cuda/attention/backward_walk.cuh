// What a CTA of the backward pass owns and walks over, and where its threads find their operands.
#pragma once

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/attention/walk_bytes.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/multiply.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// Query tiles of one segment that a key tile meets: `tiles`, of which each row of those in `full`
/// sees every key of the tile.
struct QueryWalk {
  geometry::Interval tiles;
  geometry::Interval full;
  i32 len;
  i32 position;
  geometry::IntervalRule rule;
};

/// Of a key tile with room for `tile_kv` keys, in query tiles of `tile_q` rows.
__device__ __forceinline__ QueryWalk query_walk(const geometry::SampleMask& mask,
                                                geometry::Half query_half, geometry::Half key_half,
                                                geometry::Interval keys, i32 tile_q, i32 tile_kv) {
  QueryWalk walk;
  walk.rule = geometry::rule_between(mask, query_half, key_half);
  walk.position = geometry::query_position(mask, query_half);
  walk.len = geometry::query_len(mask, query_half);
  walk.tiles = geometry::covering_tiles(
      geometry::query_hull(walk.rule, walk.position, walk.len, keys), tile_q);
  // A tile that reaches past the last key is masked there.
  walk.full = {0, 0};
  if (walk.rule.table == nullptr && keys.size() == tile_kv) {
    const i32 first = keys.begin + walk.rule.key_position;
    const i32 last = keys.end - 1 + walk.rule.key_position;
    const i32 begin =
        geometry::first_position_above(walk.rule, walk.rule.end, last) - walk.position;
    const i32 end =
        geometry::first_position_above(walk.rule, walk.rule.begin, first) - walk.position;
    walk.full = {geometry::ceil_div(geometry::max_of(begin, 0), tile_q),
                 geometry::max_of(geometry::min_of(end, walk.len), 0) / tile_q};
  }
  return walk;
}

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
static_assert(sizeof(QueryRun) == 72 && sizeof(void*) == 8 && sizeof(geometry::Interval) == 8);

/// The walk of a CTA: query heads of its KV head, in each the views (of noisy keys: their own),
/// then clean queries. And of its tile of keys what is needed after the first requests.
struct KeyTileWalk {
  i32 first_segment;
  i32 segments;  // of a head
  i32 first_key;
  i32 clean_keys;  // 1 or 0
  i32 keys;
  i32 sample;
  i32 batch;
  i32 head_kv;
  i64 first_key_row;  // in the tensors
  i64 noisy_row;      // row 0 of view 0, of queries
  i64 view_stride;
  i64 clean_row;
};

inline constexpr u32 kWalkFirstKey = 8;
inline constexpr u32 kWalkCleanKeys = 12;
static_assert(sizeof(KeyTileWalk) == kKeyTileWalkBytes);

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

/// Worked out from the CTA's index.
template <class Params>
__device__ __forceinline__ KeyTile locate_key_tile(const Params& p, const TileItem& item,
                                                   i32 tile_kv) {
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
  tile.keys = geometry::tile_interval(index, tile_kv, len);
  tile.padding = {geometry::max_of(index * tile_kv, len),
                  geometry::min_of((index + 1) * tile_kv, segment.count)};
  return tile;
}

/// What the kernels keep of a tile in shared memory.
__device__ __forceinline__ KeyTileWalk key_tile_walk(const KeyTile& tile, i32 views) {
  const bool clean = tile.half == geometry::Half::kClean;
  KeyTileWalk walk;
  walk.first_segment = clean ? 0 : tile.view;
  walk.segments = clean ? views + 1 : 1;
  walk.first_key = tile.keys.begin;
  walk.clean_keys = clean ? 1 : 0;
  walk.keys = tile.keys.size();
  walk.sample = tile.sample_index;
  walk.batch = tile.sample.batch_index;
  walk.head_kv = tile.head_kv;
  walk.first_key_row = tile.first_row + tile.keys.begin;
  walk.noisy_row = tile.sample.noisy.first;
  walk.view_stride = tile.sample.view_stride;
  walk.clean_row = tile.sample.clean_q.first;
  return walk;
}

}  // namespace stepwell::cuda
