// From a CTA's index to its tile.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

/// One query tile of one head. sample == layout.batch: rows of packed tensors behind the last sample.
struct TileItem {
  i32 sample;
  i32 segment;  // view, or num_views for clean rows
  i32 tile;
  i32 head_kv;
  i32 query_head;  // of the KV head's group
};

__device__ __forceinline__ TileItem tile_item(const TileGrid& grid, i32 heads_kv, u32 index) {
  const u32 inner = static_cast<u32>(grid.segments * grid.query_heads);
  const u32 per_group = static_cast<u32>(grid.group * grid.tiles) * inner;
  const u32 group = index / per_group;
  u32 rest = index - group * per_group;
  const u32 first_pair = group * static_cast<u32>(grid.group);
  // The last group may be smaller.
  const u32 pairs = geometry::min_of<u32>(static_cast<u32>(grid.group),
                                          static_cast<u32>(grid.pairs) - first_pair);
  const u32 per_tile = pairs * inner;
  const u32 rank = rest / per_tile;
  rest -= rank * per_tile;
  const u32 pair = first_pair + rest / inner;
  rest %= inner;
  TileItem item;
  item.tile = grid.tiles - 1 - static_cast<i32>(rank);  // later rows see more keys
  item.segment = static_cast<i32>(rest) / grid.query_heads;
  item.query_head = static_cast<i32>(rest) % grid.query_heads;
  item.sample = static_cast<i32>(pair) / heads_kv;
  item.head_kv = static_cast<i32>(pair) % heads_kv;
  return item;
}

}  // namespace stepwell::cuda
