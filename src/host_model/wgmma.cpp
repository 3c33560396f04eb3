// wgmma: issue, groups, waits, matrix descriptors.
//
// A product is one operation of the warpgroup. Late delivery executes it when a warp waits for it
// and nobody else can run; until then its accumulators hold NaN, and only then are its operands in
// shared memory read.
#include <algorithm>
#include <bit>

#include "cuda/ptx/shared_layout.hpp"
#include "host_model/machine.hpp"

namespace stepwell::host_model {

namespace {

constexpr u32 kBusy = 0xffffbad0;  // NaN: a register that a wgmma is going to write

// ---- operands ----------------------------------------------------------------------------------

/// "Matrix Descriptor Format", decoded.
struct Descriptor {
  u32 start, leading, stride;  // bytes
  u32 mask;                    // of the swizzle: 0, 1, 3 or 7

  Descriptor(u64 bits, Loc loc)
      : start((bits & 0x3fff) << 4),
        leading((bits >> 16 & 0x3fff) << 4),
        stride((bits >> 32 & 0x3fff) << 4) {
    constexpr u32 kMasks[] = {0, 7, 3, 1};  // none, 128, 64, 32 bytes
    mask = kMasks[bits >> 62];
    if ((bits >> 49 & 7) != 0 || (start >> 7 & mask) != 0) {
      machine->fail("wgmma", fmt::format("a matrix that starts inside of a swizzled pattern at {}: "
                                         "its base offset is not modelled",
                                         at(loc)));
    }
  }

  /// Shared address of the 16 bytes that hold element (mn, k). "Asynchronous Warpgroup Level Matrix
  /// Shared Memory Layout", with w = 16-byte pieces that the swizzle spans (1, 2, 4 or 8):
  ///   K-major   rows of MN are w pieces apart, groups of eight rows `stride`; without swizzle the
  ///             second piece of K is at `leading`
  ///   MN-major  rows of K are w pieces apart, groups of eight `stride`; the next w pieces of MN
  ///   are
  ///             at `leading`. Without swizzle the two change their roles
  u32 piece(u32 mn, u32 k, bool mn_major) const {
    const u32 w = mask + 1;
    u32 address = start;
    if (!mn_major) {
      address += mn % 8 * w * 16 + mn / 8 * stride + (mask != 0 ? k / 8 * 16 : k / 8 * leading);
    } else if (mask != 0) {
      address += mn / 8 % w * 16 + mn / 8 / w * leading + k % 8 * w * 16 + k / 8 * stride;
    } else {
      address += mn / 8 * stride + k % 8 * 16 + k / 8 * leading;
    }
    return address ^ (address >> 7 & mask) << 4;
  }
};

float to_float(u16 bits, Element element) {
  return element == Element::kBFloat16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

float shared_element(u32 piece, u32 i, Element element) {
  u16 bits;
  std::memcpy(&bits, &machine->shared[piece + 2 * i], 2);
  return to_float(bits, element);
}

float register_element(u32 pair, u32 i, Element element) {
  return to_float(static_cast<u16>(pair >> 16 * i), element);
}

enum class Operand { kA, kB };

/// Calls visit(shared address) for every 16 bytes that an operand covers.
template <class Visit>
void each_piece(const WgmmaOp& op, Operand operand, Visit visit) {
  const bool b = operand == Operand::kB;
  const Descriptor descriptor(b ? op.desc_b : op.desc_a, op.loc);
  const bool mn_major = b ? op.mn_major_b : op.mn_major_a;
  const u32 size = b ? op.n : 64;
  for (u32 mn = 0; mn < size; mn += mn_major ? 8 : 1) {
    for (u32 k = 0; k < 16; k += mn_major ? 1 : 8) visit(descriptor.piece(mn, k, mn_major));
  }
}

// ---- accumulators ------------------------------------------------------------------------------

Accumulator* find_accumulator(Warp& warp, const float* lane0) {
  for (Accumulator& accumulator : warp.accumulators) {
    if (accumulator.registers[0] == lane0) return &accumulator;
  }
  return nullptr;
}

void check_untouched(const Accumulator& accumulator, const char* when, Loc loc) {
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < accumulator.count; ++i) {
      if (std::bit_cast<u32>(accumulator.registers[lane][i]) == kBusy) continue;
      machine->fail("wgmma", fmt::format("accumulator {} of lane {} was changed while a wgmma was "
                                         "writing it; noticed {} {}",
                                         i, lane, when, at(loc)));
    }
  }
}

/// The warp's accumulators, taken away from its threads until the product is done.
Accumulator& take_accumulator(Warp& warp, u32 count, const std::array<float*, 32>& registers,
                              Loc loc) {
  Accumulator* known = find_accumulator(warp, registers[0]);
  if (known != nullptr) {
    check_untouched(*known, "at the next one,", loc);
    if (known->count != count) {
      machine->fail("wgmma",
                    fmt::format("products of different shapes share accumulators, at {}", at(loc)));
    }
    return *known;
  }
  Accumulator& accumulator = warp.accumulators.emplace_back();
  accumulator.count = count;
  accumulator.pending = 0;
  accumulator.value.resize(std::size_t{32} * count);
  for (u32 lane = 0; lane < 32; ++lane) {
    accumulator.registers[lane] = registers[lane];
    std::copy(registers[lane], registers[lane] + count, &accumulator.value[lane * count]);
    std::fill(registers[lane], registers[lane] + count, std::bit_cast<float>(kBusy));
  }
  return accumulator;
}

void give_back_accumulator(Warp& warp, Accumulator& accumulator, Loc loc) {
  check_untouched(accumulator, "at the end of the one of", loc);
  for (u32 lane = 0; lane < 32; ++lane) {
    const float* value = &accumulator.value[lane * accumulator.count];
    std::copy(value, value + accumulator.count, accumulator.registers[lane]);
  }
  warp.accumulators.erase(warp.accumulators.begin() + (&accumulator - warp.accumulators.data()));
}

// ---- products ----------------------------------------------------------------------------------

/// Rows of A that a warp multiplies: [16][16].
void load_a(const WgmmaOp& op, u32 warp, float (&a)[16][16]) {
  if (!op.a_in_registers) {
    const Descriptor descriptor(op.desc_a, op.loc);
    for (u32 row = 0; row < 16; ++row) {
      for (u32 k = 0; k < 16; ++k) {
        const u32 mn = 16 * warp + row;
        a[row][k] = shared_element(descriptor.piece(mn, k, op.mn_major_a),
                                   (op.mn_major_a ? mn : k) % 8, op.element);
      }
    }
    return;
  }
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 i = 0; i < 8; ++i) {
      a[lane / 4 + 8 * (i / 2 % 2)][lane % 4 * 2 + i % 2 + 8 * (i / 4)] =
          register_element(op.a[warp][lane][i / 2], i % 2, op.element);
    }
    if (std::memcmp(op.a_registers[warp][lane], op.a[warp][lane], 16) != 0) {
      machine->fail(
          "wgmma", fmt::format("registers of A were changed while the wgmma of {} was reading them",
                               at(op.loc)));
    }
  }
}

/// The oldest product of a warpgroup. "Register Fragments for wgmma.mma_async.m64nNk16": warp w has
/// rows 16 w to 16 w + 15 in the fragments of mma.m16n8k16, repeated every 8 columns.
void execute_oldest(Warpgroup& group, u32 group_index) {
  Machine& m = *machine;
  const WgmmaOp& op = group.ops.front();
  static thread_local float a[16][16];
  static thread_local float b[16][256];
  static thread_local float c[16][256];
  const Descriptor descriptor(op.desc_b, op.loc);
  for (u32 k = 0; k < 16; ++k) {
    for (u32 n = 0; n < op.n; ++n) {
      b[k][n] = shared_element(descriptor.piece(n, k, op.mn_major_b), (op.mn_major_b ? n : k) % 8,
                               op.element);
    }
  }
  for (u32 w = 0; w < 4; ++w) {
    load_a(op, w, a);
    Warp& warp = m.warps[group_index * 4 + w];
    Accumulator& accumulator = *find_accumulator(warp, op.accumulators[w]);
    const u32 count = accumulator.count;
    const auto place = [](u32 lane, u32 i) -> float& {
      return c[lane / 4 + 8 * (i / 2 % 2)][i / 4 * 8 + lane % 4 * 2 + i % 2];
    };
    for (u32 lane = 0; lane < 32; ++lane) {
      for (u32 i = 0; i < count; ++i) {
        place(lane, i) = op.accumulate ? accumulator.value[lane * count + i] : 0.0f;
      }
    }
    for (u32 row = 0; row < 16; ++row) {
      for (u32 k = 0; k < 16; ++k) {
        const float x = a[row][k];
        for (u32 n = 0; n < op.n; ++n) c[row][n] += x * b[k][n];
      }
    }
    for (u32 lane = 0; lane < 32; ++lane) {
      for (u32 i = 0; i < count; ++i) accumulator.value[lane * count + i] = place(lane, i);
    }
    if (--accumulator.pending == 0) give_back_accumulator(warp, accumulator, op.loc);
  }
  if (m.shadow.on) {
    const u32 agent = m.shadow.warpgroup_agent(group_index);
    const u32 time = m.shadow.advance(agent);
    const auto end = [&](u32 piece) { m.shadow.end_read(agent, time, piece, 16, op.loc); };
    each_piece(op, Operand::kB, end);
    if (!op.a_in_registers) each_piece(op, Operand::kA, end);
  }
  ++m.statistics.wgmmas;
  group.ops.pop_front();
  ++group.executed;
}

struct WgmmaArgs {
  u32 n;
  float* d;
  const u32* a;
  u64 desc_a, desc_b;
  bool accumulate, mn_major_a, mn_major_b;
  Element element;
  Loc loc;
};

void check_same(const WgmmaArgs& args, const WgmmaOp& op) {
  if (args.n == op.n && (args.a != nullptr) == op.a_in_registers &&
      (op.a_in_registers || args.desc_a == op.desc_a) && args.desc_b == op.desc_b &&
      args.accumulate == op.accumulate && args.mn_major_a == op.mn_major_a &&
      args.mn_major_b == op.mn_major_b && same(args.loc, op.loc)) {
    return;
  }
  machine->fail("divergence",
                fmt::format("threads of a warpgroup issue different wgmmas, at {} and "
                            "{}",
                            at(op.loc), at(args.loc)));
}

/// A new product, or the one that the warpgroup's other warps have issued already.
WgmmaOp& join(Warp& warp, Warpgroup& group, const WgmmaArgs& args) {
  const u64 index = warp.wgmma_issued - group.executed;
  if (index == group.ops.size()) {
    WgmmaOp op{};
    op.n = args.n;
    op.a_in_registers = args.a != nullptr;
    op.accumulate = args.accumulate;
    op.mn_major_a = args.mn_major_a;
    op.mn_major_b = args.mn_major_b;
    op.element = args.element;
    op.desc_a = args.desc_a;
    op.desc_b = args.desc_b;
    op.loc = args.loc;
    group.ops.push_back(op);
  }
  return group.ops[index];
}

void issue(Warp& warp, u32, void* const* all) {
  Machine& m = *machine;
  const u32 group_index = warp.index / 4;
  const u32 part = warp.index % 4;
  Warpgroup& group = m.warpgroups[group_index];
  const auto args = [&](u32 lane) -> const WgmmaArgs& {
    return *static_cast<const WgmmaArgs*>(all[lane]);
  };
  if (!warp.wgmma_fenced) {
    m.fail("wgmma", fmt::format("no wgmma.fence between the last wait, or the kernel's start, and "
                                "the wgmma at {}",
                                at(args(0).loc)));
  }
  WgmmaOp& op = join(warp, group, args(0));
  const bool first = op.warps == 0;
  for (u32 lane = 0; lane < 32; ++lane) check_same(args(lane), op);
  ++warp.wgmma_issued;
  op.warps |= 1u << part;
  std::array<float*, 32> registers{};
  for (u32 lane = 0; lane < 32; ++lane) {
    registers[lane] = args(lane).d;
    if (!op.a_in_registers) continue;
    op.a_registers[part][lane] = args(lane).a;
    std::memcpy(op.a[part][lane], args(lane).a, 16);
  }
  op.accumulators[part] = registers[0];

  for (const Operand operand : {Operand::kA, Operand::kB}) {
    if (operand == Operand::kA && op.a_in_registers) continue;
    each_piece(op, operand, [&](u32 piece) {
      m.shared_at(piece, 16, 16, op.loc);
      if (!m.shadow.on) return;
      // In a warp that is not diverged lanes have much the same history: two stand for all.
      m.shadow.check_async_read(warp.index * 32, piece, 16, op.loc);
      m.shadow.check_async_read(warp.index * 32 + 31, piece, 16, op.loc);
      if (first) m.shadow.begin_read(piece, 16, op.loc);
    });
  }
  ++take_accumulator(warp, op.n / 2, registers, op.loc).pending;
  if (op.warps == 15 && m.deliver_now()) m.execute_wgmmas(group_index, warp.wgmma_issued);
}

}  // namespace

void Machine::execute_wgmmas(u32 warpgroup, u64 end) {
  Warpgroup& group = warpgroups[warpgroup];
  while (group.executed < end) execute_oldest(group, warpgroup);
  wake_all(group.waiting);
}

void wgmma(u32 n, float* d, const u32* a, u64 desc_a, u64 desc_b, bool accumulate, bool mn_major_a,
           bool mn_major_b, Element element, Loc loc) {
  WgmmaArgs args{n, d, a, desc_a, desc_b, accumulate, mn_major_a, mn_major_b, element, loc};
  machine->shadow.use_agents();
  meet("wgmma.mma_async", loc, 0xffffffffu, &args, issue);
}

void wgmma_fence(Loc loc) {
  meet("wgmma.fence", loc, 0xffffffffu, nullptr,
       [](Warp& warp, u32, void* const*) { warp.wgmma_fenced = true; });
}

void wgmma_commit(Loc loc) {
  Loc args = loc;
  meet("wgmma.commit_group", loc, 0xffffffffu, &args, [](Warp& warp, u32, void* const* all) {
    Machine& m = *machine;
    Warpgroup& group = m.warpgroups[warp.index / 4];
    if (warp.wgmma_committed == group.group_end.size()) {
      group.group_end.push_back(warp.wgmma_issued);
    } else if (group.group_end[warp.wgmma_committed] != warp.wgmma_issued) {
      m.fail("divergence", fmt::format("warps of a warpgroup commit different wgmmas, at {}",
                                       at(*static_cast<const Loc*>(all[0]))));
    }
    ++warp.wgmma_committed;
    m.wake_all(group.waiting);
  });
}

void wgmma_wait(u32 pending_groups, Loc loc) {
  Machine& m = *machine;
  const u32 group_index = m.current->index / 128;
  Warpgroup& group = m.warpgroups[group_index];
  Warp& warp = m.warp();
  meet("wgmma.wait_group", loc, 0xffffffffu, nullptr,
       [](Warp& mine, u32, void* const*) { mine.wgmma_fenced = false; });
  if (warp.wgmma_committed <= pending_groups) return;
  const u64 groups = warp.wgmma_committed - pending_groups;
  const u64 end = group.group_end[groups - 1];
  const auto committed_by_all = [&] {
    return std::all_of(&m.warps[std::size_t{group_index} * 4],
                       &m.warps[std::size_t{group_index} * 4] + 4,
                       [&](const Warp& other) { return other.wgmma_committed >= groups; });
  };
  while (!committed_by_all()) {
    group.waiting.push_back(m.current);
    m.block("wgmma.wait_group (for the warpgroup's other warps)", 0, loc);
  }
  if (group.executed < end && m.deliver_now()) m.execute_wgmmas(group_index, end);
  while (group.executed < end) {
    group.wanted = std::max(group.wanted, end);
    group.waiting.push_back(m.current);
    m.block("wgmma.wait_group", 0, loc);
  }
  warp.wgmma_waited = std::max(warp.wgmma_waited, end);
  if (m.shadow.on) {
    m.shadow.learn(m.current->index, m.shadow.warpgroup_agent(group_index), static_cast<u32>(end));
  }
}

}  // namespace stepwell::host_model
