#include "host_model/shadow.hpp"

#include <algorithm>

#include "host_model/machine.hpp"

namespace stepwell::host_model {

void Shadow::reset(u32 threads, u32 shared_end) {
  threads_ = threads;
  warps_ = threads / 32;
  clocks_.assign(std::size_t{threads} * threads, 0);
  for (u32 t = 0; t < threads; ++t) clock(t)[t] = 1;
  granules_.assign((shared_end + kGranule - 1) / kGranule, Granule{});
  reads_.assign(granules_.size() * warps_, Read{});
  if (locs_.empty()) locs_.push_back(Loc{});
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
  sync.resize(threads_);
  const u32* c = clock(thread);
  for (u32 i = 0; i < threads_; ++i) sync[i] = std::max(sync[i], c[i]);
  ++clock(thread)[thread];
}

void Shadow::acquire(u32 thread, const Clock& sync) {
  if (sync.empty()) return;
  u32* c = clock(thread);
  for (u32 i = 0; i < threads_; ++i) c[i] = std::max(sync[i], c[i]);
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
  const Read* reads = &reads_[std::size_t{index} * warps_];
  for (u32 w = 0; w < warps_; ++w) {
    if (reads[w].time != 0 && !ordered(thread, reads[w].thread, reads[w].time)) {
      machine->fail(
          "race", fmt::format("{} of {} at {} is not ordered after the read at {}", what,
                              machine->where(index * kGranule), at(loc), at(locs_[reads[w].loc])));
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
    reads_[std::size_t{i} * warps_ + thread / 32] = {thread, now(thread), line};
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
  });
}

void Shadow::begin_write(u32 thread, u32 address, u32 bytes, Loc loc) {
  if (!on) return;
  const u16 line = number(loc);
  each(address, bytes, [&](Granule& granule, u32 i) {
    check_after_writer(thread, granule, i * kGranule, "asynchronous write", loc);
    check_after_readers(thread, i, "asynchronous write", loc);
    granule.in_flight = true;
    granule.flight_loc = line;
  });
}

void Shadow::end_write(u32 thread, u32 address, u32 bytes, Loc loc) {
  if (!on) return;
  const u16 line = number(loc);
  each(address, bytes, [&](Granule& granule, u32) {
    granule.in_flight = false;
    granule.written = true;
    granule.writer = thread;
    granule.time = now(thread);
    granule.write_loc = line;
  });
}

}  // namespace stepwell::host_model
