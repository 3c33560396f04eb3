// wgmma: matrix products of a warpgroup, sm_90a. "Asynchronous Warpgroup Level Matrix Instructions"
// in the PTX ISA document.
//
// A product runs from its issue to the wait for its group. Until then nobody may touch its
// accumulators and its A in registers, nor write its operands in shared memory.
#pragma once

#include "cuda/ptx/shared_layout.hpp"
#include "cuda/ptx/sm80.cuh"
#if !defined(STEPWELL_HOST_MODEL)
#include "cuda/ptx/wgmma_instructions.cuh"
#endif

namespace stepwell::cuda::ptx {

// "wgmma.mma_async", m64nNk16: d += A B, or d = A B. In d, a lane holds columns 8 i + 2 (lane % 4)
// + {0, 1} of rows lane / 4 (values 0 and 1) and lane / 4 + 8 (values 2 and 3) of its warp's 16
// rows. `a` and `b` are matrix descriptors; A and B are K-major unless kMnMajorA, kMnMajorB.
template <Element kElement, bool kMnMajorB, bool kMnMajorA = false, int kPieces>
__device__ __forceinline__ void wgmma_ss(float (&d)[kPieces][4], u64 a, u64 b, bool accumulate,
                                         Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::wgmma(8 * kPieces, &d[0][0], nullptr, a, b, accumulate, kMnMajorA, kMnMajorB, kElement,
               loc);
#else
  WgmmaInstruction<8 * kPieces, kElement>::template ss<kMnMajorA, kMnMajorB>(d, a, b, accumulate);
#endif
}

// The same with A in registers, the fragment of mma.m16n8k16 for each warp.
template <Element kElement, bool kMnMajorB, int kPieces>
__device__ __forceinline__ void wgmma_rs(float (&d)[kPieces][4], const u32 (&a)[4], u64 b,
                                         bool accumulate, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::wgmma(8 * kPieces, &d[0][0], a, 0, b, accumulate, false, kMnMajorB, kElement, loc);
#else
  WgmmaInstruction<8 * kPieces, kElement>::template rs<kMnMajorB>(d, a, b, accumulate);
#endif
}

// d = A B where d is dead before: its registers are not kept for an instruction that would not read
// them.
template <Element kElement, bool kMnMajorB, bool kMnMajorA = false, int kPieces>
__device__ __forceinline__ void wgmma_ss_init(float (&d)[kPieces][4], u64 a, u64 b,
                                              Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::wgmma(8 * kPieces, &d[0][0], nullptr, a, b, false, kMnMajorA, kMnMajorB, kElement, loc);
#else
  WgmmaInstruction<8 * kPieces, kElement>::template ss_init<kMnMajorA, kMnMajorB>(d, a, b);
#endif
}

template <Element kElement, bool kMnMajorB, int kPieces>
__device__ __forceinline__ void wgmma_rs_init(float (&d)[kPieces][4], const u32 (&a)[4], u64 b,
                                              Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::wgmma(8 * kPieces, &d[0][0], a, 0, b, false, false, kMnMajorB, kElement, loc);
#else
  WgmmaInstruction<8 * kPieces, kElement>::template rs_init<kMnMajorB>(d, a, b);
#endif
}

// "wgmma.fence". Before the first product, and before one whose registers were touched since.
__device__ __forceinline__ void wgmma_fence(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::wgmma_fence(loc);
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// "wgmma.commit_group"
__device__ __forceinline__ void wgmma_commit_group(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::wgmma_commit(loc);
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// "wgmma.wait_group": until at most kPending of the newest groups are running. It names the
// accumulators of those it waits for: the compiler would move their uses above it.
template <int kPending, int kPieces>
__device__ __forceinline__ void wgmma_wait_group([[maybe_unused]] float (&d)[kPieces][4],
                                                 Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::wgmma_wait(kPending, loc);
#else
  wait_for_wgmma<kPending>(d);
#endif
}

// The same, with the registers of A.
template <int kPending, int kPieces, int kSteps>
__device__ __forceinline__ void wgmma_wait_group([[maybe_unused]] float (&d)[kPieces][4],
                                                 [[maybe_unused]] u32 (&a)[kSteps][4],
                                                 Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::wgmma_wait(kPending, loc);
#else
  wait_for_wgmma<kPending>(d, a);
#endif
}

// No instruction: the compiler keeps what these registers hold on its side of this place.
template <int kPieces>
__device__ __forceinline__ void pin_registers([[maybe_unused]] float (&d)[kPieces][4]) {
#if !defined(STEPWELL_HOST_MODEL)
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
  }
#endif
}

template <int kSteps>
__device__ __forceinline__ void pin_registers([[maybe_unused]] u32 (&a)[kSteps][4]) {
#if !defined(STEPWELL_HOST_MODEL)
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
  }
#endif
}

}  // namespace stepwell::cuda::ptx
