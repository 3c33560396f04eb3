// What attention_forward_sm90 works on: strips of query rows, and the key tiles that a strip meets.
#pragma once

#include "cuda/attention/forward_sm90_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/items_sm90.cuh"
#include "cuda/attention/warps_sm90.cuh"

namespace stepwell::cuda {

/// A strip of both halves of one sample and query head.
struct StripItem {
  i32 strip;
  i32 len;    // valid tokens of a half; 0: the end of the work
  i32 rows;   // tokens of a half, valid or not
  i32 batch;  // coordinate of the maps
  i32 head;
  i32 head_kv;
  i32 first_noisy;  // row of each half in the maps; no array: indices would send it to memory
  i32 first_clean;

  /// Strips are counted from the first row that the maps have of a half, unless samples are packed.
  template <ForwardSm90Config C>
  __device__ __forceinline__ i32 first_row(int half) const {
    if constexpr (!C.packed) return 0;
    return half == 0 ? first_noisy : first_clean;
  }
};

/// The items of a CTA, which need not have a valid token.
class BatchedItems {
 public:
  __device__ __forceinline__ BatchedItems(const ForwardSm90Params& params, i32 cta)
      : p_(params), sequence_(params.grid, cta, params.ctas) {}

  /// False: there is no more.
  __device__ __forceinline__ bool next(StripItem& item) {
    const i32 index = sequence_.next();
    if (index >= static_cast<i32>(p_.grid.ctas())) return false;
    const TileItem tile = tile_item(p_.grid, p_.heads_kv, index);
    item = {tile.tile,
            valid_tokens(p_, tile.sample),
            p_.rows,
            tile.sample,
            tile.head_kv * p_.grid.query_heads + tile.query_head,
            tile.head_kv,
            0,
            0};
    return true;
  }

 private:
  const ForwardSm90Params& p_;
  ItemSequence sequence_;
};

/// The same as ItemSequence for groups of any number of items, which the GPU alone knows. A group's
/// last round, of its shortest items, goes forwards, the one before it backwards, and the next
/// group begins with the CTA behind the last that had an item. Where a group is a sample (64 of
/// 128 to 4096 tokens, 16 heads, 132 CTAs) the busiest CTA has 1.2 % more than the average by
/// count. (Rounds through all samples: 4 %. ItemSequence, with as many strips for each sample as
/// the longest has: 15 %.)
class GroupRounds {
 public:
  __device__ __forceinline__ GroupRounds(i32 cta, i32 ctas)
      : ctas_(static_cast<u32>(ctas)), place_(static_cast<u32>(cta)) {}

  /// The next group, once next() is false.
  __device__ __forceinline__ void begin(u32 count) {
    const u32 last_round = count_ % ctas_;
    place_ = place_ >= last_round ? place_ - last_round : place_ + ctas_ - last_round;
    count_ = count;
    done_ = 0;
    backwards_ = count > 0 && (count - 1) / ctas_ % 2 != 0;
  }

  /// The CTA's next item of the group; false: it has no more.
  __device__ __forceinline__ bool next(u32& item) {
    while (done_ < count_) {
      item = done_ + (backwards_ ? ctas_ - 1 - place_ : place_);
      done_ += ctas_;
      backwards_ = !backwards_;
      if (item < count_) return true;
    }
    return false;
  }

 private:
  u32 ctas_;
  u32 place_;      // of this CTA in the rounds of the group
  u32 count_ = 0;  // items of the group
  u32 done_ = 0;   // items of its earlier rounds
  bool backwards_ = false;
};

/// The items of a CTA where samples are packed. A group is a sample, or as many of its heads as the
/// L2 cache has room for. By all lanes of a warp.
class PackedItems {
 public:
  __device__ __forceinline__ PackedItems(const ForwardSm90Params& params, i32 cta)
      : p_(params),
        rounds_(cta, params.ctas),
        query_heads_(static_cast<u32>(params.heads_q) / static_cast<u32>(params.heads_kv)) {}

  __device__ __forceinline__ bool next(StripItem& item) {
    u32 index;
    while (!rounds_.next(index)) {
      if (!next_group()) return false;
    }
    const u32 rank = index / heads_;
    item = {};
    item.len = from_lane(of_lane_.len);
    item.rows = from_lane(of_lane_.rows);
    item.first_noisy = from_lane(of_lane_.first_noisy);
    item.first_clean = from_lane(of_lane_.first_clean);
    item.strip = geometry::ceil_div(item.rows, kStripRows) - 1 - static_cast<i32>(rank);
    const u32 head = first_head_ + index - rank * heads_;
    item.head = static_cast<i32>(head);
    item.head_kv = static_cast<i32>(head / query_heads_);
    return true;
  }

 private:
  /// More heads of the sample, or the next sample; false: there is none.
  __device__ __forceinline__ bool next_group() {
    const u32 heads = static_cast<u32>(p_.heads_q);
    first_head_ += heads_;
    if (first_head_ >= heads || sample_ < 0) {
      first_head_ = 0;
      if (++sample_ >= p_.layout.batch) return false;
      if (sample_ % 32 == 0) read_samples();
    }
    const i32 rows = from_lane(of_lane_.rows);
    const i32 heads_kv =
        geometry::clamp_to(p_.cached_rows / geometry::max_of(rows, 1), 1, p_.heads_kv);
    heads_ = geometry::min_of(static_cast<u32>(heads_kv) * query_heads_, heads - first_head_);
    rounds_.begin(static_cast<u32>(geometry::ceil_div(rows, kStripRows)) * heads_);
    return true;
  }

  /// Each lane reads the numbers of one sample: those of 32 come in the time of one.
  __device__ __forceinline__ void read_samples() {
    const i32 sample = sample_ + static_cast<i32>(ptx::thread_index() % 32);
    of_lane_ = {};
    if (sample >= p_.layout.batch) return;
    const geometry::Sample at = geometry::sample_at(p_.layout, sample);
    of_lane_.len = at.mask.noisy_len;
    of_lane_.rows = at.noisy.count;
    of_lane_.first_noisy = static_cast<i32>(at.noisy.first);
    of_lane_.first_clean = static_cast<i32>(at.clean_kv.first);
  }

  __device__ __forceinline__ i32 from_lane(i32 x) const {
    return static_cast<i32>(ptx::shfl_idx_u32(static_cast<u32>(x), static_cast<u32>(sample_) % 32));
  }

  const ForwardSm90Params& p_;
  GroupRounds rounds_;
  u32 query_heads_;      // of a KV head
  StripItem of_lane_{};  // what the items of the lane's sample have in common
  i32 sample_ = -1;
  u32 first_head_ = 0;  // of the group
  u32 heads_ = 0;       // of the group
};

template <bool kPacked>
struct ChooseItems {
  using Type = BatchedItems;
};
template <>
struct ChooseItems<true> {
  using Type = PackedItems;
};
template <bool kPacked>
using ItemsOf = typename ChooseItems<kPacked>::Type;

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
