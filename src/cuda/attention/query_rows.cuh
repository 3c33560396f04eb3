// The query rows of a tile, for kernels whose CTAs own such rows.
#pragma once

#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// A tile of rows of one segment and head.
struct QueryRows {
  geometry::Sample sample;
  i32 sample_index;
  i32 segment;  // view, or num_views for clean rows
  i32 head;
  i32 head_kv;
  geometry::Half half;
  i64 first;  // row 0 of the segment
  geometry::Interval valid;
};

/// The rows of tile `index` of the grid; false where none holds a valid token. Calls unused(half,
/// batch, head, first, count) for each run of its rows that belong to none: padding, and its share
/// of the tail of a packed tensor.
template <int kTileRows, class Params, class Unused>
__device__ __forceinline__ bool find_query_rows(const Params& p, i32 index, QueryRows& rows,
                                                Unused&& unused) {
  using geometry::Half;
  const TileItem item = tile_item(p.grid, p.heads_kv, index);
  rows.head_kv = item.head_kv;
  rows.head = item.head_kv * p.grid.query_heads + item.query_head;
  const i32 views = p.layout.mask.num_views;
  rows.half = item.segment < views ? Half::kNoisy : Half::kClean;
  const int h = static_cast<int>(rows.half);
  if (item.sample == p.layout.batch) {
    const geometry::RowRun tail = geometry::packed_query_tail(p.layout, item.segment);
    const i64 step = static_cast<i64>(p.grid.tiles) * kTileRows;
    for (i64 row = static_cast<i64>(item.tile) * kTileRows; row < tail.count; row += step) {
      unused(h, i64{0}, rows.head, tail.first + row,
             geometry::min_of<i64>(kTileRows, tail.count - row));
    }
    return false;
  }
  rows.sample = geometry::sample_at(p.layout, item.sample);
  rows.sample_index = item.sample;
  rows.segment = item.segment;
  const bool noisy = rows.half == Half::kNoisy;
  const geometry::SegmentRows segment = noisy ? rows.sample.noisy : rows.sample.clean_q;
  rows.first = segment.first + (noisy ? item.segment * rows.sample.view_stride : 0);
  const i32 len = geometry::query_len(rows.sample.mask, rows.half);
  rows.valid = geometry::tile_interval(item.tile, kTileRows, len);
  const geometry::Interval padding{geometry::max_of(item.tile * kTileRows, len),
                                   geometry::min_of((item.tile + 1) * kTileRows, segment.count)};
  if (!padding.empty()) {
    unused(h, i64{rows.sample.batch_index}, rows.head, rows.first + padding.begin,
           i64{padding.size()});
  }
  return !rows.valid.empty();
}

/// The same of the CTA's only tile.
template <int kTileRows, class Params, class Unused>
__device__ __forceinline__ bool find_query_rows(const Params& p, QueryRows& rows, Unused&& unused) {
  return find_query_rows<kTileRows>(p, static_cast<i32>(ptx::cta_index<0>()), rows, unused);
}

}  // namespace stepwell::cuda
