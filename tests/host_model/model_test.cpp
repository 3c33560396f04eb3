// The model itself: layouts against the tables of the PTX ISA document, and every error.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "cuda/ptx/sm80.cuh"
#include "host_model/launches.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

namespace hm = host_model;
namespace ptx = cuda::ptx;
using cuda::Element;
using cuda::u16;
using cuda::u32;
using cuda::U32x4;
using hm::Delivery;
using hm::Options;
using hm::Schedule;

// ---- arithmetic --------------------------------------------------------------------------------

TEST(HostModel, NumberFormatsRoundTrip) {
  for (u32 i = 0; i < 65536; ++i) {
    const u16 bits = static_cast<u16>(i);
    const float x = hm::f16_to_f32(bits);
    const float y = hm::bf16_to_f32(bits);
    EXPECT_EQ(hm::f32_to_f16(x), std::isnan(x) ? 0x7fff : i);
    EXPECT_EQ(hm::f32_to_bf16(y), std::isnan(y) ? 0x7fff : i);
  }
}

TEST(HostModel, NumberFormatsRoundToNearestEven) {
  EXPECT_EQ(hm::f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(hm::f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(hm::f32_to_f16(0x1p-25f), 0);
  EXPECT_EQ(hm::f32_to_f16(0x1.8p-25f), 1);
  EXPECT_EQ(hm::f32_to_bf16(1.00390625f), 0x3f80);
  EXPECT_EQ(hm::f32_to_bf16(1.01171875f), 0x3f82);
}

TEST(HostModel, ApproximationsFlushSubnormals) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(hm::ex2(-kInfinity), 0.0f);
  EXPECT_EQ(hm::ex2(-126.0f), 0x1p-126f);
  EXPECT_EQ(hm::ex2(-127.0f), 0.0f);
  EXPECT_EQ(hm::lg2(0x1p-130f), -kInfinity);
  EXPECT_EQ(hm::rcp(0x1p-130f), kInfinity);
  EXPECT_EQ(hm::rcp(0x1p127f), 0.0f);
  EXPECT_EQ(hm::max(std::nanf(""), 1.0f), 1.0f);
}

// ---- warps -------------------------------------------------------------------------------------

TEST(HostModel, WarpOperations) {
  for (const Options& options : all_options()) {
    hm::launch({1}, 64, 0, options, [] {
      const u32 l = lane();
      EXPECT_EQ(ptx::shfl_xor_u32(l * 3, 5), (l ^ 5) * 3);
      EXPECT_EQ(ptx::shfl_idx_u32(l * 3, 7), 21);
      EXPECT_EQ(ptx::shfl_idx_u32(l * 3, 31 - l), (31 - l) * 3);
      const char* text = "pointers travel in two halves";
      EXPECT_EQ(ptx::shfl_idx_pointer(text + l, 9), text + 9);
      EXPECT_EQ(ptx::ballot(l % 3 == 0), 0x49249249u);
      const int value = static_cast<int>(l * 7 % 32) - 20;
      EXPECT_EQ(ptx::redux_min_s32(value), -20);
      EXPECT_EQ(ptx::redux_max_s32(value), 11);
      ptx::syncwarp();
    });
  }
}

TEST(HostModel, Ldmatrix) {
  for (const Options& options : all_options()) {
    hm::launch({1}, 32, 2048, options, [] {
      // Element (matrix, row, column) is 64 matrix + 8 row + column; rows 48 bytes apart.
      const u32 l = lane();
      const auto pair = [l](u32 i) { return (8 * l + i) | (8 * l + i + 1) << 16; };
      const u32 row = ptx::shared_base() + l * 48;
      ptx::st_shared_v4(row, {pair(0), pair(2), pair(4), pair(6)});
      ptx::syncwarp();
      u32 r1[1], r2[2], r4[4], t1[1], t2[2], t4[4];
      ptx::ldmatrix_x1(r1, row);
      ptx::ldmatrix_x2(r2, row);
      ptx::ldmatrix_x4(r4, row);
      ptx::ldmatrix_x1<true>(t1, row);
      ptx::ldmatrix_x2<true>(t2, row);
      ptx::ldmatrix_x4<true>(t4, row);
      for (u32 m = 0; m < 4; ++m) {
        const u32 r = l / 4;
        const u32 c = l % 4 * 2;
        const u32 plain = (64 * m + 8 * r + c) | (64 * m + 8 * r + c + 1) << 16;
        const u32 turned = (64 * m + 8 * c + r) | (64 * m + 8 * (c + 1) + r) << 16;
        EXPECT_TRUE(r4[m] == plain && t4[m] == turned);
        EXPECT_TRUE(m >= 2 || (r2[m] == plain && t2[m] == turned));
        EXPECT_TRUE(m >= 1 || (r1[m] == plain && t1[m] == turned));
      }
    });
  }
}

TEST(HostModel, LdmatrixCountsBankConflicts) {
  const auto conflicts = [](u32 row_bytes) {
    return hm::launch({1}, 32, 8192, {},
                      [row_bytes] {
                        u32 r[4];
                        ptx::ldmatrix_x4(r, ptx::shared_base() + lane() * row_bytes);
                      })
        .ldmatrix_conflicts;
  };
  EXPECT_EQ(conflicts(128 + 16), 0);
  EXPECT_EQ(conflicts(128), 4);
  EXPECT_EQ(conflicts(64 + 16), 0);
  EXPECT_EQ(conflicts(32), 4);
}

/// The fragment tables in the document's own words.
template <Element kElement>
void check_mma() {
  std::vector<u16> a(256), b(128);
  std::vector<float> c(128);
  Random random(1);
  constexpr bool kBf16 = kElement == Element::kBFloat16;
  const auto encode = [](float x) { return kBf16 ? hm::f32_to_bf16(x) : hm::f32_to_f16(x); };
  const auto decode = [](u16 x) { return kBf16 ? hm::bf16_to_f32(x) : hm::f16_to_f32(x); };
  const auto number = [&random] { return static_cast<float>(2.0 * random.uniform() - 1.0); };
  for (u16& x : a) x = encode(number());
  for (u16& x : b) x = encode(number());
  for (float& x : c) x = number();
  hm::launch({1}, 32, 0, {}, [&] {
    const u32 group = lane() >> 2;
    const u32 in_group = lane() % 4;
    u32 ra[4] = {}, rb[2] = {};
    float rc[4];
    for (u32 i = 0; i < 8; ++i) {
      const u32 row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
      const u32 column = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
      ra[i / 2] |= u32{a[row * 16 + column]} << 16 * (i & 1);
    }
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
      rb[i / 2] |= u32{b[row * 8 + group]} << 16 * (i & 1);
      rc[i] = c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)];
    }
    ptx::mma_m16n8k16<kElement>(rc, ra, rb);
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = i < 2 ? group : group + 8;
      const u32 column = in_group * 2 + (i & 1);
      double want = c[row * 8 + column];
      for (u32 k = 0; k < 16; ++k) {
        want += double{decode(a[row * 16 + k])} * decode(b[k * 8 + column]);
      }
      EXPECT_NEAR(rc[i], want, 1e-5);
    }
  });
}

TEST(HostModel, MmaBFloat16) { check_mma<Element::kBFloat16>(); }
TEST(HostModel, MmaFloat16) { check_mma<Element::kFloat16>(); }

// ---- memory, barriers --------------------------------------------------------------------------

TEST(HostModel, SharedAccesses) {
  for (const Options& options : all_options()) {
    hm::launch({1}, 32, 4096, options, [] {
      const u32 at = ptx::shared_base() + lane() * 64;
      const int l = static_cast<int>(lane());
      ptx::st_shared_v4(at, {1, 2, 3, lane()});
      EXPECT_EQ(ptx::ld_shared_v4(at).w, lane());
      EXPECT_EQ(ptx::ld_shared_u32(at + 4), 2u);
      ptx::st_shared_v2(at + 16, -l, l);
      int x, y;
      ptx::ld_shared_v2(at + 16, x, y);
      EXPECT_TRUE(x == -l && y == l);
      const char* text = "some";
      ptx::st_shared_pointers(at + 32, text, text + 1);
      EXPECT_EQ(ptx::ld_shared_pointer<const char>(at + 32), text);
      EXPECT_EQ(ptx::ld_shared_pointer<const char>(at + 40), text + 1);
    });
  }
}

TEST(HostModel, GlobalAccesses) {
  alignas(16) U32x4 words[32] = {};
  alignas(16) float sums[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  alignas(8) float pairs[32][2] = {};
  float old_sum = 0.0f;
  hm::launch({1}, 32, 0, {}, [&] {
    ptx::st_global_v4(&words[lane()], {lane(), 1, 2, 3});
    EXPECT_EQ(ptx::ld_global_v4(&words[lane()]).x, lane());
    ptx::st_global_v2(pairs[lane()], 1.0f, static_cast<float>(lane()));
    ptx::red_add_x4_f32(sums, {0.5f, 1.0f, 0.0f, -1.0f});
    ptx::red_add_f32(&sums[1], 1.0f);
    if (lane() == 31) old_sum = ptx::atom_add_f32(&sums[0], 4.0f);
  });
  EXPECT_EQ(sums[0], 1.0f + 16.0f + 4.0f);
  EXPECT_EQ(sums[1], 2.0f + 64.0f);
  EXPECT_EQ(sums[2], 3.0f);
  EXPECT_EQ(sums[3], 4.0f - 32.0f);
  EXPECT_EQ(pairs[7][1], 7.0f);
  EXPECT_EQ(old_sum, 17.0f);
}

TEST(HostModel, CopiesTakeEffectAtTheirWait) {
  alignas(16) u32 source[32 * 4];
  for (u32 i = 0; i < 32 * 4; ++i) source[i] = i;
  for (const Options& options : all_options()) {
    hm::launch({1}, 32, 1024, options, [&] {
      const u32 at = ptx::shared_base() + lane() * 16;
      const u32 valid = lane() % 5 * 4;
      ptx::cp_async_16(at, source + lane() * 4, valid);
      ptx::cp_async_commit_group();
      ptx::cp_async_16(at + 512, source + lane() * 4, 16);
      ptx::cp_async_commit_group();
      ptx::cp_async_wait_group<1>();
      for (u32 i = 0; i < 4; ++i) {
        EXPECT_EQ(ptx::ld_shared_u32(at + i * 4), i * 4 < valid ? lane() * 4 + i : 0);
      }
      ptx::cp_async_wait_group<0>();
      EXPECT_EQ(ptx::ld_shared_u32(at + 512), lane() * 4);
    });
  }
}

TEST(HostModel, LateCopiesLeaveNaNUntilTheirWait) {
  alignas(16) u32 source[4] = {};
  hm::launch({1}, 32, 1024, {}, [&] {
    const u32 at = ptx::shared_base() + lane() * 16;
    EXPECT_TRUE(std::isnan(ptx::float_of(ptx::ld_shared_u32(at))));
    ptx::cp_async_16(at, source, 16);
    ptx::cp_async_commit_group();
    EXPECT_EQ(ptx::ld_shared_u32(at), 0xffffffffu);
    ptx::cp_async_wait_group<0>();
    EXPECT_EQ(ptx::ld_shared_u32(at), 0u);
  });
}

TEST(HostModel, NamedBarriers) {
  for (const Options& options : all_options()) {
    hm::launch({1}, 96, 1024, options, [] {
      const u32 base = ptx::shared_base();
      const u32 t = ptx::thread_index();
      for (u32 i = 0; i < 4; ++i) {  // warps 0 and 1 fill, warp 2 reads; 1 is full, 2 is empty
        if (t < 64) {
          if (i != 0) ptx::bar_sync(2, 96);
          ptx::st_shared_u32(base + 4 * t, t + i);
          ptx::bar_arrive(1, 96);
        } else {
          ptx::bar_sync(1, 96);
          EXPECT_EQ(ptx::ld_shared_u32(base + 4 * (t - 64)), t - 64 + i);
          EXPECT_EQ(ptx::ld_shared_u32(base + 4 * (t - 32)), t - 32 + i);
          if (i < 3) ptx::bar_arrive(2, 96);
        }
      }
    });
  }
}

TEST(HostModel, EveryCtaOfAGridRuns) {
  std::vector<int> seen(2 * 3 * 4);
  for (const Options& options : all_options()) {
    hm::launch({2, 3, 4}, 32, 0, options, [&] {
      if (lane() == 0) {
        ++seen[(ptx::cta_index<2>() * 3 + ptx::cta_index<1>()) * 2 + ptx::cta_index<0>()];
      }
    });
  }
  EXPECT_EQ(seen, std::vector<int>(seen.size(), static_cast<int>(all_options().size())));
}

// ---- errors ------------------------------------------------------------------------------------

TEST(HostModelErrors, DifferentOperationsInOneWarp) {
  const std::string error = error_of(32, kPlain, [] {
    if (lane() < 16) {
      ptx::shfl_xor_u32(1, 1);
    } else {
      ptx::syncwarp();
    }
  });
  EXPECT_TRUE(says(error, {"divergence", "bar.warp.sync at model_test.cpp",
                           "meets shfl.sync.bfly at model_test.cpp"}));
}

TEST(HostModelErrors, LaneLeavesBeforeAMeeting) {
  const auto body = [] {
    if (lane() != 3) ptx::syncwarp();
  };
  EXPECT_TRUE(says(error_of(32, kPlain, body), {"divergence", "exited", "bar.warp.sync"}));
  EXPECT_TRUE(says(error_of(32, {.schedule = Schedule::kReverse}, body),
                   {"divergence", "exited", "bar.warp.sync"}));
}

TEST(HostModelErrors, DeadlockNamesWhoWaits) {
  const std::string error = error_of(96, kPlain, [] {
    if (ptx::thread_index() < 64) ptx::bar_sync(0, 96);
  });
  EXPECT_TRUE(
      says(error, {"deadlock", "threads 0-63: bar.sync 0 (64 of 96 threads arrived)", "at model"}));
}

TEST(HostModelErrors, BarrierCountsDisagree) {
  const std::string error =
      error_of(96, kPlain, [] { ptx::bar_sync(1, ptx::thread_index() < 32 ? 96 : 64); });
  EXPECT_TRUE(says(error, {"barrier", "64 threads at", "96 at"}));
}

TEST(HostModelErrors, WarpArrivesTwice) {
  const std::string error = error_of(64, kPlain, [] {
    if (ptx::thread_index() >= 32) return;
    ptx::bar_arrive(1, 64);
    ptx::bar_arrive(1, 64);
  });
  EXPECT_TRUE(says(error, {"barrier", "arrives twice"}));
}

TEST(HostModelErrors, BarrierArguments) {
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::bar_sync(16, 32); }), {"barrier", "below 16"}));
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::bar_sync(0, 64); }), {"barrier", "32 threads"}));
}

TEST(HostModelErrors, SharedBoundsAndAlignment) {
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::ld_shared_u32(kBase + 4096); }),
                   {"bounds", "model_test.cpp"}));
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::ld_shared_u32(kBase - 4); }), {"bounds"}));
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::ld_shared_v4(kBase + 8); }),
                   {"alignment", "16", "model_test.cpp"}));
}

TEST(HostModelErrors, GlobalAlignment) {
  alignas(16) static u32 global[8];
  for (const auto& body : std::vector<std::function<void()>>{
           [] { ptx::ld_global_v4(global + 2); }, [] { ptx::st_global_v4(global + 2, {}); },
           [] { ptx::cp_async_16(kBase, global + 2, 16); }}) {
    EXPECT_TRUE(says(error_of(32, kPlain, body), {"alignment", "16", "model_test.cpp"}));
  }
}

TEST(HostModelErrors, GlobalBounds) {
  alignas(16) static u32 global[8];
  const Options options{.global = {{global + 4, 16}, {global, 4}}};
  const auto bounds = [&](const std::function<void()>& body) {
    return says(error_of(32, options, body), {"bounds", "model_test.cpp"});
  };
  EXPECT_EQ(error_of(32, options, [] { ptx::ld_global_v4(global + 4); }), "no error");
  EXPECT_TRUE(bounds([] { ptx::ld_global_v4(global); }));
  EXPECT_TRUE(bounds([] { ptx::st_global_v4(global, {}); }));
  EXPECT_TRUE(bounds([] { ptx::red_add_f32(reinterpret_cast<float*>(global + 1), 0.0f); }));
  EXPECT_TRUE(bounds([] { ptx::cp_async_16(kBase, global, 16); }));
  // What is not copied is not read.
  EXPECT_EQ(error_of(32, options,
                     [] {
                       ptx::cp_async_16(kBase + 16 * lane(), global, 4);
                       ptx::cp_async_commit_group();
                       ptx::cp_async_wait_group<0>();
                     }),
            "no error");
}

TEST(HostModelErrors, UnfinishedCopies) {
  alignas(16) static u32 global[4];
  EXPECT_TRUE(says(error_of(32, kPlain,
                            [] {
                              ptx::cp_async_16(kBase + 16 * lane(), global, 16);
                              ptx::cp_async_commit_group();
                            }),
                   {"unfinished", "cp.async", "in flight"}));
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::cp_async_16(kBase + 16 * lane(), global, 16); }),
                   {"unfinished", "cp.async", "not committed"}));
}

TEST(HostModelErrors, UninitialisedRead) {
  EXPECT_TRUE(says(error_of(32, kRaces, [] { ptx::ld_shared_u32(kBase); }),
                   {"uninitialised", "never written"}));
}

TEST(HostModelErrors, ReadNotOrderedAfterWrite) {
  const std::string error = error_of(64, kRaces, [] {
    if (ptx::thread_index() == 0) ptx::st_shared_u32(kBase, 1);
    if (ptx::thread_index() == 32) ptx::ld_shared_u32(kBase);
  });
  EXPECT_TRUE(says(error, {"race", "read of", "not ordered after the write"}));
}

TEST(HostModelErrors, WriteNotOrderedAfterRead) {
  const std::string error = error_of(64, kRaces, [] {
    if (ptx::thread_index() == 0) ptx::st_shared_u32(kBase, 1);
    ptx::bar_sync(0, 64);
    if (ptx::thread_index() == 32) ptx::ld_shared_u32(kBase);
    if (ptx::thread_index() == 33) ptx::st_shared_u32(kBase, 1);
  });
  EXPECT_TRUE(says(error, {"race", "write of", "not ordered after the read"}));
}

TEST(HostModelErrors, ShufflesOrderNothing) {
  const std::string error = error_of(32, kRaces, [] {
    if (lane() == 0) ptx::st_shared_u32(kBase, 1);
    ptx::shfl_xor_u32(0, 1);
    if (lane() == 1) ptx::ld_shared_u32(kBase);
  });
  EXPECT_TRUE(says(error, {"race", "not ordered after the write"}));
}

TEST(HostModelErrors, ReadWhileACopyIsInFlight) {
  alignas(16) static u32 global[4];
  for (const Delivery delivery : {Delivery::kLate, Delivery::kEarly}) {
    const std::string error = error_of(32, {.delivery = delivery, .check_races = true}, [] {
      ptx::cp_async_16(kBase + 16 * lane(), global, 16);
      ptx::cp_async_commit_group();
      ptx::ld_shared_u32(kBase + 16 * lane());
    });
    EXPECT_TRUE(says(error, {"race", "while the copy from", "in flight"}));
  }
}

TEST(HostModelErrors, WaitSpeaksForItsOwnThread) {
  alignas(16) static u32 global[4];
  const std::string error = error_of(64, kRaces, [] {
    ptx::cp_async_16(kBase + 16 * ptx::thread_index(), global, 16);
    ptx::cp_async_commit_group();
    ptx::bar_sync(0, 64);
    ptx::cp_async_wait_group<0>();
    ptx::syncwarp();
    ptx::ld_shared_u32(kBase + 16 * (ptx::thread_index() ^ 32));
  });
  EXPECT_TRUE(says(error, {"race", "read of shared address"}));
}

TEST(HostModelErrors, CopyOverwritesWhatIsStillRead) {
  alignas(16) static u32 global[4];
  // The warp that arrives last at a barrier goes on first: here warp 0.
  const Options options{.schedule = Schedule::kReverse, .check_races = true};
  const std::string error = error_of(64, options, [] {
    ptx::st_shared_v4(kBase + 16 * ptx::thread_index(), {});
    ptx::bar_sync(0, 64);
    if (ptx::thread_index() < 32) {
      ptx::ld_shared_u32(kBase + 16 * lane());
    } else {
      ptx::cp_async_16(kBase + 16 * lane(), global, 16);
      ptx::cp_async_commit_group();
      ptx::cp_async_wait_group<0>();
    }
  });
  EXPECT_TRUE(says(error, {"race", "asynchronous write of", "not ordered after the read"}));
}

TEST(HostModelErrors, MessagesNameRegions) {
  const Options options{.regions = {{.name = "k", .offset = 256, .bytes = 128, .count = 2}}};
  EXPECT_TRUE(
      says(error_of(32, options, [] { ptx::ld_shared_v4(kBase + 256 + 128 + 8); }), {"k[1] + 8"}));
}

TEST(HostModelErrors, LaunchLimits) {
  const auto launch = [](hm::Dim3 grid, u32 threads, u32 bytes) {
    return [=] { hm::launch(grid, threads, bytes, {}, [] {}); };
  };
  EXPECT_THROW(launch({1}, 33, 0)(), hm::Error);
  EXPECT_THROW(launch({1}, 1056, 0)(), hm::Error);
  EXPECT_THROW(launch({0}, 32, 0)(), hm::Error);
  EXPECT_THROW(launch({1, 65536}, 32, 0)(), hm::Error);
  EXPECT_THROW(launch({1}, 32, 228 * 1024)(), hm::Error);
  EXPECT_NO_THROW(launch({2, 2, 2}, 1024, 227 * 1024)());
}

}  // namespace
}  // namespace stepwell::testing
