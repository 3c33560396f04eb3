// Warp-wide data movement and matrix products, from the layouts of the PTX ISA document.
#include <algorithm>

#include "host_model/machine.hpp"

namespace stepwell::host_model {

// ---- shfl.sync, redux.sync, vote.sync ----------------------------------------------------------

u32 shuffle(u32 value, u32 source_lane, u32 mask, bool is_xor, Loc loc) {
  struct Args {
    u32 value, source, result;
    bool is_xor;
  } args{value, source_lane, value, is_xor};
  meet(is_xor ? "shfl.sync.bfly" : "shfl.sync.idx", loc, mask, &args,
       [](Warp&, u32 lanes, void* const* all) {
         for (u32 i = 0; i < 32; ++i) {
           if ((lanes >> i & 1) == 0) continue;
           auto* mine = static_cast<Args*>(all[i]);
           const u32 from = (mine->is_xor ? i ^ mine->source : mine->source) & 31;
           if ((lanes >> from & 1) == 0) {
             machine->fail("divergence",
                           fmt::format("shfl.sync reads lane {}, which is not in the mask", from));
           }
           mine->result = static_cast<const Args*>(all[from])->value;
         }
       });
  return args.result;
}

int redux_s32(int value, bool is_min, Loc loc) {
  struct Args {
    int value;
    bool is_min;
  } args{value, is_min};
  meet(is_min ? "redux.sync.min" : "redux.sync.max", loc, 0xffffffffu, &args,
       [](Warp&, u32, void* const* all) {
         int best = static_cast<const Args*>(all[0])->value;
         for (u32 i = 1; i < 32; ++i) {
           const auto* mine = static_cast<const Args*>(all[i]);
           best = mine->is_min ? std::min(best, mine->value) : std::max(best, mine->value);
         }
         for (u32 i = 0; i < 32; ++i) static_cast<Args*>(all[i])->value = best;
       });
  return args.value;
}

u32 ballot(bool predicate, u32 mask, Loc loc) {
  struct Args {
    bool predicate;
    u32 result;
  } args{predicate, 0};
  meet("vote.sync.ballot", loc, mask, &args, [](Warp&, u32 lanes, void* const* all) {
    u32 votes = 0;
    for (u32 i = 0; i < 32; ++i) {
      if ((lanes >> i & 1) != 0 && static_cast<const Args*>(all[i])->predicate) votes |= 1u << i;
    }
    for (u32 i = 0; i < 32; ++i) {
      if ((lanes >> i & 1) != 0) static_cast<Args*>(all[i])->result = votes;
    }
  });
  return args.result;
}

// ---- ldmatrix ----------------------------------------------------------------------------------
// "Warp-level matrix load instruction: ldmatrix". Matrix i has its eight rows of 16 bytes at the
// addresses of lanes 8i ... 8i+7. Lane l gets elements 2(l%4), 2(l%4)+1 of row l/4; transposed: of
// column l/4.

void ldmatrix(u32 address, u32* rows, u32 matrices, bool transpose, Loc loc) {
  struct Args {
    u32 address, *rows, matrices;
    bool transpose;
    Loc loc;
  } args{address, rows, matrices, transpose, loc};
  meet("ldmatrix", loc, 0xffffffffu, &args, [](Warp& warp, u32, void* const* all) {
    Machine& m = *machine;
    const u32 count = static_cast<const Args*>(all[0])->matrices;
    for (u32 i = 0; i < count; ++i) {
      u16 matrix[8][8];
      u32 banks = 0;  // of 16 bytes, eight in all
      for (u32 r = 0; r < 8; ++r) {
        const auto* owner = static_cast<const Args*>(all[8 * i + r]);
        std::memcpy(matrix[r], m.shared_at(owner->address, 16, 16, owner->loc), 16);
        m.shadow.read(warp.index * 32 + 8 * i + r, owner->address, 16, owner->loc);
        banks |= 1u << owner->address / 16 % 8;
      }
      if (banks != 0xff) ++m.statistics.ldmatrix_conflicts;
      for (u32 lane = 0; lane < 32; ++lane) {
        const u32 r = lane / 4;
        const u32 c = lane % 4 * 2;
        const auto* mine = static_cast<const Args*>(all[lane]);
        mine->rows[i] = mine->transpose ? matrix[c][r] | u32{matrix[c + 1][r]} << 16
                                        : matrix[r][c] | u32{matrix[r][c + 1]} << 16;
      }
    }
  });
}

// ---- stmatrix ----------------------------------------------------------------------------------
// "Warp-level matrix store instruction: stmatrix": ldmatrix the other way round.

void stmatrix(u32 address, const u32* rows, u32 matrices, Loc loc) {
  struct Args {
    u32 address;
    const u32* rows;
    u32 matrices;
    Loc loc;
  } args{address, rows, matrices, loc};
  meet("stmatrix", loc, 0xffffffffu, &args, [](Warp& warp, u32, void* const* all) {
    Machine& m = *machine;
    const u32 count = static_cast<const Args*>(all[0])->matrices;
    for (u32 i = 0; i < count; ++i) {
      for (u32 r = 0; r < 8; ++r) {
        const auto* owner = static_cast<const Args*>(all[8 * i + r]);
        u32 row[4];
        for (u32 c = 0; c < 4; ++c) row[c] = static_cast<const Args*>(all[4 * r + c])->rows[i];
        std::memcpy(m.shared_at(owner->address, 16, 16, owner->loc), row, 16);
        m.shadow.write(warp.index * 32 + 8 * i + r, owner->address, 16, owner->loc);
      }
    }
  });
}

// ---- mma.sync.m16n8k16 -------------------------------------------------------------------------
// "Matrix Fragments for mma.m16n8k16 with floating point type": with g = lane/4, t = lane%4
//   A  a0,a1: (g, 2t..)   a2,a3: (g+8, 2t..)   a4,a5: (g, 2t+8..)   a6,a7: (g+8, 2t+8..)
//   B  b0,b1: k = 2t.., n = g                  b2,b3: k = 2t+8.., n = g
//   C  c0,c1: (g, 2t..)   c2,c3: (g+8, 2t..)

namespace {

float half_of(u32 pair, u32 i, Element element) {
  const u16 bits = static_cast<u16>(pair >> 16 * i);
  return element == Element::kBFloat16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

}  // namespace

void mma_m16n8k16(float* d, const u32* a, const u32* b, Element element, Loc loc) {
  struct Args {
    float* d;
    const u32 *a, *b;
    Element element;
  } args{d, a, b, element};
  meet("mma.sync", loc, 0xffffffffu, &args, [](Warp&, u32, void* const* all) {
    float ma[16][16];
    float mb[16][8];
    float mc[16][8];
    for (u32 lane = 0; lane < 32; ++lane) {
      const auto* s = static_cast<const Args*>(all[lane]);
      const u32 g = lane / 4;
      const u32 t = lane % 4;
      for (u32 i = 0; i < 8; ++i) {
        ma[g + 8 * (i / 2 % 2)][2 * t + i % 2 + 8 * (i / 4)] =
            half_of(s->a[i / 2], i % 2, s->element);
      }
      for (u32 i = 0; i < 4; ++i) {
        mb[2 * t + i % 2 + 8 * (i / 2)][g] = half_of(s->b[i / 2], i % 2, s->element);
      }
      for (u32 i = 0; i < 4; ++i) mc[g + 8 * (i / 2)][2 * t + i % 2] = s->d[i];
    }
    for (u32 r = 0; r < 16; ++r) {
      for (u32 k = 0; k < 16; ++k) {
        for (u32 c = 0; c < 8; ++c) mc[r][c] += ma[r][k] * mb[k][c];
      }
    }
    for (u32 lane = 0; lane < 32; ++lane) {
      const auto* s = static_cast<const Args*>(all[lane]);
      const u32 g = lane / 4;
      const u32 t = lane % 4;
      for (u32 i = 0; i < 4; ++i) s->d[i] = mc[g + 8 * (i / 2)][2 * t + i % 2];
    }
  });
}

}  // namespace stepwell::host_model
