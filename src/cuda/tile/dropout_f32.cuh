// Dropout of a lane's scores in the float32 kernels: the numbers of core/philox.hpp.
#pragma once

#include "cuda/tile/dropout.cuh"

namespace stepwell::cuda {

/// Which pairs of a lane's kRows x kColumns scores (multiply_f32.cuh) are dropped: bit
/// i * kColumns + j. `first_row` and `first_column` are those of the warp: queries and keys, or
/// with kKeyRows keys and queries. A lane's rows are 4 apart and its columns 8: of 4 rows every
/// second one, and two columns side by side, share their counters.
template <int kRows, int kColumns, bool kKeyRows>
__device__ __forceinline__ u32 dropped_bits_f32(const DropoutTile& tile, int first_row,
                                                int first_column) {
  static_assert(kRows == 4 || kRows < 3);
  constexpr int kSharedRows = kRows == 4 ? 2 : 1;
  constexpr int kSharedColumns = kColumns % 2 == 0 ? 2 : 1;
  constexpr int kAcross = kColumns / kSharedColumns;
  const auto lane = static_cast<unsigned>(ptx::thread_index()) % 32;
  u32 bits = 0;
#pragma unroll 1
  for (int group = 0; group < kRows / kSharedRows * kAcross; ++group) {
    const int i = group / kAcross;
    const int j = group % kAcross * kSharedColumns;
    const auto row = static_cast<unsigned>(first_row + 4 * i) + lane / 8;
    const auto column = static_cast<unsigned>(first_column + 8 * j) + lane % 8;
    const unsigned key = kKeyRows ? row : column;
    const unsigned query = kKeyRows ? column : row;
    const Philox4 words =
        philox4x32(dropout_counter(key, query, tile.sample_head,
                                   static_cast<unsigned>(2 * tile.segment + tile.clean_keys)),
                   static_cast<unsigned>(tile.key), static_cast<unsigned>(tile.key >> 32));
#pragma unroll
    for (int a = 0; a < kSharedRows; ++a) {
#pragma unroll
      for (int b = 0; b < kSharedColumns; ++b) {
        const unsigned at = kKeyRows ? dropout_word(key + 8 * a, query + 8 * b)
                                     : dropout_word(key + 8 * b, query + 8 * a);
        const u32 low = (at & 1) != 0 ? words.x[1] : words.x[0];
        const u32 high = (at & 1) != 0 ? words.x[3] : words.x[2];
        const u32 word = (at & 2) != 0 ? high : low;
        const u32 number = word >> (key % 2 * kDropoutShift) & kDropoutMask;
        if (number < tile.threshold) bits |= 1u << ((i + 2 * a) * kColumns + j + b);
      }
    }
  }
  return bits;
}

}  // namespace stepwell::cuda
