// One small kernel for each wrapper of cuda/ptx/sm90.cuh and wgmma.cuh, as micro_kernels.cuh has
// them for sm80.cuh. Kernels with a tensor map get it before the others' parameters.
#pragma once

#include "cuda/ptx/sm90.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace stepwell::cuda::micro {

/// Two integers from -8 to 7 as 16-bit floats: products and sums of them are exact.
template <Element kElement>
__device__ __forceinline__ u32 integer_pair(u32 word) {
  return ptx::cvt_x2_f32<kElement>(static_cast<float>(static_cast<int>(word >> 8 & 15) - 8),
                                   static_cast<float>(static_cast<int>(word >> 24 & 15) - 8));
}

template <int kPieces>
__device__ __forceinline__ u32 hash(const float (&d)[kPieces][4]) {
  u32 h = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) h = h * 0x01000193u ^ static_cast<u32>(static_cast<int>(d[i][j]));
  }
  return h;
}

/// Products with operands that are swizzled in one way; their offsets leave gaps, so that a wrong
/// one reads something else.
template <int kColumns, Element kElement, bool kMnMajorA, bool kMnMajorB, bool kRegistersA,
          Swizzle kSwizzle>
__device__ __forceinline__ u32 product(u32 a, u32 b, const u32* in) {
  constexpr u32 kSpan = 16u << static_cast<u32>(kSwizzle);
  constexpr bool kPlain = kSwizzle == Swizzle::kNone;
  constexpr u32 kStrideA = kPlain ? 128 : 8 * kSpan;
  constexpr u32 kLeadingA = !kMnMajorA || kPlain ? 1536 : 2048;
  // Eight rows of kSpan bytes are the pattern that repeats.
  constexpr u32 kLeadingB = !kMnMajorB || kPlain ? 128 : 2048;
  constexpr u32 kStrideB = kPlain ? 256 : kMnMajorB ? 8 * kSpan : 16 * kSpan;
  const u64 desc_a = ptx::matrix_descriptor(a, kLeadingA, kStrideA, kSwizzle);
  const u64 desc_b = ptx::matrix_descriptor(b, kLeadingB, kStrideB, kSwizzle);
  const u32 thread = ptx::thread_index();
  float d[kColumns / 8][4];
  float e[kColumns / 8][4];
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) d[i][j] = static_cast<float>(4 * i + j);
  }
  u32 fragment[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) fragment[0][i] = integer_pair<kElement>(in[4 * thread + i]);
  ptx::pin_registers(d);
  ptx::wgmma_fence();
  if constexpr (kRegistersA) {
    ptx::wgmma_rs<kElement, kMnMajorB>(d, fragment[0], desc_b, true);
    ptx::wgmma_rs_init<kElement, kMnMajorB>(e, fragment[0], desc_b);
  } else {
    ptx::wgmma_ss<kElement, kMnMajorB, kMnMajorA>(d, desc_a, desc_b, true);
    ptx::wgmma_ss_init<kElement, kMnMajorB, kMnMajorA>(e, desc_a, desc_b);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>(d);
  ptx::pin_registers(e);
  return hash(d) * 3 + hash(e);
}

/// Shared memory full of noise, then each product. One word a thread and kind of product.
template <bool kRegistersA, bool kMnMajorA = false>
__device__ __forceinline__ void products(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const u32 base = ptx::shared_base();
  const auto with = [&]<Element kElement>(Constant<kElement>, u32* to) {
    ptx::bar_sync(0, 128);
    for (u32 i = thread; i < 12288; i += 128) {
      ptx::st_shared_u32(base + 4 * i, integer_pair<kElement>(in[i * 5 % 4096]));
    }
    ptx::fence_proxy_async();
    ptx::bar_sync(0, 128);
    const auto each = [&]<int kColumns, bool kMnMajorB>(Constant<kColumns>, Constant<kMnMajorB>) {
      const auto swizzled = [&]<Swizzle kSwizzle>(Constant<kSwizzle>) {
        return product<kColumns, kElement, kMnMajorA, kMnMajorB, kRegistersA, kSwizzle>(
            base, base + 16384, in);
      };
      u32 h = swizzled(Constant<Swizzle::kNone>{});
      h = h * 3 + swizzled(Constant<Swizzle::k32>{});
      h = h * 3 + swizzled(Constant<Swizzle::k64>{});
      h = h * 3 + swizzled(Constant<Swizzle::k128>{});
      to[thread] = h;
      to += 128;
    };
    each(Constant<64>{}, Constant<false>{});
    each(Constant<64>{}, Constant<true>{});
    each(Constant<128>{}, Constant<false>{});
    each(Constant<128>{}, Constant<true>{});
    each(Constant<32>{}, Constant<false>{});
    each(Constant<32>{}, Constant<true>{});
  };
  with(Constant<Element::kBFloat16>{}, out);
  with(Constant<Element::kFloat16>{}, out + 768);
}

}  // namespace stepwell::cuda::micro

namespace micro = stepwell::cuda::micro;
namespace ptx = stepwell::cuda::ptx;
// A program of its own to NVRTC. NOLINTBEGIN(google-global-names-in-headers)
using stepwell::cuda::Element;
using stepwell::cuda::TensorMap;
using stepwell::cuda::u32;
using stepwell::cuda::u64;
// NOLINTEND(google-global-names-in-headers)

extern "C" {

// Register counts and elections. out[128]
__global__ void __launch_bounds__(128, 1) micro_elect(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  ptx::setmaxnreg_dec<40>();
  const u32 first = ptx::ballot(ptx::elect_one());
  const u32 second = ptx::ballot(ptx::elect_one());
  ptx::setmaxnreg_inc<64>();
  // One lane, and the same both times: which one is not said.
  const bool one = first != 0 && (first & (first - 1)) == 0 && first == second;
  out[thread] = in[thread] + (one ? 1 : 0);
}

// Warp 0 fills, warp 1 reads and turns over, four times. out[4][32]
__global__ void micro_mbarrier(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const u32 full = ptx::shared_base();
  const u32 empty = full + 8;
  const u32 data = full + 128;
  if (thread == 0) {
    ptx::mbarrier_init(full, 32);
    ptx::mbarrier_init(empty, 32);
  }
  ptx::bar_sync(0, 64);
  for (u32 i = 0; i < 4; ++i) {
    if (thread < 32) {
      ptx::mbarrier_wait_parity(empty, (i & 1) ^ 1);
      ptx::st_shared_u32(data + 4 * thread, in[32 * i + thread]);
      ptx::mbarrier_arrive(full);
    } else {
      ptx::mbarrier_wait_parity(full, i & 1);
      out[32 * i + thread - 32] = ptx::ld_shared_u32(data + 4 * (63 - thread));
      ptx::mbarrier_arrive(empty);
    }
  }
}

// Two pieces of global memory that change places. out[64]
__global__ void micro_bulk_load(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const u32 base = ptx::shared_base();
  if (ptx::elect_one()) {
    ptx::mbarrier_init(base, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(base, 256);
    ptx::bulk_load(base + 128, in + 4, 112, base);
    ptx::bulk_load(base + 256, in + 64, 144, base);
  }
  ptx::syncwarp();
  ptx::mbarrier_wait_parity(base, 0);
  for (u32 i = thread; i < 64; i += 32) {
    out[i] = ptx::ld_shared_u32(i < 36 ? base + 256 + 4 * i : base + 128 + 4 * (i - 36));
  }
}

// Two boxes, the second over the tensor's edges, as they lie in shared memory. out[2 boxes]
__global__ void micro_tensor_load(const __grid_constant__ TensorMap map, u32 box_words, const u32*,
                                  u32* out) {
  const u32 thread = ptx::thread_index();
  const u32 base = ptx::shared_base();
  const u32 data = base + 1024;
  if (ptx::elect_one()) {
    ptx::mbarrier_init(base, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(base, 8 * box_words);
    ptx::tensor_load_5d(data, map, base, 8, 1, 2, 0, 1);
    ptx::tensor_load_5d(data + 4096, map, base, -8, 4, 3, 2, 0);
  }
  ptx::syncwarp();
  ptx::mbarrier_wait_parity(base, 0);
  for (u32 i = thread; i < box_words; i += 32) {
    out[i] = ptx::ld_shared_u32(data + 4 * i);
    out[box_words + i] = ptx::ld_shared_u32(data + 4096 + 4 * i);
  }
}

// Two boxes into `out`, zeros before, over the tensor's far edges.
__global__ void micro_tensor_store(const __grid_constant__ TensorMap map, u32 box_words,
                                   const u32* in, u32*) {
  const u32 thread = ptx::thread_index();
  const u32 data = ptx::shared_base();
  for (u32 i = thread; i < 2 * box_words; i += 32) {
    ptx::st_shared_u32(data + (i < box_words ? 4 * i : 4096 + 4 * (i - box_words)), in[i]);
  }
  ptx::fence_proxy_async();
  ptx::syncwarp();
  if (thread == 0) {
    ptx::tensor_store_5d(map, data, 8, 0, 0, 1, 0);
    ptx::bulk_commit_group();
    ptx::tensor_store_5d(map, data + 4096, 0, 1, 1, 0, 1);
    ptx::bulk_commit_group();
    ptx::bulk_wait_group_read<0>();
  }
  ptx::syncwarp();
  for (u32 i = thread; i < box_words; i += 32) ptx::st_shared_u32(data + 4 * i, 0);
  if (thread == 0) ptx::bulk_wait_group<0>();
}

// A in shared memory. out[2 types][64, 128, 32 columns][B K-major, MN-major][128]
__global__ void __launch_bounds__(128, 1) micro_wgmma_ss(const u32* in, u32* out) {
  micro::products<false>(in, out);
}

// A in shared memory, MN-major; the same.
__global__ void __launch_bounds__(128, 1) micro_wgmma_mn_major_a(const u32* in, u32* out) {
  micro::products<false, true>(in, out);
}

// A in registers; the same.
__global__ void __launch_bounds__(128, 1) micro_wgmma_rs(const u32* in, u32* out) {
  micro::products<true>(in, out);
}

// Two products in flight, the second with the first one's result as A. out[128]
__global__ void __launch_bounds__(128, 1) micro_wgmma_groups(const u32* in, u32* out) {
  constexpr Element kElement = Element::kBFloat16;
  const u32 thread = ptx::thread_index();
  const u32 base = ptx::shared_base();
  for (u32 i = thread; i < 4096; i += 128) {
    ptx::st_shared_u32(base + 4 * i, micro::integer_pair<kElement>(in[i]));
  }
  ptx::fence_proxy_async();
  ptx::bar_sync(0, 128);
  float s[8][4], o[8][4];
  u32 p[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      p[i][j] = micro::integer_pair<kElement>(in[16 * thread + 4 * i + j]);
  }
  const u64 a = ptx::matrix_descriptor(base, 16, 1024, stepwell::cuda::Swizzle::k128);
  const u64 b = ptx::matrix_descriptor(base + 8192, 16, 1024, stepwell::cuda::Swizzle::k128);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    ptx::wgmma_ss<kElement, false>(s, ptx::advance_descriptor(a, 32 * k),
                                   ptx::advance_descriptor(b, 32 * k), k != 0);
  }
  ptx::wgmma_commit_group();
  ptx::pin_registers(p);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    ptx::wgmma_rs<kElement, true>(o, p[k], ptx::advance_descriptor(b, 2048 * k), k != 0);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<1>(s);
  const u32 first = micro::hash(s);
  ptx::wgmma_wait_group<0>(o, p);
  out[thread] = first * 3 + micro::hash(o) + p[0][0];
}

}  // extern "C"
