#include "host_model/shadow.hpp"

#include <algorithm>

#include "host_model/machine.hpp"

namespace stepwell::host_model {

void Shadow::reset(u32 threads, u32 shared_end) {
  threads_ = actors_ = stride_ = threads;
  slots_ = threads / 32;
  clocks_.assign(std::size_t{threads} * stride_, 0);
  for (u32 t = 0; t < threads; ++t) clock(t)[t] = 1;
  agent_time_.clear();
  granules_.assign((shared_end + kGranule - 1) / kGranule, Granule{});
  reads_.assign(granules_.size() * slots_, Read{});
  if (locs_.empty()) locs_.push_back(Loc{});
}

void Shadow::use_agents() {
  if (!on || !agent_time_.empty()) return;
  const u32 warpgroups = (threads_ + 127) / 128;
  actors_ = threads_ + kMbarriers + warpgroups;
  agent_time_.assign(kMbarriers + warpgroups, 0);
  // What barriers carry already is a prefix of the longer clocks.
  std::vector<u32> clocks(std::size_t{threads_} * 2 * actors_, 0);
  for (u32 t = 0; t < threads_; ++t) {
    std::copy(clock(t), clock(t) + threads_, &clocks[std::size_t{t} * 2 * actors_]);
  }
  clocks_ = std::move(clocks);
  stride_ = 2 * actors_;
  const u32 slots = slots_ + warpgroups;
  std::vector<Read> reads(granules_.size() * slots, Read{});
  for (std::size_t i = 0; i < granules_.size(); ++i) {
    std::copy(&reads_[i * slots_], &reads_[i * slots_] + slots_, &reads[i * slots]);
  }
  reads_ = std::move(reads);
  slots_ = slots;
}

u16 Shadow::number(Loc loc) {
  u16& recent = recent_[static_cast<u32>(loc.line) % 256];
  const Loc known = locs_[recent];
  if (known.line == loc.line && known.file == loc.file) return recent;
  for (std::size_t i = locs_.size(); i-- > 1;) {
    if (same(locs_[i], loc)) return recent = static_cast<u16>(i);
  }
  locs_.push_back(loc);
  return recent = static_cast<u16>(locs_.size() - 1);
}

template <class Visit>
void Shadow::each(u32 address, u32 bytes, Visit visit) {
  const u32 end = (address + bytes + kGranule - 1) / kGranule;
  for (u32 i = address / kGranule; i < end; ++i) visit(granules_[i], i);
}

// ---- ordering ----------------------------------------------------------------------------------

void Shadow::release(u32 thread, Clock& sync) {
  if (sync.size() < stride_) sync.resize(stride_);
  const u32* c = clock(thread);
  for (u32 i = 0; i < stride_; ++i) sync[i] = std::max(sync[i], c[i]);
  ++clock(thread)[thread];
}

void Shadow::acquire(u32 thread, const Clock& sync) {
  u32* c = clock(thread);
  const u32 size = std::min(static_cast<u32>(sync.size()), stride_);
  for (u32 i = 0; i < size; ++i) c[i] = std::max(sync[i], c[i]);
}

void Shadow::release_agent(u32 agent, u32 time, Clock& sync) {
  if (sync.size() < stride_) sync.resize(stride_);
  sync[agent] = std::max(sync[agent], time);
}

void Shadow::learn(u32 thread, u32 agent, u32 time) {
  clock(thread)[agent] = std::max(clock(thread)[agent], time);
}

void Shadow::fence_proxy(u32 thread) {
  u32* c = clock(thread);
  for (u32 i = 0; i < actors_; ++i) c[actors_ + i] = std::max(c[actors_ + i], c[i]);
  ++c[thread];  // what the thread writes from here on is not covered
}

// ---- accesses ----------------------------------------------------------------------------------

void Shadow::check_after_writer(u32 thread, const Granule& granule, u32 address, const char* what,
                                Loc loc) {
  if (granule.in_flight) {
    machine->fail("race",
                  fmt::format("{} of {} at {} while the copy from {} is in flight", what,
                              machine->where(address), at(loc), at(locs_[granule.flight_loc])));
  }
  if (granule.written && !ordered(thread, granule.writer, granule.time)) {
    machine->fail("race",
                  fmt::format("{} of {} at {} is not ordered after the write at {}", what,
                              machine->where(address), at(loc), at(locs_[granule.write_loc])));
  }
}

void Shadow::check_after_readers(u32 thread, u32 index, const char* what, Loc loc) {
  const Granule& granule = granules_[index];
  if (granule.reads_in_flight != 0) {
    machine->fail("race", fmt::format("{} of {} at {} while the asynchronous read from {} is in "
                                      "flight",
                                      what, machine->where(index * kGranule), at(loc),
                                      at(locs_[granule.read_flight_loc])));
  }
  const Read* reads = &reads_[std::size_t{index} * slots_];
  for (u32 s = 0; s < slots_; ++s) {
    if (reads[s].time != 0 && !ordered(thread, reads[s].actor, reads[s].time)) {
      machine->fail(
          "race", fmt::format("{} of {} at {} is not ordered after the read at {}", what,
                              machine->where(index * kGranule), at(loc), at(locs_[reads[s].loc])));
    }
  }
}

void Shadow::read(u32 thread, u32 address, u32 bytes, Loc loc) {
  if (!on) return;
  const u16 line = number(loc);
  each(address, bytes, [&](Granule& granule, u32 i) {
    if (!granule.written && !granule.in_flight) {
      machine->fail("uninitialised", fmt::format("read of {}, never written, at {}",
                                                 machine->where(i * kGranule), at(loc)));
    }
    check_after_writer(thread, granule, i * kGranule, "read", loc);
    reads_[std::size_t{i} * slots_ + slot(thread)] = {thread, now(thread), line};
  });
}

void Shadow::write(u32 thread, u32 address, u32 bytes, Loc loc) {
  if (!on) return;
  const u16 line = number(loc);
  each(address, bytes, [&](Granule& granule, u32 i) {
    check_after_writer(thread, granule, i * kGranule, "write", loc);
    check_after_readers(thread, i, "write", loc);
    granule.written = true;
    granule.writer = thread;
    granule.time = now(thread);
    granule.write_loc = line;
    granule.by_async_proxy = false;
  });
}

void Shadow::begin_write(u32 thread, u32 address, u32 bytes, Proxy proxy, Loc loc) {
  if (!on) return;
  const u16 line = number(loc);
  each(address, bytes, [&](Granule& granule, u32 i) {
    check_after_writer(thread, granule, i * kGranule, "asynchronous write", loc);
    check_after_readers(thread, i, "asynchronous write", loc);
    if (proxy == Proxy::kAsync && granule.written && !granule.by_async_proxy &&
        !proxied(thread, granule.writer, granule.time)) {
      machine->fail("proxy", fmt::format("asynchronous write of {} at {} over what {} has written, "
                                         "with no fence.proxy.async between",
                                         machine->where(i * kGranule), at(loc),
                                         at(locs_[granule.write_loc])));
    }
    granule.in_flight = true;
    granule.flight_loc = line;
  });
}

void Shadow::end_write(u32 actor, u32 time, u32 address, u32 bytes, Proxy proxy, Loc loc) {
  if (!on) return;
  const u16 line = number(loc);
  each(address, bytes, [&](Granule& granule, u32) {
    granule.in_flight = false;
    granule.written = true;
    granule.writer = actor;
    granule.time = time;
    granule.write_loc = line;
    granule.by_async_proxy = proxy == Proxy::kAsync;
  });
}

void Shadow::check_async_read(u32 thread, u32 address, u32 bytes, Loc loc) {
  if (!on) return;
  each(address, bytes, [&](const Granule& granule, u32 i) {
    if (!granule.written && !granule.in_flight) {
      machine->fail("uninitialised", fmt::format("asynchronous read of {}, never written, at {}",
                                                 machine->where(i * kGranule), at(loc)));
    }
    check_after_writer(thread, granule, i * kGranule, "asynchronous read", loc);
    if (!granule.by_async_proxy && !proxied(thread, granule.writer, granule.time)) {
      machine->fail("proxy", fmt::format("asynchronous read of {} at {} of what {} has written, "
                                         "with no fence.proxy.async between",
                                         machine->where(i * kGranule), at(loc),
                                         at(locs_[granule.write_loc])));
    }
  });
}

void Shadow::begin_read(u32 address, u32 bytes, Loc loc) {
  if (!on) return;
  const u16 line = number(loc);
  each(address, bytes, [&](Granule& granule, u32) {
    ++granule.reads_in_flight;
    granule.read_flight_loc = line;
  });
}

void Shadow::end_read(u32 actor, u32 time, u32 address, u32 bytes, Loc loc) {
  if (!on) return;
  const u16 line = number(loc);
  each(address, bytes, [&](Granule& granule, u32 i) {
    --granule.reads_in_flight;
    reads_[std::size_t{i} * slots_ + slot(actor)] = {actor, time, line};
  });
}

}  // namespace stepwell::host_model
