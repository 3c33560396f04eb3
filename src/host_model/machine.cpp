// Scheduling, meeting points, errors.
#include <algorithm>

#include "host_model/machine.hpp"

namespace stepwell::host_model {

thread_local Machine* machine = nullptr;

namespace {

// Frames are large in sanitized builds, where a kernel is hundreds of variables that share no slot.
#if defined(STEPWELL_FIBER_ASAN)
constexpr std::size_t kStackBytes = 1 << 20;
#else
constexpr std::size_t kStackBytes = 256 << 10;
#endif

void run_thread(Machine& m) {
  (*m.body)();
  m.finish_thread(*m.current);
  Warp& warp = m.warp();
  warp.alive &= ~(1u << m.lane());
  warp.runnable &= ~(1u << m.lane());
  for (const Meeting& meeting : warp.meetings) {
    if (meeting.op != nullptr && (meeting.mask >> m.lane() & 1) != 0) {
      m.fail("divergence", fmt::format("thread {} exited while its warp waits for it at {} ({})",
                                       m.current->index, meeting.op, at(meeting.loc)));
    }
  }
  m.current->done = true;
  --m.alive;
}

void fiber_entry() {
  Machine& m = *machine;
  enter_fiber(m.scheduler);
  try {
    run_thread(m);
  } catch (const Error& error) {  // leave the handler before switching away
    m.failed = true;
    m.error_kind = error.kind;
    m.error = error.what();
  }
  ++m.statistics.switches;
  switch_fiber(m.current->fiber, m.scheduler);
  __builtin_unreachable();
}

}  // namespace

std::string at(Loc loc) {
  if (loc.file == nullptr) return "?";
  const char* slash = std::strrchr(loc.file, '/');
  return fmt::format("{}:{}", slash != nullptr ? slash + 1 : loc.file, loc.line);
}

void Machine::fail(const char* kind, const std::string& text) {
  std::string who = fmt::format("CTA ({}, {}, {})", cta[0], cta[1], cta[2]);
  if (current != nullptr) {
    who += fmt::format(", warp {}, lane {}", current->index / 32, current->index % 32);
  }
  throw Error(kind, who + ": " + text);
}

u32 Machine::random(u32 below) {  // SplitMix64
  u64 z = (random_state += 0x9e3779b97f4a7c15ull);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return static_cast<u32>((z ^ z >> 31) % below);
}

// ---- scheduling --------------------------------------------------------------------------------

Warp* Machine::pick() {
  const u32 count = static_cast<u32>(warps.size());
  const u32 start = options.schedule == Schedule::kRandom ? random(count) : 0;
  for (u32 i = 0; i < count; ++i) {
    u32 w = start + i < count ? start + i : start + i - count;
    if (options.schedule == Schedule::kReverse) w = count - 1 - w;
    if (warps[w].runnable != 0) return &warps[w];
  }
  return nullptr;
}

void Machine::run_warp(Warp& warp) {
  const u32 turn = options.schedule == Schedule::kRandom ? random(32) : 0;
  for (u32 i = 0; i < 32; ++i) {
    u32 lane = (i + turn) % 32;
    if (options.schedule == Schedule::kReverse) lane = 31 - lane;
    if ((warp.runnable >> lane & 1) == 0) continue;
    current = &threads[warp.index * 32 + lane];
    ++statistics.switches;
    switch_fiber(scheduler, current->fiber);
    current = nullptr;
    if (failed) throw Error(error_kind, error);
  }
}

void Machine::run_cta() {
  while (alive != 0) {
    if (options.delivery == Delivery::kRandom && !loads.empty() && random(4) == 0) {
      deliver_load(random(static_cast<u32>(loads.size())));
    }
    Warp* warp = pick();
    if (warp != nullptr) {
      run_warp(*warp);
    } else if (!deliver_for_a_waiter()) {
      report_deadlock();
    }
  }
  if (!loads.empty()) {
    fail("unfinished",
         fmt::format("the CTA exits with the copy of {} in flight", at(loads[0].loc)));
  }
}

/// Nobody can run. Completes one thing that somebody waits for, products of a warpgroup or copies
/// of an mbarrier; false if there is none.
bool Machine::deliver_for_a_waiter() {
  struct Candidate {
    bool is_wgmma;
    u32 which;  // warpgroup, or address of the mbarrier
  };
  std::vector<Candidate> wanted;
  for (u32 group = 0; group < warpgroups.size(); ++group) {
    if (warpgroups[group].wanted > warpgroups[group].executed) wanted.push_back({true, group});
  }
  for (const auto& [address, barrier] : mbarriers) {
    const auto completes_here = [address = address](const TensorLoad& load) {
      return load.mbarrier == address;
    };
    if (!barrier.waiting.empty() && std::any_of(loads.begin(), loads.end(), completes_here)) {
      wanted.push_back({false, address});
    }
  }
  if (wanted.empty()) return false;
  const Candidate pick = options.schedule == Schedule::kRandom
                             ? wanted[random(static_cast<u32>(wanted.size()))]
                         : options.schedule == Schedule::kReverse ? wanted.back()
                                                                  : wanted.front();
  if (pick.is_wgmma) {
    execute_wgmmas(pick.which, warpgroups[pick.which].wanted);
    return true;
  }
  const MBarrier& barrier = mbarriers.at(pick.which);
  const u64 phase = barrier.phase;
  for (std::size_t i = 0; i < loads.size() && barrier.phase == phase;) {
    if (loads[i].mbarrier == pick.which) {
      deliver_load(i);
    } else {
      ++i;
    }
  }
  return true;
}

void Machine::report_deadlock() {
  std::string text = "deadlock; every thread that is left waits:";
  for (std::size_t i = 0; i < threads.size();) {
    if (threads[i].done) {
      ++i;
      continue;
    }
    const Thread& t = threads[i];
    std::size_t end = i + 1;
    while (end < threads.size() && !threads[end].done && threads[end].waits_for == t.waits_for &&
           threads[end].waits_for_id == t.waits_for_id && same(threads[end].loc, t.loc)) {
      ++end;
    }
    text += fmt::format("\n  threads {}-{}: {}", i, end - 1, t.waits_for);
    if (std::strcmp(t.waits_for, "bar.sync") == 0) {
      const NamedBarrier& barrier = barriers[t.waits_for_id];
      text += fmt::format(" {} ({} of {} threads arrived)", t.waits_for_id, barrier.arrived,
                          barrier.expected);
    } else if (std::strcmp(t.waits_for, "mbarrier.try_wait") == 0) {
      const MBarrier& barrier = mbarriers.at(t.waits_for_id);
      text += fmt::format(
          " of {}, initialised at {} (phase {}: {} of {} arrivals and {} bytes are missing)",
          where(t.waits_for_id), at(barrier.init), barrier.phase, barrier.pending, barrier.arrivals,
          barrier.bytes);
    }
    text += " at " + at(t.loc);
    i = end;
  }
  fail("deadlock", text);
}

void Machine::block(const char* what, u32 id, Loc loc) {
  Thread& t = *current;
  t.waits_for = what;
  t.waits_for_id = id;
  t.loc = loc;
  warp().runnable &= ~(1u << lane());
  ++statistics.switches;
  switch_fiber(t.fiber, scheduler);
}

void Machine::wake(const Thread& thread) {
  warps[thread.index / 32].runnable |= 1u << thread.index % 32;
}

void Machine::wake_all(std::vector<Thread*>& list) {
  for (const Thread* thread : list) wake(*thread);
  list.clear();
}

void Machine::maybe_yield() {
  if (options.schedule != Schedule::kRandom || random(4) != 0) return;
  ++statistics.switches;
  switch_fiber(current->fiber, scheduler);
}

bool Machine::deliver_now() {
  return options.delivery == Delivery::kEarly ||
         (options.delivery == Delivery::kRandom && random(2) == 0);
}

/// What must be true when a thread returns from the kernel.
void Machine::finish_thread(Thread& thread) {
  finish_cp_async(thread);
  finish_bulk_stores(thread);
  const Warp& mine = warps[thread.index / 32];
  if (mine.wgmma_issued > mine.wgmma_waited) {
    fail("unfinished", "the thread exits with a wgmma in flight");
  }
}

// ---- shared memory -----------------------------------------------------------------------------

std::string Machine::where(u32 address) const {
  for (const Region& region : options.regions) {
    const u32 start = kSharedBase + region.offset;
    const u32 inside = address - start;
    if (address < start || inside >= region.bytes * region.count) continue;
    const std::string index =
        region.count > 1 ? fmt::format("[{}]", inside / region.bytes) : std::string();
    return fmt::format("{}{} + {} (shared address {})", region.name, index, inside % region.bytes,
                       address);
  }
  return fmt::format("shared address {}", address);
}

u8* Machine::shared_at(u32 address, u32 bytes, u32 alignment, Loc loc) {
  if (address < kSharedBase || u64{address} + bytes > shared.size()) {
    fail("bounds", fmt::format("shared memory [{}, {}) is outside [{}, {}) at {}", address,
                               u64{address} + bytes, kSharedBase, shared.size(), at(loc)));
  }
  if (address % alignment != 0) {
    fail("alignment",
         fmt::format("{} is not aligned to {} bytes at {}", where(address), alignment, at(loc)));
  }
  return &shared[address];
}

void Machine::poison(u32 address, u32 bytes, u32 pattern) {
  for (u32 i = 0; i < bytes; ++i) {
    shared[address + i] = static_cast<u8>(pattern >> 8 * ((address + i) % 4));
  }
}

// ---- meeting points ----------------------------------------------------------------------------

void meet(const char* op, Loc loc, u32 mask, void* args, MeetingWork work) {
  Machine& m = *machine;
  Warp& warp = m.warp();
  const u32 lane = m.lane();
  if ((mask >> lane & 1) == 0) {
    m.fail("divergence", fmt::format("{}: the lane is not in its own mask, at {}", op, at(loc)));
  }
  if ((mask & ~warp.alive) != 0) {
    m.fail("divergence", fmt::format("{} at {} waits for lanes that have exited", op, at(loc)));
  }
  Meeting* place = nullptr;
  for (Meeting& other : warp.meetings) {
    if (other.op == nullptr) {
      if (place == nullptr) place = &other;
    } else if ((other.mask & mask) != 0) {
      if (!same(other.loc, loc) || other.mask != mask || std::strcmp(other.op, op) != 0) {
        m.fail("divergence", fmt::format("{} at {} meets {} at {} in the same warp", op, at(loc),
                                         other.op, at(other.loc)));
      }
      place = &other;
      break;
    }
  }
  if (place == nullptr) m.fail("model", "more than four meetings of parts of one warp at once");
  if (place->op == nullptr) {
    place->op = op;
    place->loc = loc;
    place->mask = mask;
    place->arrived = 0;
  }
  place->args[lane] = args;
  place->arrived |= 1u << lane;
  if (place->arrived != mask) {
    m.block(op, 0, loc);
    return;
  }
  void* all[32];
  std::memcpy(all, place->args, sizeof all);
  place->op = nullptr;
  ++m.statistics.meetings;
  warp.runnable |= mask & warp.alive;
  work(warp, mask, all);
}

// ---- launching ---------------------------------------------------------------------------------

u32 thread_index() { return machine->current->index; }
u32 cta_index(u32 axis) { return machine->cta[axis]; }
u32 shared_base() { return kSharedBase; }

void Machine::start_cta(u32 thread_count, u32 shared_bytes) {
  failed = false;
  current = nullptr;
  alive = thread_count;
  threads.clear();
  threads.resize(thread_count);
  warps.clear();
  warps.resize(thread_count / 32);
  for (NamedBarrier& barrier : barriers) barrier = {};
  warpgroups.clear();
  warpgroups.resize((thread_count + 127) / 128);
  mbarriers.clear();
  loads.clear();
  shared.resize(kSharedBase + shared_bytes);
  poison(0, static_cast<u32>(shared.size()), kNeverWritten);
  shadow.on = options.check_races;
  if (shadow.on) shadow.reset(thread_count, kSharedBase + shared_bytes);
  for (u32 w = 0; w < warps.size(); ++w) {
    warps[w].index = w;
    warps[w].runnable = warps[w].alive = 0xffffffffu;
  }
  for (u32 t = 0; t < thread_count; ++t) {
    threads[t].index = t;
    start_fiber(threads[t].fiber, stacks[t], fiber_entry);
  }
}

Statistics launch(Dim3 grid, u32 thread_count, u32 shared_bytes, const Options& options,
                  const std::function<void()>& body) {
  if (thread_count % 32 != 0 || thread_count == 0 || thread_count > 1024) {
    throw Error("launch", fmt::format("{} threads; accepted are multiples of 32 from 32 to 1024",
                                      thread_count));
  }
  if (shared_bytes > kSharedLimit) {
    throw Error("launch", fmt::format("{} bytes of shared memory; accepted are at most {}",
                                      shared_bytes, kSharedLimit));
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535) {
    throw Error("launch", fmt::format("a grid of {} x {} x {}; accepted are 1 to 2^31 - 1, 65535 "
                                      "and 65535 CTAs",
                                      grid.x, grid.y, grid.z));
  }
  static thread_local Machine storage;
  Machine& m = storage;
  machine = &m;
  m.options = options;
  m.body = &body;
  m.statistics = {};
  m.random_state = options.seed;
  while (m.stacks.size() < thread_count) m.stacks.emplace_back(kStackBytes);
  const u64 ctas = u64{grid.x} * grid.y * grid.z;
  for (u64 i = 0; i < ctas; ++i) {
    const u64 cta = options.schedule == Schedule::kReverse ? ctas - 1 - i : i;
    m.cta[0] = static_cast<u32>(cta % grid.x);
    m.cta[1] = static_cast<u32>(cta / grid.x % grid.y);
    m.cta[2] = static_cast<u32>(cta / grid.x / grid.y);
    m.start_cta(thread_count, shared_bytes);
    m.run_cta();
  }
  return m.statistics;
}

}  // namespace stepwell::host_model
