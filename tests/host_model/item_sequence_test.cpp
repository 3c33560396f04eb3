// Which CTA of attention_forward_sm90 takes which strips (ItemSequence, and GroupRounds where
// samples are packed): all of them, each once, and the same amount of work for each CTA.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/attention/forward_sm90_items.cuh"

namespace stepwell::testing {
namespace {

using cuda::i32;
using cuda::TileGrid;

/// Visits (cta, item) in each CTA's order.
template <typename Visit>
void for_each_item(const TileGrid& grid, i32 ctas, Visit&& visit) {
  const i32 items = static_cast<i32>(grid.ctas());
  for (i32 cta = 0; cta < ctas; ++cta) {
    cuda::ItemSequence sequence(grid, cta, ctas);
    for (i32 item = sequence.next(); item < items; item = sequence.next()) visit(cta, item);
    EXPECT_EQ(sequence.next(), items);
  }
}

TEST(ItemSequence, EveryItemOnce) {
  for (const i32 ctas : {1, 2, 5, 7, 132}) {
    for (const i32 samples : {1, 3}) {
      for (const i32 heads_kv : {1, 2, 5}) {
        for (const i32 group : {1, 2, 4, 100}) {
          for (const i32 tiles : {1, 3, 16}) {
            for (const i32 query_heads : {1, 3}) {
              const TileGrid grid =
                  cuda::make_tile_grid(samples, heads_kv, group, tiles, 1, query_heads);
              std::vector<int> times(static_cast<std::size_t>(grid.ctas()));
              std::vector<i32> last_group(static_cast<std::size_t>(ctas));
              for_each_item(grid, ctas, [&](i32 cta, i32 item) {
                ASSERT_LT(static_cast<std::size_t>(item), times.size());
                ++times[static_cast<std::size_t>(item)];
                // Groups one after the other: each fits the L2 cache.
                i32& last = last_group[static_cast<std::size_t>(cta)];
                const i32 of = item / (grid.group * tiles * query_heads);
                EXPECT_GE(of, last);
                last = of;
              });
              EXPECT_EQ(std::count(times.begin(), times.end(), 1), grid.ctas());
            }
          }
        }
      }
    }
  }
}

TEST(ItemSequence, CtasHaveTheSameWork) {
  constexpr i32 kCtas = 132;
  constexpr i32 kTokens = 32768;
  struct Heads {
    i32 kv, query_heads;
  };
  for (const Heads heads : {Heads{16, 1}, Heads{8, 4}, Heads{32, 1}}) {
    for (const i32 n : {1024, 2048, 4096, 8192, 16384}) {
      const i32 group = (32 << 20) / (n * 512);  // 32 MB of K and V at head dim 128
      const TileGrid grid = cuda::make_tile_grid(kTokens / (2 * n), heads.kv, group,
                                                 n / cuda::kStripRows, 1, heads.query_heads);
      std::vector<double> work(kCtas);
      for_each_item(grid, kCtas, [&](i32 cta, i32 item) {
        const i32 strip = cuda::tile_item(grid, heads.kv, item).tile;
        // Tiles of 128 clean keys and one of noisy ones; starting an item takes a part of that.
        work[static_cast<std::size_t>(cta)] += 1.4 + std::max(1, (strip + 1) / 2);
      });
      double all = 0.0;
      for (const double w : work) all += w;
      EXPECT_LE(*std::max_element(work.begin(), work.end()), 1.02 * all / kCtas)
          << heads.kv << " KV heads, n = " << n;
    }
  }
}

TEST(GroupRounds, EveryItemOnce) {
  for (const i32 ctas : {1, 2, 7, 132}) {
    std::vector<cuda::GroupRounds> rounds;
    for (i32 cta = 0; cta < ctas; ++cta) rounds.emplace_back(cta, ctas);
    for (const cuda::u32 count : {0u, 1u, 5u, 131u, 132u, 133u, 0u, 264u, 1000u, 3u}) {
      std::vector<int> times(count);
      for (cuda::GroupRounds& of_cta : rounds) {
        of_cta.begin(count);
        for (cuda::u32 item; of_cta.next(item);) ++times.at(item);
        cuda::u32 item;
        EXPECT_FALSE(of_cta.next(item));
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), count);
    }
  }
}

TEST(GroupRounds, CtasHaveTheSameWork) {
  constexpr i32 kCtas = 132;
  for (const i32 heads : {16, 32}) {
    std::vector<double> work(kCtas);
    std::vector<cuda::GroupRounds> rounds;
    for (i32 cta = 0; cta < kCtas; ++cta) rounds.emplace_back(cta, kCtas);
    for (int i = 0; i < 64; ++i) {  // lengths log-uniform in 128 ... 4096, in no order
      const i32 strips = static_cast<i32>(2 * std::exp2(5.0 * (i * 37 % 64) / 63));
      for (i32 cta = 0; cta < kCtas; ++cta) {
        cuda::GroupRounds& of_cta = rounds[static_cast<std::size_t>(cta)];
        of_cta.begin(static_cast<cuda::u32>(strips * heads));
        for (cuda::u32 item; of_cta.next(item);) {
          const i32 strip = strips - 1 - static_cast<i32>(item) / heads;
          work[static_cast<std::size_t>(cta)] += 1.4 + std::max(1, (strip + 1) / 2);
        }
      }
    }
    double all = 0.0;
    for (const double w : work) all += w;
    EXPECT_LE(*std::max_element(work.begin(), work.end()), 1.02 * all / kCtas) << heads;
  }
}

}  // namespace
}  // namespace stepwell::testing
