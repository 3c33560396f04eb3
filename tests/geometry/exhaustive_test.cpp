// Every geometry function against the element rule, for all small sizes.
#include <gtest/gtest.h>

#include <vector>

#include "geometry/mask_check.hpp"
#include "geometry/pairs.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

using geometry::CleanRule;
using geometry::NoisyRule;
using geometry::SampleMask;

constexpr int kMaxLen = 24;
constexpr int kMaxBlock = 26;
constexpr CleanRule kCleanRules[] = {CleanRule::kBlock, CleanRule::kCausal};
constexpr NoisyRule kNoisyRules[] = {NoisyRule::kBidirectional, NoisyRule::kCausal};

TEST(Exhaustive, EqualHalves) {
  for (int n = 0; n <= kMaxLen; ++n) {
    for (int b = 1; b <= kMaxBlock; ++b) {
      for (int origin = 0; origin <= std::min(n + 1, b); ++origin) {
        for (const CleanRule clean : kCleanRules) {
          for (const NoisyRule noisy : kNoisyRules) {
            const SampleMask mask = equal_halves(n, b, clean, noisy, origin);
            ASSERT_EQ(first_mismatch(mask), "");
            ASSERT_EQ(geometry::visible_pairs(mask), count_visible(mask)) << describe(mask);
          }
        }
      }
    }
  }
}

TEST(Exhaustive, MoreTileShapes) {
  for (int n = 0; n <= kMaxLen; ++n) {
    for (int b = 1; b <= kMaxBlock; ++b) {
      for (const int origin : {0, b / 2}) {
        for (const CleanRule clean : kCleanRules) {
          for (const NoisyRule noisy : kNoisyRules) {
            ASSERT_EQ(first_mismatch(equal_halves(n, b, clean, noisy, origin), kAllTileShapes), "");
          }
        }
      }
    }
  }
}

TEST(Exhaustive, CleanWindow) {
  for (int n = 0; n <= kMaxLen; ++n) {
    for (int b = 1; b <= kMaxBlock; ++b) {
      for (const int origin : {0, 1, b / 2}) {
        for (const int window : {1, 2, 3, b, b + 1, 2 * b, n, n + 1, 1 << 28}) {
          if (window == 0) continue;
          SampleMask mask =
              equal_halves(n, b, CleanRule::kBlock, NoisyRule::kBidirectional, origin);
          mask.clean_window = window;
          if (window % 2 == 0) mask.clean = CleanRule::kCausal;
          ASSERT_EQ(first_mismatch(mask), "");
        }
      }
    }
  }
}

TEST(Exhaustive, EveryRectangle) {
  for (int n = 0; n <= 9; ++n) {
    for (int b = 1; b <= 10; ++b) {
      for (int origin = 0; origin < b; ++origin) {
        for (const int window : {0, 1, 3}) {
          for (const CleanRule clean : kCleanRules) {
            for (const NoisyRule noisy : kNoisyRules) {
              SampleMask mask = equal_halves(n, b, clean, noisy, origin);
              mask.clean_window = window;
              ASSERT_EQ(first_rectangle_mismatch(mask), "");
            }
          }
        }
      }
    }
  }
}

TEST(Exhaustive, TinyUnequalHalves) {
  constexpr TileShape kTiles[] = {{2, 3}, {3, 2}};
  for (int position = 0; position <= 3; ++position) {
    for (int noisy_len = 0; noisy_len <= 4; ++noisy_len) {
      for (int clean_kv = 0; clean_kv <= 4; ++clean_kv) {
        for (int clean_q = 0; clean_q <= 3; ++clean_q) {
          for (int offset = 0; offset <= 2; ++offset) {
            for (int b = 1; b <= 5; ++b) {
              for (int origin = 0; origin <= std::min(b, 4); ++origin) {
                for (int flavour = 0; flavour < 12; ++flavour) {
                  SampleMask mask = equal_halves(noisy_len, b, kCleanRules[flavour % 2],
                                                 kNoisyRules[flavour / 2 % 2], origin);
                  mask.clean_window = flavour / 4;
                  mask.noisy_position = position;
                  mask.clean_q_len = clean_q;
                  mask.clean_q_position = offset;
                  mask.clean_kv_len = clean_kv;
                  ASSERT_EQ(first_mismatch(mask, kTiles), "");
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(Exhaustive, UnequalHalvesSampled) {
  Random random(1);
  for (int round = 0; round < 40000; ++round) {
    SampleMask mask = equal_halves(static_cast<int>(random.between(0, 24)),
                                   static_cast<int>(random.between(1, 26)),
                                   random.pick({CleanRule::kBlock, CleanRule::kCausal}),
                                   random.pick({NoisyRule::kBidirectional, NoisyRule::kCausal}),
                                   static_cast<int>(random.between(0, 40)));
    mask.num_views = static_cast<int>(random.between(1, 3));
    mask.noisy_position = static_cast<int>(random.between(0, 20));
    mask.clean_kv_len = static_cast<int>(random.between(0, 30));
    mask.clean_q_len = static_cast<int>(random.between(0, 24));
    mask.clean_q_position = static_cast<int>(random.between(0, 20));
    mask.clean_window = random.chance(0.3) ? static_cast<int>(random.between(1, 20)) : 0;
    ASSERT_EQ(first_mismatch(mask), "");
    ASSERT_EQ(geometry::visible_pairs(mask), count_visible(mask)) << describe(mask);
  }
}

// Valid lengths shorter than the rows reach the geometry as shorter lengths; here the halves of a
// sample may disagree.
TEST(Exhaustive, ValidLengthsPerHalf) {
  for (int noisy_len = 0; noisy_len <= kMaxLen; ++noisy_len) {
    for (int clean_len = 0; clean_len <= kMaxLen; ++clean_len) {
      for (const int b : {1, 2, 3, 4, 7, 16, 26}) {
        for (int flavour = 0; flavour < 4; ++flavour) {
          SampleMask mask =
              equal_halves(noisy_len, b, kCleanRules[flavour % 2], kNoisyRules[flavour / 2]);
          mask.clean_q_len = mask.clean_kv_len = clean_len;
          ASSERT_EQ(first_mismatch(mask), "");
        }
      }
    }
  }
}

TEST(Exhaustive, Views) {
  for (int views = 1; views <= 3; ++views) {
    for (int n = 0; n <= kMaxLen; ++n) {
      for (int b = 1; b <= kMaxBlock; ++b) {
        for (int flavour = 0; flavour < 4; ++flavour) {
          SampleMask mask = equal_halves(n, b, kCleanRules[flavour % 2], kNoisyRules[flavour / 2]);
          mask.num_views = views;
          ASSERT_EQ(geometry::visible_pairs(mask), count_visible(mask)) << describe(mask);
        }
      }
    }
  }
}

TEST(Exhaustive, BlockRanges) {
  Random random(2);
  std::vector<int> table;
  for (int round = 0; round < 40000; ++round) {
    const auto blocks = static_cast<int>(random.between(0, 7));
    SampleMask mask = equal_halves(0, static_cast<int>(random.between(1, 6)));
    mask.noisy = random.pick({NoisyRule::kBidirectional, NoisyRule::kCausal});
    // Rows past the table see no clean key.
    mask.noisy_len =
        static_cast<int>(random.between(0, std::min(50, blocks * mask.block_size + 3)));
    mask.noisy_position = random.pick({0, 0, 3, 11});
    mask.origin = static_cast<int>(random.between(0, 4));  // of the clean blocks only
    mask.clean_kv_len = static_cast<int>(random.between(0, 30));
    mask.clean_q_len = random.pick({0, 0, mask.clean_kv_len});
    mask.num_views = static_cast<int>(random.between(1, 2));
    table.assign(2 * blocks + 2, 0);
    for (int j = 0; j < blocks; ++j) {
      // Empty, reversed and out-of-range entries too.
      table[2 * j] = static_cast<int>(random.between(-2, mask.clean_kv_len + 2));
      table[2 * j + 1] = static_cast<int>(random.between(-2, mask.clean_kv_len + 2));
      if (random.chance(0.7) && table[2 * j] > table[2 * j + 1])
        std::swap(table[2 * j], table[2 * j + 1]);
      const bool sorted = round % 2 == 0 && j > 0;
      if (sorted) {
        table[2 * j] = std::max(table[2 * j], table[2 * j - 2]);
        table[2 * j + 1] = std::max(table[2 * j + 1], table[2 * j - 1]);
      }
    }
    mask.block_ranges = table.data();
    mask.num_block_ranges = blocks;
    ASSERT_EQ(first_mismatch(mask), "");
    ASSERT_EQ(geometry::visible_pairs(mask), count_visible(mask)) << describe(mask);
    if (mask.noisy_len + mask.clean_kv_len < 20 && round % 8 == 0) {
      ASSERT_EQ(first_rectangle_mismatch(mask), "");
    }
  }
}

TEST(Exhaustive, Sequences) {
  constexpr int kNoBound = geometry::kMaxLength;
  for (int len_q = 0; len_q <= 9; ++len_q) {
    for (int len_kv = 0; len_kv <= 9; ++len_kv) {
      for (int offset = 0; offset <= 6; ++offset) {
        ASSERT_EQ(first_mismatch(sequence(CleanRule::kFull, len_q, len_kv, offset)), "");
        ASSERT_EQ(first_mismatch(sequence(CleanRule::kCausal, len_q, len_kv, offset)), "");
        for (const int left : {0, 1, 2, 5, kNoBound}) {
          for (const int right : {0, 1, 3, kNoBound}) {
            SampleMask mask = sequence(CleanRule::kWindow, len_q, len_kv, offset);
            mask.window_left = left;
            mask.window_right = right;
            ASSERT_EQ(first_mismatch(mask), "");
          }
        }
        for (int b = 1; b <= 11; ++b) {
          for (const int origin : {0, 1, b / 2, b}) {
            SampleMask mask = sequence(CleanRule::kBlock, len_q, len_kv, offset);
            mask.block_size = b;
            mask.origin = origin;
            ASSERT_EQ(first_mismatch(mask), "");
          }
        }
      }
    }
  }
}

TEST(Exhaustive, LongerSequences) {
  for (int n = 0; n <= kMaxLen; ++n) {
    for (int x = 1; x <= kMaxBlock; ++x) {
      for (const int offset : {0, 5}) {
        SampleMask block = sequence(CleanRule::kBlock, n, n + offset, offset);
        block.block_size = x;
        ASSERT_EQ(first_mismatch(block, kAllTileShapes), "");
        SampleMask window = sequence(CleanRule::kWindow, n, n + offset, offset);
        window.window_left = x - 1;
        window.window_right = x / 3;
        ASSERT_EQ(first_mismatch(window, kAllTileShapes), "");
        ASSERT_EQ(geometry::visible_pairs(window), count_visible(window)) << describe(window);
      }
    }
  }
}

TEST(Exhaustive, EverySequenceRectangle) {
  for (int len_q = 0; len_q <= 7; ++len_q) {
    for (int len_kv = 0; len_kv <= 7; ++len_kv) {
      for (const int offset : {0, 2, 9}) {
        for (const CleanRule rule :
             {CleanRule::kFull, CleanRule::kCausal, CleanRule::kWindow, CleanRule::kBlock}) {
          for (int x = 1; x <= 4; ++x) {
            SampleMask mask = sequence(rule, len_q, len_kv, offset);
            mask.block_size = x;
            mask.window_left = x;
            mask.window_right = x / 2;
            ASSERT_EQ(first_rectangle_mismatch(mask), "");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace stepwell::testing
