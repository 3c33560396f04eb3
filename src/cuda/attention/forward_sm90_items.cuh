// What attention_forward_sm90 works on: strips of query rows, and the key tiles that a strip meets.
#pragma once

#include "cuda/attention/forward_sm90_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/warps_sm90.cuh"

namespace stepwell::cuda {

/// A strip of both halves of one sample and query head.
struct StripItem {
  i32 strip;
  i32 sample;
  i32 head;
  i32 head_kv;
  i32 len;    // valid tokens of a half
  i32 valid;  // 0: the end of the work
};

/// The items of a CTA: one in each round of a group of the grid, but for a group's last round,
/// which may be shorter. A group's items are sorted, longest first, so every second round of it
/// goes backwards: what a CTA has more in one round it has less in the next. What is left of a
/// difference evens out over the groups, of which each begins with another CTA: at 32,768 tokens
/// and 16 heads the busiest of 132 CTAs has 0.1 to 0.8 % more than the average by count. (Rounds
/// through all groups, every second one backwards: 6 to 10 %; all forwards: 3 %.)
class ItemSequence {
 public:
  __device__ __forceinline__ ItemSequence(const TileGrid& grid, i32 cta, i32 ctas)
      : ctas_(static_cast<u32>(ctas)),
        items_(static_cast<u32>(grid.ctas())),
        of_group_(static_cast<u32>(grid.group * grid.tiles * grid.segments * grid.query_heads)),
        shift_(static_cast<u32>(
            geometry::max_of(1, ctas / geometry::ceil_div(grid.pairs, grid.group)))),
        place_(static_cast<u32>(cta)) {}

  /// The next item; the number of items where there is none.
  __device__ __forceinline__ i32 next() {
    while (first_ < items_) {
      const u32 count = geometry::min_of(of_group_, items_ - first_);
      while (done_ < count) {
        const u32 item = done_ + (backwards_ ? ctas_ - 1 - place_ : place_);
        done_ += ctas_;
        backwards_ = !backwards_;
        if (item < count) return static_cast<i32>(first_ + item);
      }
      first_ += count;
      done_ = 0;
      backwards_ = false;
      place_ = (place_ + shift_) % ctas_;
    }
    return static_cast<i32>(items_);
  }

 private:
  u32 ctas_;
  u32 items_;
  u32 of_group_;
  u32 shift_;
  u32 place_;      // of this CTA in the rounds of the group
  u32 first_ = 0;  // item of the group
  u32 done_ = 0;   // items of its earlier rounds
  bool backwards_ = false;
};

__device__ __forceinline__ StripItem strip_item(const ForwardSm90Params& p, i32 index) {
  const TileItem tile = tile_item(p.grid, p.heads_kv, index);
  return {tile.tile,
          tile.sample,
          tile.head_kv * p.grid.query_heads + tile.query_head,
          tile.head_kv,
          valid_tokens(p, tile.sample),
          1};
}

/// The key tiles of a strip in the order they are visited: those with noisy keys, then clean keys
/// downwards.
///
/// Where the block divides 64, a strip's diagonals are 64 keys wide, and the noisy strip sees the
/// same clean keys as the clean strip, but for its diagonal:
///   strip odd (>= 3)  tile 0: 64 noisy keys, of the noisy strip alone; tile 1: 128 clean keys with
///                     the diagonal in the upper half; then full tiles
///   strip even, or 1  tile 0: 64 clean keys of the diagonal, then 64 noisy ones, which the clean
///                     strip leaves out; then full tiles. Strips 0 and 1 have one more tile of
///                     which 64 keys or none are visible: every strip has two tiles
/// Other blocks: whole tiles of noisy keys, then of clean keys, at least two.
template <bool kSmallBlocks>
struct KeyTiles {
  i32 noisy;        // tiles of noisy keys alone, which the clean strip passes over
  i32 count;        // all tiles
  bool merged;      // tile 0 has 64 clean keys, then 64 noisy ones
  bool narrow;      // tile 0 has 64 noisy keys
  i32 first_noisy;  // key
  i32 clean;        // tiles
  i32 last_clean;   // no tile is loaded from a later key: one that only makes up the number reads
                    // keys that are there

  __device__ __forceinline__ KeyTiles(const ForwardSm90Params& p, i32 strip, i32 len) {
    const i32 first = kStripRows * strip;
    if constexpr (kSmallBlocks) {
      merged = strip % 2 == 0 || strip == 1;
      narrow = !merged;
      noisy = merged ? 0 : 1;
      first_noisy = first;
      clean = geometry::max_of(1, (strip + 1) / 2);
      last_clean = geometry::kMaxLength;
    } else {
      merged = narrow = false;
      const i32 last = geometry::min_of(first + kStripRows, len) - 1;
      first_noisy = geometry::divide(first, p.by_block) * p.block_size;
      const i32 end =
          geometry::min_of(len, (geometry::divide(last, p.by_block) + 1) * p.block_size);
      noisy = geometry::ceil_div(end - first_noisy, kSm90TileKeys);
      clean = geometry::max_of(2, geometry::ceil_div(end, kSm90TileKeys));
      last_clean = (end - 1) / kSm90TileKeys * kSm90TileKeys;
    }
    count = noisy + clean + (merged ? 1 : 0);
  }

  /// The first key of clean tile `tile`.
  __device__ __forceinline__ i32 clean_key(i32 tile) const {
    return (count - 1 - tile) * kSm90TileKeys;
  }
};

}  // namespace stepwell::cuda
