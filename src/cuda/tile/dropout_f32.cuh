// Dropout of a lane's scores in the float32 kernels: the numbers of core/philox.hpp.
#pragma once

#include "cuda/tile/dropout.cuh"

namespace stepwell::cuda {

/// Which pairs of a lane's kRows x kColumns scores (multiply_f32.cuh) are dropped: bit
/// i * kColumns + j. `first_row` and `first_column` are those of the warp: queries and keys, or
/// with kKeyRows keys and queries. A lane's rows are 4 apart and its columns 8: rows 8 apart share
/// their numbers' words, as do all columns that are keys, and queries side by side.
template <int kRows, int kColumns, bool kKeyRows>
__device__ __forceinline__ u32 dropped_bits_f32(const DropoutTile& tile, int first_row,
                                                int first_column) {
  static_assert(kRows == 4 || kRows < 3);
  static_assert(kColumns <= 8 && (kColumns & (kColumns - 1)) == 0);
  constexpr int kSharedRows = kRows == 4 ? 2 : 1;
  constexpr int kSharedColumns = !kKeyRows || kColumns < 2 ? kColumns : 2;
  constexpr int kAcross = kColumns / kSharedColumns;
  const auto lane = static_cast<unsigned>(ptx::thread_index()) % 32;
  const auto segment_pair = static_cast<unsigned>(2 * tile.segment + tile.clean_keys);
  u32 bits = 0;
#pragma unroll 1
  for (int group = 0; group < kRows / kSharedRows * kAcross; ++group) {
    const int i = group / kAcross;
    const int j = group % kAcross * kSharedColumns;
    const auto row = static_cast<unsigned>(first_row + 4 * i) + lane / 8;
    const auto column = static_cast<unsigned>(first_column + 8 * j) + lane % 8;
    const unsigned key = kKeyRows ? row : column;
    const unsigned query = kKeyRows ? column : row;
    Philox4 words[2] = {dropout_counter(key, query, tile.sample_head, segment_pair, 0),
                        dropout_counter(key, query, tile.sample_head, segment_pair, 1)};
    philox4x32(words, static_cast<unsigned>(tile.key), static_cast<unsigned>(tile.key >> 32));
    const u32 dropped = dropped_pairs(words[0], words[1], tile.threshold);
#pragma unroll
    for (int a = 0; a < kSharedRows; ++a) {
#pragma unroll
      for (int b = 0; b < kSharedColumns; ++b) {
        const unsigned at = kKeyRows ? dropout_bit(key + 8 * a, query + 8 * b)
                                     : dropout_bit(key + 8 * b, query + 8 * a);
        if ((dropped >> at & 1) != 0) bits |= 1u << ((i + 2 * a) * kColumns + j + b);
      }
    }
  }
  return bits;
}

}  // namespace stepwell::cuda
