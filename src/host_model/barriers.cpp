// bar.warp.sync, bar.sync, bar.arrive.
#include "host_model/machine.hpp"

namespace stepwell::host_model {

void syncwarp(u32 mask, Loc loc) {
  meet("bar.warp.sync", loc, mask, nullptr, [](Warp& warp, u32 lanes, void* const*) {
    Shadow& shadow = machine->shadow;
    if (!shadow.on) return;
    static thread_local Clock sync;
    sync.clear();
    for (u32 i = 0; i < 32; ++i) {
      if ((lanes >> i & 1) != 0) shadow.release(warp.index * 32 + i, sync);
    }
    for (u32 i = 0; i < 32; ++i) {
      if ((lanes >> i & 1) != 0) shadow.acquire(warp.index * 32 + i, sync);
    }
  });
}

namespace {

struct BarrierArgs {
  u32 id, threads;
  Loc loc;
  u64 generation;  // the one this thread takes part in
};

void arrive_warp(Warp& warp, u32, void* const* args) {
  Machine& m = *machine;
  const auto* first = static_cast<const BarrierArgs*>(args[0]);
  NamedBarrier& barrier = m.barriers[first->id];
  for (u32 i = 0; i < 32; ++i) {
    auto* mine = static_cast<BarrierArgs*>(args[i]);
    if (mine->id != first->id || mine->threads != first->threads) {
      m.fail("divergence",
             fmt::format("lanes name different barriers or counts at {}", at(mine->loc)));
    }
    mine->generation = barrier.generation;
  }
  if (barrier.arrived != 0 && barrier.expected != first->threads) {
    m.fail("barrier",
           fmt::format("barrier {}: {} threads at {} but {} at {}", first->id, first->threads,
                       at(first->loc), barrier.expected, at(barrier.first)));
  }
  if ((barrier.warps >> warp.index & 1) != 0) {
    m.fail("barrier", fmt::format("barrier {}: the warp arrives twice in one generation, at {}",
                                  first->id, at(first->loc)));
  }
  if (barrier.arrived == 0) barrier.first = first->loc;
  barrier.expected = first->threads;
  barrier.arrived += 32;
  barrier.warps |= 1u << warp.index;
  if (m.shadow.on) {
    for (u32 i = 0; i < 32; ++i) m.shadow.release(warp.index * 32 + i, barrier.sync);
  }
  if (barrier.arrived < barrier.expected) return;
  barrier.arrived = barrier.warps = 0;
  barrier.done = barrier.sync;
  ++barrier.generation;
  m.wake_all(barrier.waiting);
}

u64 arrive(const char* op, u32 id, u32 threads, Loc loc) {
  Machine& m = *machine;
  if (id >= 16 || threads % 32 != 0 || threads == 0 || threads > m.threads.size()) {
    m.fail(
        "barrier",
        fmt::format("{} {}, {} at {}: the id must be below 16, the count a multiple of 32 and at "
                    "most the CTA's {} threads",
                    op, id, threads, at(loc), m.threads.size()));
  }
  BarrierArgs args{id, threads, loc, 0};
  meet(op, loc, 0xffffffffu, &args, arrive_warp);
  return args.generation;
}

}  // namespace

void bar_sync(u32 id, u32 threads, Loc loc) {
  Machine& m = *machine;
  const u64 generation = arrive("bar.sync", id, threads, loc);
  NamedBarrier& barrier = m.barriers[id];
  while (barrier.generation == generation) {
    barrier.waiting.push_back(m.current);
    m.block("bar.sync", id, loc);
  }
  if (m.shadow.on) m.shadow.acquire(m.current->index, barrier.done);
}

void bar_arrive(u32 id, u32 threads, Loc loc) {
  arrive("bar.arrive", id, threads, loc);
  machine->maybe_yield();
}

}  // namespace stepwell::host_model
