// The producer warps of attention_forward_sm90: one for items and queries, one for keys and values.
#pragma once

#include "cuda/attention/forward_sm90_items.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/softmax.cuh"

namespace stepwell::cuda {

/// The shared addresses of a CTA's barriers. Arrivals:
///   item     1   the query producer: the item's numbers are there
///   q_full   1   the query producer, and the bytes
///   q_empty  9   8 consumer warps and the key producer, which reads the item
///   k_full, v_full    1   the key producer, and the bytes
///   k_empty, v_empty  8   consumer warps, once the product is complete
///   ragged   1   the key producer itself, and the bytes
struct ForwardSm90Barriers {
  u32 base;

  __device__ __forceinline__ u32 item(int slot) const { return base + 8 * slot; }
  __device__ __forceinline__ u32 q_full(int slot) const { return item(kQueryStages + slot); }
  __device__ __forceinline__ u32 q_empty(int slot) const { return item(2 * kQueryStages + slot); }
  __device__ __forceinline__ u32 k_full(int slot) const { return item(3 * kQueryStages + slot); }
  __device__ __forceinline__ u32 k_empty(int slot) const { return k_full(kKeyStages + slot); }
  __device__ __forceinline__ u32 v_full(int slot) const { return k_full(2 * kKeyStages + slot); }
  __device__ __forceinline__ u32 v_empty(int slot) const { return k_full(3 * kKeyStages + slot); }
  __device__ __forceinline__ u32 ragged() const { return k_full(4 * kKeyStages); }

  /// By one thread.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kQueryStages; ++i) {
      ptx::mbarrier_init(item(i), 1);
      ptx::mbarrier_init(q_full(i), 1);
      ptx::mbarrier_init(q_empty(i), 9);
    }
    for (int i = 0; i < kKeyStages; ++i) {
      ptx::mbarrier_init(k_full(i), 1);
      ptx::mbarrier_init(k_empty(i), 8);
      ptx::mbarrier_init(v_full(i), 1);
      ptx::mbarrier_init(v_empty(i), 8);
    }
    ptx::mbarrier_init(ragged(), 1);
    ptx::fence_mbarrier_init();
  }
};

/// Zeros, and -inf for lse, in rows [row, row + count). By one warp; with few registers.
__device__ __forceinline__ void write_empty_rows(const ForwardSm90Params& p, int half, i32 batch,
                                                 i32 head, i64 row, i32 count) {
  const i32 lane = static_cast<i32>(ptx::thread_index() % 32);
  const i32 piece = lane % 16;
  if (8 * piece < p.head_dim_v) {
    const HalfRows& out = p.out_rows[half];
    unsigned short* to = out.at(batch, row + lane / 16, head) + 8 * piece;
#pragma unroll 1
    for (i32 i = lane / 16; i < count; i += 2) {
      ptx::st_global_v4(to, {0, 0, 0, 0});
      to += 2 * out.row_stride;
    }
  }
  const FloatRows& lse = p.lse[half];
  if (lse.data == nullptr) return;
#pragma unroll 1
  for (i32 i = lane; i < count; i += 32) *lse.at(batch, head, row + i) = minus_infinity();
}

/// Of a strip without a valid token.
template <ForwardSm90Config C>
__device__ __forceinline__ void write_empty_strip(const ForwardSm90Params& p,
                                                  const StripItem& item) {
  const i32 first = kStripRows * item.strip;
  const i32 count = geometry::min_of(kStripRows, item.rows - first);
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    write_empty_rows(p, half, item.batch, item.head,
                     p.first_row[half] + item.first_row<C>(half) + first, count);
  }
}

/// Rows behind the last sample, divided among all CTAs.
__device__ __forceinline__ void write_packed_tail(const ForwardSm90Params& p) {
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const geometry::RowRun tail = geometry::packed_query_tail(p.layout, half);
    const i32 rows = static_cast<i32>(tail.count);
    const i32 items = geometry::ceil_div(rows, kStripRows) * p.heads_q;
#pragma unroll 1
    for (i32 i = static_cast<i32>(ptx::cta_index<0>()); i < items; i += p.ctas) {
      const i32 strip = i / p.heads_q;
      const i32 first = kStripRows * strip;
      write_empty_rows(p, half, 0, i - strip * p.heads_q, tail.first + first,
                       geometry::min_of(kStripRows, rows - first));
    }
  }
}

/// What no strip with a valid token writes. By a warp of its own: another one has no registers for
/// it, and would be late with what it loads.
template <ForwardSm90Config C>
__device__ __forceinline__ void write_empty(const ForwardSm90Params& p) {
  if constexpr (C.packed) {
    write_packed_tail(p);
  }
  if (p.lengths == nullptr) return;
  ItemsOf<C.packed> items(p, static_cast<i32>(ptx::cta_index<0>()));
  StripItem item{};
  while (items.next(item)) {
    if (kStripRows * item.strip >= item.len) write_empty_strip<C>(p, item);
  }
}

/// Finds the CTA's items and loads their queries, as far ahead as there are slots.
template <ForwardSm90Config C>
__device__ __forceinline__ void produce_queries(const ForwardSm90Params& p, u32 shared) {
  static constexpr ForwardSm90Plan kPlan = forward_sm90_plan(C);
  const ForwardSm90Barriers barriers{shared + kPlan.barriers};
  const bool leader = ptx::thread_index() % 32 == 0;
  ItemsOf<C.packed> items(p, static_cast<i32>(ptx::cta_index<0>()));
  RingPlace<kQueryStages> q;
  while (true) {
    StripItem item{};
    bool found = false;
    do {
      found = items.next(item);
    } while (found && kStripRows * item.strip >= item.len);
    if (!found) item.len = 0;
    wait_together(barriers.q_empty(q.slot()), q.parity() ^ 1);
    if (leader) {
      store_item(shared + kPlan.items + 32 * q.slot(), item);
      ptx::mbarrier_arrive(barriers.item(q.slot()));
      const u32 full = barriers.q_full(q.slot());
      if (found) {
        const u32 to = shared + kPlan.q + q.slot() * 2 * C.strip_bytes();
        ptx::mbarrier_arrive_expect_tx(full, 2 * C.strip_bytes());
        for (int half = 0; half < 2; ++half) {
          load_slabs<C.slabs()>(to + half * C.strip_bytes(), kStripRows * 128, p.q[half], full,
                                item.first_row<C>(half) + kStripRows * item.strip, item.head,
                                item.batch, p.qk_by_slab);
        }
      } else {
        ptx::mbarrier_arrive(full);
      }
    }
    if (!found) return;
    q.next();
  }
}

/// Rows of a K or V tile.
enum class TileRows { kWhole, kMerged, kNarrow };  // 128 | 64 clean and 64 noisy | 64 noisy

struct TileLoad {
  i32 key;
  TileRows rows;
  bool noisy;
  i32 batch;
  i32 head_kv;
  i32 len;
  i32 first_row;        // in the map of the keys' half
  i32 first_noisy_row;  // of noisy keys beside them
};

template <ForwardSm90Config C>
__device__ __forceinline__ TileLoad tile_load(const KeyTiles<C.small_blocks>& tiles, i32 tile,
                                              const StripItem& item) {
  TileLoad load{0, TileRows::kWhole, false, item.batch, item.head_kv, item.len, 0, 0};
  if (tile == 0 && tiles.merged) {
    load.key = kStripRows * item.strip;
    load.rows = TileRows::kMerged;
  } else if (tile < tiles.noisy) {
    load.key = tiles.first_noisy + kSm90TileKeys * tile;
    load.rows = tiles.narrow ? TileRows::kNarrow : TileRows::kWhole;
    load.noisy = true;
  } else {
    load.key = geometry::min_of(tiles.clean_key(tile), tiles.last_clean);
  }
  load.first_noisy_row = item.first_row<C>(0);
  load.first_row = item.first_row<C>(load.noisy ? 0 : 1);
  return load;
}

/// Requests a tile; its bytes are expected by `barrier`, which the caller lets arrive. By one lane.
template <ForwardSm90Config C>
__device__ __forceinline__ void request_tile_sm90(u32 to, u32 barrier, const TensorMap (&whole)[2],
                                                  const TensorMap (&part)[2], const TileLoad& load,
                                                  bool by_slab) {
  constexpr int kSlabBytes = kSm90TileKeys * 128;
  constexpr int kPartBytes = 64 * 128;
  const int half = load.noisy ? 0 : 1;
  const i32 row = load.first_row + load.key;
  const u32 bytes = load.rows == TileRows::kNarrow ? C.tile_bytes() / 2 : C.tile_bytes();
  ptx::mbarrier_arrive_expect_tx(barrier, bytes);
  if (load.rows == TileRows::kWhole) {
    load_slabs<C.slabs()>(to, kSlabBytes, whole[half], barrier, row, load.head_kv, load.batch,
                          by_slab);
    return;
  }
#pragma unroll
  for (int slab = 0; slab < C.slabs(); ++slab) {
    const u32 at = to + slab * kSlabBytes;
    const int dim = by_slab ? 64 * slab : 0;
    const int slab_of_map = by_slab ? 0 : slab;
    ptx::tensor_load_5d(at, part[half], barrier, dim, row, slab_of_map, load.head_kv, load.batch);
    if (load.rows == TileRows::kMerged) {
      ptx::tensor_load_5d(at + kPartBytes, part[0], barrier, dim, load.first_noisy_row + load.key,
                          slab_of_map, load.head_kv, load.batch);
    }
  }
}

/// Zeros over rows of a V tile that hold no valid token. By one warp.
template <ForwardSm90Config C>
__device__ __forceinline__ void clear_ragged_rows(u32 to, const TileLoad& load) {
  const int rows = load.rows == TileRows::kWhole ? kSm90TileKeys : 64;
  const int parts = load.rows == TileRows::kMerged ? 2 : 1;
  for (int part = 0; part < parts * C.slabs(); ++part) {
    const int slab = part / parts;
    clear_rows(to + slab * (kSm90TileKeys * 128) + part % parts * (64 * 128), load.len - load.key,
               rows);
  }
}

/// Loads keys and values in the order in which they are used: K of a tile before V of the tile
/// before it.
template <ForwardSm90Config C>
__device__ __forceinline__ void produce_keys(const ForwardSm90Params& p, u32 shared) {
  static constexpr ForwardSm90Plan kPlan = forward_sm90_plan(C);
  const ForwardSm90Barriers barriers{shared + kPlan.barriers};
  const bool leader = ptx::thread_index() % 32 == 0;
  RingPlace<kQueryStages> q;
  RingPlace<kKeyStages> k, v;
  u32 ragged_parity = 0;
  bool pending = false;
  TileLoad last{};
  const auto load_v = [&]() {
    const u32 to = shared + kPlan.v + v.slot() * C.tile_bytes();
    wait_together(barriers.v_empty(v.slot()), v.parity() ^ 1);
    const int rows = last.rows == TileRows::kWhole ? kSm90TileKeys : 64;
    // Behind a half that is not packed the map has zeros.
    const i32 len = last.len;
    const bool ragged = (C.packed || len < p.rows) && len < last.key + rows;
    const u32 full = barriers.v_full(v.slot());
    if (leader) {
      request_tile_sm90<C>(to, ragged ? barriers.ragged() : full, p.v, p.v_part, last, p.v_by_slab);
    }
    if (ragged) {
      wait_together(barriers.ragged(), ragged_parity);
      ragged_parity ^= 1;
      clear_ragged_rows<C>(to, last);
      ptx::fence_proxy_async();
      ptx::syncwarp();
      if (leader) ptx::mbarrier_arrive(full);
    }
    v.next();
  };
  while (true) {
    wait_together(barriers.item(q.slot()), q.parity());
    const StripItem item = load_item<StripItem>(shared + kPlan.items + 32 * q.slot());
    ptx::syncwarp();
    if (leader) ptx::mbarrier_arrive(barriers.q_empty(q.slot()));
    q.next();
    if (item.len == 0) break;
    const KeyTiles<C.small_blocks> tiles(p, item.strip, item.len);
    for (i32 tile = 0; tile < tiles.count; ++tile) {
      const TileLoad load = tile_load<C>(tiles, tile, item);
      wait_together(barriers.k_empty(k.slot()), k.parity() ^ 1);
      if (leader) {
        request_tile_sm90<C>(shared + kPlan.k + k.slot() * C.tile_bytes(),
                             barriers.k_full(k.slot()), p.k, p.k_part, load, p.qk_by_slab);
      }
      k.next();
      if (pending) load_v();
      last = load;
      pending = true;
    }
  }
  if (pending) load_v();
}

}  // namespace stepwell::cuda
