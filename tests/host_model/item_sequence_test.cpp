// Which CTA of attention_forward_sm90 takes which strips (ItemSequence): all of them, each once,
// and the same amount of work for each CTA.
#include <gtest/gtest.h>

#include <algorithm>
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

}  // namespace
}  // namespace stepwell::testing
