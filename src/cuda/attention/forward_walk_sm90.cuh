// Attention forward of any two-interval mask on Hopper: TMA, wgmma, specialised warps.
//
// attention_forward_sm90 has block diffusion's joint layouts, where two strips share their keys;
// this is for all else: other masks and layouts, several views, softcap, dropout, head dims to 256.
//
// WORK ITEM: 128 query rows of one segment and head, 64 for each of two warpgroups. Both walk over
// the key tiles that any of the 128 rows sees, own view first, then clean keys, the last tile
// first. CTAs are persistent, one on each SM.
//
// WARPS (384 threads)
//   warpgroup 0   warp 0 loads keys and values, warp 1 finds items, their rows' intervals and
//                 queries, warp 2 writes rows that hold no token; warp 3 has nothing to do.
//                 56 registers.
//   warpgroup 1   the upper 64 rows, and warpgroup 2, the lower ones. 224 registers each.
//
// SHARED MEMORY: queries (two stages up to head dim 128, then one), which become the output; K and
// V, two stages each of 128, 96 or 64 keys at head dims to 128, 192 and 256; the rows' intervals of
// two items; what rows with very large scores need; items, tiles and barriers.
//
// BARRIERS: mbarriers are those of WalkBarriers. Named barriers 1 and 2: the turns of the two
// warpgroups on the tensor cores (256 threads); 3 and 4: within a warpgroup (128).
//
// REGISTERS of a consumer at head dim 128: O 64, S 64, P 32 (the operand of the product in flight),
// 32 more (the P being packed), about 30 others. At 192 and 256 O takes what S and P leave.
//
// A STEP: issue S = Q K_j^T; issue O += P V_(j-1); wait for S, release K; cap, mask, exponentials
// against the maxima so far (tile/running_softmax.cuh), packed to the other P while the second
// product runs; wait for O, release V; swap the two P.
#pragma once

#include "cuda/attention/forward_walk_sm90_producers.cuh"
#include "cuda/attention/spans_sm90.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/running_softmax.cuh"

namespace stepwell::cuda {

/// A warpgroup that multiplies: the upper (0) or the lower (1) 64 rows of the CTA's items.
template <ForwardWalkSm90Config C>
struct WalkConsumer {
  static constexpr ForwardWalkSm90Plan kPlan = forward_walk_sm90_plan(C);
  static constexpr int kPieces = C.tile_keys() / 8;       // of S
  static constexpr int kSteps = C.tile_keys() / 16;       // of P V
  static constexpr int kOutPieces = C.head_dim / 8;       // of O
  static constexpr u32 kSlabBytes = C.tile_keys() * 128;  // of K and V
  static constexpr u32 kStripSlabBytes = 64 * 128;

  /// What the key producer says of a tile.
  struct Tile {
    i32 first_key;
    i32 phase;
    bool masked;
    bool last;
  };

  const ForwardWalkSm90Params& params;
  const u32 shared;
  const int group;  // of warps
  const int lane;
  const WalkBarriers<C> barriers;
  const RowBases bases;

  RingPlace<kWalkItemStages> item;  // the next one; the one at hand is before it
  RingPlace<C.query_stages()> q;    // likewise
  RingPlace<kWalkKeyStages> k, v;

  float o[kOutPieces][4];
  RunningRow rows[2];
  float rescale[2];

  __device__ __forceinline__ WalkConsumer(const ForwardWalkSm90Params& p, u32 base, int wg)
      : params(p),
        shared(base),
        group(wg),
        lane(static_cast<int>(ptx::thread_index()) % 32),
        barriers{base + kPlan.barriers},
        bases{base + kPlan.bases - 128 * 8} {}

  /// Of this thread's first row. Read anew where it is seldom needed.
  __device__ __forceinline__ static i32 first_strip_row() {
    return static_cast<i32>(ptx::thread_index_again()) % 128 / 32 * 16 +
           static_cast<i32>(ptx::thread_index_again()) % 32 / 4;
  }
  __device__ __forceinline__ static i32 first_column() {
    return static_cast<i32>(ptx::thread_index_again()) % 4 * 2;
  }
  __device__ __forceinline__ static bool leads_group() {
    return ptx::thread_index_again() % 128 == 0;
  }

  // ---- barriers

  __device__ __forceinline__ void wait_k() const {
    ptx::mbarrier_wait_parity(barriers.k_full(k.slot()), k.parity());
  }
  __device__ __forceinline__ void release_k() {
    if (lane == 0) ptx::mbarrier_arrive(barriers.k_empty(k.slot()));
    k.next();
  }
  __device__ __forceinline__ void wait_v() const {
    ptx::mbarrier_wait_parity(barriers.v_full(v.slot()), v.parity());
  }
  __device__ __forceinline__ void release_v() {
    if (lane == 0) ptx::mbarrier_arrive(barriers.v_empty(v.slot()));
    v.next();
  }
  __device__ __forceinline__ void begin_turn() const { ptx::bar_sync(1 + group, 256); }
  __device__ __forceinline__ void end_turn() const { ptx::bar_arrive(2 - group, 256); }

  // ---- items

  __device__ __forceinline__ WalkItemPlace place() const {
    return WalkItemPlace::of<C>(shared, static_cast<int>((item.count - 1) % kWalkItemStages));
  }
  __device__ __forceinline__ int query_slot() const {
    return static_cast<int>((q.count - 1) % C.query_stages());
  }
  __device__ __forceinline__ u32 q_strip() const {
    return shared + kPlan.q + static_cast<u32>(2 * uniform(query_slot()) + group) * C.strip_bytes();
  }

  /// The next item becomes the one at hand, or there is none.
  __device__ __forceinline__ bool fetch() {
    wait_together(barriers.item(item.slot()), item.parity());
    item.next();
    const U32x4 where = ptx::ld_shared_v4(place().numbers + WalkItemLayout::kWhere);
    if (uniform(static_cast<i32>(where.x)) == 0) return false;
    wait_together(barriers.q_full(q.slot()), q.parity());
    q.next();
    return true;
  }
  __device__ __forceinline__ bool sees_keys() const {
    return uniform(static_cast<i32>(
               ptx::ld_shared_u32(place().numbers + WalkItemLayout::kWhere + 4))) != 0;
  }
  __device__ __forceinline__ Tile tile() const {
    const U32x4 x = ptx::ld_shared_v4(shared + kPlan.tiles + static_cast<u32>(k.slot()) * 16);
    ptx::syncwarp();  // before one lane releases it for all
    return {static_cast<i32>(x.x), static_cast<i32>(x.y),
            (uniform(static_cast<i32>(x.z)) >> group & 1) != 0,
            uniform(static_cast<i32>(x.w)) != 0};
  }

  // ---- products

  /// Issues S = Q K^T.
  __device__ __forceinline__ void issue_scores(float (&s)[kPieces][4]) const {
    const u64 b = ptx::matrix_descriptor(shared + kPlan.k + uniform(k.slot()) * C.tile_bytes(), 16,
                                         1024, Swizzle::k128);
    const u64 a = ptx::matrix_descriptor(q_strip(), 16, 1024, Swizzle::k128);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < C.head_dim / 16; ++i) {
      ptx::wgmma_ss<C.element, false>(
          s, ptx::advance_descriptor(a, i / 4 * kStripSlabBytes + i % 4 * 32),
          ptx::advance_descriptor(b, i / 4 * kSlabBytes + i % 4 * 32), i != 0);
    }
    ptx::wgmma_commit_group();
  }
  /// Issues O += P V.
  __device__ __forceinline__ void issue_output(u32 (&a)[kSteps][4]) {
    const u64 b = ptx::matrix_descriptor(shared + kPlan.v + uniform(v.slot()) * C.tile_bytes(),
                                         kSlabBytes, 1024, Swizzle::k128);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      ptx::wgmma_rs<C.element, true>(o, a[i], ptx::advance_descriptor(b, i * 16 * 128), true);
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void rescale_output() {
#pragma unroll
    for (int i = 0; i < kOutPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] *= rescale[j / 2];
    }
  }

  // ---- scores

  /// Caps and masks.
  __device__ __forceinline__ void prepare_scores(float (&s)[kPieces][4], const Tile& at) const {
    if constexpr (C.softcap) cap_scores(s, params.call.softcap_scale);
    if (!at.masked) return;
    const u32 bounds = place().bounds +
                       static_cast<u32>(at.phase * kWalkRows + 64 * group + first_strip_row()) * 8;
    const i32 first = at.first_key + first_column();
    LaneSpans spans;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ptx::ld_shared_v2(bounds + 64 * r, spans.begin[r], spans.end[r]);
      spans.begin[r] -= first;
      spans.end[r] -= first;
    }
    mask_spans<0, kPieces>(s, spans);
  }
  /// Dropped pairs of a packed P become 0; the sums have them.
  __device__ __forceinline__ void drop(u32 (&p)[kSteps][4], const Tile& at) const {
    if constexpr (C.dropout) {
      const U32x4 numbers = ptx::ld_shared_v4(place().numbers + WalkItemLayout::kNumbers);
      // Read anew for each tile: the compiler would keep the keys of all ten rounds in registers.
      i32 low, high;
      ptx::ld_shared_v2(place().numbers + WalkItemLayout::kKey, low, high);
      const i32 row = 64 * group + static_cast<i32>(ptx::thread_index_again()) % 128 / 32 * 16;
      const DropoutTile of_tile{
          static_cast<u64>(static_cast<u32>(high)) << 32 | static_cast<u32>(low),
          params.call.dropout.threshold,
          numbers.x,
          static_cast<int>(numbers.y),
          static_cast<i32>(numbers.z) + row,
          at.phase};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {  // two pieces
        const u32 bits = dropped_bits<2>(of_tile, 0, at.first_key + 16 * step);
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          // Word: piece word / 2, row word % 2; bits 4 piece + 2 row + column.
          const u32 two = bits >> (4 * (word / 2) + 2 * (word % 2));
          if ((two & 1) != 0) p[step][word] &= 0xffff0000u;
          if ((two & 2) != 0) p[step][word] &= 0x0000ffffu;
        }
      }
    }
  }

  // ---- results

  /// O and the rows' sums, complete, go where the queries were and from there to the output.
  __device__ __forceinline__ void store() {
    float inverse[2], lse[2];
    finish_rows(rows, inverse, lse);
    if constexpr (C.dropout) {
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[r] *= params.call.dropout.keep_scale;
    }
    const WalkItemPlace at = place();
    const U32x4 where = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kWhere);
    const U32x4 which = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kWhich);
    ptx::syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive(
          barriers.item_empty(static_cast<int>((item.count - 1) % kWalkItemStages)));
    }
    const i32 count = geometry::min_of(64, uniform(static_cast<i32>(where.x)) - 64 * group);
    const int half = uniform(static_cast<i32>(where.z));
    const i32 batch = uniform(static_cast<i32>(where.w));
    const i32 head = uniform(static_cast<i32>(which.x));
    const i32 row = uniform(static_cast<i32>(which.z)) + 64 * group;

    const u32 to = q_strip();
    const u32 thread = ptx::thread_index_again() % 128;
    const u32 strip_row = thread / 32 * 16 + thread % 16;
    ptx::bar_sync(3 + group, 128);  // all products with the queries are complete
#pragma unroll
    for (int i = 0; i < kOutPieces / 2; ++i) {  // 16 columns each
      u32 packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float(&piece)[4] = o[2 * i + j / 2];
        const float factor = inverse[j % 2];
        packed[j] =
            ptx::cvt_x2_f32<C.element>(piece[j % 2 * 2] * factor, piece[j % 2 * 2 + 1] * factor);
      }
      const u32 piece = (i % 4 * 2 + thread % 32 / 16) ^ (strip_row % 8);
      ptx::stmatrix_x4(to + i / 4 * kStripSlabBytes + strip_row * 128 + piece * 16, packed);
    }
    ptx::fence_proxy_async();
    ptx::bar_sync(3 + group, 128);
    if (count < 64) {  // rows of others may follow
      store_rows(params.call.out[half], to, count, batch, row, head);
      ptx::bar_sync(3 + group, 128);
    } else if (thread == 0) {
      constexpr int kStores = C.slabs();
      if (params.v_by_slab) {
#pragma unroll
        for (int slab = 0; slab < kStores; ++slab) {
          if (64 * slab < params.call.head_dim_v) {
            ptx::tensor_store_5d(params.out[half], to + slab * kStripSlabBytes, 64 * slab, row, 0,
                                 head, batch);
          }
        }
      } else {
        ptx::tensor_store_5d(params.out[half], to, 0, row, 0, head, batch);
      }
      ptx::bulk_commit_group();
    }
    const FloatRows& lse_rows = params.call.lse[half];
    if (lse_rows.data != nullptr && thread % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i32 in_strip = first_strip_row() + 8 * r;
        if (in_strip < count) *lse_rows.at(batch, head, row + in_strip) = lse[r];
      }
    }
    if (leads_group()) {
      ptx::bulk_wait_group_read<0>();
      ptx::mbarrier_arrive(barriers.q_empty(query_slot()));
    }
  }
  /// The first `count` rows of the strip at `from`, by the 128 threads of a warpgroup.
  __device__ __forceinline__ void store_rows(const HalfRows& out, u32 from, i32 count, i32 batch,
                                             i64 first_row, i32 head) const {
    const i32 pieces = params.call.head_dim_v / 8;
#pragma unroll 1
    for (i32 i = static_cast<i32>(ptx::thread_index_again() % 128); i < count * pieces; i += 128) {
      const i32 row = i / pieces;
      const i32 piece = i - row * pieces;
      const u32 at = from + piece / 8 * kStripSlabBytes + row * 128 + (piece % 8 ^ row % 8) * 16;
      ptx::st_global_v4(out.at(batch, first_row + row, head) + 8 * piece, ptx::ld_shared_v4(at));
    }
  }

  __device__ __forceinline__ void run();
};

template <ForwardWalkSm90Config C>
__device__ __forceinline__ void WalkConsumer<C>::run() {
  const float scale_log2 = params.call.scale_log2;
  if (group == 1) ptx::bar_arrive(1, 256);  // the upper rows have the first turn
  u32 p0[kSteps][4], p1[kSteps][4];         // P of the product in flight, and of the next
  while (fetch()) {
#pragma unroll
    for (int i = 0; i < kOutPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0f;
    }
    rows[0] = rows[1] = {minus_infinity(), 0.0f};
    if (sees_keys()) {
      bool last;
      {
        float s[kPieces][4];
        wait_k();
        begin_turn();
        issue_scores(s);
        end_turn();
        const Tile at = tile();
        last = at.last;
        ptx::wgmma_wait_group<0>(s);
        release_k();
        prepare_scores(s, at);
        softmax_of_masked<true>(s, rows, scale_log2, bases, rescale);
        pack<C.element>(p0, s);
        drop(p0, at);
      }
      const auto step = [&](u32(&in_flight)[kSteps][4], u32(&next)[kSteps][4]) {
        float s[kPieces][4];
        wait_k();
        begin_turn();
        ptx::pin_registers(o);
        issue_scores(s);
        wait_v();
        issue_output(in_flight);
        end_turn();
        const Tile at = tile();
        last = at.last;
        ptx::wgmma_wait_group<1>(s);
        release_k();
        prepare_scores(s, at);
        const bool moved = softmax_ahead<C.element>(next, s, rows, scale_log2, bases, rescale);
        drop(next, at);
        ptx::wgmma_wait_group<0>(o, in_flight);
        release_v();
        if (moved) rescale_output();
      };
      while (!last) {
        step(p0, p1);
        if (last) {
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) p0[i][j] = p1[i][j];
          }
          break;
        }
        step(p1, p0);
      }
      wait_v();
      begin_turn();
      ptx::pin_registers(o);
      ptx::pin_registers(p0);
      issue_output(p0);
      end_turn();
      ptx::wgmma_wait_group<0>(o, p0);
      release_v();
      settle_references(rows, scale_log2, bases);
    }
    store();
  }
}

template <ForwardWalkSm90Config C>
__device__ __forceinline__ void attention_forward_walk_sm90(const ForwardWalkSm90Params& p) {
  static constexpr ForwardWalkSm90Plan kPlan = forward_walk_sm90_plan(C);
  const u32 shared = static_cast<u32>(uniform(static_cast<i32>(ptx::shared_base())));
  const int warp = uniform(static_cast<i32>(ptx::thread_index()) / 32);
  if (ptx::thread_index() == 0) WalkBarriers<C>{shared + kPlan.barriers}.init();
  ptx::bar_sync(0, C.threads());
  if (warp < 4) {
    ptx::setmaxnreg_dec<56>();
    if (warp == 0) {
      produce_walk_keys<C>(p, shared);
    } else if (warp == 1) {
      produce_walk_items<C>(p, shared);
    } else if (warp == 2) {
      write_unused_rows(p);
    }
  } else {
    ptx::setmaxnreg_inc<224>();
    WalkConsumer<C>(p, shared, warp / 4 - 1).run();
  }
}

}  // namespace stepwell::cuda
