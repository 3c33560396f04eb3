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

/// What is dropped of 16 rows from `row` on of the warp, a multiple of 16, and kBlocks blocks of 64
/// keys from `first_key` on, a multiple of 64: bits as in dropped_bit(), for pieces of 8 keys.
template <int kBlocks>
__device__ __forceinline__ void draw_dropped(const DropoutTile& tile, int row, int first_key,
                                             u32 (&dropped)[kBlocks]) {
  const auto lane = static_cast<unsigned>(ptx::thread_index_again()) % 32;
  const unsigned query = static_cast<unsigned>(tile.first_query + row) / 2 + lane / 4;
  const unsigned keys = static_cast<unsigned>(first_key) / 16 + lane % 4;
  const auto segment_pair = static_cast<unsigned>(2 * tile.segment + tile.clean_keys);
  Philox4 words[2 * kBlocks];
#pragma unroll
  for (int i = 0; i < 2 * kBlocks; ++i) {
    words[i] = Philox4{{keys + i / 2 * 4, tile.sample_head, query, 2 * segment_pair + i % 2}};
  }
  philox4x32(words, static_cast<unsigned>(tile.key), static_cast<unsigned>(tile.key >> 32));
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    dropped[i] = dropped_pairs(words[2 * i], words[2 * i + 1], tile.threshold);
  }
}

/// Of value j of piece i of a lane's accumulators, s[i][j].
__device__ __forceinline__ constexpr unsigned dropped_bit(unsigned i, unsigned j) {
  return dropout_bit(8 * i + j % 2, j / 2 * 8);
}

/// What is dropped of fragments s[column / 8][4], 16 rows from `row` on of the warp, a multiple of
/// 16, keys `first_key` on, a multiple of 8 * Tiles.
template <int Tiles>
__device__ __forceinline__ u32 dropped_bits(const DropoutTile& tile, int row, int first_key) {
  static_assert(Tiles <= 8 && (Tiles & (Tiles - 1)) == 0);
  u32 dropped[1];
  draw_dropped(tile, row, first_key & ~63, dropped);
  return dropped[0] >> (first_key / 8 % 8);
}

/// Calls drop(i, j) for each dropped pair s[i][j] of fragments s[column / 8][4], 16 rows from `row`
/// on of the warp, a multiple of 16, keys `first_key` on, a multiple of 8 * Tiles.
template <int Tiles, class Drop>
__device__ __forceinline__ void for_each_dropped(const DropoutTile& tile, int row, int first_key,
                                                 Drop&& drop) {
  // Pieces that are in one block wherever the tile begins: 12 of them may begin inside of one.
  constexpr int kPieces = Tiles < 8 ? Tiles : Tiles % 8 == 0 ? 8 : 4;
  static_assert(Tiles % kPieces == 0);
#pragma unroll
  for (int first = 0; first < Tiles; first += kPieces) {
    const u32 dropped = dropped_bits<kPieces>(tile, row, first_key + 8 * first);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if ((dropped >> dropped_bit(i, j) & 1) != 0) drop(first + i, j);
      }
    }
  }
}

}  // namespace stepwell::cuda
