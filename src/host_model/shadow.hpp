// The happens-before check of shared memory (Options::check_races).
//
// Every thread keeps a vector clock of all threads, joined at barriers and __syncwarp; every two
// bytes of shared memory remember their last writer and, per warp, their last reader. An access
// that is not ordered after a conflicting one is reported with both source lines, whatever the
// schedule.
#pragma once

#include <cstddef>
#include <vector>

#include "host_model/host_model.hpp"

namespace stepwell::host_model {

using Clock = std::vector<u32>;

class Shadow {
 public:
  bool on = false;

  void reset(u32 threads, u32 shared_end);

  // Ordering.
  void release(u32 thread, Clock& sync);        // sync |= thread; the thread's own time advances
  void acquire(u32 thread, const Clock& sync);  // thread |= sync

  void read(u32 thread, u32 address, u32 bytes, Loc loc);
  void write(u32 thread, u32 address, u32 bytes, Loc loc);

  // An asynchronous write lasts from its issue to the issuing thread's wait; nobody may touch the
  // bytes meanwhile.
  void begin_write(u32 thread, u32 address, u32 bytes, Loc loc);
  void end_write(u32 thread, u32 address, u32 bytes, Loc loc);

 private:
  static constexpr u32 kGranule = 2;  // bytes: the smallest element that kernels store

  struct Granule {
    u32 writer, time;
    u16 write_loc, flight_loc;
    bool written, in_flight;
  };
  struct Read {
    u32 thread, time;
    u16 loc;
  };

  u32* clock(u32 thread) { return &clocks_[std::size_t{thread} * threads_]; }
  u32 now(u32 thread) { return clock(thread)[thread]; }
  bool ordered(u32 thread, u32 other, u32 time) { return clock(thread)[other] >= time; }
  u16 number(Loc loc);
  void check_after_writer(u32 thread, const Granule& granule, u32 address, const char* what,
                          Loc loc);
  void check_after_readers(u32 thread, u32 index, const char* what, Loc loc);
  template <class Visit>
  void each(u32 address, u32 bytes, Visit visit);

  u32 threads_ = 0;
  u32 warps_ = 0;
  std::vector<u32> clocks_;
  std::vector<Granule> granules_;
  std::vector<Read> reads_;  // [granule][warp]
  std::vector<Loc> locs_;
  u16 recent_[256] = {};  // numbers of lines, by line mod 256
};

}  // namespace stepwell::host_model
