// Attention backward in float32: dK and dV.
//
// A CTA owns a tile of keys of one segment and KV head, and walks all query heads of the KV head
// and all query tiles that see its keys. Scores are kept transposed, keys as rows; dK and dV stay
// in registers.
//
//   dV += P^T dO   dK += dS^T Q   with dS = P (dP - delta + dlse)
//
// Row values come from attention_backward_dq_f32, which runs before.
//
// Shared memory: K, V, one Q tile with its row values and intervals, one dO tile, P^T and then dS^T
// (f32_config.hpp); a warp's rows of these are its own.
//
// One query tile:
//   dO is here, barrier | dP^T = V dO^T
//   Q is here, barrier  | S^T = K Q^T, P, dV | barrier, request the next dO
//                       | dS, dK             | barrier, request the next Q
#pragma once

#include "cuda/attention/backward_f32.cuh"
#include "cuda/attention/backward_walk.cuh"
#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/dropout_f32.cuh"
#include "cuda/tile/math_f32.cuh"
#include "cuda/tile/multiply_f32.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// The query tiles that see a CTA's keys: query heads of its KV head, in each the views (of noisy
/// keys: their own), then clean queries.
template <F32Config C>
struct QueryTileWalk {
  u32 walks;  // shared address
  geometry::Interval keys;
  i32 runs;           // heads x segments
  i32 first_segment;  // of queries that may see the keys
  i32 segments;
  i32 views;
  i32 run;
  i32 tile;
  i32 end;

  __device__ __forceinline__ i32 segment() const { return first_segment + run % segments; }
  __device__ __forceinline__ int half() const { return segment() < views ? 0 : 1; }
  __device__ __forceinline__ QueryWalk queries() const {
    QueryWalk queries;
    ptx::ld_shared_object(walks + half() * kWalkBytes, queries);
    return queries;
  }

  /// Goes on to a tile at or after `tile`, in this run or a later one; false at the end. The whole
  /// CTA agrees.
  __device__ __forceinline__ bool find() {
    const int lane = static_cast<int>(ptx::thread_index()) % 32;
    while (true) {
      for (; tile < end; ++tile) {
        const QueryWalk queries = this->queries();
        if (queries.rule.table == nullptr) return true;  // only tables leave gaps
        bool any = false;
        for (int i = lane; i < C.tile_columns(); i += 32) {
          any = any || seen_by(queries, i).meets(keys);
        }
        if (ptx::ballot(any) != 0) return true;
      }
      if (++run >= runs) return false;
      ptx::ld_shared_v2(walks + half() * kWalkBytes, tile, end);
    }
  }

  /// The keys that row i of the tile at hand sees.
  __device__ __forceinline__ geometry::Interval seen_by(const QueryWalk& queries, int i) const {
    const i32 row = tile * C.tile_columns() + i;
    if (row >= queries.len) return {0, 0};
    return geometry::row_interval(queries.rule, queries.position + row);
  }
};

template <F32Config C>
__device__ __forceinline__ void attention_backward_dkv_f32(const BackwardParamsF32& p) {
  using geometry::Half;
  using geometry::Interval;
  static constexpr BackwardDkvF32Plan kPlan = backward_dkv_f32_plan(C);
  constexpr int kDimBytes = padded_row_bytes_f32(C.head_dim);
  constexpr int kDimVBytes = padded_row_bytes_f32(C.head_dim_v);
  constexpr int kRows = C.rows;
  constexpr int kColumns = C.columns;
  const u32 shared = ptx::shared_base();
  const int thread = static_cast<int>(ptx::thread_index());
  const int lane = thread % 32;
  const int warp_row = thread / 32 * C.warp_rows();
  const int first_row = warp_row + lane / 8;  // the lane's, in the tile
  const int column = lane % 8 * 4;            // the lane's, of head dims

  // ---- which tile of keys
  const i32 views = p.layout.mask.num_views;
  const TileItem item = tile_item(p.grid, p.heads_kv, static_cast<i32>(ptx::cta_index<0>()));
  const int kh = item.segment == 0 ? 1 : 0;
  if (item.sample == p.layout.batch) {
    const geometry::RowRun tail =
        geometry::packed_key_tail(p.layout, kh == 1 ? views : item.segment - 1);
    const i64 step = static_cast<i64>(p.grid.tiles) * C.tile_rows();
    for (i64 row = static_cast<i64>(item.tile) * C.tile_rows(); row < tail.count; row += step) {
      const i64 count = geometry::min_of<i64>(C.tile_rows(), tail.count - row);
      write_zero_rows<C.threads()>(p.dk[kh], 0, item.head_kv, tail.first + row, count, p.head_dim);
      write_zero_rows<C.threads()>(p.dv[kh], 0, item.head_kv, tail.first + row, count,
                                   p.head_dim_v);
    }
    return;
  }
  const KeyTile tile = locate_key_tile(p, item, C.tile_rows());
  const i64 batch = tile.sample.batch_index;
  if (!tile.padding.empty()) {
    const i64 row = tile.first_row + tile.padding.begin;
    const i32 count = tile.padding.size();
    write_zero_rows<C.threads()>(p.dk[kh], batch, item.head_kv, row, count, p.head_dim);
    write_zero_rows<C.threads()>(p.dv[kh], batch, item.head_kv, row, count, p.head_dim_v);
  }
  if (tile.keys.empty()) return;
  const i64 first = tile.first_row + tile.keys.begin;
  const i32 first_key = tile.keys.begin;
  const int rows_left = tile.keys.size() - first_row;

  request_tile_f32<C.tile_rows(), C.head_dim, C.threads()>(
      shared + kPlan.k, p.k[kh].at(batch, first, tile.head_kv), p.k[kh].row_stride, 0,
      tile.keys.size(), p.head_dim);
  request_tile_f32<C.tile_rows(), C.head_dim_v, C.threads()>(
      shared + kPlan.v, p.v[kh].at(batch, first, tile.head_kv), p.v[kh].row_stride, 0,
      tile.keys.size(), p.head_dim_v);  // both go with the first dO
  static_assert(sizeof(QueryWalk) <= kWalkBytes);
  if (thread < 2) {
    const Half half = thread == 0 ? Half::kNoisy : Half::kClean;
    QueryWalk queries{};
    if (half == Half::kNoisy || kh == 1) {
      queries =
          query_walk(tile.sample.mask, half, tile.half, tile.keys, C.tile_columns(), C.tile_rows());
    }
    ptx::st_shared_object(shared + kPlan.walks + thread * kWalkBytes, queries);
  }
  const KeyTileWalk own = key_tile_walk(tile, views);
  if (thread == 0) ptx::st_shared_object(shared + kPlan.walk, own);
  ptx::bar_sync(0, C.threads());

  // ---- the walk
  QueryTileWalk<C> walk{shared + kPlan.walks,
                        tile.keys,
                        p.group() * own.segments,
                        own.first_segment,
                        own.segments,
                        views,
                        -1,
                        0,
                        0};
  struct Queries {
    int h;
    i64 batch;
    i64 row;  // 0 of the segment
    i64 padded;
    i32 head;
  };
  // The segment and head that the walk is at.
  const auto locate_queries = [&] {
    KeyTileWalk rows;
    ptx::ld_shared_object(shared + kPlan.walk, rows);
    const i32 segment = walk.segment();
    Queries at;
    at.h = walk.half();
    at.batch = rows.batch;
    at.row = at.h == 0 ? rows.noisy_row + segment * rows.view_stride : rows.clean_row;
    at.padded = padded_row(p.layout, rows.sample, segment, at.row);
    at.head = rows.head_kv * p.group() + walk.run / walk.segments;
    return at;
  };
  const auto request_dout = [&] {
    const Queries at = locate_queries();
    request_tile_f32<C.tile_columns(), C.head_dim_v, C.threads()>(
        shared + kPlan.dout, p.dout[at.h].at(at.batch, at.row, at.head), p.dout[at.h].row_stride,
        walk.tile * C.tile_columns(), walk.queries().len, p.head_dim_v);
  };
  const auto request_q = [&] {
    const Queries at = locate_queries();
    const QueryWalk queries = walk.queries();
    const i32 first_query = walk.tile * C.tile_columns();
    request_tile_f32<C.tile_columns(), C.head_dim, C.threads()>(
        shared + kPlan.q, p.q[at.h].at(at.batch, at.row, at.head), p.q[at.h].row_stride,
        first_query, queries.len, p.head_dim);
    if (thread < C.tile_columns()) {
      const Interval seen = walk.seen_by(queries, thread);
      ptx::st_shared_v2(shared + kPlan.row_bounds + thread * 8, seen.begin, seen.end);
      const float* values = p.row_values[at.h].at(at.batch, at.head) + at.padded * 4;
      const bool inside = first_query + thread < queries.len;
      ptx::cp_async_16(shared + kPlan.row_values + thread * 16,
                       inside ? values + (first_query + thread) * i64{4} : values, inside ? 16 : 0);
    }
  };

  float dk[kRows][C.head_dim / 8];
  float dv[kRows][C.head_dim_v / 8];
  float factor[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    factor[i] = 1.0f;
#pragma unroll
    for (int n = 0; n < C.head_dim / 8; ++n) dk[i][n] = 0.0f;
#pragma unroll
    for (int n = 0; n < C.head_dim_v / 8; ++n) dv[i][n] = 0.0f;
  }
  const u32 p_row = shared + kPlan.p + first_row * C.score_bytes();

  bool more = walk.find();
  if (more) request_dout();
  ptx::cp_async_commit_group();
  if (more) request_q();
  ptx::cp_async_commit_group();
  while (more) {
    const i32 first_query = walk.tile * C.tile_columns();
    DropoutTile dropout{};
    if constexpr (C.dropout) {
      KeyTileWalk rows;
      ptx::ld_shared_object(shared + kPlan.walk, rows);
      const i32 head = rows.head_kv * p.group() + walk.run / walk.segments;
      dropout = dropout_tile(p.dropout, rows.sample * p.heads_q + head, walk.segment(), 0);
      dropout.clean_keys = kh;
    }
    ptx::cp_async_wait_group<1>();
    ptx::bar_sync(0, C.threads());  // dO is here, and the queries' intervals
    const Interval warp_keys{first_key + warp_row,
                             geometry::min_of(first_key + warp_row + C.warp_rows(), tile.keys.end)};
    bool any = false;
    for (int i = lane; i < C.tile_columns(); i += 32) {
      Interval seen;
      ptx::ld_shared_v2(shared + kPlan.row_bounds + i * 8, seen.begin, seen.end);
      any = any || seen.meets(warp_keys);
    }
    const bool sees = ptx::ballot(any) != 0;
    float dp[kRows][kColumns];
    if (sees) {
      multiply_rows_f32(dp, shared + kPlan.v + first_row * kDimVBytes, kDimVBytes,
                        shared + kPlan.dout + lane % 8 * kDimVBytes, kDimVBytes, p.head_dim_v);
    }
    ptx::cp_async_wait_group<0>();
    ptx::bar_sync(0, C.threads());  // Q and the row values are here
    if (sees) {
      float s[kRows][kColumns];
      multiply_rows_f32(s, shared + kPlan.k + first_row * kDimBytes, kDimBytes,
                        shared + kPlan.q + lane % 8 * kDimBytes, kDimBytes, p.head_dim);
      u32 dropped = 0;
      if constexpr (C.dropout) {
        dropped =
            dropped_bits_f32<kRows, kColumns, true>(dropout, first_key + warp_row, first_query);
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int query = j * 8 + lane % 8;
        Interval seen;
        ptx::ld_shared_v2(shared + kPlan.row_bounds + query * 8, seen.begin, seen.end);
        const F32x4 values = ld_shared_f32x4(shared + kPlan.row_values + query * 16);
        const RowValuesF32 row{values.x[0], values.x[1], values.x[2], values.x[3]};
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const ProbabilityF32 x = probability_f32<C>(p, s[i][j], row.lse);
          const float probability = x.p * row.factor;
          float keep = 1.0f;
          if constexpr (C.dropout) {
            keep = (dropped >> (i * kColumns + j) & 1) != 0 ? 0.0f : p.dropout.keep_scale;
            dp[i][j] *= keep;
          }
          const float ds = probability * ((dp[i][j] - row.delta) + row.dlse) * x.slope;
          // A hidden pair may hold anything, NaN included.
          const bool visible = seen.contains(first_key + first_row + i * 4);
          s[i][j] = visible ? probability * keep : 0.0f;
          dp[i][j] = visible ? ds : 0.0f;
        }
      }
      store_scores_f32(p_row + lane % 8 * 4, C.score_bytes(), s);
      ptx::syncwarp();
      add_product_f32<C.tile_columns()>(dv, factor, p_row, C.score_bytes(),
                                        shared + kPlan.dout + lane % 8 * 16, kDimVBytes,
                                        p.head_dim_v);
      ptx::syncwarp();
      store_scores_f32(p_row + lane % 8 * 4, C.score_bytes(), dp);
    }
    ptx::bar_sync(0, C.threads());  // all are done with dO, and dS is here
    ++walk.tile;
    more = walk.find();
    if (more) request_dout();
    ptx::cp_async_commit_group();
    if (sees) {
      add_product_f32<C.tile_columns()>(dk, factor, p_row, C.score_bytes(),
                                        shared + kPlan.q + lane % 8 * 16, kDimBytes, p.head_dim);
    }
    ptx::bar_sync(0, C.threads());  // all are done with Q, row values and intervals
    if (more) request_q();
    ptx::cp_async_commit_group();
  }
  ptx::cp_async_wait_group<0>();

  write_rows_f32(p.dv[kh].at(batch, first + first_row, tile.head_kv) + column, p.dv[kh].row_stride,
                 rows_left, column, p.head_dim_v, dv, factor);
#pragma unroll
  for (int i = 0; i < kRows; ++i) factor[i] = p.softmax_scale;
  write_rows_f32(p.dk[kh].at(batch, first + first_row, tile.head_kv) + column, p.dk[kh].row_stride,
                 rows_left, column, p.head_dim, dk, factor);
}

}  // namespace stepwell::cuda
