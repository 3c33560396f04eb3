// The state of one running CTA. Internal to the model.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <functional>
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

struct Thread {
  u32 index = 0;
  bool done = false;
  const char* waits_for = nullptr;  // for the deadlock report
  u32 waits_for_id = 0;
  Loc loc{};
  Fiber fiber;
  std::deque<std::vector<CpAsync>> cp_groups;  // committed, oldest first
  std::vector<CpAsync> cp_open;                // not committed
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

struct Warp {
  u32 index = 0;
  u32 runnable = 0;  // lanes
  u32 alive = 0;
  Meeting meetings[4];
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
  bool deliver_now();  // whether a copy takes effect when issued
  void finish_thread(const Thread& thread);
  u32 random(u32 below);
  u32 lane() const { return current->index % 32; }
  Warp& warp() { return warps[current->index / 32]; }

  std::string where(u32 address) const;  // "k[1] + 512" if the options name it
  u8* shared_at(u32 address, u32 bytes, u32 alignment, Loc loc);
  void poison(u32 address, u32 bytes, u32 pattern);

 private:
  Warp* pick();
  void run_warp(Warp& warp);
  [[noreturn]] void report_deadlock();
};

extern thread_local Machine* machine;

using MeetingWork = void (*)(Warp& warp, u32 mask, void* const* args);
void meet(const char* op, Loc loc, u32 mask, void* args, MeetingWork work);

/// "file.cuh:12"
std::string at(Loc loc);
inline bool same(Loc a, Loc b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace stepwell::host_model
