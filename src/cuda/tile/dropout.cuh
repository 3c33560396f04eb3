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

/// The numbers of 16 rows from `row` on of the warp and kBlocks blocks of 16 keys from `first_key`
/// on, both multiples of 16: word 2 r + i has the lane's row r of piece i, one half for each of its
/// two columns.
template <int kBlocks>
__device__ __forceinline__ void dropout_words(const DropoutTile& tile, int row, int first_key,
                                              Philox4 (&words)[kBlocks]) {
  const auto lane = static_cast<unsigned>(ptx::thread_index_again()) % 32;
  const unsigned query = static_cast<unsigned>(tile.first_query + row) / 2 + lane / 4;
  const unsigned keys = static_cast<unsigned>(first_key) / 4 + lane % 4;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    words[i] = Philox4{{keys + 4 * i, query, tile.sample_head,
                        static_cast<unsigned>(2 * tile.segment + tile.clean_keys)}};
  }
  philox4x32(words, static_cast<unsigned>(tile.key), static_cast<unsigned>(tile.key >> 32));
}

/// Bits 15 and 31 say whether the pairs of a word are kept; others may be anything.
__device__ __forceinline__ u32 kept_flags(u32 word, u32 threshold) {
  static_assert(kDropoutBits == 15 && kDropoutShift == 16);
  return (word & 0x7fff7fffu) + (0x8000u - threshold) * 0x10001u;
}

/// Calls drop(i, j) for each dropped pair s[i][j] of fragments s[column / 8][4], 16 rows from `row`
/// on of the warp, keys `first_key` on; both are multiples of 16.
template <int Tiles, class Drop>
__device__ __forceinline__ void for_each_dropped(const DropoutTile& tile, int row, int first_key,
                                                 Drop&& drop) {
  static_assert(Tiles % 2 == 0);
#pragma unroll
  for (int i = 0; i < Tiles; i += 2) {
    Philox4 words[1];
    dropout_words(tile, row, first_key + 8 * i, words);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const u32 kept = kept_flags(words[0].x[w], tile.threshold);
      if ((kept & 0x8000u) == 0) drop(i + w % 2, w / 2 * 2);
      if ((kept & 0x80000000u) == 0) drop(i + w % 2, w / 2 * 2 + 1);
    }
  }
}

/// The same pairs as bits 4 i + j, in a loop: its numbers take no more registers than one step
/// needs.
template <int Tiles>
__device__ __forceinline__ u32 dropped_bits(const DropoutTile& tile, int row, int first_key) {
  u32 bits = 0;
#pragma unroll 1
  for (int i = 0; i < Tiles; i += 2) {
    for_each_dropped<2>(tile, row, first_key + 8 * i,
                        [&](int k, int j) { bits |= 1u << (4 * (i + k) + j); });
  }
  return bits;
}

}  // namespace stepwell::cuda
