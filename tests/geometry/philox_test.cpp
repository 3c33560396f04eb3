// The dropout generator against published vectors, and what backends rely on.
#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace stepwell {
namespace {

void expect_words(const Philox4& got, unsigned a, unsigned b, unsigned c, unsigned d) {
  EXPECT_EQ(got.x[0], a);
  EXPECT_EQ(got.x[1], b);
  EXPECT_EQ(got.x[2], c);
  EXPECT_EQ(got.x[3], d);
}

// Known answers for philox4x32-10: Random123, tests/kat_vectors.
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32({{0, 0, 0, 0}}, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  constexpr unsigned kOnes = 0xffffffff;
  expect_words(philox4x32({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes), 0x408f276d, 0x41c83b0e,
               0xa20bc7c6, 0x6d5451fd);
  expect_words(
      philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, NumberIsTheKeysWordOfItsCounter) {
  const unsigned long long key = dropout_key(1234, 5);
  for (unsigned k = 0; k < 16; ++k) {
    const Philox4 four = philox4x32({{k / 4, 7, 3, 2}}, static_cast<unsigned>(key),
                                    static_cast<unsigned>(key >> 32));
    EXPECT_EQ(dropout_number(key, k, 7, 3, 2), four.x[k % 4]);
  }
}

TEST(Philox, SeedAndOffsetBothMatter) {
  std::set<unsigned long long> keys;
  for (unsigned long long seed = 0; seed < 50; ++seed) {
    for (unsigned long long offset = 0; offset < 50; ++offset)
      keys.insert(dropout_key(seed, offset));
  }
  EXPECT_EQ(keys.size(), 2500u);
}

TEST(Philox, ThresholdDropsTheAskedFraction) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 1u << 31);
  for (const double p : {0.1, 0.5, 0.9}) {
    constexpr int kRows = 400;
    constexpr int kKeys = 500;
    int dropped = 0;
    const unsigned long long key = dropout_key(7, 0);
    for (unsigned i = 0; i < kRows; ++i) {
      for (unsigned k = 0; k < kKeys; ++k)
        dropped += dropout_number(key, k, i, 0, 0) < dropout_threshold(p) ? 1 : 0;
    }
    const double total = kRows * kKeys;
    // Six standard deviations of a binomial.
    EXPECT_NEAR(dropped / total, p, 6.0 * std::sqrt(p * (1.0 - p) / total));
  }
}

}  // namespace
}  // namespace stepwell
