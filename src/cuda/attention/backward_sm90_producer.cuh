// The producer warp of attention_backward_sm90: finds items, loads their keys and values, and the
// query tiles that see them.
#pragma once

#include "cuda/attention/backward_sm90_items.cuh"
#include "cuda/tile/copy.cuh"

namespace stepwell::cuda {

/// The shared addresses of a CTA's barriers. Arrivals:
///   q_full     1   the producer, and the bytes of Q and row values: StepInfo is there too
///   q_empty    8   consumer warps: dK of the step is complete. (With three stages of Q and two of
///                  dO, and both released at once, dout_empty says it first: not needed as it is)
///   dout_full  1   the producer, and the bytes
///   dout_empty 8   consumer warps: dV of the step is complete
///   ds_full    8   consumer warps: dS of the step is written
///   ds_empty   8   consumer warps: dQ of the step is complete
///   item_full  1   the producer: the item's numbers are there
///   item_empty 8   consumer warps: the item's results are written
///   k_full, v_full  1  the producer, and the bytes
///   kv_empty   8   consumer warps: the item's last dQ is complete
///   ragged     1   the producer itself, and the bytes
struct BackwardSm90Barriers {
  u32 base;

  __device__ __forceinline__ u32 q_full(u32 stage) const { return at(stage); }
  __device__ __forceinline__ u32 q_empty(u32 stage) const { return at(kRowStages + stage); }
  __device__ __forceinline__ u32 dout_full(u32 stage) const { return at(kDout + stage); }
  __device__ __forceinline__ u32 dout_empty(u32 stage) const {
    return at(kDout + kDoutStages + stage);
  }
  __device__ __forceinline__ u32 ds_full(u32 stage) const { return at(kDs + stage); }
  __device__ __forceinline__ u32 ds_empty(u32 stage) const { return at(kDs + kDsStages + stage); }
  __device__ __forceinline__ u32 item_full(u32 stage) const { return at(kItem + stage); }
  __device__ __forceinline__ u32 item_empty(u32 stage) const {
    return at(kItem + kItemStages + stage);
  }
  __device__ __forceinline__ u32 k_full() const { return at(kOthers); }
  __device__ __forceinline__ u32 v_full() const { return at(kOthers + 1); }
  __device__ __forceinline__ u32 kv_empty() const { return at(kOthers + 2); }
  __device__ __forceinline__ u32 ragged() const { return at(kOthers + 3); }

  /// By one thread.
  __device__ __forceinline__ void init() const {
    for (u32 i = 0; i < kRowStages; ++i) init_pair(q_full(i), q_empty(i));
    for (u32 i = 0; i < kDoutStages; ++i) init_pair(dout_full(i), dout_empty(i));
    for (u32 i = 0; i < kItemStages; ++i) init_pair(item_full(i), item_empty(i));
    for (u32 i = 0; i < kDsStages; ++i) {
      ptx::mbarrier_init(ds_full(i), 8);
      ptx::mbarrier_init(ds_empty(i), 8);
    }
    ptx::mbarrier_init(k_full(), 1);
    init_pair(v_full(), kv_empty());
    ptx::mbarrier_init(ragged(), 1);
    ptx::fence_mbarrier_init();
  }

 private:
  static constexpr u32 kDout = 2 * kRowStages;
  static constexpr u32 kDs = kDout + 2 * kDoutStages;
  static constexpr u32 kItem = kDs + 2 * kDsStages;
  static constexpr u32 kOthers = kItem + 2 * kItemStages;

  __device__ __forceinline__ u32 at(u32 index) const { return base + 8 * index; }
  __device__ __forceinline__ static void init_pair(u32 full, u32 empty) {
    ptx::mbarrier_init(full, 1);
    ptx::mbarrier_init(empty, 8);
  }
};

/// A place in a ring of any size.
template <u32 kStages>
struct StagePlace {
  u32 stage = 0;
  u32 parity = 0;  // of the current round

  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Where a StepInfo has its first row.
inline constexpr u32 kStepFirstRow = 4;

__device__ __forceinline__ void store_step(u32 at, const StepInfo& step) {
  ptx::st_shared_v4(at, {static_cast<u32>(step.tile), static_cast<u32>(step.first_row),
                         static_cast<u32>(step.flags), 0});
}
__device__ __forceinline__ StepInfo load_step(u32 at) {
  const U32x4 words = ptx::ld_shared_v4(at);
  return {static_cast<i32>(words.x), static_cast<i32>(words.y), static_cast<i32>(words.z)};
}

/// Where a KeyItem has its first key and length, side by side.
inline constexpr u32 kItemKeys = 8;

/// Zeros in keys [first, end) of an item, which hold no token, by kThreads threads.
template <int kThreads>
__device__ __forceinline__ void write_zero_keys(const BackwardSm90Params& p, const KeyItem& item,
                                                i32 first, i32 end) {
  const int thread = static_cast<int>(ptx::thread_index_again());
  const i64 row = p.first_row[item.noisy != 0 ? 0 : 1] + first;
  write_zero_rows<kThreads>(p.dk, item.sample, item.head_kv, row, end - first, p.head_dim, thread);
  write_zero_rows<kThreads>(p.dv, item.sample, item.head_kv, row, end - first, p.head_dim_v,
                            thread);
}

/// By the whole warp. K of an item before its first Q, V after it, dO after that.
template <BackwardSm90Config C>
struct Backward90Producer {
  static constexpr BackwardSm90Plan kPlan = backward_sm90_plan(C);

  const BackwardSm90Params& p;
  const u32 shared;
  const bool leader;
  const BackwardSm90Barriers barriers;
  StagePlace<kRowStages> q;
  u32 items = 0;
  u32 steps = 0;
  u32 ragged_parity = 0;

  __device__ __forceinline__ Backward90Producer(const BackwardSm90Params& params, u32 base)
      : p(params),
        shared(base),
        leader(ptx::thread_index() % 32 == 0),
        barriers{base + kPlan.barriers} {}

  /// Loads a box of kRows rows; those that hold no token become zeros. `full` gets its arrival, and
  /// `extra` bytes that load_extra(barrier) requests; clear_extra(valid) clears what of them
  /// belongs to rows from `valid` on.
  template <int kRows, class LoadExtra, class ClearExtra>
  __device__ __forceinline__ void load(u32 to, const TensorMap& map, bool by_slab, u32 full,
                                       i32 row, i32 head, i32 sample, i32 len, int extra,
                                       LoadExtra&& load_extra, ClearExtra&& clear_extra) {
    constexpr int kBytes = kRows * C.head_dim * 2;
    const i32 valid = len - row;
    const bool ragged = valid < kRows && len < p.rows;
    const u32 barrier = ragged ? barriers.ragged() : full;
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(barrier, kBytes + extra);
      load_slabs<C.slabs()>(to, kRows * 128, map, barrier, row, head, sample, by_slab);
      load_extra(barrier);
    }
    if (!ragged) return;
    wait_together(barrier, ragged_parity);
    ragged_parity ^= 1;
#pragma unroll 1
    for (u32 slab = 0; slab < C.slabs(); ++slab) clear_rows(to + slab * kRows * 128, valid, kRows);
    clear_extra(valid);
    ptx::fence_proxy_async();
    ptx::syncwarp();
    if (leader) ptx::mbarrier_arrive(full);
  }

  /// The one at hand. Its numbers are read again and again: registers are short.
  __device__ __forceinline__ KeyItem item() const {
    return load_item<KeyItem>(shared + kPlan.items + 32 * ((items - 1) % kItemStages));
  }

  __device__ __forceinline__ void load_k() {
    const KeyItem item = this->item();
    const int half = 1 - item.noisy;
    constexpr u32 kPart = kSm90BackwardKeys * 64;  // of a warpgroup
    load<kSm90BackwardKeys>(
        shared + kPlan.k, p.k[half], p.qk_by_slab, barriers.k_full(), item.first_key, item.head_kv,
        item.sample, item.len, C.splits_slab() ? 2 * kPart : 0,
        [&](u32 barrier) {
          if constexpr (!C.splits_slab()) return;
          for (u32 i = 0; i < 2; ++i) {
            ptx::tensor_load_5d(shared + kPlan.k_columns + i * kPart, p.k_columns[half], barrier,
                                static_cast<int>(32 * i), item.first_key, 0, item.head_kv,
                                item.sample);
          }
        },
        [&](i32 valid) {
          if constexpr (!C.splits_slab()) return;
#pragma unroll 1
          for (u32 i = 0; i < 2; ++i) {
            clear_rows<64>(shared + kPlan.k_columns + i * kPart, valid, kSm90BackwardKeys);
          }
        });
  }
  __device__ __forceinline__ void load_v() {
    const KeyItem item = this->item();
    load<kSm90BackwardKeys>(
        shared + kPlan.v, p.v[1 - item.noisy], p.v_by_slab, barriers.v_full(), item.first_key,
        item.head_kv, item.sample, item.len, 0, [](u32) {}, [](i32) {});
  }

  /// The next item with a valid key becomes the one at hand, and consumers get it; keys without are
  /// written. False where there is none.
  __device__ __forceinline__ bool claim() {
    KeyItem item{};
    while (true) {
      u32 index = 0;
      if (leader) index = ptx::atom_add_u32(p.next_item, 1);
      index = ptx::shfl_idx_u32(index, 0);
      if (index >= static_cast<u32>(p.items)) break;
      item = key_item(p, static_cast<i32>(index));
      if (item.first_key < item.len) {
        item.steps = (query_tiles(p, item, 0).size() + query_tiles(p, item, 1).size()) * p.group();
        break;
      }
      const i32 end = geometry::min_of(item.first_key + kSm90BackwardKeys, p.rows);
      write_zero_keys<32>(p, item, item.first_key, end);
    }
    const u32 place = items % kItemStages;
    wait_together(barriers.item_empty(place), items / kItemStages % 2 ^ 1);
    if (leader) {
      store_item(shared + kPlan.items + 32 * place, item);
      ptx::mbarrier_arrive(barriers.item_full(place));
    }
    ptx::syncwarp();
    return item.steps != 0;
  }

  __device__ __forceinline__ void run() {
    while (true) {
      if (!claim()) return;
      wait_together(barriers.kv_empty(), items % 2 ^ 1);
      ++items;
      load_k();
      bool first = true;
#pragma unroll 1
      for (i32 head = 0; head < p.group(); ++head) {
#pragma unroll 1
        for (i32 half = 0; half < 2; ++half) {
          const geometry::Interval tiles = query_tiles(p, item(), half);
#pragma unroll 1
          for (i32 tile = tiles.begin; tile < tiles.end; ++tile) {
            load_step(head, half, tile, first);
            first = false;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void load_step(i32 group_head, i32 half, i32 tile, bool first) {
    wait_together(barriers.q_empty(q.stage), q.parity ^ 1);
    {
      const KeyItem item = this->item();
      const StepRows rows{item.head_kv * p.group() + group_head, half, tile * kSm90BackwardRows};
      const i32 number = row_tile_number(p, item.sample, rows.head, half, tile);
      if (leader) {
        store_step(shared + kPlan.steps + steps % kStepStages * 16,
                   {number, rows.first_row, step_flags(p, item, rows)});
      }
      load<kSm90BackwardRows>(
          shared + kPlan.q + q.stage * C.rows_bytes(), p.q[half], p.qk_by_slab,
          barriers.q_full(q.stage), rows.first_row, rows.head, item.sample, item.len,
          kRowValuesBytes,
          [&](u32 barrier) {
            ptx::bulk_load(shared + kPlan.row_values + q.stage * kRowValuesBytes,
                           p.row_values + i64{number} * (kRowValuesBytes / 4), kRowValuesBytes,
                           barrier);
          },
          [](i32) {});
    }
    q.next();
    if (first) load_v();
    const u32 stage = steps % kDoutStages;
    wait_together(barriers.dout_empty(stage), steps / kDoutStages % 2 ^ 1);
    const KeyItem item = this->item();
    load<kSm90BackwardRows>(
        shared + kPlan.dout + stage * C.rows_bytes(), p.dout[half], p.v_by_slab,
        barriers.dout_full(stage), tile * kSm90BackwardRows, item.head_kv * p.group() + group_head,
        item.sample, item.len, 0, [](u32) {}, [](i32) {});
    ++steps;
  }
};

}  // namespace stepwell::cuda
