// cp.async.bulk.tensor: boxes of tensors, to shared memory and back; cp.async.bulk to shared
// memory.
#include <algorithm>

#include "cuda/ptx/shared_layout.hpp"
#include "host_model/machine.hpp"

namespace stepwell::host_model {

// ---- tensor maps -------------------------------------------------------------------------------

namespace {

constexpr u32 kElementBytes = 2;
constexpr u32 kMagic = 0x57e97e11;

/// What encode_tensor_map packs into the 128 bytes.
struct Encoded {
  u8* data;
  u64 strides[4];  // bytes, of dims 1, 2, ...
  i64 dims[5];
  u16 box[5];
  u8 rank;
  u8 swizzle;
  u32 magic;

  u32 row_bytes() const { return box[0] * kElementBytes; }
  u32 rows() const {
    u32 count = 1;
    for (u32 d = 1; d < rank; ++d) count *= box[d];
    return count;
  }
};
static_assert(sizeof(Encoded) <= sizeof(TensorMap));

Encoded decode(const TensorMap& map, u32 rank, Loc loc) {
  Encoded tensor;
  std::memcpy(&tensor, &map, sizeof tensor);
  if (tensor.magic != kMagic) {
    machine->fail("tensor", fmt::format("there is no tensor map in the operand at {}", at(loc)));
  }
  if (tensor.rank != rank) {
    machine->fail("tensor", fmt::format("a copy of {} dimensions through a map of {} at {}", rank,
                                        tensor.rank, at(loc)));
  }
  return tensor;
}

/// Calls visit(offset in the box, bytes in the box before the first one inside, global address,
/// bytes inside) for every row of a box; a row outside of the tensor has no bytes inside.
template <class Visit>
void each_row(const Encoded& tensor, const std::array<int, 5>& coordinates, Visit visit) {
  const i64 x = coordinates[0];
  const i64 first = std::clamp<i64>(x, 0, tensor.dims[0]);
  const i64 last = std::clamp<i64>(x + tensor.box[0], 0, tensor.dims[0]);
  for (u32 row = 0; row < tensor.rows(); ++row) {
    u8* address = tensor.data + first * kElementBytes;
    bool inside = first < last;
    u32 rest = row;
    for (u32 d = 1; d < tensor.rank; ++d) {
      const i64 i = i64{coordinates[d]} + rest % tensor.box[d];
      rest /= tensor.box[d];
      inside = inside && i >= 0 && i < tensor.dims[d];
      if (inside) address += i * static_cast<i64>(tensor.strides[d - 1]);
    }
    visit(row * tensor.row_bytes(), inside ? static_cast<u32>(first - x) * kElementBytes : 0,
          address, inside ? static_cast<u32>(last - first) * kElementBytes : 0);
  }
}

void check_rows(const Encoded& tensor, const std::array<int, 5>& coordinates, const char* what,
                Loc loc) {
  if (machine->options.global.empty()) return;
  each_row(tensor, coordinates, [&](u32, u32, const u8* address, u32 bytes) {
    check_global(address, bytes, 1, what, loc);
  });
}

/// Where byte `offset` of a box at `address` lies.
u32 place(const Encoded& tensor, u32 address, u32 offset) {
  return cuda::ptx::swizzled(address + offset, static_cast<cuda::Swizzle>(tensor.swizzle));
}

}  // namespace

TensorMap encode_tensor_map(const TiledTensor& tensor) {
  const auto require = [](bool ok, const char* text) {
    if (!ok) throw Error("tensor", std::string("tensor map: ") + text);
  };
  require(tensor.rank >= 1 && tensor.rank <= 5, "the rank must be 1 to 5");
  require(reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0,
          "the tensor must be aligned to 16 bytes");
  Encoded encoded{};
  encoded.data = static_cast<u8*>(const_cast<void*>(tensor.data));
  encoded.rank = static_cast<u8>(tensor.rank);
  encoded.swizzle = static_cast<u8>(tensor.swizzle);
  encoded.magic = kMagic;
  for (int d = 0; d < tensor.rank; ++d) {
    require(tensor.dims[d] >= 1 && tensor.dims[d] <= u64{1} << 32, "dims must be 1 to 2^32");
    require(tensor.box[d] >= 1 && tensor.box[d] <= 256, "dims of the box must be 1 to 256");
    encoded.dims[d] = static_cast<i64>(tensor.dims[d]);
    encoded.box[d] = static_cast<u16>(tensor.box[d]);
    if (d == 0) continue;
    require(tensor.strides[d - 1] % 16 == 0, "strides must be multiples of 16 bytes");
    require(tensor.strides[d - 1] < u64{1} << 40, "strides must be below 2^40 bytes");
    encoded.strides[d - 1] = tensor.strides[d - 1];
  }
  require(encoded.row_bytes() % 16 == 0, "rows of the box must be multiples of 16 bytes");
  require(tensor.swizzle == cuda::Swizzle::kNone ||
              encoded.row_bytes() <= 16u << static_cast<u32>(tensor.swizzle),
          "rows of the box must not be longer than what the swizzle spans");
  TensorMap map{};
  std::memcpy(&map, &encoded, sizeof encoded);
  return map;
}

// ---- to shared memory --------------------------------------------------------------------------

void tensor_load(u32 to, const TensorMap& map, const std::array<int, 5>& coordinates, u32 mbarrier,
                 Loc loc) {
  Machine& m = *machine;
  const Encoded tensor = decode(map, 5, loc);
  const TensorLoad load{map, coordinates, to, tensor.rows() * tensor.row_bytes(), mbarrier, loc};
  m.shared_at(to, load.bytes, 128, loc);
  check_rows(tensor, coordinates, "source of the tensor copy", loc);
  const auto found = m.mbarriers.find(mbarrier);
  if (found == m.mbarriers.end()) {
    m.fail("mbarrier", fmt::format("the tensor copy at {}: there is no mbarrier at {}", at(loc),
                                   m.where(mbarrier)));
  }
  if (m.shadow.on) {
    const MBarrier& barrier = found->second;
    const u32 thread = m.current->index;
    if (!m.shadow.ordered(thread, barrier.init_thread, barrier.init_time)) {
      m.fail("race", fmt::format("the tensor copy at {} is not ordered after mbarrier.init at {}",
                                 at(loc), at(barrier.init)));
    }
    if (!barrier.init_fenced && !m.shadow.proxied(thread, barrier.init_thread, barrier.init_time)) {
      m.fail("proxy", fmt::format("the tensor copy at {} uses the mbarrier that {} initialises, "
                                  "with no fence between",
                                  at(loc), at(barrier.init)));
    }
    m.shadow.begin_write(thread, to, load.bytes, Proxy::kAsync, loc);
  }
  m.poison(to, load.bytes, kInFlight);
  m.loads.push_back(load);
  if (m.deliver_now()) m.deliver_load(m.loads.size() - 1);
  m.maybe_yield();
}

/// The box of a tensor that is nothing else.
void bulk_load(u32 to, const void* from, u32 bytes, u32 mbarrier, Loc loc) {
  if (bytes == 0 || bytes % 16 != 0) {
    machine->fail("tensor",
                  fmt::format("cp.async.bulk of {} bytes at {}; accepted are multiples of "
                              "16",
                              bytes, at(loc)));
  }
  check_global(from, bytes, 16, "source of cp.async.bulk", loc);
  Encoded encoded{};
  encoded.data = static_cast<u8*>(const_cast<void*>(from));
  encoded.rank = 5;
  encoded.magic = kMagic;
  for (int d = 0; d < 5; ++d) {
    encoded.dims[d] = d == 0 ? bytes / kElementBytes : 1;
    encoded.box[d] = static_cast<u16>(encoded.dims[d]);
  }
  TensorMap map{};
  std::memcpy(&map, &encoded, sizeof encoded);
  tensor_load(to, map, {}, mbarrier, loc);
}

void Machine::deliver_load(std::size_t index) {
  const TensorLoad load = loads[index];
  loads.erase(loads.begin() + static_cast<std::ptrdiff_t>(index));
  ++statistics.copies;
  const Encoded tensor = decode(load.map, 5, load.loc);
  each_row(tensor, load.coordinates, [&](u32 offset, u32 before, const u8* from, u32 inside) {
    for (u32 i = 0; i < tensor.row_bytes(); i += kElementBytes) {
      u8* to = &shared[place(tensor, load.to, offset + i)];
      if (i >= before && i < before + inside) {
        std::memcpy(to, from + (i - before), kElementBytes);
      } else {
        std::memset(to, 0, kElementBytes);
      }
    }
  });
  MBarrier& barrier = mbarriers.at(load.mbarrier);
  if (shadow.on) {
    const u32 agent = shadow.mbarrier_agent(barrier.number);
    const u32 time = shadow.advance(agent);
    shadow.end_write(agent, time, load.to, load.bytes, Proxy::kAsync, load.loc);
    shadow.release_agent(agent, time, barrier.sync);
  }
  barrier.bytes -= load.bytes;
  complete_if_ready(barrier);
}

// ---- to global memory --------------------------------------------------------------------------

namespace {

void read_source(const Thread& thread, BulkStore& store) {
  if (store.source_read) return;
  Machine& m = *machine;
  if (store.data.empty())
    store.data.assign(&m.shared[store.from], &m.shared[store.from] + store.bytes);
  store.source_read = true;
  if (m.shadow.on) {
    m.shadow.end_read(thread.index, m.shadow.now(thread.index), store.from, store.bytes, store.loc);
  }
}

void write_target(const BulkStore& store) {
  ++machine->statistics.copies;
  const Encoded tensor = decode(store.map, 5, store.loc);
  each_row(tensor, store.coordinates, [&](u32 offset, u32 before, u8* to, u32 inside) {
    for (u32 i = 0; i < inside; i += kElementBytes) {
      const u32 from = place(tensor, store.from, offset + before + i) - store.from;
      std::memcpy(to + i, &store.data[from], kElementBytes);
    }
  });
}

}  // namespace

void tensor_store(const TensorMap& map, u32 from, const std::array<int, 5>& coordinates, Loc loc) {
  Machine& m = *machine;
  const Encoded tensor = decode(map, 5, loc);
  for (const int c : coordinates) {
    if (c < 0) {
      m.fail("tensor",
             fmt::format("a copy to global memory that begins at coordinate {} at {}; on a "
                         "GPU an illegal instruction",
                         c, at(loc)));
    }
  }
  BulkStore store{map, coordinates, from, tensor.rows() * tensor.row_bytes(), false, {}, loc};
  m.shared_at(from, store.bytes, 128, loc);
  check_rows(tensor, coordinates, "target of the tensor copy", loc);
  m.shadow.use_agents();
  m.shadow.check_async_read(m.current->index, from, store.bytes, loc);
  m.shadow.begin_read(from, store.bytes, loc);
  if (m.deliver_now()) store.data.assign(&m.shared[from], &m.shared[from] + store.bytes);
  m.current->bulk_open.push_back(std::move(store));
}

void bulk_commit(Loc) {
  Thread& thread = *machine->current;
  thread.bulk_groups.push_back(std::move(thread.bulk_open));
  thread.bulk_open.clear();
}

void bulk_wait(u32 pending_groups, bool only_read, Loc) {
  Thread& thread = *machine->current;
  for (std::size_t g = 0; g + pending_groups < thread.bulk_groups.size(); ++g) {
    for (BulkStore& store : thread.bulk_groups[g]) read_source(thread, store);
  }
  while (!only_read && thread.bulk_groups.size() > pending_groups) {
    for (const BulkStore& store : thread.bulk_groups.front()) write_target(store);
    thread.bulk_groups.pop_front();
  }
}

/// The kernel's end waits for what was read, and for nothing else.
void Machine::finish_bulk_stores(Thread& thread) {
  if (!thread.bulk_open.empty()) {
    fail("unfinished", fmt::format("the thread exits with the tensor copy of {} not committed",
                                   at(thread.bulk_open[0].loc)));
  }
  for (const auto& group : thread.bulk_groups) {
    for (const BulkStore& store : group) {
      if (!store.source_read) {
        fail("unfinished",
             fmt::format("the thread exits while the tensor copy of {} may still read "
                         "shared memory",
                         at(store.loc)));
      }
      write_target(store);
    }
  }
}

}  // namespace stepwell::host_model
