// A CUDA GPU in plain C++: what the wrappers of cuda/ptx call in host builds, and how a kernel is
// launched there. docs/host-model.md tells how it works.
//
// A launch runs one CTA after another; a CTA runs one fiber per thread on the calling OS thread.
// Shared memory has the same 32-bit addresses as on the device and is reached through these
// functions only, so that every access can be checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/ptx/types.cuh"

namespace stepwell::host_model {

using cuda::Element;
using cuda::i64;
using cuda::Loc;
using cuda::TensorMap;
using cuda::TiledTensor;
using cuda::u16;
using cuda::u32;
using cuda::u64;
using cuda::u8;

// ---- launching ---------------------------------------------------------------------------------

/// Which runnable warp goes next. kForward: always the lowest, as far as it can go, and CTAs in
/// order; kReverse: the highest, and CTAs from the last; kRandom: seeded, and threads may be put
/// aside at asynchronous instructions. Lanes of a warp run in the same manner. elect.sync elects
/// the first lane, the last one with kReverse.
enum class Schedule { kForward, kReverse, kRandom };

/// When asynchronous copies and wgmma take effect. kLate: at the wait that orders them, and where
/// others can be waited for by several threads only when nobody else can run; kEarly: when issued;
/// kRandom: any time in between.
enum class Delivery { kLate, kEarly, kRandom };

/// A named part of dynamic shared memory, for messages: `count` pieces of `bytes` from `offset` on.
struct Region {
  std::string name;
  u32 offset = 0;
  u32 bytes = 0;
  u32 count = 1;
};

/// Global memory that a kernel may touch.
struct GlobalRange {
  const void* begin = nullptr;
  std::size_t bytes = 0;
};

struct Options {
  Schedule schedule = Schedule::kForward;
  Delivery delivery = Delivery::kLate;
  bool check_races = false;  // happens-before check of every access of shared memory
  u64 seed = 1;
  std::vector<Region> regions = {};
  std::vector<GlobalRange> global = {};  // bounds of accesses by wrappers; empty: not checked
};

struct Dim3 {
  u32 x = 1;
  u32 y = 1;
  u32 z = 1;
};

struct Statistics {
  u64 switches = 0;            // of fibers
  u64 meetings = 0;            // warp-wide operations
  u64 copies = 0;              // cp.async and tensor copies
  u64 wgmmas = 0;              // of a warpgroup
  u64 ldmatrix_conflicts = 0;  // eight rows of one matrix that do not lie in different banks
};

/// A rule of the machine was broken. `kind` is one word: race, proxy, uninitialised, divergence,
/// deadlock, barrier, mbarrier, wgmma, tensor, bounds, alignment, unfinished, registers, launch.
struct Error : std::runtime_error {
  Error(std::string error_kind, const std::string& what)
      : std::runtime_error(what), kind(std::move(error_kind)) {}
  std::string kind;
};

/// Runs body() once per thread of the grid. Throws Error; every fiber is then abandoned.
Statistics launch(Dim3 grid, u32 threads, u32 shared_bytes, const Options& options,
                  const std::function<void()>& body);

// ---- thread identity ---------------------------------------------------------------------------

u32 thread_index();
u32 cta_index(u32 axis);
u32 shared_base();

// ---- memory ------------------------------------------------------------------------------------

void shared_load(u32 address, void* to, u32 bytes, Loc loc);
void shared_store(u32 address, const void* from, u32 bytes, Loc loc);
/// Alignment and bounds are checked; plain pointers are left to AddressSanitizer.
void global_load(const void* from, void* to, u32 bytes, Loc loc);
void global_store(void* to, const void* from, u32 bytes, Loc loc);
/// Returns what was there before.
float global_add_f32(float* to, float value, Loc loc);
u32 global_add_u32(u32* to, u32 value, Loc loc);

// ---- warp operations, barriers -----------------------------------------------------------------

void ldmatrix(u32 address, u32* rows, u32 matrices, bool transpose, Loc loc);
void stmatrix(u32 address, const u32* rows, u32 matrices, Loc loc);
void mma_m16n8k16(float* d, const u32* a, const u32* b, Element element, Loc loc);
u32 shuffle(u32 value, u32 source_lane, u32 mask, bool is_xor, Loc loc);
int redux_s32(int value, bool is_min, Loc loc);
u32 ballot(bool predicate, u32 mask, Loc loc);
void syncwarp(u32 mask, Loc loc);
void bar_sync(u32 id, u32 threads, Loc loc);
void bar_arrive(u32 id, u32 threads, Loc loc);

// ---- cp.async ----------------------------------------------------------------------------------

void cp_async_16(u32 to, const void* from, u32 valid_bytes, Loc loc);
void cp_async_commit(Loc loc);
void cp_async_wait(u32 pending_groups, Loc loc);

// ---- mbarriers, tensor copies ------------------------------------------------------------------

bool elect_one(Loc loc);
void setmaxnreg(u32 registers, Loc loc);
void mbarrier_init(u32 address, u32 arrivals, Loc loc);
/// Returns once the phase is complete: the instruction may suspend a thread, so it never fails.
void mbarrier_wait_parity(u32 address, u32 parity, Loc loc);
void mbarrier_arrive(u32 address, u32 expected_bytes, Loc loc);
void fence_mbarrier_init(Loc loc);
void fence_proxy_async(Loc loc);

/// The counterpart of cuTensorMapEncodeTiled. Throws Error where that would fail.
TensorMap encode_tensor_map(const TiledTensor& tensor);
void tensor_load(u32 to, const TensorMap& map, const std::array<int, 5>& coordinates, u32 mbarrier,
                 Loc loc);
void bulk_load(u32 to, const void* from, u32 bytes, u32 mbarrier, Loc loc);
void tensor_store(const TensorMap& map, u32 from, const std::array<int, 5>& coordinates, Loc loc);
void bulk_commit(Loc loc);
void bulk_wait(u32 pending_groups, bool only_read, Loc loc);

// ---- wgmma -------------------------------------------------------------------------------------

/// m64nNk16. a == nullptr: A comes from shared memory (desc_a).
void wgmma(u32 n, float* d, const u32* a, u64 desc_a, u64 desc_b, bool accumulate, bool mn_major_a,
           bool mn_major_b, Element element, Loc loc);
void wgmma_fence(Loc loc);
void wgmma_commit(Loc loc);
void wgmma_wait(u32 pending_groups, Loc loc);

// ---- arithmetic --------------------------------------------------------------------------------

/// NaN becomes 0x7fff, as on the device.
u16 f32_to_bf16(float value);
u16 f32_to_f16(float value);
float bf16_to_f32(u16 bits);
float f16_to_f32(u16 bits);
/// ex2, lg2 and rcp.approx.ftz: correctly rounded here, but subnormal operands and results are
/// zero.
float ex2(float x);
float lg2(float x);
float rcp(float x);
float max(float x, float y);
float min_nan(float x, float y);

}  // namespace stepwell::host_model
