// Plain accesses, and cp.async.
#include "host_model/machine.hpp"

namespace stepwell::host_model {

void shared_load(u32 address, void* to, u32 bytes, Loc loc) {
  Machine& m = *machine;
  std::memcpy(to, m.shared_at(address, bytes, bytes, loc), bytes);
  m.shadow.read(m.current->index, address, bytes, loc);
}

void shared_store(u32 address, const void* from, u32 bytes, Loc loc) {
  Machine& m = *machine;
  std::memcpy(m.shared_at(address, bytes, bytes, loc), from, bytes);
  m.shadow.write(m.current->index, address, bytes, loc);
}

void check_global(const void* address, u32 bytes, u32 alignment, const char* what, Loc loc) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  if (begin % alignment != 0) {
    machine->fail("alignment",
                  fmt::format("the {} is not aligned to {} bytes at {}", what, alignment, at(loc)));
  }
  const std::vector<GlobalRange>& ranges = machine->options.global;
  if (ranges.empty() || bytes == 0) return;
  for (const GlobalRange& range : ranges) {
    const auto first = reinterpret_cast<std::uintptr_t>(range.begin);
    if (begin >= first && begin + bytes <= first + range.bytes) return;
  }
  machine->fail("bounds", fmt::format("the {} is outside of global memory at {}", what, at(loc)));
}

void global_load(const void* from, void* to, u32 bytes, Loc loc) {
  check_global(from, bytes, bytes, "source of ld.global", loc);
  std::memcpy(to, from, bytes);
}

void global_store(void* to, const void* from, u32 bytes, Loc loc) {
  check_global(to, bytes, bytes, "target of st.global", loc);
  std::memcpy(to, from, bytes);
}

float global_add_f32(float* to, float value, Loc loc) {
  check_global(to, 4, 4, "target of red or atom", loc);
  const float old = *to;
  *to = old + value;
  return old;
}

u32 global_add_u32(u32* to, u32 value, Loc loc) {
  check_global(to, 4, 4, "target of red or atom", loc);
  const u32 old = *to;
  *to = old + value;
  return old;
}

// ---- cp.async ----------------------------------------------------------------------------------

namespace {

void deliver(CpAsync& copy) {
  u8* to = &machine->shared[copy.to];
  if (copy.valid_bytes != 0) std::memcpy(to, copy.from, copy.valid_bytes);
  std::memset(to + copy.valid_bytes, 0, 16 - copy.valid_bytes);
  copy.delivered = true;
  ++machine->statistics.copies;
}

}  // namespace

void cp_async_16(u32 to, const void* from, u32 valid_bytes, Loc loc) {
  Machine& m = *machine;
  m.shared_at(to, 16, 16, loc);
  if (valid_bytes > 16) {
    m.fail("bounds", fmt::format("cp.async copies {} of 16 bytes at {}", valid_bytes, at(loc)));
  }
  check_global(from, valid_bytes, 16, "source of cp.async", loc);
  m.shadow.begin_write(m.current->index, to, 16, Proxy::kGeneric, loc);
  m.poison(to, 16, kInFlight);
  CpAsync copy{to, from, valid_bytes, false, loc};
  if (m.deliver_now()) deliver(copy);
  m.current->cp_open.push_back(copy);
}

void cp_async_commit(Loc) {
  Thread& thread = *machine->current;
  thread.cp_groups.push_back(std::move(thread.cp_open));
  thread.cp_open.clear();
}

void cp_async_wait(u32 pending_groups, Loc) {
  Machine& m = *machine;
  Thread& thread = *m.current;
  while (thread.cp_groups.size() > pending_groups) {
    for (CpAsync& copy : thread.cp_groups.front()) {
      if (!copy.delivered) deliver(copy);
      if (m.shadow.on) {
        m.shadow.end_write(thread.index, m.shadow.now(thread.index), copy.to, 16, Proxy::kGeneric,
                           copy.loc);
      }
    }
    thread.cp_groups.pop_front();
  }
  m.maybe_yield();
}

void Machine::finish_cp_async(const Thread& thread) {
  for (const auto& group : thread.cp_groups) {
    if (!group.empty()) {
      fail("unfinished",
           fmt::format("the thread exits with the cp.async of {} in flight", at(group[0].loc)));
    }
  }
  if (!thread.cp_open.empty()) {
    fail("unfinished", fmt::format("the thread exits with the cp.async of {} not committed",
                                   at(thread.cp_open[0].loc)));
  }
}

}  // namespace stepwell::host_model
