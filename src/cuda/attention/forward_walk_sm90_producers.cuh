// The producer warps of attention_forward_walk_sm90: one for items and queries, one for keys and
// values, one for rows that hold no token.
#pragma once

#include "cuda/attention/forward_walk_sm90_config.hpp"
#include "cuda/attention/items_sm90.cuh"
#include "cuda/attention/query_rows.cuh"
#include "cuda/attention/warps_sm90.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/softmax.cuh"

namespace stepwell::cuda {

/// The shared addresses of a CTA's barriers. Arrivals:
///   item     1   the item producer: the item's numbers and its rows' intervals are there
///   item_empty   9   8 consumer warps and the key producer; with dropout the 4 warps that draw too
///   q_full   1   the item producer, and the bytes
///   q_empty  8   consumer warps, once an item's last scores are complete
///   k_full, v_full    1   the key producer, and the bytes
///   k_empty, v_empty  8   consumer warps, once the product is complete
///   ragged   1   the key producer itself, and the bytes
///   dropped  4   the warps that draw dropout's numbers
///   dropped_empty   8   consumer warps, once they have read them
template <ForwardWalkSm90Config C>
struct WalkBarriers {
  u32 base;

  __device__ __forceinline__ u32 item(int slot) const { return base + 8 * slot; }
  __device__ __forceinline__ u32 item_empty(int slot) const { return item(kWalkItemStages + slot); }
  __device__ __forceinline__ u32 q_full(int slot) const { return item(2 * kWalkItemStages + slot); }
  __device__ __forceinline__ u32 q_empty(int slot) const { return q_full(C.query_stages() + slot); }
  __device__ __forceinline__ u32 k_full(int slot) const {
    return q_full(2 * C.query_stages() + slot);
  }
  __device__ __forceinline__ u32 k_empty(int slot) const { return k_full(kWalkKeyStages + slot); }
  __device__ __forceinline__ u32 v_full(int slot) const {
    return k_full(2 * kWalkKeyStages + slot);
  }
  __device__ __forceinline__ u32 v_empty(int slot) const {
    return k_full(3 * kWalkKeyStages + slot);
  }
  __device__ __forceinline__ u32 ragged() const { return k_full(4 * kWalkKeyStages); }
  __device__ __forceinline__ u32 dropped(int slot) const { return ragged() + 8 + 8 * slot; }
  __device__ __forceinline__ u32 dropped_empty(int slot) const {
    return dropped(kWalkDroppedStages + slot);
  }

  /// By one thread.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kWalkItemStages; ++i) {
      ptx::mbarrier_init(item(i), 1);
      ptx::mbarrier_init(item_empty(i), C.dropout ? 13 : 9);
    }
    for (int i = 0; i < C.query_stages(); ++i) {
      ptx::mbarrier_init(q_full(i), 1);
      ptx::mbarrier_init(q_empty(i), 8);
    }
    for (int i = 0; i < kWalkKeyStages; ++i) {
      ptx::mbarrier_init(k_full(i), 1);
      ptx::mbarrier_init(k_empty(i), 8);
      ptx::mbarrier_init(v_full(i), 1);
      ptx::mbarrier_init(v_empty(i), 8);
    }
    ptx::mbarrier_init(ragged(), 1);
    for (int i = 0; C.dropout && i < kWalkDroppedStages; ++i) {
      ptx::mbarrier_init(dropped(i), 4);
      ptx::mbarrier_init(dropped_empty(i), 8);
    }
    ptx::fence_mbarrier_init();
  }
};

/// Where an item is: its numbers, and the intervals of its rows.
struct WalkItemPlace {
  u32 numbers;
  u32 bounds;

  template <ForwardWalkSm90Config C>
  __device__ __forceinline__ static WalkItemPlace of(u32 shared, int slot) {
    static constexpr ForwardWalkSm90Plan kPlan = forward_walk_sm90_plan(C);
    return {shared + kPlan.items + static_cast<u32>(slot) * WalkItemLayout::kBytes,
            shared + kPlan.bounds + static_cast<u32>(slot) * (2 * kWalkRows * 8)};
  }
};

/// Writes an item. By one warp; a fence or barrier of the caller's follows.
template <ForwardWalkSm90Config C>
__device__ __forceinline__ void write_item(const ForwardParams& p, const QueryRows& rows,
                                           const WalkItemPlace& at) {
  using geometry::Half;
  using geometry::Interval;
  const i32 lane = static_cast<i32>(ptx::thread_index() % 32);
  const geometry::SampleMask& mask = rows.sample.mask;
  const i32 position = geometry::query_position(mask, rows.half) + rows.valid.begin;
  const i32 count = rows.valid.size();
  bool any = false;
#pragma unroll 1
  for (int phase = 0; phase < 2; ++phase) {
    const Half keys = phase == 0 ? Half::kNoisy : Half::kClean;
    const bool own = phase == 0;
    const bool looks = !own || rows.half == Half::kNoisy;
    const geometry::IntervalRule rule = geometry::rule_between(mask, rows.half, keys);
    Interval hull{geometry::kMaxLength, 0};
#pragma unroll 1
    for (int group = 0; group < 2; ++group) {
      Interval full{0, geometry::kMaxLength};
#pragma unroll 1
      for (i32 row = 64 * group + lane; row < 64 * group + 64; row += 32) {
        const bool valid = row < count;
        Interval seen{0, 0};
        if (valid && looks) seen = geometry::row_interval(rule, position + row);
        ptx::st_shared_v2(at.bounds + (phase * kWalkRows + row) * 8, seen.begin, seen.end);
        if (valid) {  // rows past the end do not matter; one that sees nothing makes no tile full
          full = {geometry::max_of(full.begin, seen.begin), geometry::min_of(full.end, seen.end)};
        }
        if (!seen.empty()) {
          hull = {geometry::min_of(hull.begin, seen.begin), geometry::max_of(hull.end, seen.end)};
        }
      }
      full = {ptx::redux_max_s32(full.begin), ptx::redux_min_s32(full.end)};
      if (lane == 0) {
        ptx::st_shared_v2(at.numbers + WalkItemLayout::kFull + 16 * phase + 8 * group, full.begin,
                          full.end);
      }
    }
    const Interval tiles = geometry::covering_tiles(
        {ptx::redux_min_s32(hull.begin), ptx::redux_max_s32(hull.end)}, C.tile_keys());
    any = any || !tiles.empty();
    if (lane == 0) {
      const i64 first = own ? rows.first : rows.sample.clean_kv.first;
      ptx::st_shared_v4(at.numbers + WalkItemLayout::kPhases + 16 * phase,
                        {static_cast<u32>(first), static_cast<u32>(geometry::key_len(mask, keys)),
                         static_cast<u32>(tiles.begin), static_cast<u32>(tiles.end)});
    }
  }
  if (lane == 0) {
    // Bounds that grow by whole blocks (windows) and tables leave gaps.
    const bool gaps = mask.block_ranges != nullptr || mask.clean_window > 0;
    ptx::st_shared_v4(at.numbers + WalkItemLayout::kWhere,
                      {static_cast<u32>(count), any ? 1u : 0u, static_cast<u32>(rows.half),
                       static_cast<u32>(rows.sample.batch_index)});
    ptx::st_shared_v4(at.numbers + WalkItemLayout::kWhich,
                      {static_cast<u32>(rows.head), static_cast<u32>(rows.head_kv),
                       static_cast<u32>(rows.first + rows.valid.begin), gaps ? 1u : 0u});
    if constexpr (C.dropout) {
      ptx::st_shared_v4(at.numbers + WalkItemLayout::kNumbers,
                        {static_cast<u32>(rows.sample_index * p.heads_q + rows.head),
                         static_cast<u32>(rows.segment), static_cast<u32>(rows.valid.begin), 0});
      const unsigned long long key = dropout_tile(p.dropout, 0, 0, 0).key;
      ptx::st_shared_v2(at.numbers + WalkItemLayout::kKey, static_cast<i32>(key),
                        static_cast<i32>(key >> 32));
    }
  }
}

/// Finds the CTA's items and loads their queries, as far ahead as there are slots.
template <ForwardWalkSm90Config C>
__device__ __forceinline__ void produce_walk_items(const ForwardWalkSm90Params& params,
                                                   u32 shared) {
  static constexpr ForwardWalkSm90Plan kPlan = forward_walk_sm90_plan(C);
  const ForwardParams& p = params.call;
  const WalkBarriers<C> barriers{shared + kPlan.barriers};
  const bool leader = ptx::thread_index() % 32 == 0;
  const i32 items = static_cast<i32>(p.grid.ctas());
  ItemSequence sequence(p.grid, static_cast<i32>(ptx::cta_index<0>()), params.ctas);
  RingPlace<kWalkItemStages> slot;
  RingPlace<C.query_stages()> q;
  while (true) {
    QueryRows rows{};
    bool found = false;
    while (!found) {
      const i32 index = sequence.next();
      if (index >= items) break;
      found = find_query_rows<kWalkRows>(p, index, rows, [](int, i64, i32, i64, i64) {});
    }
    const WalkItemPlace at = WalkItemPlace::of<C>(shared, slot.slot());
    wait_together(barriers.item_empty(slot.slot()), slot.parity() ^ 1);
    if (found) {
      write_item<C>(p, rows, at);
    } else if (leader) {
      ptx::st_shared_v4(at.numbers + WalkItemLayout::kWhere, {0, 0, 0, 0});
    }
    ptx::syncwarp();
    if (leader) ptx::mbarrier_arrive(barriers.item(slot.slot()));
    slot.next();
    if (!found) return;
    wait_together(barriers.q_empty(q.slot()), q.parity() ^ 1);
    if (leader) {
      const u32 to = shared + kPlan.q + q.slot() * 2 * C.strip_bytes();
      const u32 full = barriers.q_full(q.slot());
      const int h = static_cast<int>(rows.half);
      const i32 row = static_cast<i32>(rows.first) + rows.valid.begin;
      ptx::mbarrier_arrive_expect_tx(full, 2 * C.strip_bytes());
#pragma unroll
      for (int strip = 0; strip < 2; ++strip) {
        load_slabs<C.slabs()>(to + strip * C.strip_bytes(), 64 * 128, params.q[h], full,
                              row + 64 * strip, rows.head, rows.sample.batch_index,
                              params.qk_by_slab);
      }
    }
    q.next();
  }
}

/// Where the walk over an item's key tiles is: own view first (phase 0), then clean keys (phase 1),
/// in each the last tile first.
struct TileWalk {
  WalkItemPlace at;
  i32 gaps;
  int phase = 0;
  i32 tile = 0;
  i32 first_tile = 0;  // of the phase
  i32 first_row = 0;   // of the phase's keys in the maps
  i32 keys = 0;

  __device__ __forceinline__ void enter(int next) {
    phase = next;
    const U32x4 numbers = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kPhases + 16 * phase);
    first_row = static_cast<i32>(numbers.x);
    keys = static_cast<i32>(numbers.y);
    first_tile = static_cast<i32>(numbers.z);
    tile = static_cast<i32>(numbers.w);
  }

  /// Goes to the next tile with a visible pair; false: there is none.
  template <ForwardWalkSm90Config C>
  __device__ __forceinline__ bool next() {
    while (true) {
      while (--tile >= first_tile) {
        if (phase == 0 || gaps == 0) return true;
        const geometry::Interval at_hand{tile * C.tile_keys(), (tile + 1) * C.tile_keys()};
        bool any = false;
#pragma unroll 1
        for (i32 row = static_cast<i32>(ptx::thread_index() % 32); row < kWalkRows; row += 32) {
          geometry::Interval seen;
          ptx::ld_shared_v2(at.bounds + (phase * kWalkRows + row) * 8, seen.begin, seen.end);
          any = any || seen.meets(at_hand);
        }
        if (ptx::ballot(any) != 0) return true;
      }
      if (phase == 1) return false;
      enter(1);
    }
  }
};

/// A tile of K and V.
struct WalkTile {
  i32 row;   // in the maps
  i32 keys;  // valid ones
  int phase;
  i32 head_kv;
  i32 batch;
};

/// Loads keys and values in the order in which they are used: K of a tile before V of the tile
/// before it.
template <ForwardWalkSm90Config C>
__device__ __forceinline__ void produce_walk_keys(const ForwardWalkSm90Params& params, u32 shared) {
  static constexpr ForwardWalkSm90Plan kPlan = forward_walk_sm90_plan(C);
  constexpr u32 kSlabBytes = C.tile_keys() * 128;
  const WalkBarriers<C> barriers{shared + kPlan.barriers};
  const bool leader = ptx::thread_index() % 32 == 0;
  RingPlace<kWalkItemStages> slot;
  RingPlace<kWalkKeyStages> k, v;
  u32 ragged_parity = 0;
  bool pending = false;
  WalkTile last{};
  const auto load_v = [&]() {
    const u32 to = shared + kPlan.v + v.slot() * C.tile_bytes();
    wait_together(barriers.v_empty(v.slot()), v.parity() ^ 1);
    const bool ragged = last.keys < C.tile_keys();
    const u32 full = barriers.v_full(v.slot());
    if (leader) {
      const u32 barrier = ragged ? barriers.ragged() : full;
      ptx::mbarrier_arrive_expect_tx(barrier, C.tile_bytes());
      load_slabs<C.slabs()>(to, kSlabBytes, params.v[last.phase], barrier, last.row, last.head_kv,
                            last.batch, params.v_by_slab);
    }
    if (ragged) {  // 0 times what such rows hold need not be 0
      wait_together(barriers.ragged(), ragged_parity);
      ragged_parity ^= 1;
#pragma unroll 1
      for (int slab = 0; slab < C.slabs(); ++slab) {
        clear_rows(to + slab * kSlabBytes, last.keys, C.tile_keys());
      }
      ptx::fence_proxy_async();
      ptx::syncwarp();
      if (leader) ptx::mbarrier_arrive(full);
    }
    v.next();
  };
  while (true) {
    const WalkItemPlace at = WalkItemPlace::of<C>(shared, slot.slot());
    wait_together(barriers.item(slot.slot()), slot.parity());
    const U32x4 where = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kWhere);
    if (where.x == 0) break;
    const U32x4 which = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kWhich);
    TileWalk walk{at, static_cast<i32>(which.w)};
    walk.enter(0);
    bool more = where.y != 0 && walk.next<C>();
    if (!more && pending) {  // no K comes before which it would be in turn
      load_v();
      pending = false;
    }
    while (more) {
      const i32 first_key = walk.tile * C.tile_keys();
      const int phase = walk.phase;
      const WalkTile tile{walk.first_row + first_key, walk.keys - first_key, phase,
                          static_cast<i32>(which.y), static_cast<i32>(where.w)};
      more = walk.next<C>();
      wait_together(barriers.k_empty(k.slot()), k.parity() ^ 1);
      if (leader) {
        const U32x4 full = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kFull + 16 * phase);
        const auto needs_mask = [&](u32 begin, u32 end) {
          return static_cast<i32>(begin) > first_key ||
                 static_cast<i32>(end) < first_key + C.tile_keys();
        };
        const u32 masked =
            (needs_mask(full.x, full.y) ? 1u : 0u) | (needs_mask(full.z, full.w) ? 2u : 0u);
        ptx::st_shared_v4(
            shared + kPlan.tiles + k.slot() * 16,
            {static_cast<u32>(first_key), static_cast<u32>(phase), masked, more ? 0u : 1u});
        const u32 barrier = barriers.k_full(k.slot());
        ptx::mbarrier_arrive_expect_tx(barrier, C.tile_bytes());
        load_slabs<C.slabs()>(shared + kPlan.k + k.slot() * C.tile_bytes(), kSlabBytes,
                              params.k[phase], barrier, tile.row, tile.head_kv, tile.batch,
                              params.qk_by_slab);
      }
      k.next();
      if (pending) load_v();
      last = tile;
      pending = true;
    }
    ptx::syncwarp();
    if (leader) ptx::mbarrier_arrive(barriers.item_empty(slot.slot()));
    slot.next();
  }
  if (pending) load_v();
}

/// What dropout drops of a tile's pairs, for one thread: word b of 64 keys, bits as in
/// dropped_bit().
using DroppedWords = u32[2];

/// Word `part` of the keys `first_key` on, of the thread in whose place the caller is among the 128
/// of a warpgroup.
template <ForwardWalkSm90Config C>
__device__ __forceinline__ u32 draw_word(const DropoutTile& tile, i32 first_key, int part) {
  first_key += 64 * part;
  if constexpr (C.tile_keys() % 64 != 0) {
    static_assert(C.tile_keys() == 96);
    if (part == 1) return dropped_bits<4>(tile, 0, first_key);
    if (first_key % 64 != 0) {  // from the upper half of a block to the lower half of the next
      u32 both[2];
      draw_dropped(tile, 0, first_key & ~63, both);
      return (both[0] >> 4 & 0x0f0f0f0fu) | (both[1] << 4 & 0xf0f0f0f0u);
    }
  }
  return dropped_bits<8>(tile, 0, first_key);
}
/// Dropped pairs of a packed P become 0. Step s is 16 keys, and word 2 piece + r of it 8 of them
/// and the lane's row r.
template <int kSteps>
__device__ __forceinline__ void drop_words(u32 (&p)[kSteps][4], const DroppedWords& dropped) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      // The pairs' bits as the signs of bytes: 0 and 2 of the upper row, 1 and 3 of the lower one.
      const u32 signs = dropped[step / 4] << (7 - step % 4 * 2 - piece);
      p[step][2 * piece] &= ~ptx::prmt_b32(signs, 0, 0xaa88u);
      p[step][2 * piece + 1] &= ~ptx::prmt_b32(signs, 0, 0xbb99u);
    }
  }
}

/// Draws dropout's numbers for all tiles, as far ahead as there are slots. By a warpgroup: warp w
/// draws for warp w of both others, lane by lane.
template <ForwardWalkSm90Config C>
__device__ __forceinline__ void produce_dropped(const ForwardWalkSm90Params& params, u32 shared) {
  static constexpr ForwardWalkSm90Plan kPlan = forward_walk_sm90_plan(C);
  const WalkBarriers<C> barriers{shared + kPlan.barriers};
  constexpr int kParts = (C.tile_keys() + 63) / 64;
  const u32 thread = ptx::thread_index() % 128;
  const bool leader = thread % 32 == 0;
  RingPlace<kWalkItemStages> slot;
  RingPlace<kWalkDroppedStages> ring;
  while (true) {
    const WalkItemPlace at = WalkItemPlace::of<C>(shared, slot.slot());
    wait_together(barriers.item(slot.slot()), slot.parity());
    const U32x4 where = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kWhere);
    if (where.x == 0) return;
    TileWalk walk{at,
                  static_cast<i32>(ptx::ld_shared_u32(at.numbers + WalkItemLayout::kWhich + 12))};
    walk.enter(0);
    const U32x4 numbers = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kNumbers);
    i32 low, high;
    ptx::ld_shared_v2(at.numbers + WalkItemLayout::kKey, low, high);
    DropoutTile tile{static_cast<u64>(static_cast<u32>(high)) << 32 | static_cast<u32>(low),
                     params.call.dropout.threshold,
                     numbers.x,
                     static_cast<int>(numbers.y),
                     0,
                     0};
    const i32 first_row = static_cast<i32>(numbers.z) + static_cast<i32>(thread / 32) * 16;
    bool more = where.y != 0 && walk.next<C>();
    while (more) {
      wait_together(barriers.dropped_empty(ring.slot()), ring.parity() ^ 1);
      const u32 to =
          shared + kPlan.dropped + static_cast<u32>(ring.slot()) * (256 * 8) + thread * 8;
      tile.clean_keys = walk.phase;
#pragma unroll 1
      for (int word = 0; word < 2 * kParts; ++word) {
        const int group = word / kParts;
        tile.first_query = first_row + 64 * group;
        ptx::st_shared_u32(to + static_cast<u32>(group) * (128 * 8) + word % kParts * 4,
                           draw_word<C>(tile, walk.tile * C.tile_keys(), word % kParts));
      }
      ptx::syncwarp();
      if (leader) ptx::mbarrier_arrive(barriers.dropped(ring.slot()));
      ring.next();
      more = walk.next<C>();
    }
    ptx::syncwarp();
    if (leader) ptx::mbarrier_arrive(barriers.item_empty(slot.slot()));
    slot.next();
  }
}

/// Results of rows that hold no token.
__device__ __forceinline__ void write_unused_rows(const ForwardWalkSm90Params& params) {
  if (!params.padding) return;
  const ForwardParams& p = params.call;
  const i32 lane = static_cast<i32>(ptx::thread_index() % 32);
  const i32 items = static_cast<i32>(p.grid.ctas());
  ItemSequence sequence(p.grid, static_cast<i32>(ptx::cta_index<0>()), params.ctas);
  const auto unused = [&](int h, i64 batch, i32 head, i64 first, i64 count) {
    const HalfRows& out = p.out[h];
    if (8 * lane < p.head_dim_v) {  // a lane has 16 bytes of each row
      unsigned short* to = out.at(batch, first, head) + 8 * lane;
#pragma unroll 1
      for (i32 i = 0; i < static_cast<i32>(count); ++i, to += out.row_stride) {
        ptx::st_global_v4(to, {0, 0, 0, 0});
      }
    }
    if (p.lse[h].data == nullptr) return;
#pragma unroll 1
    for (i32 i = lane; i < static_cast<i32>(count); i += 32) {
      *p.lse[h].at(batch, head, first + i) = minus_infinity();
    }
  };
#pragma unroll 1
  for (i32 index = sequence.next(); index < items; index = sequence.next()) {
    QueryRows rows;
    find_query_rows<kWalkRows>(p, index, rows, unused);
  }
}

}  // namespace stepwell::cuda
