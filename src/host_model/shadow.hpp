// The happens-before check of shared memory (Options::check_races).
//
// Actors are the CTA's threads and, in kernels that use mbarriers or wgmma, agents for what runs
// asynchronously: one for the copies that complete on an mbarrier, one for the products of a
// warpgroup. Every thread keeps a vector clock of all actors, joined at barriers, mbarriers and
// __syncwarp; every two bytes of shared memory remember their last writer and, per warp, their last
// reader. An access that is not ordered after a conflicting one is reported with both source lines,
// whatever the schedule.
//
// A second clock of every thread says what the asynchronous proxy may see through it:
// fence.proxy.async copies the first clock into the second, and barriers carry both. An
// asynchronous access of what ordinary stores have written needs it. A fence on either side of the
// barrier is accepted.
#pragma once

#include <cstddef>
#include <vector>

#include "host_model/host_model.hpp"

namespace stepwell::host_model {

using Clock = std::vector<u32>;

/// Who accesses memory: ordinary instructions and cp.async, or tensor copies and wgmma.
enum class Proxy { kGeneric, kAsync };

class Shadow {
 public:
  bool on = false;

  void reset(u32 threads, u32 shared_end);

  // ---- agents
  /// From here on there are agents and proxy clocks; before, none of their cost.
  void use_agents();
  u32 mbarrier_agent(u32 number) const { return threads_ + number % kMbarriers; }
  u32 warpgroup_agent(u32 index) const { return threads_ + kMbarriers + index; }
  /// Its time after one more step.
  u32 advance(u32 agent) { return ++agent_time_[agent - threads_]; }

  // ---- ordering
  void release(u32 thread, Clock& sync);        // sync |= thread; the thread's own time advances
  void acquire(u32 thread, const Clock& sync);  // thread |= sync
  /// An agent's step becomes part of what `sync` carries.
  void release_agent(u32 agent, u32 time, Clock& sync);
  /// The thread has seen an agent's step.
  void learn(u32 thread, u32 agent, u32 time);
  void fence_proxy(u32 thread);
  u32 now(u32 thread) const { return clock(thread)[thread]; }
  bool ordered(u32 thread, u32 actor, u32 time) const { return clock(thread)[actor] >= time; }
  bool proxied(u32 thread, u32 actor, u32 time) const {
    return clock(thread)[actors_ + actor] >= time;
  }

  // ---- accesses
  void read(u32 thread, u32 address, u32 bytes, Loc loc);
  void write(u32 thread, u32 address, u32 bytes, Loc loc);

  /// An asynchronous write lasts from its issue to its end; nobody may touch the bytes meanwhile.
  void begin_write(u32 thread, u32 address, u32 bytes, Proxy proxy, Loc loc);
  /// `actor` has written at its `time`.
  void end_write(u32 actor, u32 time, u32 address, u32 bytes, Proxy proxy, Loc loc);

  /// An asynchronous read likewise, by the asynchronous proxy; nobody may write the bytes
  /// meanwhile.
  void check_async_read(u32 thread, u32 address, u32 bytes, Loc loc);
  void begin_read(u32 address, u32 bytes, Loc loc);
  void end_read(u32 actor, u32 time, u32 address, u32 bytes, Loc loc);

 private:
  static constexpr u32 kGranule = 2;     // bytes: the smallest element that kernels store
  static constexpr u32 kMbarriers = 64;  // agents; more mbarriers share them

  struct Granule {
    u32 writer, time;
    u16 write_loc, flight_loc, read_flight_loc, reads_in_flight;
    bool written, in_flight, by_async_proxy;
  };
  struct Read {
    u32 actor, time;
    u16 loc;
  };

  u32* clock(u32 thread) { return &clocks_[std::size_t{thread} * stride_]; }
  const u32* clock(u32 thread) const { return &clocks_[std::size_t{thread} * stride_]; }
  /// Where an actor's reads are kept: a thread's with its warp's.
  u32 slot(u32 actor) const {
    return actor < threads_ ? actor / 32 : threads_ / 32 + actor - threads_ - kMbarriers;
  }
  u16 number(Loc loc);
  void check_after_writer(u32 thread, const Granule& granule, u32 address, const char* what,
                          Loc loc);
  void check_after_readers(u32 thread, u32 index, const char* what, Loc loc);
  template <class Visit>
  void each(u32 address, u32 bytes, Visit visit);

  u32 threads_ = 0;
  u32 actors_ = 0;
  u32 stride_ = 0;  // of clocks: actors_, and as much again for the proxy's
  u32 slots_ = 0;   // of reads
  std::vector<u32> clocks_;
  std::vector<u32> agent_time_;
  std::vector<Granule> granules_;
  std::vector<Read> reads_;  // [granule][slot]
  std::vector<Loc> locs_;
  u16 recent_[256] = {};  // numbers of lines, by line mod 256
};

}  // namespace stepwell::host_model
