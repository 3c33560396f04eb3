// One PTX instruction per function, sm_80. Each has two bodies: inline PTX, and the host model.
// Section names are those of the PTX ISA document.
#pragma once
#include "cuda/ptx/types.cuh"

namespace stepwell::cuda::ptx {

#if defined(STEPWELL_HOST_MODEL)
namespace model = ::stepwell::host_model;
#endif

// ---- special registers, shared window ----------------------------------------------------------

__device__ __forceinline__ u32 thread_index() {
#if defined(STEPWELL_HOST_MODEL)
  return model::thread_index();
#else
  return threadIdx.x;
#endif
}

// The same, read anew: what is computed from it is not kept in registers from loop turn to loop
// turn.
__device__ __forceinline__ u32 thread_index_again() {
#if defined(STEPWELL_HOST_MODEL)
  return model::thread_index();
#else
  u32 index;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(index));
  return index;
#endif
}

template <int Axis>
__device__ __forceinline__ u32 cta_index() {
#if defined(STEPWELL_HOST_MODEL)
  return model::cta_index(Axis);
#else
  return Axis == 0 ? blockIdx.x : Axis == 1 ? blockIdx.y : blockIdx.z;
#endif
}

// The same, read anew.
template <int Axis>
__device__ __forceinline__ u32 cta_index_again() {
#if defined(STEPWELL_HOST_MODEL)
  return model::cta_index(Axis);
#else
  static_assert(Axis == 0);
  u32 index;
  asm volatile("mov.u32 %0, %ctaid.x;" : "=r"(index));
  return index;
#endif
}

// Address of dynamic shared memory in the shared window; 1024-byte aligned.
__device__ __forceinline__ u32 shared_base() {
#if defined(STEPWELL_HOST_MODEL)
  return model::shared_base();
#else
  extern __shared__ __align__(1024) u8 dynamic_shared[];
  return static_cast<u32>(__cvta_generic_to_shared(dynamic_shared));
#endif
}

__device__ __forceinline__ u32 bits_of(float x) {
#if defined(STEPWELL_HOST_MODEL)
  return __builtin_bit_cast(u32, x);
#else
  return __float_as_uint(x);
#endif
}

__device__ __forceinline__ float float_of(u32 x) {
#if defined(STEPWELL_HOST_MODEL)
  return __builtin_bit_cast(float, x);
#else
  return __uint_as_float(x);
#endif
}

// ---- ld.shared, st.shared ----------------------------------------------------------------------

__device__ __forceinline__ U32x4 ld_shared_v4(u32 address, Loc loc = Loc::current()) {
  U32x4 v;
#if defined(STEPWELL_HOST_MODEL)
  model::shared_load(address, &v, 16, loc);
#else
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
#endif
  return v;
}

__device__ __forceinline__ u32 ld_shared_u32(u32 address, Loc loc = Loc::current()) {
  u32 v;
#if defined(STEPWELL_HOST_MODEL)
  model::shared_load(address, &v, 4, loc);
#else
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
#endif
  return v;
}

__device__ __forceinline__ float ld_shared_f32(u32 address, Loc loc = Loc::current()) {
  return float_of(ld_shared_u32(address, loc));
}

__device__ __forceinline__ void st_shared_u32(u32 address, u32 v, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::shared_store(address, &v, 4, loc);
#else
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
#endif
}

__device__ __forceinline__ void st_shared_v4(u32 address, U32x4 v, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::shared_store(address, &v, 16, loc);
#else
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
#endif
}

__device__ __forceinline__ void ld_shared_v2(u32 address, int& x, int& y,
                                             Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  int v[2];
  model::shared_load(address, v, 8, loc);
  x = v[0];
  y = v[1];
#else
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(address) : "memory");
#endif
}

__device__ __forceinline__ void ld_shared_v2(u32 address, float& x, float& y,
                                             Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  float v[2];
  model::shared_load(address, v, 8, loc);
  x = v[0];
  y = v[1];
#else
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
#endif
}

__device__ __forceinline__ void st_shared_v2(u32 address, int x, int y, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  const int v[2] = {x, y};
  model::shared_store(address, v, 8, loc);
#else
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
#endif
}

// Two pointers side by side, 16 bytes.
__device__ __forceinline__ void st_shared_pointers(u32 address, const void* a, const void* b,
                                                   Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  const void* v[2] = {a, b};
  model::shared_store(address, v, 16, loc);
#else
  asm volatile("st.shared.v2.u64 [%0], {%1, %2};" ::"r"(address), "l"(a), "l"(b) : "memory");
#endif
}

template <class T>
__device__ __forceinline__ T* ld_shared_pointer(u32 address, Loc loc = Loc::current()) {
  T* v;
#if defined(STEPWELL_HOST_MODEL)
  model::shared_load(address, &v, 8, loc);
#else
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(address) : "memory");
#endif
  return v;
}

template <class A, class B>
__device__ __forceinline__ void ld_shared_pointers(u32 address, A*& a, B*& b,
                                                   Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  const void* v[2];
  model::shared_load(address, v, 16, loc);
  a = static_cast<A*>(const_cast<void*>(v[0]));
  b = static_cast<B*>(const_cast<void*>(v[1]));
#else
  asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "r"(address) : "memory");
#endif
}

__device__ __forceinline__ void ld_shared_v2(u32 address, long long& x, long long& y,
                                             Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  long long v[2];
  model::shared_load(address, v, 16, loc);
  x = v[0];
  y = v[1];
#else
  asm volatile("ld.shared.v2.s64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "r"(address) : "memory");
#endif
}

template <u32 kCount>
struct Words {
  u32 word[kCount];
};

// Any trivially copyable object of whole words, word by word.
template <class T>
__device__ __forceinline__ void st_shared_object(u32 address, const T& object,
                                                 Loc loc = Loc::current()) {
  const auto words = __builtin_bit_cast(Words<sizeof(T) / 4>, object);
#pragma unroll
  for (u32 i = 0; i < sizeof(T) / 4; ++i) st_shared_u32(address + 4 * i, words.word[i], loc);
}

template <class T>
__device__ __forceinline__ void ld_shared_object(u32 address, T& object, Loc loc = Loc::current()) {
  Words<sizeof(T) / 4> words;
#pragma unroll
  for (u32 i = 0; i < sizeof(T) / 4; ++i) words.word[i] = ld_shared_u32(address + 4 * i, loc);
  object = __builtin_bit_cast(T, words);
}

// ---- st.global ---------------------------------------------------------------------------------

__device__ __forceinline__ void st_global_v4(void* to, U32x4 v, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::global_store(to, &v, 16, loc);
#else
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
#endif
}

__device__ __forceinline__ void st_global_v2(float* to, float x, float y,
                                             Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  const float v[2] = {x, y};
  model::global_store(to, v, 8, loc);
#else
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
#endif
}

__device__ __forceinline__ U32x4 ld_global_v4(const void* from, Loc loc = Loc::current()) {
  U32x4 v;
#if defined(STEPWELL_HOST_MODEL)
  model::global_load(from, &v, 16, loc);
#else
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
#endif
  return v;
}

// ---- arithmetic --------------------------------------------------------------------------------

__device__ __forceinline__ float ex2_approx(float x) {
#if defined(STEPWELL_HOST_MODEL)
  return model::ex2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ __forceinline__ float lg2_approx(float x) {
#if defined(STEPWELL_HOST_MODEL)
  return model::lg2(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ __forceinline__ float rcp_approx(float x) {
#if defined(STEPWELL_HOST_MODEL)
  return model::rcp(x);
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// mul.rn.f32: with the rounding named, it is never fused with an addition.
__device__ __forceinline__ float mul_rn_f32(float x, float y) {
#if defined(STEPWELL_HOST_MODEL)
  return x * y;
#else
  float z;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
#endif
}

// fma.rn.f32: x * y + z, rounded once.
__device__ __forceinline__ float fma_f32(float x, float y, float z) {
#if defined(STEPWELL_HOST_MODEL)
  return __builtin_fmaf(x, y, z);
#else
  float d;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(x), "f"(y), "f"(z));
  return d;
#endif
}

// max.f32: the other operand if one is NaN, on both sides.
__device__ __forceinline__ float max_f32(float x, float y) {
#if defined(STEPWELL_HOST_MODEL)
  return model::max(x, y);
#else
  float z;
  asm("max.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
#endif
}

// min.NaN.f32: NaN if one is.
__device__ __forceinline__ float min_nan_f32(float x, float y) {
#if defined(STEPWELL_HOST_MODEL)
  return model::min_nan(x, y);
#else
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
#endif
}

// prmt.b32: four bytes of a (0 to 3) and b (4 to 7), one for each of the selector's four lowest
// hex digits, the lowest byte first; a digit's bit 3 takes the byte's sign bit, eight times.
__device__ __forceinline__ u32 prmt_b32(u32 a, u32 b, u32 selector) {
#if defined(STEPWELL_HOST_MODEL)
  u32 d = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 digit = selector >> (4 * i) & 15;
    const u32 byte = (digit % 8 < 4 ? a : b) >> (digit % 4 * 8) & 255;
    d |= (digit < 8 ? byte : (byte >> 7) * 255) << (8 * i);
  }
  return d;
#else
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
#endif
}

// Two floats to one register, `lo` in the low half. (PTX names the high half first.)
template <Element kElement>
__device__ __forceinline__ u32 cvt_x2_f32(float lo, float hi) {
#if defined(STEPWELL_HOST_MODEL)
  return kElement == Element::kBFloat16 ? model::f32_to_bf16(lo) | u32(model::f32_to_bf16(hi)) << 16
                                        : model::f32_to_f16(lo) | u32(model::f32_to_f16(hi)) << 16;
#else
  u32 d;
  if constexpr (kElement == Element::kBFloat16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
#endif
}

// The low and the high half of a pair of 16-bit floats.
template <Element kElement>
__device__ __forceinline__ float low_f32(u32 pair) {
#if defined(STEPWELL_HOST_MODEL)
  return kElement == Element::kBFloat16 ? model::bf16_to_f32(static_cast<u16>(pair))
                                        : model::f16_to_f32(static_cast<u16>(pair));
#else
  if constexpr (kElement == Element::kBFloat16) {
    return float_of(pair << 16);
  } else {
    float x;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(pair));
    return x;
  }
#endif
}

template <Element kElement>
__device__ __forceinline__ float high_f32(u32 pair) {
  if constexpr (kElement == Element::kBFloat16) return float_of(pair & 0xffff0000u);
  return low_f32<kElement>(pair >> 16);
}

// Two ones, and min.NaN of two pairs: NaN if one is.
template <Element kElement>
__device__ __forceinline__ u32 ones_x2() {
  return kElement == Element::kBFloat16 ? 0x3f803f80u : 0x3c003c00u;
}

template <Element kElement>
__device__ __forceinline__ u32 min_nan_x2(u32 a, u32 b) {
#if defined(STEPWELL_HOST_MODEL)
  return cvt_x2_f32<kElement>(model::min_nan(low_f32<kElement>(a), low_f32<kElement>(b)),
                              model::min_nan(high_f32<kElement>(a), high_f32<kElement>(b)));
#else
  u32 d;
  if constexpr (kElement == Element::kBFloat16)
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  else
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#endif
}

template <Element kElement>
__device__ __forceinline__ float dot_x2(u32 a, u32 b) {
  return low_f32<kElement>(a) * low_f32<kElement>(b) +
         high_f32<kElement>(a) * high_f32<kElement>(b);
}

// ---- shfl.sync, vote.sync, bar.warp.sync -------------------------------------------------------

__device__ __forceinline__ u32 shfl_xor_u32(u32 v, u32 lane_mask, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  return model::shuffle(v, lane_mask, 0xffffffffu, true, loc);
#else
  u32 r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lane_mask));
  return r;
#endif
}

__device__ __forceinline__ u32 shfl_idx_u32(u32 v, u32 lane, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  return model::shuffle(v, lane, 0xffffffffu, false, loc);
#else
  u32 r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lane));
  return r;
#endif
}

template <class T>
__device__ __forceinline__ T* shfl_idx_pointer(T* v, u32 lane, Loc loc = Loc::current()) {
  const u64 bits = reinterpret_cast<u64>(v);
  const u64 low = shfl_idx_u32(static_cast<u32>(bits), lane, loc);
  const u64 high = shfl_idx_u32(static_cast<u32>(bits >> 32), lane, loc);
  return reinterpret_cast<T*>(high << 32 | low);
}

__device__ __forceinline__ float shfl_xor_f32(float v, u32 lane_mask, Loc loc = Loc::current()) {
  return float_of(shfl_xor_u32(bits_of(v), lane_mask, loc));
}

// redux.sync: the least and the greatest value of the warp's lanes.
__device__ __forceinline__ int redux_min_s32(int v, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  return model::redux_s32(v, true, loc);
#else
  int r;
  asm volatile("redux.sync.min.s32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
  return r;
#endif
}

__device__ __forceinline__ int redux_max_s32(int v, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  return model::redux_s32(v, false, loc);
#else
  int r;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
  return r;
#endif
}

__device__ __forceinline__ u32 ballot(bool p, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  return model::ballot(p, 0xffffffffu, loc);
#else
  return __ballot_sync(0xffffffffu, p);
#endif
}

__device__ __forceinline__ void syncwarp(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::syncwarp(0xffffffffu, loc);
#else
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#endif
}

// ---- bar.sync, bar.arrive ----------------------------------------------------------------------

__device__ __forceinline__ void bar_sync(u32 id, u32 threads, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::bar_sync(id, threads, loc);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

__device__ __forceinline__ void bar_arrive(u32 id, u32 threads, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::bar_arrive(id, threads, loc);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// ---- atom, red ---------------------------------------------------------------------------------

__device__ __forceinline__ float atom_add_f32(float* p, float v, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  return model::global_add_f32(p, v, loc);
#else
  float old;
  asm volatile("atom.global.add.f32 %0, [%1], %2;" : "=f"(old) : "l"(p), "f"(v) : "memory");
  return old;
#endif
}

__device__ __forceinline__ u32 atom_add_u32(u32* p, u32 v, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  return model::global_add_u32(p, v, loc);
#else
  u32 old;
  asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
#endif
}

__device__ __forceinline__ void red_add_f32(float* p, float v, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::global_add_f32(p, v, loc);
#else
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
#endif
}

// Four neighbouring floats at a multiple of 16 bytes: one instruction from sm_90 on.
__device__ __forceinline__ void red_add_x4_f32(float* p, const float (&v)[4],
                                               Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  for (int i = 0; i < 4; ++i) model::global_add_f32(p + i, v[i], loc);
#elif __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) red_add_f32(p + i, v[i]);
#endif
}

// ---- cp.async ----------------------------------------------------------------------------------

// 16 bytes; the first `valid_bytes` are copied, the rest is zero (0: the source is not read).
__device__ __forceinline__ void cp_async_16(u32 to, const void* from, u32 valid_bytes,
                                            Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::cp_async_16(to, from, valid_bytes, loc);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid_bytes)
               : "memory");
#endif
}

__device__ __forceinline__ void cp_async_16(u32 to, const void* from, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::cp_async_16(to, from, 16, loc);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}

__device__ __forceinline__ void cp_async_commit_group(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::cp_async_commit(loc);
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most N of this thread's newest groups are in flight.
template <int N>
__device__ __forceinline__ void cp_async_wait_group(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::cp_async_wait(N, loc);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// ---- ldmatrix ----------------------------------------------------------------------------------
// "Warp-level matrix load instruction: ldmatrix". Lanes 8i … 8i+7 give the rows of matrix i.

template <bool Transpose = false>
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 address, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::ldmatrix(address, r, 4, Transpose, loc);
#else
  if constexpr (Transpose)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

template <bool Transpose = false>
__device__ __forceinline__ void ldmatrix_x2(u32 (&r)[2], u32 address, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::ldmatrix(address, r, 2, Transpose, loc);
#else
  if constexpr (Transpose)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
#endif
}

template <bool Transpose = false>
__device__ __forceinline__ void ldmatrix_x1(u32 (&r)[1], u32 address, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::ldmatrix(address, r, 1, Transpose, loc);
#else
  if constexpr (Transpose)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(address)
                 : "memory");
#endif
}

// ---- stmatrix, sm_90 ---------------------------------------------------------------------------
// "Warp-level matrix store instruction: stmatrix". Lanes 8i … 8i+7 give the rows of matrix i.

__device__ __forceinline__ void stmatrix_x4(u32 address, const u32 (&r)[4],
                                            Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::stmatrix(address, r, 4, loc);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

// ---- mma.sync ----------------------------------------------------------------------------------
// "Matrix Fragments for mma.m16n8k16 with floating point type". d += a · b, f32 accumulators.

template <Element kElement>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                             Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::mma_m16n8k16(d, a, b, kElement, loc);
#else
  if constexpr (kElement == Element::kBFloat16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace stepwell::cuda::ptx
