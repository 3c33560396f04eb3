// The model of sm_90a: layouts against the tables of the PTX ISA document, and every error.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "cuda/ptx/sm90.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "host_model/launches.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

namespace hm = host_model;
namespace ptx = cuda::ptx;
using cuda::Element;
using cuda::Swizzle;
using cuda::TensorMap;
using cuda::TiledTensor;
using cuda::u16;
using cuda::u32;
using cuda::u64;
using hm::Delivery;
using hm::Options;

// ---- shared_layout.hpp -------------------------------------------------------------------------

// Bits 0-13 start, 16-29 leading, 32-45 stride, all in units of 16 bytes; 62-63 the swizzle.
static_assert(ptx::matrix_descriptor(0x1230, 0, 0, Swizzle::kNone) == 0x123);
static_assert(ptx::matrix_descriptor(0, 0x4560, 0, Swizzle::kNone) == 0x456ull << 16);
static_assert(ptx::matrix_descriptor(0, 0, 0x7890, Swizzle::kNone) == 0x789ull << 32);
static_assert(ptx::matrix_descriptor(0, 0, 0, Swizzle::k128) == 1ull << 62);
static_assert(ptx::matrix_descriptor(0, 0, 0, Swizzle::k64) == 2ull << 62);
static_assert(ptx::matrix_descriptor(0, 0, 0, Swizzle::k32) == 3ull << 62);
// The usual one of a K-major tile with rows of 128 bytes.
static_assert(ptx::matrix_descriptor(0x8400, 16, 1024, Swizzle::k128) == 0x4000004000010840ull);
static_assert(ptx::advance_descriptor(ptx::matrix_descriptor(0x8400, 16, 1024, Swizzle::k128),
                                      96) ==
              ptx::matrix_descriptor(0x8460, 16, 1024, Swizzle::k128));

/// Where rows have their 16-byte pieces, from the document's pictures of "Swizzling Modes".
u32 turned(Swizzle swizzle, u32 row) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 0;
    case Swizzle::k32:
      return row / 4 % 2;
    case Swizzle::k64:
      return row / 2 % 4;
    default:
      return row % 8;
  }
}

constexpr Swizzle kSwizzles[] = {Swizzle::kNone, Swizzle::k32, Swizzle::k64, Swizzle::k128};

TEST(SharedLayout, SwizzlesAreThoseOfTheDocument) {
  for (const Swizzle swizzle : kSwizzles) {
    const u32 pieces = 1u << static_cast<u32>(swizzle);  // of a row
    for (u32 row = 0; row < 32; ++row) {
      for (u32 piece = 0; piece < pieces; ++piece) {
        const u32 at = (row * pieces + piece) * 16;
        EXPECT_EQ(ptx::swizzled(at + 5, swizzle),
                  (row * pieces + (piece ^ turned(swizzle, row))) * 16 + 5);
      }
    }
  }
}

// ---- mbarriers ---------------------------------------------------------------------------------

TEST(HostModelSm90, ElectsOneLane) {
  for (const Options& options : all_options()) {
    hm::launch({1}, 64, 0, options, [] {
      const u32 elected = ptx::ballot(ptx::elect_one());
      EXPECT_EQ(std::popcount(elected), 1);
      EXPECT_EQ(ptx::ballot(ptx::elect_one()), elected);
    });
  }
}

TEST(HostModelSm90, MbarriersGoThroughPhases) {
  for (const Options& options : all_options()) {
    hm::launch({1}, 96, 1024, options, [] {
      const u32 base = ptx::shared_base();
      const u32 t = ptx::thread_index();
      if (t == 0) {
        ptx::mbarrier_init(base, 64);
        ptx::mbarrier_init(base + 8, 1);
      }
      ptx::bar_sync(0, 96);
      for (u32 i = 0; i < 5; ++i) {  // warps 0 and 1 fill, warp 2 reads
        if (t < 64) {
          ptx::mbarrier_wait_parity(base + 8, (i & 1) ^ 1);
          ptx::st_shared_u32(base + 128 + 4 * t, t + i);
          ptx::mbarrier_arrive(base);
        } else {
          ptx::mbarrier_wait_parity(base, i & 1);
          EXPECT_EQ(ptx::ld_shared_u32(base + 128 + 4 * (t - 64)), t - 64 + i);
          EXPECT_EQ(ptx::ld_shared_u32(base + 128 + 4 * (t - 32)), t - 32 + i);
          ptx::syncwarp();
          if (lane() == 0) ptx::mbarrier_arrive(base + 8);
        }
      }
    });
  }
}

// ---- tensor copies -----------------------------------------------------------------------------

constexpr int kDims[] = {40, 7, 5, 3, 2};

TiledTensor tiled(const void* data, std::vector<u32> box, Swizzle swizzle) {
  TiledTensor tensor;
  tensor.data = data;
  tensor.rank = 5;
  tensor.swizzle = swizzle;
  u64 bytes = 2;
  for (int d = 0; d < 5; ++d) {
    tensor.dims[d] = static_cast<u64>(kDims[d]);
    tensor.box[d] = box[static_cast<std::size_t>(d)];
    if (d != 0) tensor.strides[d - 1] = bytes;
    bytes *= static_cast<u64>(kDims[d]);
  }
  return tensor;
}

/// The number of an element, counted from 1; 0 outside.
u32 number(int x0, int x1, int x2, int x3, int x4) {
  const int x[] = {x0, x1, x2, x3, x4};
  int index = 0;
  for (int d = 4; d >= 0; --d) {
    if (x[d] < 0 || x[d] >= kDims[d]) return 0;
    index = index * kDims[d] + x[d];
  }
  return static_cast<u32>(index + 1);
}

constexpr u32 kElements = 40 * 7 * 5 * 3 * 2;

TEST(HostModelSm90, TensorLoads) {
  alignas(16) static u16 tensor[kElements];
  for (u32 i = 0; i < kElements; ++i) tensor[i] = static_cast<u16>(i + 1);
  for (const Swizzle swizzle : kSwizzles) {
    const u32 row = swizzle == Swizzle::kNone ? 64 : 8u << static_cast<u32>(swizzle);
    const TensorMap map = hm::encode_tensor_map(tiled(tensor, {row, 4, 3, 1, 2}, swizzle));
    for (const int shift : {0, -1, 3}) {
      for (const Options& options : all_options()) {
        hm::launch({1}, 32, 8192, options, [&] {
          const u32 base = ptx::shared_base();
          const u32 data = base + 1024;
          const int c[] = {8 * shift, 1 + shift, shift, 1, shift < 0 ? -1 : 0};
          if (ptx::elect_one()) {
            ptx::mbarrier_init(base, 1);
            ptx::fence_mbarrier_init();
            ptx::mbarrier_arrive_expect_tx(base, 24 * row * 2);
            ptx::tensor_load_5d(data, map, base, c[0], c[1], c[2], c[3], c[4]);
          }
          ptx::syncwarp();
          ptx::mbarrier_wait_parity(base, 0);
          const int r = static_cast<int>(ptx::thread_index());
          if (r >= 24) return;
          const auto unsigned_r = static_cast<u32>(r);
          for (u32 i = 0; i < row; i += 2) {
            const u32 piece = i / 8 ^ turned(swizzle, unsigned_r);
            const u32 v = ptx::ld_shared_u32(data + unsigned_r * row * 2 + (piece * 8 + i % 8) * 2);
            for (u32 j = 0; j < 2; ++j) {
              const u32 expected = number(c[0] + static_cast<int>(i + j), c[1] + r % 4,
                                          c[2] + r / 4 % 3, c[3], c[4] + r / 12);
              EXPECT_EQ(v >> 16 * j & 0xffff, expected);
            }
          }
        });
      }
    }
  }
}

TEST(HostModelSm90, BulkLoads) {
  alignas(16) static u32 from[64];
  for (u32 i = 0; i < 64; ++i) from[i] = i;
  const auto load = [&](u32 bytes) {
    return [bytes] {
      if (lane() != 0) return;
      ptx::mbarrier_init(kBase, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(kBase, bytes);
      ptx::bulk_load(kBase + 256, from + 4, bytes, kBase);
      ptx::mbarrier_wait_parity(kBase, 0);
      for (u32 i = 0; i < 12; ++i) {
        EXPECT_EQ(ptx::ld_shared_u32(kBase + 256 + 4 * i), i + 4);
      }
    };
  };
  for (const Options& options : all_options()) {
    EXPECT_EQ(error_of(32, options, load(48)), "no error");
  }
  EXPECT_TRUE(says(error_of(32, kPlain, load(40)), {"tensor", "cp.async.bulk of 40 bytes"}));
}

TEST(HostModelSm90, TensorStores) {
  alignas(16) static u16 tensor[kElements];
  for (const Swizzle swizzle : kSwizzles) {
    const u32 row = swizzle == Swizzle::kNone ? 64 : 8u << static_cast<u32>(swizzle);
    const TensorMap map = hm::encode_tensor_map(tiled(tensor, {row, 4, 3, 1, 2}, swizzle));
    for (const int shift : {0, 3}) {
      for (const Options& options : all_options()) {
        std::fill(std::begin(tensor), std::end(tensor), u16{0});
        const int c[] = {8 * shift, 1 + shift, shift, 1, 0};
        hm::launch({1}, 32, 8192, options, [&] {
          const u32 data = ptx::shared_base();
          const u32 r = ptx::thread_index();
          for (u32 i = 0; r < 24 && i < row; i += 2) {
            const u32 v = r * row + i + 1;
            ptx::st_shared_u32(data + r * row * 2 + ((i / 8 ^ turned(swizzle, r)) * 8 + i % 8) * 2,
                               v | (v + 1) << 16);
          }
          ptx::fence_proxy_async();
          ptx::syncwarp();
          if (ptx::elect_one()) {
            ptx::tensor_store_5d(map, data, c[0], c[1], c[2], c[3], c[4]);
            ptx::bulk_commit_group();
            ptx::bulk_wait_group_read<0>();
          }
          ptx::syncwarp();
          if (r < 24) ptx::st_shared_u32(data + r * row * 2, 0xdeadbeef);
        });
        for (int x4 = 0; x4 < kDims[4]; ++x4) {
          for (int x3 = 0; x3 < kDims[3]; ++x3) {
            for (int x2 = 0; x2 < kDims[2]; ++x2) {
              for (int x1 = 0; x1 < kDims[1]; ++x1) {
                for (int x0 = 0; x0 < kDims[0]; ++x0) {
                  const int b[] = {x0 - c[0], x1 - c[1], x2 - c[2], x3 - c[3], x4 - c[4]};
                  const bool inside = b[0] >= 0 && b[0] < static_cast<int>(row) && b[1] >= 0 &&
                                      b[1] < 4 && b[2] >= 0 && b[2] < 3 && b[3] == 0 && b[4] >= 0 &&
                                      b[4] < 2;
                  const int r = (b[4] * 3 + b[2]) * 4 + b[1];
                  EXPECT_EQ(tensor[number(x0, x1, x2, x3, x4) - 1],
                            inside ? r * static_cast<int>(row) + b[0] + 1 : 0);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(HostModelSm90, StoresBeginInsideTheTensor) {
  alignas(16) static u16 tensor[kElements];
  const TensorMap map = hm::encode_tensor_map(tiled(tensor, {8, 1, 1, 1, 1}, Swizzle::kNone));
  for (int d = 0; d < 5; ++d) {
    const std::string error = error_of(32, kPlain, [&] {
      if (ptx::elect_one()) {
        ptx::tensor_store_5d(map, kBase, -(d == 0), -(d == 1), -(d == 2), -(d == 3), -(d == 4));
      }
    });
    EXPECT_TRUE(says(error, {"tensor", "begins at coordinate -1"}));
  }
}

TEST(HostModelSm90, StoresReadAndWriteAtTheirWaits) {
  alignas(16) static u16 tensor[kElements];
  const TensorMap map = hm::encode_tensor_map(tiled(tensor, {8, 1, 1, 1, 1}, Swizzle::kNone));
  const auto run = [&](const Options& options, bool wait) {
    tensor[0] = 0;
    hm::launch({1}, 32, 1024, options, [&] {
      if (lane() != 0) return;
      for (u32 i = 0; i < 4; ++i) ptx::st_shared_u32(kBase + 4 * i, 1);
      ptx::fence_proxy_async();
      ptx::tensor_store_5d(map, kBase, 0, 0, 0, 0, 0);
      ptx::bulk_commit_group();
      if (wait) ptx::bulk_wait_group_read<0>();
      EXPECT_EQ(tensor[0], 0);
      ptx::st_shared_u32(kBase, 2);
      ptx::bulk_wait_group<0>();
      EXPECT_NE(tensor[0], 0);
    });
    return tensor[0];
  };
  EXPECT_EQ(run({}, true), 1);
  EXPECT_EQ(run({}, false), 2);
  EXPECT_EQ(run({.delivery = Delivery::kEarly}, false), 1);
  EXPECT_EQ(run({.check_races = true}, true), 1);
  EXPECT_THROW(run({.check_races = true}, false), hm::Error);
}

TEST(HostModelSm90, TensorMapLimits) {
  alignas(16) static u16 tensor[kElements];
  const auto encode = [&](const std::function<void(TiledTensor&)>& change) {
    TiledTensor t = tiled(tensor, {8, 1, 1, 1, 1}, Swizzle::kNone);
    change(t);
    hm::encode_tensor_map(t);
  };
  EXPECT_NO_THROW(encode([](TiledTensor&) {}));
  EXPECT_THROW(encode([](TiledTensor& t) { t.data = tensor + 1; }), hm::Error);
  EXPECT_THROW(encode([](TiledTensor& t) { t.rank = 6; }), hm::Error);
  EXPECT_THROW(encode([](TiledTensor& t) { t.dims[1] = 0; }), hm::Error);
  EXPECT_THROW(encode([](TiledTensor& t) { t.strides[0] = 82; }), hm::Error);
  EXPECT_THROW(encode([](TiledTensor& t) { t.box[0] = 4; }), hm::Error);
  EXPECT_THROW(encode([](TiledTensor& t) { t.box[1] = 257; }), hm::Error);
  EXPECT_THROW(encode([](TiledTensor& t) {
                 t.box[0] = 32;
                 t.swizzle = Swizzle::k32;
               }),
               hm::Error);
}

// ---- wgmma -------------------------------------------------------------------------------------

/// Byte offset of element (mn, k) from the table of "Canonical Layouts" (in the notation of CuTe,
/// T = 8). w: 16-byte pieces that the swizzle spans.
u32 canonical(u32 mn, u32 k, bool mn_major, u32 w, u32 leading, u32 stride) {
  constexpr u32 kT = 8;
  u32 bytes;
  if (mn_major && w == 1) {  // ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
    bytes = mn % kT * 2 + mn / kT * stride + k % 8 * kT * 2 + k / 8 * leading;
  } else if (mn_major) {  // ((T,w,m),(8,k)):((1,T,LBO),(wT,SBO))
    bytes = mn % kT * 2 + mn / kT % w * kT * 2 + mn / (kT * w) * leading + k % 8 * w * kT * 2 +
            k / 8 * stride;
  } else if (w == 1) {  // ((8,m),(T,2k)):((1T,SBO),(1,LBO))
    bytes = mn % 8 * kT * 2 + mn / 8 * stride + k % kT * 2 + k / kT * leading;
  } else {  // ((8,m),(T,2k)):((wT,SBO),(1,T))
    bytes = mn % 8 * w * kT * 2 + mn / 8 * stride + k % kT * 2 + k / kT * kT * 2;
  }
  return bytes ^ (bytes >> 7 & (w - 1)) << 4;  // Swizzle<log2 w, 4, 3>
}

/// The document's worked examples of strides ("Exact layout"), in elements of bf16.
TEST(HostModelSm90, CanonicalLayoutsAreTheDocuments) {
  const auto exact = [](u32 mn, u32 k, u32 w, u32 m_stride, u32 k_stride, u32 k_piece) {
    return (mn % 8 + mn / 8 % w * 8 + mn / (8 * w) * m_stride + k % 8 * k_stride +
            k / 8 * k_piece) *
           2;
  };
  for (u32 mn = 0; mn < 16; ++mn) {
    for (u32 k = 0; k < 16; ++k) {
      // ((8,1,2),(8,2)):((1,8,64),(8,128))
      EXPECT_EQ(canonical(mn, k, true, 1, 256, 128), exact(mn, k, 1, 64, 8, 128));
      u32 bytes = exact(mn, k, 2, 128, 16, 256);  // ((8,2,2),(8,2)):((1,8,128),(16,256))
      EXPECT_EQ(canonical(mn, k, true, 2, 256, 512), bytes ^ (bytes >> 7 & 1) << 4);
      bytes = exact(mn, k, 4, 256, 32, 512);  // ((8,4,2),(8,2)):((1,8,256),(32,512))
      EXPECT_EQ(canonical(mn, k, true, 4, 512, 1024), bytes ^ (bytes >> 7 & 3) << 4);
    }
  }
}

template <int kColumns, Element kElement, bool kMnMajorB, bool kMnMajorA = false>
void check_wgmma(Swizzle swizzle, bool a_in_registers, const Options& options) {
  constexpr bool kBf16 = kElement == Element::kBFloat16;
  const auto encode = [](float x) { return kBf16 ? hm::f32_to_bf16(x) : hm::f32_to_f16(x); };
  const auto decode = [](u16 x) { return kBf16 ? hm::bf16_to_f32(x) : hm::f16_to_f32(x); };
  std::vector<u16> a(64 * 16), b(16 * kColumns);
  Random random(kColumns);
  for (u16& x : a) x = encode(static_cast<float>(2.0 * random.uniform() - 1.0));
  for (u16& x : b) x = encode(static_cast<float>(2.0 * random.uniform() - 1.0));
  // Offsets with gaps, so that a wrong one cannot be right by chance.
  const u32 w = 1u << static_cast<u32>(swizzle);
  const u32 pattern = w * 128;
  const u32 stride_a = w == 1 ? 128 : pattern;
  const u32 leading_a = w == 1 ? 1536 : kMnMajorA ? 2 * pattern + (2 * pattern) % 1024 : 16;
  u32 leading = w == 1 ? 128 : 16;
  u32 stride = w == 1 ? 256 : 2 * pattern;
  if (kMnMajorB && w > 1) {
    stride = pattern;
    leading = 2 * pattern + (2 * pattern) % 1024;
  }
  hm::launch({1}, 128, 64 * 1024, options, [&] {
    const u32 t = ptx::thread_index();
    const u32 a_at = ptx::shared_base();
    const u32 b_at = a_at + 16384;
    for (u32 i = t; i < 64 * 8; i += 128) {  // pairs that lie side by side
      const u32 m = kMnMajorA ? i % 32 * 2 : i / 8;
      const u32 k = kMnMajorA ? i / 32 : i % 8 * 2;
      const u32 second = kMnMajorA ? a[(m + 1) * 16 + k] : a[m * 16 + k + 1];
      ptx::st_shared_u32(a_at + canonical(m, k, kMnMajorA, w, leading_a, stride_a),
                         a[m * 16 + k] | second << 16);
    }
    for (u32 i = t; i < 8 * kColumns; i += 128) {
      const u32 n = kMnMajorB ? i % (kColumns / 2) * 2 : i / 8;
      const u32 k = kMnMajorB ? i / (kColumns / 2) : i % 8 * 2;
      const u32 second = kMnMajorB ? b[k * kColumns + n + 1] : b[(k + 1) * kColumns + n];
      ptx::st_shared_u32(b_at + canonical(n, k, kMnMajorB, w, leading, stride),
                         b[k * kColumns + n] | second << 16);
    }
    ptx::fence_proxy_async();
    ptx::bar_sync(0, 128);
    const u32 warp = t / 32;
    const u32 group = t % 32 / 4;
    const u32 in_group = t % 4;
    float d[kColumns / 8][4];
    for (auto& piece : d) std::fill(std::begin(piece), std::end(piece), 1.0f);
    u32 fragment[4] = {};
    for (u32 i = 0; i < 8; ++i) {
      const u32 row = 16 * warp + group + i / 2 % 2 * 8;
      const u32 k = in_group * 2 + i % 2 + i / 4 * 8;
      fragment[i / 2] |= u32{a[row * 16 + k]} << 16 * (i % 2);
    }
    const u64 desc_a = ptx::matrix_descriptor(a_at, leading_a, stride_a, swizzle);
    const u64 desc_b = ptx::matrix_descriptor(b_at, leading, stride, swizzle);
    ptx::wgmma_fence();
    for (int repeat = 0; repeat < 2; ++repeat) {  // d = a b, then d += a b
      const bool init = repeat == 0 && swizzle != Swizzle::k64;
      if (a_in_registers && init) {
        ptx::wgmma_rs_init<kElement, kMnMajorB>(d, fragment, desc_b);
      } else if (a_in_registers) {
        ptx::wgmma_rs<kElement, kMnMajorB>(d, fragment, desc_b, repeat != 0);
      } else if (init) {
        ptx::wgmma_ss_init<kElement, kMnMajorB, kMnMajorA>(d, desc_a, desc_b);
      } else {
        ptx::wgmma_ss<kElement, kMnMajorB, kMnMajorA>(d, desc_a, desc_b, repeat != 0);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(d);
    for (u32 i = 0; i < kColumns / 2; ++i) {
      const u32 row = 16 * warp + group + i % 4 / 2 * 8;
      const u32 column = i / 4 * 8 + in_group * 2 + i % 2;
      double expected = 0.0;
      for (u32 k = 0; k < 16; ++k) {
        expected += 2.0 * decode(a[row * 16 + k]) * decode(b[k * kColumns + column]);
      }
      EXPECT_NEAR(d[i / 4][i % 4], expected, 1e-4);
    }
  });
}

template <int kColumns>
void check_all_wgmmas() {
  const std::vector<Options> options = all_options();
  std::size_t i = 0;
  const auto next = [&]() -> const Options& { return options[i++ % options.size()]; };
  for (const Swizzle swizzle : kSwizzles) {
    for (const bool a_in_registers : {false, true}) {
      check_wgmma<kColumns, Element::kBFloat16, false>(swizzle, a_in_registers, next());
      check_wgmma<kColumns, Element::kBFloat16, true>(swizzle, a_in_registers, next());
      check_wgmma<kColumns, Element::kFloat16, false>(swizzle, a_in_registers, next());
      check_wgmma<kColumns, Element::kFloat16, true>(swizzle, a_in_registers, next());
    }
    check_wgmma<kColumns, Element::kBFloat16, false, true>(swizzle, false, next());
    check_wgmma<kColumns, Element::kFloat16, true, true>(swizzle, false, next());
  }
}

TEST(HostModelSm90, WgmmaOf32Columns) { check_all_wgmmas<32>(); }
TEST(HostModelSm90, WgmmaOf64Columns) { check_all_wgmmas<64>(); }
TEST(HostModelSm90, WgmmaOf128Columns) { check_all_wgmmas<128>(); }

// ---- errors ------------------------------------------------------------------------------------

TEST(HostModelSm90Errors, DeadlockNamesTheMbarrier) {
  const std::string error = error_of(32, kPlain, [] {
    if (lane() != 0) return;
    ptx::mbarrier_init(kBase, 2);
    ptx::mbarrier_arrive_expect_tx(kBase, 64);
    ptx::mbarrier_wait_parity(kBase, 0);
  });
  EXPECT_TRUE(says(error, {"deadlock", "threads 0-0: mbarrier.try_wait of shared address 1024",
                           "1 of 2 arrivals and 64 bytes are missing", "at model_sm90_test"}));
}

TEST(HostModelSm90Errors, Mbarriers) {
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::mbarrier_arrive(kBase); }),
                   {"mbarrier", "there is no mbarrier at"}));
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::mbarrier_init(kBase, 1); }),
                   {"mbarrier", "which is one already"}));
  EXPECT_TRUE(
      says(error_of(32, kPlain, [] { ptx::mbarrier_init(kBase, 0); }), {"mbarrier", "0 arrivals"}));
  EXPECT_TRUE(says(error_of(32, kPlain,
                            [] {
                              if (lane() != 0) return;
                              ptx::mbarrier_init(kBase, 1);
                              ptx::mbarrier_arrive_expect_tx(kBase, 64);
                              ptx::mbarrier_arrive(kBase);
                            }),
                   {"mbarrier", "have been made already"}));
  EXPECT_TRUE(says(error_of(64, kRaces,
                            [] {
                              if (ptx::thread_index() == 0) ptx::mbarrier_init(kBase, 1);
                              if (ptx::thread_index() == 32) ptx::mbarrier_arrive(kBase);
                            }),
                   {"race", "not ordered after mbarrier.init"}));
}

TEST(HostModelSm90Errors, RegisterCounts) {
  EXPECT_TRUE(says(error_of(32, kPlain, [] { ptx::setmaxnreg_dec<36>(); }),
                   {"registers", "36", "multiples of 8"}));
}

alignas(16) u16 tensor_of_errors[kElements];

/// Lane 0 loads 64 bytes to kBase + 128 after `before`, and goes on with `after`.
std::string load_error(const Options& options, const std::function<void()>& before,
                       const std::function<void()>& after) {
  const TensorMap map =
      hm::encode_tensor_map(tiled(tensor_of_errors, {8, 4, 1, 1, 1}, Swizzle::kNone));
  return error_of(32, options, [&] {
    if (lane() != 0) return;
    ptx::mbarrier_init(kBase, 1);
    before();
    ptx::mbarrier_arrive_expect_tx(kBase, 64);
    ptx::tensor_load_5d(kBase + 128, map, kBase, 0, 0, 0, 0, 0);
    after();
  });
}

TEST(HostModelSm90Errors, TensorLoads) {
  const auto fence = [] { ptx::fence_mbarrier_init(); };
  const auto wait = [] { ptx::mbarrier_wait_parity(kBase, 0); };
  for (const Delivery delivery : {Delivery::kLate, Delivery::kEarly}) {
    const Options plain{.delivery = delivery};
    const Options races{.delivery = delivery, .check_races = true};
    EXPECT_EQ(load_error(races, fence, wait), "no error");
    EXPECT_TRUE(says(load_error(
                         races, [] {}, wait),
                     {"proxy", "with no fence between"}));
    EXPECT_TRUE(
        says(load_error(races, fence,
                        [&] {
                          ptx::ld_shared_u32(kBase + 128);
                          wait();
                        }),
             {"race", delivery == Delivery::kLate ? "while the copy from" : "not ordered"}));
    EXPECT_TRUE(says(load_error(
                         races,
                         [&] {
                           fence();
                           ptx::st_shared_u32(kBase + 128, 1);
                         },
                         wait),
                     {"proxy", "asynchronous write", "no fence.proxy.async"}));
    EXPECT_EQ(load_error(
                  races,
                  [&] {
                    ptx::st_shared_u32(kBase + 128, 1);
                    ptx::fence_proxy_async();
                  },
                  wait),
              "no error");
    EXPECT_TRUE(
        says(load_error({.delivery = delivery, .global = {{tensor_of_errors, 64}}}, fence, wait),
             {"bounds", "source of the tensor copy"}));
    if (delivery == Delivery::kLate) {
      EXPECT_TRUE(says(load_error(plain, fence, [] {}), {"unfinished", "in flight"}));
    }
  }
}

TEST(HostModelSm90Errors, TensorStores) {
  const TensorMap map =
      hm::encode_tensor_map(tiled(tensor_of_errors, {8, 1, 1, 1, 1}, Swizzle::kNone));
  const auto store = [&](const Options& options, bool fence, bool commit, bool wait) {
    return error_of(32, options, [&, fence, commit, wait] {
      if (lane() != 0) return;
      for (u32 i = 0; i < 4; ++i) ptx::st_shared_u32(kBase + 4 * i, i);
      if (fence) ptx::fence_proxy_async();
      ptx::tensor_store_5d(map, kBase, 0, 0, 0, 0, 0);
      if (commit) ptx::bulk_commit_group();
      if (wait) ptx::bulk_wait_group_read<0>();
    });
  };
  EXPECT_EQ(store(kRaces, true, true, true), "no error");
  EXPECT_TRUE(says(store(kRaces, false, true, true), {"proxy", "no fence.proxy.async"}));
  EXPECT_TRUE(says(store(kPlain, true, false, false), {"unfinished", "not committed"}));
  EXPECT_TRUE(says(store(kPlain, true, true, false), {"unfinished", "may still read"}));
  EXPECT_TRUE(says(error_of(32, kPlain,
                            [] {
                              const TensorMap none{};
                              ptx::tensor_store_5d(none, kBase, 0, 0, 0, 0, 0);
                            }),
                   {"tensor", "no tensor map"}));
}

/// A product of what lies at kBase, between `before` and `after` with its accumulators.
std::string wgmma_error(const Options& options, const std::function<void()>& before,
                        const std::function<void(float (&)[8][4])>& after) {
  return error_of(128, options, [&] {
    float d[8][4] = {};
    const u64 descriptor = ptx::matrix_descriptor(kBase, 16, 128, Swizzle::kNone);
    for (u32 i = ptx::thread_index(); i < 1024; i += 128) ptx::st_shared_u32(kBase + 4 * i, 0);
    before();
    ptx::wgmma_ss<Element::kBFloat16, false>(d, descriptor, descriptor, false);
    ptx::wgmma_commit_group();
    after(d);
  });
}

TEST(HostModelSm90Errors, Wgmma) {
  const auto start = [] {
    ptx::fence_proxy_async();
    ptx::bar_sync(0, 128);
    ptx::wgmma_fence();
  };
  const auto wait = [](float(&d)[8][4]) { ptx::wgmma_wait_group<0>(d); };
  EXPECT_EQ(wgmma_error(kRaces, start, wait), "no error");
  EXPECT_TRUE(says(wgmma_error(
                       kPlain, [] { ptx::bar_sync(0, 128); }, wait),
                   {"wgmma", "no wgmma.fence"}));
  EXPECT_TRUE(says(wgmma_error(
                       kRaces,
                       [] {
                         ptx::bar_sync(0, 128);
                         ptx::wgmma_fence();
                       },
                       wait),
                   {"proxy", "asynchronous read", "no fence.proxy.async"}));
  EXPECT_TRUE(says(wgmma_error(
                       kRaces,
                       [] {
                         ptx::fence_proxy_async();
                         ptx::wgmma_fence();
                       },
                       wait),
                   {"race", "asynchronous read", "not ordered after the write"}));
  EXPECT_TRUE(says(wgmma_error(kPlain, start, [](float(&)[8][4]) {}), {"unfinished", "wgmma"}));
  EXPECT_TRUE(says(wgmma_error(kPlain, start,
                               [&](float(&d)[8][4]) {
                                 d[3][1] = 0.0f;
                                 wait(d);
                               }),
                   {"wgmma", "accumulator 13", "was changed"}));
  EXPECT_TRUE(says(wgmma_error(kRaces, start,
                               [&](float(&d)[8][4]) {
                                 ptx::st_shared_u32(kBase + 4 * ptx::thread_index(), 0);
                                 wait(d);
                               }),
                   {"race", "while the asynchronous read"}));
}

TEST(HostModelSm90Errors, WgmmaOperands) {
  const auto product = [](u64 a, u64 b) {
    return [a, b] {
      float d[16][4] = {};
      ptx::wgmma_fence();
      ptx::wgmma_ss<Element::kBFloat16, false>(d, a, b, false);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>(d);
    };
  };
  const u64 plain = ptx::matrix_descriptor(kBase, 128, 256, Swizzle::kNone);
  EXPECT_EQ(error_of(128, kPlain, product(plain, plain)), "no error");
  EXPECT_TRUE(says(
      error_of(128, kPlain, product(plain, ptx::matrix_descriptor(kBase, 16, 1024, Swizzle::k128))),
      {"bounds"}));
  EXPECT_TRUE(
      says(error_of(128, kPlain,
                    product(plain, ptx::matrix_descriptor(kBase + 128, 0, 0, Swizzle::k128))),
           {"wgmma", "inside of a swizzled pattern"}));
  EXPECT_TRUE(says(
      error_of(128, kPlain, [&] { product(plain + (ptx::thread_index() < 32 ? 1 : 0), plain)(); }),
      {"divergence", "different wgmmas"}));
}

}  // namespace
}  // namespace stepwell::testing
