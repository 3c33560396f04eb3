// What the specialised warps of the kernels for sm_90a have in common.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm90.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// The same value in every lane, and the compiler knows.
__device__ __forceinline__ i32 uniform(i32 x) {
  return static_cast<i32>(ptx::shfl_idx_u32(static_cast<u32>(x), 0));
}

/// A place in a ring: how many have been used before, in one register.
template <u32 kSlots>
struct RingPlace {
  static_assert((kSlots & (kSlots - 1)) == 0);
  u32 count = 0;

  __device__ __forceinline__ int slot() const { return static_cast<int>(count % kSlots); }
  /// Of the current round.
  __device__ __forceinline__ u32 parity() const { return count / kSlots % 2; }
  __device__ __forceinline__ void next() { ++count; }
};

/// Waits with the whole warp: a lane that came two phases late would wait for ever.
__device__ __forceinline__ void wait_together(u32 barrier, u32 parity) {
  ptx::mbarrier_wait_parity(barrier, parity);
  ptx::syncwarp();
}

/// Loads a box of all kSlabs slabs of 64 dims. `by_slab`: the last slab of the tensor is not whole,
/// its map has the dimension dim for the first and for slabs one of 1, and boxes of one slab.
template <int kSlabs>
__device__ __forceinline__ void load_slabs(u32 to, u32 slab_bytes, const TensorMap& map,
                                           u32 barrier, i32 row, i32 head, i32 sample,
                                           bool by_slab) {
  if (kSlabs == 1 || !by_slab) {
    ptx::tensor_load_5d(to, map, barrier, 0, row, 0, head, sample);
    return;
  }
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
    ptx::tensor_load_5d(to + static_cast<u32>(slab) * slab_bytes, map, barrier, 64 * slab, row, 0,
                        head, sample);
  }
}

/// Zeros over rows [valid, rows) of one slab: rows that hold no token may have anything, and 0
/// times NaN is NaN. By one warp.
template <int kRowBytes = 128>
__device__ __forceinline__ void clear_rows(u32 slab, i32 valid, int rows) {
  constexpr int kPieces = kRowBytes / 16;
  const int lane = static_cast<int>(ptx::thread_index_again()) % 32;
#pragma unroll 1
  for (int i = valid * kPieces + lane; i < rows * kPieces; i += 32) {
    ptx::st_shared_v4(slab + 16 * i, {0, 0, 0, 0});
  }
}

/// Of each half of a sample.
template <class Params>
__device__ __forceinline__ i32 valid_tokens(const Params& p, i32 sample) {
  return p.lengths == nullptr ? p.rows : geometry::clamp_to(p.lengths[sample], 0, p.rows);
}

/// The six or eight numbers of a work item in shared memory, at a multiple of 16.
template <class Item>
__device__ __forceinline__ void store_item(u32 at, const Item& item) {
  constexpr int kWords = sizeof(Item) / 4;
  static_assert(kWords == 6 || kWords == 8);
  const auto words = __builtin_bit_cast(ptx::Words<kWords>, item);
  ptx::st_shared_v4(at, {words.word[0], words.word[1], words.word[2], words.word[3]});
  if constexpr (kWords == 6) {
    ptx::st_shared_v2(at + 16, static_cast<i32>(words.word[4]), static_cast<i32>(words.word[5]));
  } else {
    ptx::st_shared_v4(at + 16, {words.word[4], words.word[5], words.word[6], words.word[7]});
  }
}

template <class Item>
__device__ __forceinline__ Item load_item(u32 at) {
  constexpr int kWords = sizeof(Item) / 4;
  static_assert(kWords == 6 || kWords == 8);
  const U32x4 first = ptx::ld_shared_v4(at);
  if constexpr (kWords == 6) {
    i32 last[2];
    ptx::ld_shared_v2(at + 16, last[0], last[1]);
    return __builtin_bit_cast(
        Item, ptx::Words<6>{{first.x, first.y, first.z, first.w, static_cast<u32>(last[0]),
                             static_cast<u32>(last[1])}});
  } else {
    const U32x4 last = ptx::ld_shared_v4(at + 16);
    return __builtin_bit_cast(
        Item, ptx::Words<8>{{first.x, first.y, first.z, first.w, last.x, last.y, last.z, last.w}});
  }
}

}  // namespace stepwell::cuda
