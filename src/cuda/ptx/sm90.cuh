// One PTX instruction per function, sm_90a, but for wgmma (wgmma.cuh): mbarriers, tensor copies,
// proxy fences, register counts. Named barriers and stmatrix are in sm80.cuh. Each function has two
// bodies: inline PTX, and the host model. Section names are those of the PTX ISA document.
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda::ptx {

// ---- elect.sync, setmaxnreg --------------------------------------------------------------------

// "elect.sync". True in one lane of the warp, the same each time. Which one is not said.
__device__ __forceinline__ bool elect_one(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  return model::elect_one(loc);
#else
  u32 elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }"
               : "=r"(elected)::"memory");
  return elected != 0;
#endif
}

// "setmaxnreg". Registers of each thread from here on; all warps of a warpgroup execute it.
// Decrease waits for nobody, increase until the SM has as many free.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::setmaxnreg(kRegisters, loc);
#else
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::setmaxnreg(kRegisters, loc);
#else
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// ---- mbarrier ----------------------------------------------------------------------------------
// "Parallel Synchronization and Communication Instructions: mbarrier". 8 bytes of shared memory,
// aligned to 8. A phase is complete when `arrivals` have been made and all expected bytes are
// there.

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::mbarrier_init(barrier, arrivals, loc);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(u32 barrier, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::mbarrier_arrive(barrier, 0, loc);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// Arrives, and lets the phase wait for `bytes` of copies too.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes,
                                                          Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::mbarrier_arrive(barrier, bytes, loc);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

// "mbarrier.try_wait", until the phase of this parity is complete. The first phase has parity 0;
// the one before the first counts as complete.
__device__ __forceinline__ void mbarrier_wait_parity(u32 barrier, u32 parity,
                                                     Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::mbarrier_wait_parity(barrier, parity, loc);
#else
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// ---- membar, fence -----------------------------------------------------------------------------

// "membar / fence". Lets copies see the mbarriers that this thread has initialised.
__device__ __forceinline__ void fence_mbarrier_init(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::fence_mbarrier_init(loc);
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// "membar / fence: fence.proxy". Between ordinary accesses of shared memory and asynchronous ones:
// tensor copies and wgmma.
__device__ __forceinline__ void fence_proxy_async(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::fence_proxy_async(loc);
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- cp.async.bulk -----------------------------------------------------------------------------
// "Data Movement and Conversion Instructions: cp.async.bulk".

// Contiguous bytes, a multiple of 16, both ends aligned to 16. Completes on an mbarrier.
__device__ __forceinline__ void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier,
                                          Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::bulk_load(to, from, bytes, barrier, loc);
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

// ---- cp.async.bulk.tensor ----------------------------------------------------------------------
// "Data Movement and Conversion Instructions: cp.async.bulk.tensor". A box of a tensor, whose first
// element has these coordinates; in shared memory it is contiguous but for the map's swizzle, and
// aligned to 128 bytes. The map lies in the kernel's parameters (__grid_constant__).

// Completes on an mbarrier with the box's bytes.
__device__ __forceinline__ void tensor_load_5d(u32 to, const TensorMap& map, u32 barrier, int c0,
                                               int c1, int c2, int c3, int c4,
                                               Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::tensor_load(to, map, {c0, c1, c2, c3, c4}, barrier, loc);
#else
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
#endif
}

// Completes with this thread's bulk group. Coordinates are not negative: on an H200 (driver 580) a
// copy to global memory that begins below 0 is an illegal instruction, where loads may.
__device__ __forceinline__ void tensor_store_5d(const TensorMap& map, u32 from, int c0, int c1,
                                                int c2, int c3, int c4, Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::tensor_store(map, from, {c0, c1, c2, c3, c4}, loc);
#else
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
#endif
}

__device__ __forceinline__ void bulk_commit_group(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::bulk_commit(loc);
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's newest groups are not yet written.
template <int kPending>
__device__ __forceinline__ void bulk_wait_group(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::bulk_wait(kPending, false, loc);
#else
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// The same, until they have been read: shared memory may then be written again.
template <int kPending>
__device__ __forceinline__ void bulk_wait_group_read(Loc loc = Loc::current()) {
#if defined(STEPWELL_HOST_MODEL)
  model::bulk_wait(kPending, true, loc);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace stepwell::cuda::ptx
