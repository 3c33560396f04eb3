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
    for (unsigned key = 0; key < 160; ++key) {
      for (unsigned part = 0; part < 2; ++part) {
        const Philox4 counter = dropout_counter(key, query, 3, 2, part);
        EXPECT_EQ(counter.x[1], 3u);
        EXPECT_EQ(counter.x[3], 4u + part);
        places.insert({counter.x[0], counter.x[2], counter.x[3], dropout_bit(key, query)});
      }
    }
  }
  EXPECT_EQ(places.size(), 2u * 48u * 160u);
}

/// Number of a pair, as the comment of the header has it.
unsigned plain_number(unsigned long long key, unsigned k, unsigned q, unsigned sample_head,
                      unsigned segment_pair) {
  unsigned number = 0;
  for (unsigned b = 0; b < 8; ++b) {
    const Philox4 four = philox4x32(
        {{4 * (k / 64) + k % 8 / 2, sample_head, 8 * (q / 16) + q % 8, 2 * segment_pair + b / 4}},
        static_cast<unsigned>(key), static_cast<unsigned>(key >> 32));
    number |= (four.x[b % 4] >> (16 * (k % 2) + 8 * (q / 8 % 2) + k / 8 % 8) & 1u) << b;
  }
  return number;
}

TEST(Philox, NumberHasOneBitOfEachWord) {
  const unsigned long long key = dropout_key(1234, 5);
  for (unsigned query = 0; query < 32; ++query) {
    for (unsigned k = 0; k < 130; ++k) {
      EXPECT_EQ(dropout_number(key, k, query, 3, 2), plain_number(key, k, query, 3, 2));
    }
  }
}

TEST(Philox, PairsBelowTheThresholdAreDropped) {
  const unsigned long long key = dropout_key(99, 1);
  const auto low = static_cast<unsigned>(key);
  const auto high = static_cast<unsigned>(key >> 32);
  for (unsigned threshold = 0; threshold < 256; ++threshold) {
    for (unsigned q = 0; q < 16; q += 8) {
      for (unsigned k = 64; k < 128; ++k) {
        const unsigned dropped =
            dropped_pairs(philox4x32(dropout_counter(k, q, 5, 1, 0), low, high),
                          philox4x32(dropout_counter(k, q, 5, 1, 1), low, high), threshold);
        ASSERT_EQ((dropped >> dropout_bit(k, q) & 1u) != 0,
                  dropout_number(key, k, q, 5, 1) < threshold)
            << threshold;
      }
    }
  }
}

// Pairs of one group, of neighbouring groups, rows, heads and segments: as often dropped together
// as independent ones.
TEST(Philox, PairsAreIndependent) {
  const unsigned threshold = dropout_threshold(0.25);
  const double p = threshold / 256.0;
  struct Step {
    unsigned key, query, sample_head, segment_pair;
  };
  for (const Step& step : {Step{1, 0, 0, 0}, Step{8, 0, 0, 0}, Step{0, 8, 0, 0}, Step{9, 8, 0, 0},
                           Step{2, 0, 0, 0}, Step{64, 0, 0, 0}, Step{0, 1, 0, 0}, Step{0, 16, 0, 0},
                           Step{0, 0, 1, 0}, Step{0, 0, 0, 1}}) {
    int both = 0;
    int count = 0;
    const unsigned long long key = dropout_key(11, 3);
    for (unsigned q = 0; q < 96; ++q) {
      for (unsigned k = 0; k < 256; ++k) {
        if ((k & step.key) != 0 || (q & step.query) != 0) continue;  // each pair of pairs once
        const bool one = dropout_number(key, k, q, 2, 4) < threshold;
        const bool other = dropout_number(key, k + step.key, q + step.query, 2 + step.sample_head,
                                          4 + step.segment_pair) < threshold;
        both += one && other ? 1 : 0;
        ++count;
      }
    }
    EXPECT_NEAR(both / static_cast<double>(count), p * p,
                5.0 * std::sqrt(p * p * (1.0 - p * p) / count))
        << step.key << " " << step.query << " " << step.sample_head << " " << step.segment_pair;
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
  EXPECT_EQ(dropout_threshold(0.5), 128u);
  EXPECT_EQ(dropout_threshold(0.1), 26u);
  EXPECT_EQ(dropout_threshold(1e-9), 1u);  // asked for, so not nothing
  EXPECT_EQ(dropout_threshold(1.0 - 1e-9), 255u);
  EXPECT_EQ(dropout_keep_scale(0.0), 1.0);
  EXPECT_EQ(dropout_keep_scale(0.5), 2.0);
  EXPECT_EQ(dropout_keep_scale(1.0 - 1e-9), 256.0);
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
    const double rounded = dropout_threshold(p) / 256.0;
    EXPECT_NEAR(rounded, p, 1.0 / 512.0);
    // Six standard deviations of a binomial.
    EXPECT_NEAR(dropped / total, rounded, 6.0 * std::sqrt(rounded * (1.0 - rounded) / total));
  }
}

}  // namespace
}  // namespace stepwell
