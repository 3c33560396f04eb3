// Attention forward of any two-interval mask on Hopper: TMA, wgmma, specialised warps.
//
// attention_forward_sm90 has block diffusion's joint layouts, where two strips share their keys;
// this is for all else: other masks and layouts, several views, softcap, dropout, head dims to 256.
//
// WORK ITEM: 128 query rows of one segment and head, 64 for each of two warpgroups. Both walk over
// the key tiles that any of the 128 rows sees, own view first, then clean keys, the last tile
// first. CTAs are persistent, one on each SM.
//
// WARPS (384 threads, with dropout 512)
//   warpgroup 0   warp 0 loads keys and values, warp 1 finds items, their rows' intervals and
//                 queries, warp 2 writes rows that hold no token; warp 3 has nothing to do.
//                 56 registers.
//   warpgroup 1   the upper 64 rows, and warpgroup 2, the lower ones. 224 registers each.
//   warpgroup 3   with dropout only: draws its numbers, up to four tiles ahead. 40 registers, then
//                 as many in warpgroup 0 and 216 in those that multiply.
//
// SHARED MEMORY: queries (two stages up to head dim 128, then one); K and V, two stages each of
// 128, 96 or 64 keys at head dims to 128, 192 and 256; the rows' intervals of two items; what rows
// with very large scores need; items, tiles, with dropout what is dropped of four tiles, and
// barriers.
//
// BARRIERS: mbarriers are those of WalkBarriers. Named barriers 1 and 2: the turns of the two
// warpgroups on the tensor cores (256 threads).
//
// REGISTERS of a consumer at head dim 128: O 64, S 64, P 32 (the operand of the product in flight),
// 32 more (the P being packed), about 30 others. At 192 and 256 O takes what S and P leave.
//
// A STEP: issue S = Q K_j^T; issue O += P V_(j-1); wait for S, release K; cap, mask, exponentials
// against the maxima so far (tile/running_softmax.cuh), packed to the other P while the second
// product runs; wait for O, release V; swap the two P.
// BETWEEN ITEMS, where there are two stages of queries, the next item's first S is issued with this
// item's last product. Where there is one, it is released with an item's last S, and the next
// queries arrive during its last softmax, its last product and its output, which goes straight to
// memory.
#pragma once

#include "cuda/attention/forward_walk_sm90_producers.cuh"
#include "cuda/attention/spans_sm90.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/running_softmax.cuh"
#include "cuda/tile/transpose.cuh"

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

  RingPlace<kWalkItemStages> item;  // the next one; the one at hand, and its queries, are before it
  RingPlace<kWalkKeyStages> k, v;
  RingPlace<kWalkDroppedStages> numbers;  // of dropout

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
  /// Every item has queries.
  __device__ __forceinline__ RingPlace<C.query_stages()> queries() const {
    return {item.count - 1};
  }
  __device__ __forceinline__ u32 q_strip() const {
    return shared + kPlan.q +
           static_cast<u32>(2 * uniform(queries().slot()) + group) * C.strip_bytes();
  }

  /// The next item becomes the one at hand, or there is none.
  __device__ __forceinline__ bool fetch() {
    wait_together(barriers.item(item.slot()), item.parity());
    item.next();
    const U32x4 where = ptx::ld_shared_v4(place().numbers + WalkItemLayout::kWhere);
    return uniform(static_cast<i32>(where.x)) != 0;
  }
  /// Its queries are there from now on.
  __device__ __forceinline__ void take_queries() const {
    wait_together(barriers.q_full(queries().slot()), queries().parity());
  }
  /// After the last product with them.
  __device__ __forceinline__ void release_queries() const {
    if (lane == 0) ptx::mbarrier_arrive(barriers.q_empty(queries().slot()));
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
  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (int i = 0; i < kOutPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0f;
    }
  }
  __device__ __forceinline__ void rescale_output() {
#pragma unroll
    for (int i = 0; i < kOutPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] *= rescale[j / 2];
    }
  }

  // ---- scores

  /// Caps, to half of 1 + tanh, and masks.
  __device__ __forceinline__ void prepare_scores(float (&s)[kPieces][4], const Tile& at) const {
    if constexpr (C.softcap) {
      // Finite, or a score of 0 would make NaN.
      const float factor = params.call.softcap_scale * -2.885390081777927f;
      cap_scores_by_half(s, ptx::max_f32(-ptx::max_f32(-factor, -kLargestFloat), -kLargestFloat));
    }
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
  __device__ __forceinline__ void drop(u32 (&p)[kSteps][4]) {
    if constexpr (C.dropout) {
      ptx::mbarrier_wait_parity(barriers.dropped(numbers.slot()), numbers.parity());
      i32 low, high;
      ptx::ld_shared_v2(shared + kPlan.dropped + static_cast<u32>(numbers.slot()) * (256 * 8) +
                            (ptx::thread_index_again() - 128) * 8,
                        low, high);
      ptx::syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(barriers.dropped_empty(numbers.slot()));
      numbers.next();
      drop_words(p, {static_cast<u32>(low), static_cast<u32>(high)});
    }
  }

  // ---- results

  /// O and the sums `done`, complete, become the output of the item `slot`, which is given back.
  __device__ __forceinline__ void store(RunningRow (&done)[2], int slot) {
    float inverse[2], lse[2];
    if constexpr (C.softcap) {  // scores were scale * (1 + tanh)
#pragma unroll
      for (int r = 0; r < 2; ++r) done[r].reference -= params.call.scale_log2;
    }
    finish_rows(done, inverse, lse);
    if constexpr (C.dropout) {
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[r] *= params.call.dropout.keep_scale;
    }
    const WalkItemPlace at = WalkItemPlace::of<C>(shared, slot);
    const U32x4 where = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kWhere);
    const U32x4 which = ptx::ld_shared_v4(at.numbers + WalkItemLayout::kWhich);
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barriers.item_empty(slot));
    const i32 count = uniform(static_cast<i32>(where.x)) - 64 * group;
    const int half = uniform(static_cast<i32>(where.z));
    const i32 batch = uniform(static_cast<i32>(where.w));
    const i32 head = uniform(static_cast<i32>(which.x));
    const i32 row = uniform(static_cast<i32>(which.z)) + 64 * group;
    const i32 in_quad = static_cast<i32>(ptx::thread_index_again()) % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i32 in_strip = first_strip_row() + 8 * r;
      unsigned short* const to =
          params.call.out[half].at(batch, row + in_strip, head) + 8 * in_quad;
#pragma unroll
      for (int i = 0; i < kOutPieces; i += 4) {
        u32 packed[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          packed[j] = ptx::cvt_x2_f32<C.element>(o[i + j][2 * r] * inverse[r],
                                                 o[i + j][2 * r + 1] * inverse[r]);
        }
        transpose_quad<1>(packed);  // each lane has 16 bytes of one piece
        if (in_strip < count && 8 * (i + in_quad) < params.call.head_dim_v) {
          ptx::st_global_v4(to + 8 * i, {packed[0], packed[1], packed[2], packed[3]});
        }
      }
      const FloatRows& lse_rows = params.call.lse[half];
      if (lse_rows.data != nullptr && in_quad == 0 && in_strip < count) {
        *lse_rows.at(batch, head, row + in_strip) = lse[r];
      }
    }
  }

  __device__ __forceinline__ void run();
};

template <ForwardWalkSm90Config C>
__device__ __forceinline__ void WalkConsumer<C>::run() {
  const float scale_log2 = (C.softcap ? 2.0f : 1.0f) * params.call.scale_log2;
  if (group == 1) ptx::bar_arrive(1, 256);  // the upper rows have the first turn
  u32 p0[kSteps][4], p1[kSteps][4];         // P of the product in flight, and of the next
  bool last;                                // of the tile at hand: whether it is the item's last
  bool more = fetch();
  bool begun = false;  // P of the item's first tile is in p0, O is clear
  while (more) {
    const bool sees = sees_keys();
    if (!begun) {
      take_queries();
      clear_output();
      rows[0] = rows[1] = {minus_infinity(), 0.0f};
      if (sees) {
        float s[kPieces][4];
        wait_k();
        begin_turn();
        issue_scores(s);
        end_turn();
        const Tile at = tile();
        last = at.last;
        ptx::wgmma_wait_group<0>(s);
        release_k();
        if (last) release_queries();
        prepare_scores(s, at);
        softmax_of_masked<C.element, true>(s, rows, scale_log2, bases, rescale);
        pack<C.element>(p0, s);
        drop(p0);
      } else {
        release_queries();
      }
    }
    if (sees) {
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
        if (last) release_queries();
        prepare_scores(s, at);
        const bool moved = softmax_ahead<C.element>(next, s, rows, scale_log2, bases, rescale);
        drop(next);
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
    }

    // ---- between items
    const int slot = static_cast<int>((item.count - 1) % kWalkItemStages);
    if (sees) settle_references(rows, scale_log2, bases);
    RunningRow done[2] = {rows[0], rows[1]};
    more = fetch();
    begun = C.query_stages() > 1 && sees && more && sees_keys();
    if (begun) {  // the next item's first scores run with this item's last product
      take_queries();
      float s[kPieces][4];
      wait_k();
      begin_turn();
      ptx::pin_registers(o);
      ptx::pin_registers(p0);
      issue_scores(s);
      wait_v();
      issue_output(p0);
      end_turn();
      const Tile at = tile();
      last = at.last;
      ptx::wgmma_wait_group<1>(s);
      release_k();
      if (last) release_queries();
      prepare_scores(s, at);
      softmax_of_masked<C.element, true>(s, rows, scale_log2, bases, rescale);
      ptx::wgmma_wait_group<0>(o, p0);
      release_v();
      store(done, slot);
      pack<C.element>(p0, s);
      drop(p0);
      clear_output();
      continue;
    }
    if (sees) {
      wait_v();
      begin_turn();
      ptx::pin_registers(o);
      ptx::pin_registers(p0);
      issue_output(p0);
      end_turn();
      ptx::wgmma_wait_group<0>(o, p0);
      release_v();
    }
    store(done, slot);
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
    ptx::setmaxnreg_dec<C.producer_registers()>();
    if (warp == 0) {
      produce_walk_keys<C>(p, shared);
    } else if (warp == 1) {
      produce_walk_items<C>(p, shared);
    } else if (warp == 2) {
      write_unused_rows(p);
    }
  } else if (C.dropout && warp >= 12) {
    ptx::setmaxnreg_dec<C.producer_registers()>();
    produce_dropped<C>(p, shared);
  } else {
    ptx::setmaxnreg_inc<C.consumer_registers()>();
    WalkConsumer<C>(p, shared, warp / 4 - 1).run();
  }
}

}  // namespace stepwell::cuda
