// Random masks up to the largest sizes, where sums must not overflow: spot checks against the
// element rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "geometry/mask_check.hpp"
#include "geometry/pairs.hpp"
#include "geometry/tiles.hpp"
#include "reference/attention.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

using geometry::CleanRule;
using geometry::Half;
using geometry::Interval;
using geometry::IntervalRule;
using geometry::kMaxLength;
using geometry::NoisyRule;
using geometry::SampleMask;
using geometry::TileClass;

SampleMask random_mask(Random& random, std::vector<int>& table) {
  const std::int64_t limit = random.chance(0.3) ? kMaxLength : random.between(1, 100000);
  // Sizes at the limit itself are where an overflow would show.
  const auto size = [&](int low) {
    if (random.chance(0.1)) return static_cast<int>(limit);
    return std::max(low, static_cast<int>(random.magnitude(limit)));
  };
  SampleMask mask;
  mask.block_size = size(1);
  mask.origin = size(0);
  mask.noisy = random.pick({NoisyRule::kBidirectional, NoisyRule::kCausal});
  mask.clean =
      random.pick({CleanRule::kBlock, CleanRule::kCausal, CleanRule::kFull, CleanRule::kWindow});
  mask.clean_window = random.chance(0.4) ? size(1) : 0;
  // "No bound" is twice the longest length: positions reach that far.
  mask.window_left = random.chance(0.2) ? 2 * kMaxLength : size(0);
  mask.window_right = random.chance(0.2) ? 2 * kMaxLength : size(0);
  mask.num_views = static_cast<int>(random.between(0, 3));
  mask.noisy_len = size(0);
  mask.noisy_position = size(0);
  mask.clean_q_len = size(0);
  mask.clean_q_position = size(0);
  mask.clean_kv_len = size(0);
  if (mask.num_views > 0 && random.chance(0.2)) {
    mask.num_block_ranges = static_cast<int>(random.between(1, 50));
    mask.block_size = std::max(mask.block_size, mask.noisy_len / mask.num_block_ranges + 1);
    table.resize(2 * mask.num_block_ranges);
    for (int& bound : table) bound = static_cast<int>(random.between(-3, mask.clean_kv_len + 3));
    mask.block_ranges = table.data();
  }
  return mask;
}

/// One (query half, key half) of a mask.
struct Piece {
  const SampleMask& mask;
  Half query;
  Half key;
  IntervalRule rule;
  int position;
  int len_q;
  int len_kv;

  Piece(const SampleMask& m, Half q, Half k)
      : mask(m),
        query(q),
        key(k),
        rule(geometry::rule_between(m, q, k)),
        position(geometry::query_position(m, q)),
        len_q(geometry::query_len(m, q)),
        len_kv(geometry::key_len(m, k)) {}

  bool sees(std::int64_t row, std::int64_t k) const {
    return reference::visible(mask, query, 0, static_cast<int>(row), key, 0, static_cast<int>(k));
  }
  Interval row(std::int64_t i) const {
    return geometry::row_interval(rule, static_cast<int>(position + i));
  }
};

void check_row(const Piece& piece, Random& random) {
  const std::int64_t i = random.between(0, piece.len_q - 1);
  const Interval row = piece.row(i);
  if (!row.empty()) {
    ASSERT_TRUE(piece.sees(i, row.begin));
    ASSERT_TRUE(piece.sees(i, row.end - 1));
  }
  ASSERT_FALSE(piece.sees(i, std::int64_t{row.begin} - 1) && !row.empty());
  ASSERT_FALSE(piece.sees(i, row.end));
  for (int round = 0; round < 8; ++round) {
    const auto k = static_cast<int>(random.between(0, piece.len_kv - 1));
    ASSERT_EQ(piece.sees(i, k), row.contains(k)) << i << " " << k;
  }
}

void check_column(const Piece& piece, Random& random) {
  // A key that some row sees, if there is one: random ones are mostly seen by none or by all.
  auto k = static_cast<int>(random.between(0, piece.len_kv - 1));
  const Interval row = piece.row(random.between(0, piece.len_q - 1));
  if (!row.empty() && random.chance(0.7)) {
    k = random.chance(0.5) ? row.begin : row.end - 1;
    k = std::clamp(k + static_cast<int>(random.between(-1, 1)), 0, piece.len_kv - 1);
  }
  const Interval column = geometry::column_interval(piece.rule, k, piece.position, piece.len_q);
  if (!column.empty()) {
    ASSERT_TRUE(piece.sees(column.begin, k));
    ASSERT_TRUE(piece.sees(column.end - 1, k));
    ASSERT_FALSE(column.begin > 0 && piece.sees(column.begin - 1, k));
    ASSERT_FALSE(column.end < piece.len_q && piece.sees(column.end, k));
  }
  for (int round = 0; round < 8; ++round) {
    const std::int64_t i = random.between(0, piece.len_q - 1);
    if (piece.rule.table == nullptr) {
      ASSERT_EQ(piece.sees(i, k), column.contains(static_cast<int>(i)));
    } else if (piece.sees(i, k)) {
      ASSERT_TRUE(column.contains(static_cast<int>(i)));
    }
  }
}

/// A small rectangle near a corner of the staircase.
void check_rectangle(const Piece& piece, Random& random) {
  const auto i = static_cast<int>(random.between(0, piece.len_q - 1));
  const Interval row = piece.row(i);
  const int corner = random.chance(0.5) ? row.begin : row.end;
  const auto near = [&random](int x, int len) {
    const auto begin = static_cast<int>(std::clamp<std::int64_t>(x - random.between(0, 6), 0, len));
    return Interval{begin, static_cast<int>(std::min<std::int64_t>(begin + random.between(0, 8),
                                                                   std::int64_t{len}))};
  };
  const Interval rows = near(i, piece.len_q);
  const Interval keys = near(corner, piece.len_kv);
  int visible = 0;
  for (int a = rows.begin; a < rows.end; ++a) {
    for (int k = keys.begin; k < keys.end; ++k) visible += piece.sees(a, k) ? 1 : 0;
  }
  const TileClass want = visible == 0                           ? TileClass::kEmpty
                         : visible == rows.size() * keys.size() ? TileClass::kFull
                                                                : TileClass::kPartial;
  ASSERT_EQ(geometry::classify(piece.rule, piece.position, rows, keys), want)
      << rows.begin << " " << rows.end << " x " << keys.begin << " " << keys.end;
}

/// Any rectangle: what classify and the hulls claim of it, at random pairs.
void check_large_rectangle(const Piece& piece, Random& random) {
  const auto some = [&random](int len) {
    const auto begin = static_cast<int>(random.between(0, len - 1));
    return Interval{begin, static_cast<int>(random.between(begin + 1, len))};
  };
  const Interval rows = some(piece.len_q);
  const Interval keys = some(piece.len_kv);
  const TileClass claimed = geometry::classify(piece.rule, piece.position, rows, keys);
  const Interval key_hull = geometry::key_hull(piece.rule, piece.position, rows);
  const Interval query_hull = geometry::query_hull(piece.rule, piece.position, piece.len_q, keys);
  for (int round = 0; round < 16; ++round) {
    const auto i = static_cast<int>(random.between(rows.begin, rows.end - 1));
    const auto k = static_cast<int>(random.between(keys.begin, keys.end - 1));
    const bool seen = piece.sees(i, k);
    ASSERT_FALSE(seen && claimed == TileClass::kEmpty);
    ASSERT_FALSE(!seen && claimed == TileClass::kFull);
    ASSERT_FALSE(seen && !key_hull.contains(k));
    ASSERT_FALSE(seen && !query_hull.contains(i));
    ASSERT_TRUE(piece.row(i).empty() || key_hull.contains(piece.row(i)));
  }
}

void check_pairs(const Piece& piece, Random& random) {
  const auto pairs = [&piece](std::int64_t begin, std::int64_t end) {
    return geometry::visible_pairs(piece.rule, static_cast<int>(piece.position + begin),
                                   static_cast<int>(end - begin));
  };
  const std::int64_t cut = random.between(0, piece.len_q);
  ASSERT_EQ(pairs(0, piece.len_q), pairs(0, cut) + pairs(cut, piece.len_q));
  const std::int64_t end = std::min<std::int64_t>(piece.len_q, cut + 40);
  long long sum = 0;
  for (std::int64_t i = cut; i < end; ++i) sum += piece.row(i).size();
  ASSERT_EQ(pairs(cut, end), sum);
}

TEST(Fuzz, LargeSizes) {
  Random random(3);
  std::vector<int> table;
  for (int round = 0; round < 200000; ++round) {
    const SampleMask mask = random_mask(random, table);
    SCOPED_TRACE(describe(mask));
    for (const auto& [query, key] :
         {std::pair{Half::kNoisy, Half::kNoisy}, std::pair{Half::kNoisy, Half::kClean},
          std::pair{Half::kClean, Half::kClean}}) {
      const Piece piece(mask, query, key);
      if ((query == Half::kNoisy && mask.num_views == 0) || piece.len_q == 0 || piece.len_kv == 0)
        continue;
      check_row(piece, random);
      check_column(piece, random);
      check_rectangle(piece, random);
      check_large_rectangle(piece, random);
      check_pairs(piece, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Fuzz, TilesOfMiddleSizes) {
  Random random(4);
  std::vector<int> table;
  for (int round = 0; round < 1500; ++round) {
    SampleMask mask = random_mask(random, table);
    mask.noisy_len %= 3000;
    mask.clean_q_len %= 3000;
    mask.clean_kv_len %= 3000;
    mask.noisy_position %= 3000;
    mask.clean_q_position %= 3000;
    if (mask.block_ranges == nullptr) mask.block_size = 1 + mask.block_size % 700;
    SCOPED_TRACE(describe(mask));
    for (const auto& [query, key] :
         {std::pair{Half::kNoisy, Half::kNoisy}, std::pair{Half::kNoisy, Half::kClean},
          std::pair{Half::kClean, Half::kClean}}) {
      if (query == Half::kNoisy && mask.num_views == 0) continue;
      const Piece piece(mask, query, key);
      const int tile_q = random.pick({48, 64, 128, 192});
      const int tile_kv = random.pick({32, 80, 128, 176});
      long long covered = 0;  // visible pairs inside the visited tiles
      long long by_keys = 0;
      const auto count = [&](Interval rows, Interval keys, TileClass tile_class) {
        long long pairs = 0;
        for (int i = rows.begin; i < rows.end; ++i) {
          const Interval row = piece.row(i);
          pairs += Interval{std::max(row.begin, keys.begin), std::min(row.end, keys.end)}.size();
        }
        EXPECT_EQ(tile_class == TileClass::kFull, pairs == 1LL * rows.size() * keys.size());
        EXPECT_GT(pairs, 0);
        return pairs;
      };
      for (int a = 0; a * tile_q < piece.len_q; ++a) {
        const Interval rows = geometry::tile_interval(a, tile_q, piece.len_q);
        geometry::for_each_key_tile(
            piece.rule, piece.position, rows, tile_kv, [&](int c, TileClass tile_class) {
              covered += count(rows, geometry::tile_interval(c, tile_kv, piece.len_kv), tile_class);
            });
      }
      for (int c = 0; c * tile_kv < piece.len_kv; ++c) {
        const Interval keys = geometry::tile_interval(c, tile_kv, piece.len_kv);
        geometry::for_each_query_tile(
            piece.rule, piece.position, piece.len_q, keys, tile_q,
            [&](int a, TileClass tile_class) {
              by_keys += count(geometry::tile_interval(a, tile_q, piece.len_q), keys, tile_class);
            });
      }
      const long long pairs = geometry::visible_pairs(piece.rule, piece.position, piece.len_q);
      ASSERT_EQ(covered, pairs);
      ASSERT_EQ(by_keys, pairs);
    }
    if (HasFailure()) return;
  }
}

TEST(Fuzz, ClosedFormsAtTheLimit) {
  const long long n = kMaxLength;
  for (const long long b : {1LL, 4LL, 1560LL, 4680LL, n / 2, n - 1, n}) {
    const long long whole = n / b;
    const long long rest = n % b;
    const auto mask = equal_halves(kMaxLength, static_cast<int>(b));
    EXPECT_EQ(geometry::visible_pairs(mask), n * n + whole * b * b + rest * rest);
    const auto causal =
        equal_halves(kMaxLength, static_cast<int>(b), CleanRule::kCausal, NoisyRule::kCausal);
    EXPECT_EQ(geometry::visible_pairs(causal), n * n + n);
  }
}

}  // namespace
}  // namespace stepwell::testing
