// Dropout of a warp's fragments of P: the numbers of core/philox.hpp.
#pragma once

#include "core/philox.hpp"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

/// What the numbers of a warp's rows depend on.
struct DropoutTile {
  unsigned long long key;
  unsigned threshold;
  unsigned sample_head;
  int segment;
  int first_query;  // of the warp
  int clean_keys;   // 1: the keys at hand are clean
};

__device__ __forceinline__ DropoutTile dropout_tile(const DropoutParams& p, int sample_head,
                                                    int segment, int first_query) {
  const unsigned long long seed =
      p.state != nullptr ? static_cast<unsigned long long>(p.state[0]) : p.seed;
  const unsigned long long offset =
      p.state != nullptr ? static_cast<unsigned long long>(p.state[1]) : p.offset;
  return {dropout_key(seed, offset),
          p.threshold,
          static_cast<unsigned>(sample_head),
          segment,
          first_query,
          0};
}

/// Calls drop(i, j) for each dropped pair s[i][j] of fragments s[column / 8][4], rows `row` on of
/// the warp, keys `first_key` on (a multiple of 4). Lanes 4 j + {0, 1} and 4 j + {2, 3} need the
/// same four numbers of a row: the even lane of a pair draws those of the upper row, the odd lane
/// those of the lower one, and they trade halves.
template <int Tiles, class Drop>
__device__ __forceinline__ void for_each_dropped(const DropoutTile& tile, int row, int first_key,
                                                 Drop&& drop) {
  const int lane = static_cast<int>(ptx::thread_index()) % 32;
  const bool odd = lane % 2 != 0;
  const unsigned query = static_cast<unsigned>(tile.first_query + row + lane / 4 + (odd ? 8 : 0));
  const unsigned group = static_cast<unsigned>(first_key) / 4 + static_cast<unsigned>(lane) % 4 / 2;
#pragma unroll
  for (int i = 0; i < Tiles; ++i) {
    const Philox4 x =
        philox4x32({{group + 2 * i, query, tile.sample_head,
                     static_cast<unsigned>(2 * tile.segment + tile.clean_keys)}},
                   static_cast<unsigned>(tile.key), static_cast<unsigned>(tile.key >> 32));
    // The even lane keeps words 0 and 1 of the upper row and sends 2 and 3; the odd lane keeps
    // words 2 and 3 of the lower row and sends 0 and 1.
    const unsigned got0 = ptx::shfl_xor_u32(odd ? x.x[0] : x.x[2], 1);
    const unsigned got1 = ptx::shfl_xor_u32(odd ? x.x[1] : x.x[3], 1);
    const unsigned upper[2] = {odd ? got0 : x.x[0], odd ? got1 : x.x[1]};
    const unsigned lower[2] = {odd ? x.x[2] : got0, odd ? x.x[3] : got1};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (upper[j] < tile.threshold) drop(i, j);
      if (lower[j] < tile.threshold) drop(i, 2 + j);
    }
  }
}

/// The same pairs as bits 4 i + j, in a loop: its numbers take no more registers than one step
/// needs.
template <int Tiles>
__device__ __forceinline__ u32 dropped_bits(const DropoutTile& tile, int row, int first_key) {
  u32 bits = 0;
#pragma unroll 1
  for (int i = 0; i < Tiles; ++i) {
    for_each_dropped<1>(tile, row, first_key + 8 * i,
                        [&](int, int j) { bits |= 1u << (4 * i + j); });
  }
  return bits;
}

}  // namespace stepwell::cuda
