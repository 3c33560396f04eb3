// What attention_backward_sm90 works on: 128 keys of a KV head, and the query tiles that see them.
#pragma once

#include "cuda/attention/backward_sm90_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/warps_sm90.cuh"

namespace stepwell::cuda {

/// Keys of one half of one sample and KV head.
struct KeyItem {
  i32 steps;  // query tiles of all query heads; 0: the end of the work
  i32 sample;
  i32 first_key;
  i32 len;  // valid tokens of a half
  i32 head_kv;
  i32 noisy;  // keys: 1, else clean
};

__device__ __forceinline__ i32 block_start(const BackwardSm90Params& p, i32 at) {
  return geometry::divide(at, p.by_block) * p.block_size;
}

/// Of a tile of query rows in the workspace.
__device__ __forceinline__ i32 row_tile_number(const BackwardSm90Params& p, i32 sample, i32 head,
                                               i32 half, i32 tile) {
  return ((sample * p.heads_q + head) * 2 + half) * p.row_tiles + tile;
}

/// All of clean keys come before those of noisy ones: they are longer.
__device__ __forceinline__ KeyItem key_item(const BackwardSm90Params& p, i32 index) {
  const i32 of_half = static_cast<i32>(p.grid.ctas());
  const bool noisy = index >= of_half;
  const TileItem tile = tile_item(p.grid, p.heads_kv, noisy ? index - of_half : index);
  // The first keys are seen by the most rows.
  const i32 first_key = (p.grid.tiles - 1 - tile.tile) * kSm90BackwardKeys;
  return {0, tile.sample, first_key, valid_tokens(p, tile.sample), tile.head_kv, noisy ? 1 : 0};
}

/// Tiles of rows of one half (a geometry::Half) that see some of an item's keys, of which at least
/// one is valid.
__device__ __forceinline__ geometry::Interval query_tiles(const BackwardSm90Params& p,
                                                          const KeyItem& item, i32 half) {
  const i32 start = block_start(p, item.first_key);
  i32 begin;
  i32 end = item.len;
  if (item.noisy != 0) {
    if (half != 0) return {0, 0};
    const i32 last = geometry::min_of(item.first_key + kSm90BackwardKeys, item.len) - 1;
    begin = p.noisy_causal ? item.first_key : start;
    end = geometry::min_of(block_start(p, last) + p.block_size, item.len);
  } else if (half == 0) {
    begin = start + p.block_size;  // noisy rows see the blocks before their own
    if (begin >= end) return {0, 0};
  } else {
    begin = p.clean_causal ? item.first_key : start;
  }
  return {begin / kSm90BackwardRows, geometry::ceil_div(end, kSm90BackwardRows)};
}

/// One step: a tile of query rows of one head with an item's keys, as the consumers get it.
struct StepInfo {
  i32 tile;  // its number in the workspace
  i32 first_row;
  i32 flags;
};

/// Of StepInfo::flags.
inline constexpr i32 kPartialStep = 1;    // some row does not see some of keys 0 to 63; shifted by
                                          // one: of keys 64 to 127
inline constexpr i32 kNoisyRowsStep = 4;  // query rows are noisy
inline constexpr i32 kNoisyKeysStep = 8;  // and keys are too

/// The same before it is loaded.
struct StepRows {
  i32 head;
  i32 half;  // of the rows, a geometry::Half
  i32 first_row;
};

__device__ __forceinline__ i32 step_flags(const BackwardSm90Params& p, const KeyItem& item,
                                          const StepRows& rows) {
  if (item.noisy != 0) return 3 * kPartialStep | kNoisyRowsStep | kNoisyKeysStep;
  const bool noisy_rows = rows.half == static_cast<i32>(geometry::Half::kNoisy);
  // The first row sees the fewest keys: those before `end`.
  const i32 start = block_start(p, rows.first_row);
  i32 end = noisy_rows ? start : p.clean_causal ? rows.first_row + 1 : start + p.block_size;
  end = geometry::min_of(end, item.len);
  i32 flags = noisy_rows ? kNoisyRowsStep : 0;
  if (end < item.first_key + 64) flags |= kPartialStep;
  if (end < item.first_key + 128) flags |= kPartialStep << 1;
  return flags;
}

/// Rows [begin, end) that see a key.
struct KeySpan {
  i32 begin;
  i32 end;
};

__device__ __forceinline__ KeySpan rows_that_see(const BackwardSm90Params& p, i32 key, i32 len,
                                                 i32 flags) {
  const i32 start = block_start(p, key);
  KeySpan span{start, geometry::kMaxLength * 2};
  if ((flags & kNoisyKeysStep) != 0) {
    if (p.noisy_causal) span.begin = key;
    span.end = start + p.block_size;
  } else if ((flags & kNoisyRowsStep) != 0) {
    span.begin = start + p.block_size;
  } else if (p.clean_causal) {
    span.begin = key;
  }
  if (key >= len) span.begin = span.end;
  return span;
}

}  // namespace stepwell::cuda
