// The dropout generator against published vectors, and what backends rely on.
#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>

namespace stepwell {
namespace {

void expect_words(const Philox4& got, unsigned a, unsigned b, unsigned c, unsigned d) {
  EXPECT_EQ(got.x[0], a);
  EXPECT_EQ(got.x[1], b);
  EXPECT_EQ(got.x[2], c);
  EXPECT_EQ(got.x[3], d);
}

// Known answers of ten rounds: Random123, tests/kat_vectors. Dropout's seven are the same function.
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32<10>({{0, 0, 0, 0}}, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c,
               0x9b00dbd8);
  constexpr unsigned kOnes = 0xffffffff;
  expect_words(philox4x32<10>({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes), 0x408f276d, 0x41c83b0e,
               0xa20bc7c6, 0x6d5451fd);
  expect_words(
      philox4x32<10>({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, EveryPairHasBitsOfItsOwn) {
  std::set<std::tuple<unsigned, unsigned, unsigned, unsigned>> places;
  for (unsigned query = 0; query < 48; ++query) {
    for (unsigned key = 0; key < 48; ++key) {
      const Philox4 counter = dropout_counter(key, query, 3, 2);
      EXPECT_EQ(counter.x[2], 3u);
      EXPECT_EQ(counter.x[3], 2u);
      places.insert({counter.x[0], counter.x[1], dropout_word(key, query), key % 2});
    }
  }
  EXPECT_EQ(places.size(), 48u * 48u);
}

TEST(Philox, NumberIsHalfOfItsWord) {
  const unsigned long long key = dropout_key(1234, 5);
  for (unsigned query = 0; query < 32; ++query) {
    for (unsigned k = 0; k < 32; ++k) {
      const Philox4 four = philox4x32({{k / 16 * 4 + k % 8 / 2, query / 16 * 8 + query % 8, 3, 2}},
                                      static_cast<unsigned>(key), static_cast<unsigned>(key >> 32));
      const unsigned word = four.x[query % 16 / 8 * 2 + k % 16 / 8];
      EXPECT_EQ(dropout_number(key, k, query, 3, 2), (k % 2 != 0 ? word >> 16 : word) & 0x7fffu);
    }
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
  EXPECT_EQ(dropout_threshold(0.5), 1u << 14);
  EXPECT_EQ(dropout_threshold(1e-9), 1u);  // asked for, so not nothing
  EXPECT_EQ(dropout_threshold(1.0 - 1e-9), (1u << 15) - 1);
  EXPECT_EQ(dropout_keep_scale(0.0), 1.0);
  EXPECT_EQ(dropout_keep_scale(0.5), 2.0);
  EXPECT_EQ(dropout_keep_scale(1.0 - 1e-9), 32768.0);
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
