// Dropout of a lane's scores in the float32 kernels: the numbers of core/philox.hpp.
#pragma once

#include "cuda/tile/dropout.cuh"
#include "cuda/tile/transpose.cuh"

namespace stepwell::cuda {

/// Which pairs of a lane's kRows x kColumns scores (multiply_f32.cuh) are dropped: bit
/// i * kColumns + j. `first_row` and `first_column` are those of the warp: queries and keys, or
/// with kKeyRows keys and queries; the first key is a multiple of 4. Four lanes need one word each
/// of the same four numbers: each draws for every fourth pair, and they trade.
template <int kRows, int kColumns, bool kKeyRows>
__device__ __forceinline__ u32 dropped_bits_f32(const DropoutTile& tile, int first_row,
                                                int first_column) {
  const int lane = static_cast<int>(ptx::thread_index()) % 32;
  constexpr u32 kStride = kKeyRows ? 8 : 1;  // between the lanes of four neighbouring keys
  const int rank = lane / static_cast<int>(kStride) % 4;
  constexpr int kPairs = kRows * kColumns;
  u32 bits = 0;
#pragma unroll 1
  for (int base = 0; base < kPairs; base += 4) {
    const int pair = kPairs % 4 == 0 ? base + rank : (base + rank) % kPairs;
    const int row = first_row + pair / kColumns * 4;
    const int column = first_column + pair % kColumns * 8;
    const int key = kKeyRows ? row : column + lane % 8 / 4 * 4;
    const int query = kKeyRows ? column + lane % 8 : row + lane / 8;
    const Philox4 x =
        philox4x32({{static_cast<unsigned>(key) / 4, static_cast<unsigned>(query), tile.sample_head,
                     static_cast<unsigned>(2 * tile.segment + tile.clean_keys)}},
                   static_cast<unsigned>(tile.key), static_cast<unsigned>(tile.key >> 32));
    u32 word[4] = {x.x[0], x.x[1], x.x[2], x.x[3]};
    transpose_quad<kStride>(word);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      if (word[m] < tile.threshold) bits |= 1u << (base + m);
    }
  }
  return bits;
}

}  // namespace stepwell::cuda
