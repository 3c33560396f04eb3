// From a CTA's index to its tile.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

/// One tile of queries of a head, or of keys of a KV head (their grid counts segments from the
/// clean keys, 0, on: view = segment - 1). sample == layout.batch: rows of packed tensors behind
/// the last sample.
struct TileItem {
  i32 sample;
  i32 segment;  // view, or num_views for clean rows
  i32 tile;
  i32 head_kv;
  i32 query_head;  // of the KV head's group
};

__device__ __forceinline__ TileItem tile_item(const TileGrid& grid, i32 heads_kv, i32 index) {
  const i32 inner = grid.segments * grid.query_heads;
  const i32 group = geometry::divide(index, grid.by_group);
  i32 rest = index - group * (grid.group * grid.tiles * inner);
  const i32 first_pair = group * grid.group;
  const bool last = first_pair + grid.group >= grid.pairs;  // may be smaller
  const i32 pairs = last ? grid.pairs - first_pair : grid.group;
  const i32 rank = geometry::divide(rest, last ? grid.by_last_tile : grid.by_tile);
  rest -= rank * pairs * inner;
  const i32 pair_in_group = geometry::divide(rest, grid.by_pair);
  rest -= pair_in_group * inner;
  TileItem item;
  item.tile = grid.tiles - 1 - rank;  // later rows see more keys
  item.segment = geometry::divide(rest, grid.by_query_head);
  item.query_head = rest - item.segment * grid.query_heads;
  item.sample = geometry::divide(first_pair + pair_in_group, grid.by_head_kv);
  item.head_kv = first_pair + pair_in_group - item.sample * heads_kv;
  return item;
}

}  // namespace stepwell::cuda
