// Compares every geometry function with the element rule on one small mask.
#pragma once

#include <span>
#include <string>

#include "geometry/mask.hpp"

namespace stepwell::testing {

struct TileShape {
  int q = 1;
  int kv = 1;
};

/// Dividing, not dividing, larger than the sequence, single rows.
inline constexpr TileShape kTileShapes[] = {{4, 4}, {3, 5}, {7, 2}, {16, 8}, {32, 32}};
inline constexpr TileShape kAllTileShapes[] = {{4, 4}, {3, 5}, {7, 2},  {16, 8},
                                               {1, 1}, {5, 3}, {64, 1}, {32, 32}};

std::string describe(const geometry::SampleMask& mask);

/// The first disagreement in words, or "". Lengths at most 64.
std::string first_mismatch(const geometry::SampleMask& mask,
                           std::span<const TileShape> tiles = kTileShapes);

/// The same for classify, key_hull and query_hull on every rectangle, aligned or not, also past the
/// last key. Lengths at most 60.
std::string first_rectangle_mismatch(const geometry::SampleMask& mask);

/// Pairs of the whole sample, all views, from the element rule.
long long count_visible(const geometry::SampleMask& mask);

/// Equal halves of n tokens.
constexpr geometry::SampleMask equal_halves(
    int n, int block_size, geometry::CleanRule clean = geometry::CleanRule::kBlock,
    geometry::NoisyRule noisy = geometry::NoisyRule::kBidirectional, int origin = 0) {
  geometry::SampleMask mask;
  mask.block_size = block_size;
  mask.origin = origin;
  mask.clean = clean;
  mask.noisy = noisy;
  mask.num_views = 1;
  mask.noisy_len = n;
  mask.clean_q_len = n;
  mask.clean_kv_len = n;
  return mask;
}

/// One sequence.
constexpr geometry::SampleMask sequence(geometry::CleanRule rule, int len_q, int len_kv,
                                        int q_offset = 0) {
  geometry::SampleMask mask;
  mask.clean = rule;
  mask.clean_q_len = len_q;
  mask.clean_q_position = q_offset;
  mask.clean_kv_len = len_kv;
  return mask;
}

}  // namespace stepwell::testing
