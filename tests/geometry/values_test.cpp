// Known counts of visible pairs, closed forms, and what distinguishes masks of equal counts.
#include <gtest/gtest.h>

#include <algorithm>

#include "geometry/mask_check.hpp"
#include "geometry/pairs.hpp"
#include "geometry/tiles.hpp"
#include "reference/attention.hpp"

namespace stepwell::testing {
namespace {

using geometry::CleanRule;
using geometry::Half;
using geometry::NoisyRule;
using geometry::SampleMask;

// The geometry is usable in constant expressions.
static_assert(geometry::visible_pairs(equal_halves(16, 4)) == 320);
static_assert(geometry::classify(geometry::clean_rule(equal_halves(16, 4)), 0, {0, 4}, {0, 4}) ==
              geometry::TileClass::kFull);

void expect_pairs(const SampleMask& mask, long long pairs) {
  EXPECT_EQ(geometry::visible_pairs(mask), pairs) << describe(mask);
  EXPECT_EQ(count_visible(mask), pairs) << describe(mask);
}

TEST(VisiblePairs, CleanBlock) { expect_pairs(equal_halves(16, 4), 320); }

TEST(VisiblePairs, CleanCausal) { expect_pairs(equal_halves(16, 4, CleanRule::kCausal), 296); }

TEST(VisiblePairs, BothCausal) {
  expect_pairs(equal_halves(16, 4, CleanRule::kCausal, NoisyRule::kCausal), 272);
}

TEST(VisiblePairs, PartialLastBlock) {
  expect_pairs(equal_halves(15, 4), 282);
  expect_pairs(equal_halves(7, 4), 74);
}

TEST(VisiblePairs, BlockSizeThree) {
  expect_pairs(equal_halves(10, 3), 128);
  expect_pairs(equal_halves(10, 3, CleanRule::kCausal, NoisyRule::kCausal), 110);
}

TEST(VisiblePairs, BlockLargerThanSample) {
  expect_pairs(equal_halves(8, 16), 128);
  expect_pairs(equal_halves(30, 32), 1800);
  expect_pairs(equal_halves(8, 16, CleanRule::kBlock, NoisyRule::kBidirectional, 3), 98);
}

TEST(VisiblePairs, PromptCleanNoisy) {
  SampleMask mask = equal_halves(9, 4);
  mask.origin = 6;
  mask.noisy_position = 6;
  mask.clean_q_len = mask.clean_kv_len = 15;
  expect_pairs(mask, 250);
}

TEST(VisiblePairs, NoisyWithoutPromptCleanCausal) {
  SampleMask mask = equal_halves(10, 4, CleanRule::kCausal);
  mask.origin = 6;
  mask.noisy_position = 6;
  mask.clean_q_len = mask.clean_kv_len = 16;
  expect_pairs(mask, 264);
}

TEST(VisiblePairs, OriginInsideFullHalves) {
  expect_pairs(equal_halves(16, 4, CleanRule::kBlock, NoisyRule::kBidirectional, 6), 312);
}

TEST(VisiblePairs, TableOfAnchors) {
  const int table[] = {0, 3, 0, 7};
  SampleMask mask = equal_halves(8, 4);
  mask.clean_q_len = 0;
  mask.clean_kv_len = 12;
  mask.block_ranges = table;
  mask.num_block_ranges = 2;
  expect_pairs(mask, 72);
}

TEST(VisiblePairs, TwoViews) {
  SampleMask mask = equal_halves(16, 4);
  mask.num_views = 2;
  expect_pairs(mask, 480);
}

TEST(VisiblePairs, BlockAnchoredWindow) {
  SampleMask mask = equal_halves(16, 4);
  mask.clean_window = 6;
  expect_pairs(mask, 280);
}

// Origins are local to a sample. An origin that runs on from sample to sample gives the same count
// and another mask.
TEST(VisiblePairs, PackedOriginsAreLocal) {
  long long pairs = 0;
  long long running_pairs = 0;
  int wrongly_visible = 0;
  int wrongly_hidden = 0;
  int start = 0;
  for (const int n : {7, 5, 6}) {
    const SampleMask local = equal_halves(n, 4);
    SampleMask running = local;
    running.origin = (4 - start % 4) % 4;
    pairs += geometry::visible_pairs(local);
    running_pairs += geometry::visible_pairs(running);
    for (const auto& [query, key] :
         {std::pair{Half::kNoisy, Half::kNoisy}, std::pair{Half::kNoisy, Half::kClean},
          std::pair{Half::kClean, Half::kClean}}) {
      for (int i = 0; i < n; ++i) {
        for (int k = 0; k < n; ++k) {
          const bool right = reference::visible(local, query, 0, i, key, 0, k);
          const bool wrong = reference::visible(running, query, 0, i, key, 0, k);
          wrongly_visible += wrong && !right ? 1 : 0;
          wrongly_hidden += right && !wrong ? 1 : 0;
        }
      }
    }
    start += n;
  }
  EXPECT_EQ(pairs, 172);
  EXPECT_EQ(running_pairs, 172);
  EXPECT_EQ(wrongly_visible, 12);
  EXPECT_EQ(wrongly_hidden, 12);
}

TEST(VisiblePairs, ClosedFormsOfEqualHalves) {
  for (long long n = 0; n <= 200; ++n) {
    for (long long b = 1; b <= 210; ++b) {
      long long squares = 0;
      long long triangles = 0;
      for (long long first = 0; first < n; first += b) {
        const long long size = std::min(b, n - first);
        squares += size * size;
        triangles += size * (size + 1) / 2;
      }
      const auto pairs = [&](CleanRule clean, NoisyRule noisy) {
        return geometry::visible_pairs(
            equal_halves(static_cast<int>(n), static_cast<int>(b), clean, noisy));
      };
      ASSERT_EQ(pairs(CleanRule::kBlock, NoisyRule::kBidirectional), n * n + squares);
      ASSERT_EQ(pairs(CleanRule::kCausal, NoisyRule::kBidirectional), n * n + triangles);
      ASSERT_EQ(pairs(CleanRule::kBlock, NoisyRule::kCausal), n * n + triangles);
      ASSERT_EQ(pairs(CleanRule::kCausal, NoisyRule::kCausal), n * n + n);
    }
  }
}

TEST(Masks, AllFlavoursAgreeAtBlockSizeOne) {
  constexpr int kLen = 9;
  const SampleMask first = equal_halves(kLen, 1);
  for (const CleanRule clean : {CleanRule::kBlock, CleanRule::kCausal}) {
    for (const NoisyRule noisy : {NoisyRule::kBidirectional, NoisyRule::kCausal}) {
      const SampleMask mask = equal_halves(kLen, 1, clean, noisy);
      for (int i = 0; i < kLen; ++i) {
        for (int k = 0; k < kLen; ++k) {
          EXPECT_EQ(reference::visible(mask, Half::kNoisy, 0, i, Half::kNoisy, 0, k), k == i);
          EXPECT_EQ(reference::visible(mask, Half::kNoisy, 0, i, Half::kClean, 0, k), k < i);
          EXPECT_EQ(reference::visible(mask, Half::kClean, 0, i, Half::kClean, 0, k), k <= i);
          EXPECT_FALSE(reference::visible(mask, Half::kClean, 0, i, Half::kNoisy, 0, k));
        }
      }
      EXPECT_EQ(geometry::visible_pairs(mask), geometry::visible_pairs(first));
    }
  }
}

// A sample that is one block sees, in each half, only that half.
TEST(Masks, OneBlockKeepsHalvesApart) {
  const SampleMask mask = equal_halves(8, 16);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(geometry::row_interval(geometry::own_rule(mask), i), (geometry::Interval{0, 8}));
    EXPECT_TRUE(geometry::row_interval(geometry::noisy_clean_rule(mask), i).empty());
    EXPECT_EQ(geometry::row_interval(geometry::clean_rule(mask), i), (geometry::Interval{0, 8}));
  }
}

// Every valid row of a diffusion mask sees itself: only padding sees nothing.
TEST(Masks, EveryValidRowSeesItself) {
  for (int n = 1; n <= 24; ++n) {
    for (int b = 1; b <= 26; ++b) {
      for (const CleanRule clean : {CleanRule::kBlock, CleanRule::kCausal}) {
        for (const NoisyRule noisy : {NoisyRule::kBidirectional, NoisyRule::kCausal}) {
          SampleMask mask = equal_halves(n, b, clean, noisy, 3);
          mask.clean_window = 1;
          for (int i = 0; i < n; ++i) {
            ASSERT_TRUE(geometry::row_interval(geometry::own_rule(mask), i).contains(i));
            ASSERT_TRUE(geometry::row_interval(geometry::clean_rule(mask), i).contains(i));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepwell::testing
