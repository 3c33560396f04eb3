// The softmax against the maximum so far (tile/running_softmax.cuh), tile by tile on one warp:
// against float64, for scores of all sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/tile/running_softmax.cuh"
#include "host_model/launches.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

namespace ptx = cuda::ptx;
using cuda::Element;
using cuda::RowBases;
using cuda::RunningRow;
using cuda::u32;

constexpr int kRows = 16;
constexpr int kPieces = 16;
constexpr int kTile = 8 * kPieces;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

struct Rows {
  double out[kRows] = {};
  double lse[kRows] = {};
};

/// Scores [tile][row][key] and one value for each key; the first two tiles may have hidden keys.
struct Tiles {
  std::vector<std::vector<std::vector<double>>> scores;
  std::vector<std::vector<double>> values;
};

Rows expected(const Tiles& tiles, float scale_log2) {
  Rows rows;
  const double to_natural = scale_log2 * std::log(2.0);
  for (int r = 0; r < kRows; ++r) {
    double top = kHidden;
    for (const auto& tile : tiles.scores) {
      top = std::max(top, *std::max_element(tile[r].begin(), tile[r].end()));
    }
    double sum = 0.0;
    double weighted = 0.0;
    for (std::size_t t = 0; top != kHidden && t < tiles.scores.size(); ++t) {
      for (int key = 0; key < kTile; ++key) {
        const double p = std::exp((tiles.scores[t][r][key] - top) * to_natural);
        sum += p;
        weighted += p * tiles.values[t][key];
      }
    }
    rows.out[r] = sum > 0.0 ? weighted / sum : 0.0;
    rows.lse[r] = sum > 0.0 ? top * to_natural + std::log(sum) : kHidden;
  }
  return rows;
}

template <Element kElement>
Rows computed(const Tiles& tiles, float scale_log2, const host_model::Options& options) {
  Rows rows;
  host_model::launch({1}, 32, 1024, options, [&] {
    const RowBases bases{ptx::shared_base()};
    const int row = static_cast<int>(lane()) / 4;
    const int column = static_cast<int>(lane()) % 4 * 2;
    RunningRow state[2];
    float rescale[2] = {1.0f, 1.0f};
    double out[2] = {};
    for (std::size_t t = 0; t < tiles.scores.size(); ++t) {
      float s[kPieces][4];
      for (int i = 0; i < kPieces; ++i) {
        for (int j = 0; j < 4; ++j) {
          s[i][j] = static_cast<float>(tiles.scores[t][row + j / 2 * 8][8 * i + column + j % 2]);
        }
      }
      u32 p[kPieces / 2][4];
      bool moved = true;
      if (t == 0) {
        cuda::softmax_of_masked<kElement, true>(s, state, scale_log2, bases, rescale);
        cuda::pack<kElement>(p, s);
        moved = false;
      } else if (t == 1) {
        cuda::softmax_of_masked<kElement, false>(s, state, scale_log2, bases, rescale);
        cuda::pack<kElement>(p, s);
      } else {
        moved = cuda::softmax_ahead<kElement>(p, s, state, scale_log2, bases, rescale);
      }
      for (int r = 0; r < 2; ++r) {
        if (moved) out[r] *= rescale[r];
        for (int i = 0; i < kPieces; ++i) {
          const u32 pair = p[i / 2][i % 2 * 2 + r];
          const auto& values = tiles.values[t];
          out[r] += ptx::low_f32<kElement>(pair) * values[8 * i + column] +
                    ptx::high_f32<kElement>(pair) * values[8 * i + column + 1];
        }
      }
    }
    cuda::settle_references(state, scale_log2, bases);
    float inverse[2], lse[2];
    cuda::finish_rows(state, inverse, lse);
    for (int r = 0; r < 2; ++r) {
      rows.out[row + 8 * r] += out[r] * inverse[r];
      rows.lse[row + 8 * r] = lse[r];
    }
  });
  return rows;
}

/// Normal scores of a scale and trend for each row, some of them hidden in the first two tiles.
Tiles random_tiles(std::uint64_t seed, double scale, double trend) {
  Random random(seed);
  Tiles tiles;
  constexpr int kCount = 6;
  for (int t = 0; t < kCount; ++t) {
    tiles.scores.emplace_back(kRows, std::vector<double>(kTile));
    tiles.values.emplace_back(kTile);
    for (double& value : tiles.values.back()) value = 2.0 * random.uniform() - 1.0;
    for (int r = 0; r < kRows; ++r) {
      // Rows of one warp differ in size, and some see nothing at first.
      const double size = r % 3 == 0 ? 1.0 : scale;
      for (double& score : tiles.scores.back()[r]) {
        const bool hidden = t < 2 && (r % 5 == 0 || random.uniform() < 0.5);
        const double x = size * (2.0 * random.uniform() - 1.0 + trend * t);
        score = hidden ? kHidden : static_cast<float>(x);
      }
    }
  }
  return tiles;
}

template <Element kElement>
void check(double scale, double trend) {
  const float scale_log2 = 0.125f;
  std::uint64_t seed = 1;
  for (const host_model::Options& options : all_options()) {
    const Tiles tiles = random_tiles(seed++, scale, trend);
    const Rows want = expected(tiles, scale_log2);
    const Rows got = computed<kElement>(tiles, scale_log2, options);
    for (int r = 0; r < kRows; ++r) {
      EXPECT_NEAR(got.out[r], want.out[r], 0.01) << "row " << r << " scale " << scale;
      EXPECT_NEAR(got.lse[r], want.lse[r], 1e-5 + 1e-6 * std::abs(want.lse[r])) << "row " << r;
    }
  }
}

TEST(RunningSoftmax, ScoresOfAllSizes) {
  for (const double scale : {1e-3, 1.0, 30.0, 1e3, 1e6, 1e9, 1e12, 1e30}) {
    for (const double trend : {0.0, 1.0, -1.0}) {
      SCOPED_TRACE(scale);
      SCOPED_TRACE(trend);
      check<Element::kBFloat16>(scale, trend);
      check<Element::kFloat16>(scale, trend);
    }
  }
}

// What a reference above the maximum costs small scores: a row of one key has the log-sum-exp of
// its score, to a few roundings of numbers below 8.
TEST(RunningSoftmax, SmallScoresKeepTheirLogSumExp) {
  for (const double scale : {0.0, 1e-3, 0.3, 3.0}) {
    Tiles tiles = random_tiles(3, scale, 0.0);
    for (auto& tile : tiles.scores) {
      for (auto& row : tile) std::fill(row.begin() + 1, row.end(), kHidden);
    }
    for (std::size_t t = 1; t < tiles.scores.size(); ++t) {
      for (auto& row : tiles.scores[t]) row[0] = kHidden;
    }
    const Rows want = expected(tiles, 0.125f);
    const Rows got = computed<Element::kBFloat16>(tiles, 0.125f, kRaces);
    for (int r = 0; r < kRows; ++r) {
      if (want.lse[r] == kHidden) continue;
      EXPECT_NEAR(got.lse[r], want.lse[r], 3e-7) << "row " << r << " scale " << scale;
    }
  }
}

TEST(RunningSoftmax, RowsThatSeeNothing) {
  Tiles tiles = random_tiles(1, 1.0, 0.0);
  tiles.scores.resize(2);
  for (auto& tile : tiles.scores) {
    for (auto& row : tile) std::fill(row.begin(), row.end(), kHidden);
  }
  const Rows rows = computed<Element::kBFloat16>(tiles, 0.125f, kRaces);
  for (int r = 0; r < kRows; ++r) {
    EXPECT_EQ(rows.out[r], 0.0);
    EXPECT_EQ(rows.lse[r], kHidden);
  }
}

TEST(RunningSoftmax, NaNComesThrough) {
  for (std::size_t t = 0; t < 6; ++t) {
    Tiles tiles = random_tiles(t, 1.0, 0.0);
    tiles.scores[t][3][17] = std::nan("");
    const Rows rows = computed<Element::kBFloat16>(tiles, 0.125f, kRaces);
    for (int r = 0; r < kRows; ++r) {
      EXPECT_EQ(std::isnan(rows.lse[r]), r == 3) << t;
      EXPECT_EQ(std::isnan(rows.out[r]), r == 3) << t;
    }
  }
}

}  // namespace
}  // namespace stepwell::testing
