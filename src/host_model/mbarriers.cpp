// elect.sync, setmaxnreg, mbarrier, fences.
#include "host_model/machine.hpp"

namespace stepwell::host_model {

/// Any lane may be elected; the reverse schedule elects the last, so that a kernel which means lane
/// 0 is found out.
bool elect_one(Loc loc) {
  bool elected = false;
  meet("elect.sync", loc, 0xffffffffu, &elected, [](Warp&, u32, void* const* args) {
    const bool last = machine->options.schedule == Schedule::kReverse;
    *static_cast<bool*>(args[last ? 31 : 0]) = true;
  });
  return elected;
}

void setmaxnreg(u32 registers, Loc loc) {
  if (registers < 24 || registers > 256 || registers % 8 != 0) {
    machine->fail("registers", fmt::format("setmaxnreg {} at {}; accepted are multiples of 8 from "
                                           "24 to 256",
                                           registers, at(loc)));
  }
  meet("setmaxnreg", loc, 0xffffffffu, nullptr, [](Warp&, u32, void* const*) {});
}

namespace {

MBarrier& find(u32 address, const char* op, Loc loc) {
  Machine& m = *machine;
  const auto found = m.mbarriers.find(address);
  if (found == m.mbarriers.end()) {
    m.fail("mbarrier",
           fmt::format("{} at {}: there is no mbarrier at {}", op, at(loc), m.where(address)));
  }
  const MBarrier& barrier = found->second;
  if (m.shadow.on && !m.shadow.ordered(m.current->index, barrier.init_thread, barrier.init_time)) {
    m.fail("race", fmt::format("{} at {} is not ordered after mbarrier.init at {}", op, at(loc),
                               at(barrier.init)));
  }
  return found->second;
}

}  // namespace

void Machine::complete_if_ready(MBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
  barrier.done = barrier.sync;
  wake_all(barrier.waiting);
}

void mbarrier_init(u32 address, u32 arrivals, Loc loc) {
  Machine& m = *machine;
  m.shared_at(address, 8, 8, loc);
  if (m.mbarriers.count(address) != 0) {
    m.fail("mbarrier", fmt::format("mbarrier.init at {} of {}, which is one already", at(loc),
                                   m.where(address)));
  }
  if (arrivals == 0 || arrivals > 0xfffff) {
    m.fail("mbarrier", fmt::format("mbarrier.init at {} with {} arrivals; accepted are 1 to 2^20 - "
                                   "1",
                                   at(loc), arrivals));
  }
  const u32 thread = m.current->index;
  m.shadow.use_agents();
  m.shadow.write(thread, address, 8, loc);
  MBarrier barrier;
  barrier.number = static_cast<u32>(m.mbarriers.size());
  barrier.arrivals = barrier.pending = arrivals;
  barrier.init = loc;
  barrier.init_thread = thread;
  barrier.init_time = m.shadow.on ? m.shadow.now(thread) : 0;
  m.mbarriers.emplace(address, std::move(barrier));
}

void mbarrier_arrive(u32 address, u32 expected_bytes, Loc loc) {
  Machine& m = *machine;
  MBarrier& barrier = find(address, "mbarrier.arrive", loc);
  if (barrier.pending == 0) {
    m.fail("mbarrier",
           fmt::format("mbarrier.arrive at {}: all {} arrivals of this phase of {} have "
                       "been made already",
                       at(loc), barrier.arrivals, m.where(address)));
  }
  if (m.shadow.on) m.shadow.release(m.current->index, barrier.sync);
  barrier.bytes += expected_bytes;
  --barrier.pending;
  m.complete_if_ready(barrier);
  m.maybe_yield();
}

void mbarrier_wait_parity(u32 address, u32 parity, Loc loc) {
  Machine& m = *machine;
  MBarrier& barrier = find(address, "mbarrier.try_wait", loc);
  while ((barrier.phase & 1) == parity) {
    barrier.waiting.push_back(m.current);
    m.block("mbarrier.try_wait", address, loc);
  }
  if (m.shadow.on) m.shadow.acquire(m.current->index, barrier.done);
}

void fence_mbarrier_init(Loc) {
  Machine& m = *machine;
  for (auto& [address, barrier] : m.mbarriers) {
    if (barrier.init_thread == m.current->index) barrier.init_fenced = true;
  }
}

void fence_proxy_async(Loc) {
  Shadow& shadow = machine->shadow;
  if (!shadow.on) return;
  shadow.use_agents();
  shadow.fence_proxy(machine->current->index);
}

}  // namespace stepwell::host_model
