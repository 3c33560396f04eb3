// One small kernel for each wrapper of cuda/ptx/sm80.cuh; it stores what the instruction gave. The
// same text runs on the host model (micro_test.cpp) and on a GPU (compare_with_gpu.py), and
// both must agree. `in` is 4096 words of noise.
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda::micro {

/// A float in [-8, 8), exact on every machine.
__device__ __forceinline__ float small_float(u32 word) {
  return static_cast<float>(word >> 8) * 0x1p-20f - 8.0f;
}

/// Two 16-bit floats of magnitudes [2^-7, 2).
template <Element kElement>
__device__ __forceinline__ u32 small_pair(u32 word) {
  return kElement == Element::kBFloat16 ? (word & 0x83ff83ffu) | 0x3c003c00u
                                        : (word & 0x8fff8fffu) | 0x30003000u;
}

/// Zeros, infinities, subnormals, the ends of the range, integers, NaN.
__device__ __forceinline__ float special_float(u32 i) {
  const u32 words[] = {0,           0x80000000u, 0x7f800000u, 0xff800000u, 0x00000001u, 0x807fffffu,
                       0x00800000u, 0x7f7fffffu, 0xc2fc0000u, 0xc2fe0000u, 0x42fe0000u, 0x43000000u,
                       0x3f800000u, 0xc3160000u, 0x7e800000u, 0x7fc00000u};
  return ptx::float_of(words[i]);
}

template <Element kElement>
__device__ __forceinline__ void mma(const u32* in, u32* out) {
  const u32 lane = ptx::thread_index();
  u32 a[4], b[2];
  float d[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = small_pair<kElement>(in[lane * 4 + i]);
    d[i] = small_float(in[256 + lane * 4 + i]);
  }
  for (int i = 0; i < 2; ++i) b[i] = small_pair<kElement>(in[128 + lane * 2 + i]);
  ptx::mma_m16n8k16<kElement>(d, a, b);
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = ptx::bits_of(d[i]);
}

}  // namespace stepwell::cuda::micro

namespace micro = stepwell::cuda::micro;
namespace ptx = stepwell::cuda::ptx;
// A program of its own to NVRTC. NOLINTBEGIN(google-global-names-in-headers)
using stepwell::cuda::Element;
using stepwell::cuda::u32;
using stepwell::cuda::U32x4;
// NOLINTEND(google-global-names-in-headers)

extern "C" {

// Special registers. A grid of 2 x 2 x 2; out[cta][32][3]
__global__ void micro_identity(const u32*, u32* out) {
  const u32 cta = (ptx::cta_index<2>() * 2 + ptx::cta_index<1>()) * 2 + ptx::cta_index<0>();
  const u32 thread = ptx::thread_index();
  u32* to = out + (cta * 32 + thread) * 3;
  to[0] = cta * 100 + thread;
  to[1] = ptx::thread_index_again();
  to[2] = ptx::cta_index_again<0>();
}

// Plain accesses of shared memory. out[32][22]
__global__ void micro_shared(const u32* in, u32* out) {
  const u32 lane = ptx::thread_index();
  const u32 at = ptx::shared_base() + lane * 80;
  const u32* mine = in + lane * 16;
  u32* to = out + lane * 22;
  ptx::st_shared_v4(at, {mine[0], mine[1], mine[2], mine[3]});
  ptx::st_shared_u32(at + 16, mine[4]);
  ptx::st_shared_v2(at + 24, static_cast<int>(mine[5]), static_cast<int>(mine[6]));
  ptx::st_shared_pointers(at + 32, mine, mine + 3);
  struct Object {
    u32 a[3];
    float b;
  } object{{mine[7], mine[8], mine[9]}, micro::small_float(mine[10])};
  ptx::st_shared_object(at + 48, object);
  for (u32 i = 0; i < 7; ++i) to[i] = ptx::ld_shared_u32(at + 4 * i + (i < 5 ? 0 : 4));
  const U32x4 v = ptx::ld_shared_v4(at);
  to[7] = v.x ^ v.y ^ v.z ^ v.w;
  int x, y;
  ptx::ld_shared_v2(at + 24, x, y);
  to[8] = static_cast<u32>(x);
  to[9] = static_cast<u32>(y);
  to[10] = static_cast<u32>(ptx::ld_shared_pointer<const u32>(at + 32) - in);
  to[11] = static_cast<u32>(ptx::ld_shared_pointer<const u32>(at + 40) - in);
  Object copy;
  ptx::ld_shared_object(at + 48, copy);
  for (int i = 0; i < 3; ++i) to[12 + i] = copy.a[i];
  to[15] = ptx::bits_of(copy.b);
  const u32 *first, *second;
  ptx::ld_shared_pointers(at + 32, first, second);
  to[16] = static_cast<u32>(first - in);
  to[17] = static_cast<u32>(second - in);
  long long l, m;
  ptx::ld_shared_v2(at, l, m);
  to[18] = static_cast<u32>(l >> 32);
  to[19] = static_cast<u32>(m);
  ptx::st_shared_u32(at + 16, ptx::bits_of(micro::small_float(mine[11])));
  ptx::st_shared_u32(at + 20, ptx::bits_of(micro::small_float(mine[12])));
  float f, g;
  ptx::ld_shared_v2(at + 16, f, g);
  to[20] = ptx::bits_of(f + g);
  to[21] = ptx::bits_of(ptx::ld_shared_f32(at + 20));
}

// 16- and 8-byte accesses of global memory. out[32][6]
__global__ void micro_global(const u32* in, u32* out) {
  const u32 lane = ptx::thread_index();
  const U32x4 v = ptx::ld_global_v4(in + 4 * lane);
  ptx::st_global_v4(out + 4 * (31 - lane), {v.w, v.x, v.y, v.z});
  float* floats = reinterpret_cast<float*>(out + 128);
  ptx::st_global_v2(floats + 2 * lane, ptx::float_of(v.x & 0x4fffffffu),
                    ptx::float_of(v.y & 0x4fffffffu));
}

// Atomics; the sums are exact in any order. out[12], zeros before
__global__ void micro_atomics(const u32* in, u32* out) {
  const u32 lane = ptx::thread_index();
  float* sums = reinterpret_cast<float*>(out);
  const float x = static_cast<float>(in[lane] % 64);
  ptx::red_add_f32(&sums[0], x);
  ptx::red_add_x4_f32(&sums[8], {x + 1.0f, 2.0f * x, 3.0f, x * x});
  const float old = ptx::atom_add_f32(&sums[4], 1.0f);  // 0 ... 31, each once
  ptx::red_add_f32(&sums[5], old);
  ptx::red_add_f32(&sums[6], old * old);
  ptx::atom_add_u32(&out[2], ptx::atom_add_u32(&out[1], 3));  // 0 ... 93
}

// shfl, redux, vote, bar.warp.sync. out[32][8]
__global__ void micro_warp(const u32* in, u32* out) {
  const u32 lane = ptx::thread_index();
  const u32 v = in[lane];
  u32* to = out + lane * 8;
  to[0] = ptx::shfl_xor_u32(v, 5);
  to[1] = ptx::shfl_idx_u32(v, 11);
  to[2] = ptx::shfl_idx_u32(v, v % 32);
  to[3] = ptx::bits_of(ptx::shfl_xor_f32(ptx::float_of(v), 16));
  to[4] = static_cast<u32>(ptx::shfl_idx_pointer(in + 3 * lane, 7) - in);
  to[5] = ptx::ballot((v & 4) != 0);
  to[6] = static_cast<u32>(ptx::redux_min_s32(static_cast<int>(v)));
  ptx::syncwarp();
  to[7] = static_cast<u32>(ptx::redux_max_s32(static_cast<int>(v)));
}

// Warps 0 and 1 fill, warp 2 reads and turns over, three times. out[3][64]
__global__ void micro_barriers(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const u32 base = ptx::shared_base();
  for (u32 i = 0; i < 3; ++i) {
    if (thread < 64) {
      if (i != 0) ptx::bar_sync(2, 96);
      ptx::st_shared_u32(base + 4 * thread, in[64 * i + thread]);
      ptx::bar_arrive(1, 96);
    } else {
      ptx::bar_sync(1, 96);
      for (u32 j = thread - 64; j < 64; j += 32) {
        out[64 * i + 63 - j] = ptx::ld_shared_u32(base + 4 * j);
      }
      if (i < 2) ptx::bar_arrive(2, 96);
    }
  }
}

// cp.async of 0 to 16 bytes in two groups. out[32][8]
__global__ void micro_copies(const u32* in, u32* out) {
  const u32 lane = ptx::thread_index();
  const u32 at = ptx::shared_base() + 32 * lane;
  const u32 sizes[] = {0, 4, 8, 12, 16, 1, 7, 15};
  ptx::cp_async_16(at, in + 4 * lane, sizes[lane % 8]);
  ptx::cp_async_commit_group();
  ptx::cp_async_16(at + 16, in + 128 + 4 * lane, 16);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<1>();
  for (u32 i = 0; i < 4; ++i) out[lane * 8 + i] = ptx::ld_shared_u32(at + 4 * i);
  ptx::cp_async_wait_group<0>();
  for (u32 i = 4; i < 8; ++i) out[lane * 8 + i] = ptx::ld_shared_u32(at + 4 * i);
}

// Rows 32 bytes apart. out[32][14]
__global__ void micro_ldmatrix(const u32* in, u32* out) {
  const u32 lane = ptx::thread_index();
  const u32 base = ptx::shared_base();
  for (u32 i = lane; i < 64; i += 32) {
    ptx::st_shared_v4(base + 16 * i, {in[4 * i], in[4 * i + 1], in[4 * i + 2], in[4 * i + 3]});
  }
  ptx::syncwarp();
  const u32 row = base + 32 * lane;
  u32 r1[1], r2[2], r4[4], t1[1], t2[2], t4[4];
  ptx::ldmatrix_x1(r1, row);
  ptx::ldmatrix_x2(r2, row);
  ptx::ldmatrix_x4(r4, row);
  ptx::ldmatrix_x1<true>(t1, row);
  ptx::ldmatrix_x2<true>(t2, row);
  ptx::ldmatrix_x4<true>(t4, row);
  u32* to = out + lane * 14;
  to[0] = r1[0];
  to[1] = t1[0];
  for (int i = 0; i < 2; ++i) to[2 + i] = r2[i];
  for (int i = 0; i < 2; ++i) to[4 + i] = t2[i];
  for (int i = 0; i < 4; ++i) to[6 + i] = r4[i];
  for (int i = 0; i < 4; ++i) to[10 + i] = t4[i];
}

// Rows 32 bytes apart; the least architecture is sm_90. out[256]
__global__ void micro_stmatrix(const u32* in, u32* out) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const u32 lane = ptx::thread_index();
  const u32 base = ptx::shared_base();
  for (u32 i = lane; i < 256; i += 32) ptx::st_shared_u32(base + 4 * i, 0);
  ptx::syncwarp();
  ptx::stmatrix_x4(base + 32 * lane,
                   {in[4 * lane], in[4 * lane + 1], in[4 * lane + 2], in[4 * lane + 3]});
  ptx::syncwarp();
  for (u32 i = lane; i < 256; i += 32) out[i] = ptx::ld_shared_u32(base + 4 * i);
#endif
}

// out[32][4]
__global__ void micro_mma_bf16(const u32* in, u32* out) { micro::mma<Element::kBFloat16>(in, out); }
__global__ void micro_mma_f16(const u32* in, u32* out) { micro::mma<Element::kFloat16>(in, out); }

// Conversions, of all magnitudes, infinities and NaN. out[64][6]
__global__ void micro_conversions(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const u32 special[] = {0,           0x80000000u, 0x7f800000u, 0xff800000u,
                         0x7fc00000u, 0x7f800001u, 0x00000001u, 0x7f7fffffu,
                         0x477ff000u, 0x477fefffu, 0x33000000u, 0x33000001u,
                         0x387fffffu, 0x38800000u, 0x3f808000u, 0x3f818000u};
  const float x = ptx::float_of(in[thread]);
  const float y = ptx::float_of(thread < 16 ? special[thread] : in[64 + thread] & 0x4fffffffu);
  u32* to = out + thread * 6;
  to[0] = ptx::cvt_x2_f32<Element::kBFloat16>(x, y);
  to[1] = ptx::cvt_x2_f32<Element::kFloat16>(x, y);
  // NaN payloads are nobody's business.
  const u32 pair = in[128 + thread] & 0xfbfffbffu;
  to[2] = ptx::bits_of(ptx::low_f32<Element::kBFloat16>(pair));
  to[3] = ptx::bits_of(ptx::high_f32<Element::kBFloat16>(pair));
  to[4] = ptx::bits_of(ptx::low_f32<Element::kFloat16>(pair));
  to[5] = ptx::bits_of(ptx::high_f32<Element::kFloat16>(pair));
}

// max.f32, min.NaN and mul.rn, bit by bit. out[64][5]
__global__ void micro_max(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const float nan = ptx::float_of(0x7fc00000u);
  const float x = thread % 8 == 0 ? nan : micro::small_float(in[thread]);
  const float y = thread % 8 == 1 ? nan : micro::small_float(in[64 + thread]);
  u32* to = out + 5 * thread;
  to[0] = ptx::bits_of(ptx::max_f32(x, y));
  to[1] = ptx::bits_of(ptx::min_nan_f32(x, y));
  const u32 a = ptx::cvt_x2_f32<Element::kBFloat16>(x, y);
  to[2] = ptx::min_nan_x2<Element::kBFloat16>(a, ptx::ones_x2<Element::kBFloat16>());
  const u32 b = ptx::cvt_x2_f32<Element::kFloat16>(x, y);
  to[3] = ptx::min_nan_x2<Element::kFloat16>(b, ptx::ones_x2<Element::kFloat16>());
  // The low bits of a product; fused with the subtraction it would have more.
  const float third = 1.0f / 3.0f + static_cast<float>(thread);
  const float high = ptx::float_of(ptx::bits_of(ptx::mul_rn_f32(third, 0.3f)) & 0xfffff000u);
  to[4] = ptx::bits_of(ptx::mul_rn_f32(third, 0.3f) - high);
}

// A fused multiply-add, and what rounding takes from a product. out[64][2]
__global__ void micro_fma(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const float x = micro::small_float(in[thread]);
  const float y = micro::small_float(in[64 + thread]);
  out[thread * 2] = ptx::bits_of(ptx::fma_f32(x, y, micro::small_float(in[128 + thread])));
  out[thread * 2 + 1] = ptx::bits_of(ptx::fma_f32(x, y, -(x * y)));
}

// ex2 and rcp. out[64][4]
__global__ void micro_exponential(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const float x = thread < 16 ? micro::special_float(thread) : micro::small_float(in[thread]);
  const float y = ptx::float_of(in[64 + thread]);
  u32* to = out + thread * 4;
  to[0] = ptx::bits_of(ptx::ex2_approx(x));
  to[1] = ptx::bits_of(ptx::ex2_approx(x * 16.0f));
  to[2] = ptx::bits_of(ptx::rcp_approx(x));
  to[3] = ptx::bits_of(ptx::rcp_approx(y));
}

// out[64][2]
__global__ void micro_logarithm(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const float x = thread < 16 ? micro::special_float(thread) : micro::small_float(in[thread]);
  out[thread * 2] = ptx::bits_of(ptx::lg2_approx(x));
  out[thread * 2 + 1] = ptx::bits_of(ptx::lg2_approx(ptx::float_of(in[64 + thread] >> 1)));
}

// out[64][3]
__global__ void micro_permute(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const u32 a = in[thread];
  const u32 b = in[64 + thread];
  u32* to = out + thread * 3;
  to[0] = ptx::prmt_b32(a, b, in[128 + thread] & 0xffffu);
  to[1] = ptx::prmt_b32(a, b, 0xbb99u);
  to[2] = ptx::prmt_b32(a, b, 0x6420u);
}

// out[64][2]
__global__ void micro_dot(const u32* in, u32* out) {
  const u32 thread = ptx::thread_index();
  const u32 a = in[thread];
  const u32 b = in[64 + thread];
  constexpr Element kBFloat16 = Element::kBFloat16;
  constexpr Element kFloat16 = Element::kFloat16;
  out[thread * 2] = ptx::bits_of(
      ptx::dot_x2<kBFloat16>(micro::small_pair<kBFloat16>(a), micro::small_pair<kBFloat16>(b)));
  out[thread * 2 + 1] = ptx::bits_of(
      ptx::dot_x2<kFloat16>(micro::small_pair<kFloat16>(a), micro::small_pair<kFloat16>(b)));
}

}  // extern "C"
