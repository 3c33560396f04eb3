// The state of one running CTA. Internal to the model.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "host_model/fiber.hpp"
#include "host_model/host_model.hpp"
#include "host_model/shadow.hpp"

namespace stepwell::host_model {

constexpr u32 kSharedBase = 1024;          // where dynamic shared memory starts, as on sm_90
constexpr u32 kSharedLimit = 232448;       // bytes a CTA can have on sm_90
constexpr u32 kNeverWritten = 0x7fff7fff;  // NaN as bf16, f16 and f32
constexpr u32 kInFlight = 0xffffffff;      // NaN too; written over the target of a pending copy

struct CpAsync {
  u32 to;
  const void* from;
  u32 valid_bytes;
  bool delivered;
  Loc loc;
};

/// A tensor copy to global memory.
struct BulkStore {
  TensorMap map;
  std::array<int, 5> coordinates;
  u32 from;
  u32 bytes;
  bool source_read;
  std::vector<u8> data;  // what was read
  Loc loc;
};

struct Thread {
  u32 index = 0;
  bool done = false;
  const char* waits_for = nullptr;  // for the deadlock report
  u32 waits_for_id = 0;
  Loc loc{};
  Fiber fiber;
  std::deque<std::vector<CpAsync>> cp_groups;  // committed, oldest first
  std::vector<CpAsync> cp_open;                // not committed
  std::deque<std::vector<BulkStore>> bulk_groups;
  std::vector<BulkStore> bulk_open;
};

/// A point where the lanes of `mask` meet. The last lane to arrive does the work for all of them,
/// through pointers to each lane's operands.
struct Meeting {
  const char* op = nullptr;
  Loc loc{};
  u32 mask = 0;
  u32 arrived = 0;
  void* args[32];
};

/// Registers of one warp that wgmma is still going to write.
struct Accumulator {
  float* registers[32];
  u32 count;                 // of a lane, N / 2
  u32 pending;               // products issued and not executed
  std::vector<float> value;  // [32][count]
};

struct Warp {
  u32 index = 0;
  u32 runnable = 0;  // lanes
  u32 alive = 0;
  Meeting meetings[4];
  std::vector<Accumulator> accumulators;
  u64 wgmma_issued = 0;
  u64 wgmma_committed = 0;  // groups
  u64 wgmma_waited = 0;
  bool wgmma_fenced = false;
};

/// One product of a warpgroup: there is one once all four warps have issued it.
struct WgmmaOp {
  u32 n;
  bool a_in_registers;
  bool accumulate;
  bool mn_major_a;
  bool mn_major_b;
  Element element;
  u64 desc_a;
  u64 desc_b;
  Loc loc;
  u32 warps = 0;                  // that have issued it
  const float* accumulators[4];   // lane 0's, of each warp
  u32 a[4][32][4];                // A in registers, when issued
  const u32* a_registers[4][32];  // where it still lies
};

struct Warpgroup {
  std::deque<WgmmaOp> ops;    // issued, not executed; ops[0] is number `executed`
  u64 executed = 0;           // ops so far
  std::deque<u64> group_end;  // group g covers ops below group_end[g]
  u64 wanted = 0;             // somebody waits for the ops below
  std::vector<Thread*> waiting;
};

struct MBarrier {
  u32 number = 0;  // in order of initialisation
  u32 arrivals = 0;
  u32 pending = 0;
  i64 bytes = 0;  // expected and not there
  u64 phase = 0;
  Loc init{};
  u32 init_thread = 0;
  u32 init_time = 0;
  bool init_fenced = false;
  std::vector<Thread*> waiting;
  Clock sync;
  Clock done;
};

/// A tensor copy to shared memory.
struct TensorLoad {
  TensorMap map;
  std::array<int, 5> coordinates;
  u32 to;
  u32 bytes;
  u32 mbarrier;
  Loc loc;
};

struct NamedBarrier {
  u32 expected = 0;
  u32 arrived = 0;
  u32 warps = 0;  // that arrived in this generation
  u64 generation = 0;
  Loc first{};
  std::vector<Thread*> waiting;
  Clock sync;
  Clock done;
};

struct Machine {
  Options options;
  u32 cta[3] = {};
  const std::function<void()>* body = nullptr;
  std::vector<Stack> stacks;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<u8> shared;  // indexed by shared address
  NamedBarrier barriers[16];
  std::vector<Warpgroup> warpgroups;
  std::map<u32, MBarrier> mbarriers;  // by shared address
  std::deque<TensorLoad> loads;       // issued, not delivered
  Shadow shadow;
  Statistics statistics;
  Thread* current = nullptr;
  Fiber scheduler;
  u32 alive = 0;
  u64 random_state = 1;
  bool failed = false;
  std::string error_kind;
  std::string error;

  void start_cta(u32 thread_count, u32 shared_bytes);
  void run_cta();

  // From inside a fiber.
  [[noreturn]] void fail(const char* kind, const std::string& text);  // throws Error
  void block(const char* what, u32 id, Loc loc);                      // until wake()
  void wake(const Thread& thread);
  void wake_all(std::vector<Thread*>& list);
  void maybe_yield();  // random schedule: let somebody else run
  bool deliver_now();  // whether what is asynchronous takes effect when issued
  void finish_thread(Thread& thread);
  u32 random(u32 below);
  u32 lane() const { return current->index % 32; }
  Warp& warp() { return warps[current->index / 32]; }

  std::string where(u32 address) const;  // "k[1] + 512" if the options name it
  u8* shared_at(u32 address, u32 bytes, u32 alignment, Loc loc);
  void poison(u32 address, u32 bytes, u32 pattern);

  // What runs asynchronously (mbarriers.cpp, tensor_copies.cpp, wgmma.cpp).
  bool deliver_for_a_waiter();
  void deliver_load(std::size_t index);
  void complete_if_ready(MBarrier& barrier);
  void execute_wgmmas(u32 warpgroup, u64 end);
  void finish_cp_async(const Thread& thread);
  void finish_bulk_stores(Thread& thread);

 private:
  Warp* pick();
  void run_warp(Warp& warp);
  [[noreturn]] void report_deadlock();
};

extern thread_local Machine* machine;

using MeetingWork = void (*)(Warp& warp, u32 mask, void* const* args);
void meet(const char* op, Loc loc, u32 mask, void* args, MeetingWork work);

/// Fails unless `bytes` at `address` are global memory and aligned.
void check_global(const void* address, u32 bytes, u32 alignment, const char* what, Loc loc);

/// "file.cuh:12"
std::string at(Loc loc);
inline bool same(Loc a, Loc b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace stepwell::host_model
