// Attention forward of block diffusion masks on Hopper: TMA, wgmma, specialised warps.
//
// WORK ITEM: one strip of 64 query rows of the noisy half and the same strip of the clean half.
// Both see the same clean keys but for their diagonals, so one stream of K and V tiles feeds two
// warpgroups with (nearly) as many tiles each; forward_sm90_items.cuh has the tiles. CTAs are
// persistent, one on each SM.
//
// WARPS (384 threads)
//   warpgroup 0   warp 0 loads keys and values, warp 1 finds items and loads queries, up to two
//                 items ahead, warp 2 writes rows that hold no token; warp 3 has nothing to do.
//                 40 registers.
//   warpgroup 1   the noisy strip, and warpgroup 2, the clean strip. 232 registers each.
//
// SHARED MEMORY at head dim 128: output 2 x 16 KB, queries 2 stages of 2 x 16, K and V 2 stages of
// 32 each, then what rows with very large scores need, items and barriers.
//
// BARRIERS: mbarriers are those of ForwardSm90Barriers. Named barriers 1 and 2: the turns of the
// two warpgroups on the tensor cores (256 threads); 3 and 4: within a warpgroup (128).
//
// REGISTERS of a consumer at head dim 128: O 64, S 64, P 32 (the operand of the product in flight),
// 32 more (the P being packed), about 35 others.
//
// THE STEADY STEP: issue S = Q K_j^T; issue O += P V_(j-1); wait for S, release K; exponentials
// against the maxima so far (tile/running_softmax.cuh), packed to the other P while the second
// product runs; wait for O, release V; swap the two P.
// BETWEEN ITEMS the next item's first S is issued with this item's last product, and its second S
// before this item's output is stored.
//
// The compiler serialises wgmma, silently right and slow, where it cannot follow (notes C75xx; the
// compile gate fails on them). Hence: a fence right before each product; branches on what it can
// see to be the same in a warp (ballot, shfl); S as a local array of each step; no reads of
// accumulators while any product runs, so O is converted before the next S is issued; two P instead
// of a move between them.
//
// TRIED in the prototype, at head dim 128 in bf16 on one H200 (TFLOPS at n = 1K and 16K):
//   the tile's own maximum in every step            -8 %, -16 %
//   no turns                                        -4 %, -5 %
//   Q in registers: nothing gained, and the second P has no room
//   output staged in the slot of Q, three K stages  -4 % at 1K
//   pieces of 16 columns passed over in first tiles -1 % at 1K
//   queries and items from a warp of their own      +3 %, -1 %
//   the second S before the output is stored        -5 %, +6 % (then +2 % with less code)
#pragma once

#include "cuda/attention/forward_sm90_producers.cuh"
#include "cuda/attention/spans_sm90.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/running_softmax.cuh"

namespace stepwell::cuda {

/// A warpgroup that multiplies: the noisy (0) or the clean (1) strips of the CTA's items.
template <ForwardSm90Config C>
struct Forward90Consumer {
  static constexpr ForwardSm90Plan kPlan = forward_sm90_plan(C);
  static constexpr int kPieces = kSm90TileKeys / 8;       // of S
  static constexpr int kSteps = kSm90TileKeys / 16;       // of P V
  static constexpr int kOutPieces = C.head_dim / 8;       // of O
  static constexpr u32 kSlabBytes = kSm90TileKeys * 128;  // of K and V
  static constexpr u32 kStripSlabBytes = kStripRows * 128;
  using Whole = Constant<false>;
  using Narrow = Constant<true>;

  const ForwardSm90Params& p;
  const u32 shared;
  const int group;  // of warps
  const int lane;
  const ForwardSm90Barriers barriers;
  const RowBases bases;

  RingPlace<kKeyStages> k, v;
  RingPlace<kQueryStages> q;
  u32 q_strip = 0;  // queries of the item at hand

  float o[kOutPieces][4];
  RunningRow rows[2];
  float rescale[2];

  // Of the item at hand, as long as masks need them; and of the one before it, to store it.
  i32 strip, len;
  i32 last_row, last_batch, last_head;  // the strip's place in the maps
  i32 last_valid;                       // its rows that hold a token
  i32 last_rows;                        // packed: those of its sample
  u32 packed_out[kOutPieces / 2][4];
  float last_lse[2];

  __device__ __forceinline__ Forward90Consumer(const ForwardSm90Params& params, u32 base, int wg)
      : p(params),
        shared(base),
        group(wg),
        lane(static_cast<int>(ptx::thread_index()) % 32),
        barriers{base + kPlan.barriers},
        bases{base + kPlan.bases - 128 * 8} {}

  /// Of this thread. Read anew where it is seldom needed.
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

  /// The next item becomes the one at hand, or there is none.
  __device__ __forceinline__ bool fetch() {
    ptx::mbarrier_wait_parity(barriers.q_full(q.slot()), q.parity());
    const StripItem item = load_item<StripItem>(shared + kPlan.items + 32 * q.slot());
    ptx::syncwarp();
    strip = uniform(item.strip);
    len = uniform(item.len);
    if (len == 0) return false;
    q_strip = shared + kPlan.q + (2 * uniform(q.slot()) + group) * C.strip_bytes();
    q.next();
    return true;
  }
  /// The item at hand becomes the last one. Its numbers are read again: no register is left to keep
  /// them in through the steady step.
  __device__ __forceinline__ void retire() {
    const int slot = static_cast<int>((q.count - 1) % kQueryStages);
    const StripItem item = load_item<StripItem>(shared + kPlan.items + 32 * slot);
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barriers.q_empty(slot));
    const i32 first = kStripRows * uniform(item.strip);
    last_row = uniform(item.first_row<C>(group)) + first;
    last_batch = uniform(item.batch);
    last_head = uniform(item.head);
    last_valid = uniform(item.len) - first;
    last_rows = uniform(item.rows) - first;
  }

  // ---- products

  /// Issues S = Q K^T.
  template <int kCount>
  __device__ __forceinline__ void issue_scores(float (&s)[kCount][4]) const {
    const u64 b = ptx::matrix_descriptor(shared + kPlan.k + uniform(k.slot()) * C.tile_bytes(), 16,
                                         1024, Swizzle::k128);
    const u64 a = ptx::matrix_descriptor(q_strip, 16, 1024, Swizzle::k128);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < C.head_dim / 16; ++i) {
      ptx::wgmma_ss<C.element, false>(
          s, ptx::advance_descriptor(a, i / 4 * kStripSlabBytes + i % 4 * 32),
          ptx::advance_descriptor(b, i / 4 * kSlabBytes + i % 4 * 32), i != 0);
    }
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ u64 v_descriptor() const {
    return ptx::matrix_descriptor(shared + kPlan.v + uniform(v.slot()) * C.tile_bytes(), kSlabBytes,
                                  1024, Swizzle::k128);
  }
  __device__ __forceinline__ void multiply_step(u32 (&a)[4], u64 b, int step, bool accumulate) {
    ptx::wgmma_rs<C.element, true>(o, a, ptx::advance_descriptor(b, step * 16 * 128), accumulate);
  }

  /// Issues O += P V.
  __device__ __forceinline__ void issue_output(u32 (&a)[kSteps][4]) {
    const u64 b = v_descriptor();
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) multiply_step(a[i], b, i, true);
    ptx::wgmma_commit_group();
  }
  /// Issues O = P V of an item's first tile. Without a fence and a commit in each arm the compiler
  /// adds them (C7519).
  __device__ __forceinline__ void issue_first_output(u32 (&a)[kSteps][4], bool narrow) {
    const u64 b = v_descriptor();
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) multiply_step(a[i], b, i, i != 0);
    if (narrow) {
      ptx::wgmma_fence();
      ptx::wgmma_commit_group();
    } else {
      ptx::wgmma_fence();
#pragma unroll
      for (int i = kSteps / 2; i < kSteps; ++i) multiply_step(a[i], b, i, true);
      ptx::wgmma_commit_group();
    }
  }

  /// A turn on the tensor cores: issues the scores of a tile, then O += P V of the one before, and
  /// waits for the scores.
  template <int kCount>
  __device__ __forceinline__ void take_turn(float (&s)[kCount][4], u32 (&a)[kSteps][4]) {
    wait_k();
    begin_turn();
    ptx::pin_registers(o);
    issue_scores(s);
    wait_v();
    issue_output(a);
    end_turn();
    ptx::wgmma_wait_group<1>(s);
    release_k();
  }

  __device__ __forceinline__ void rescale_output() {
#pragma unroll
    for (int i = 0; i < kOutPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] *= rescale[j / 2];
    }
  }

  // ---- masks: what the lane's rows see is worked out anew for the few tiles that need it

  __device__ __forceinline__ i32 row(int r) const {
    return kStripRows * strip + first_strip_row() + 8 * r;
  }
  __device__ __forceinline__ i32 block_start(i32 at) const {
    if constexpr (C.small_blocks) return at & -p.block_size;
    return geometry::divide(at, p.by_block) * p.block_size;
  }
  /// Clean keys from key `first` on.
  __device__ __forceinline__ LaneSpans clean_spans(i32 first) const {
    LaneSpans spans;
    first += first_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      i32 end = block_start(row(r));
      if (group == 1) end = p.clean_causal ? row(r) + 1 : end + p.block_size;
      spans.begin[r] = 0;
      spans.end[r] = geometry::min_of(len, end) - first;
    }
    return spans;
  }
  __device__ __forceinline__ LaneSpans noisy_spans(i32 first) const {
    LaneSpans spans;
    first += first_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i32 begin = block_start(row(r));
      const i32 end = p.noisy_causal ? row(r) + 1 : begin + p.block_size;
      spans.begin[r] = begin - first;
      spans.end[r] = geometry::min_of(len, end) - first;
    }
    return spans;
  }

  using Tiles = KeyTiles<C.small_blocks>;

  /// Tiles before this one need a mask.
  __device__ __forceinline__ i32 masked_tiles(const Tiles& tiles) const {
    if constexpr (C.small_blocks) return strip % 2 == 1 || strip == 0 ? 2 : 1;
    const i32 first = kStripRows * strip;
    // What every row of the strip sees: a clean row of a causal half sees as little as its
    // position.
    const i32 reach = block_start(first) + (group == 0       ? 0
                                            : p.clean_causal ? first + 1 - block_start(first)
                                                             : p.block_size);
    const i32 full = geometry::min_of(len, reach) / kSm90TileKeys;
    return tiles.count - geometry::min_of(full, tiles.clean);
  }

  __device__ __forceinline__ void mask_tile(const Tiles& tiles, i32 tile,
                                            float (&s)[kPieces][4]) const {
    if (tiles.narrow) {  // the second tile: all rows see its first half
      mask_ends<kPieces / 2, kPieces>(s, clean_spans(kStripRows * strip));
    } else if (tile < tiles.noisy) {
      mask_spans<0, kPieces>(s, noisy_spans(tiles.first_noisy + kSm90TileKeys * tile));
    } else if (tiles.merged) {  // the diagonal had its turn, and all rows see what is before
      const i32 end = kStripRows * strip - tiles.clean_key(tile) - first_column();
      mask_ends<0, kPieces>(s, {{0, 0}, {end, end}});
    } else {
      mask_ends<0, kPieces>(s, clean_spans(tiles.clean_key(tile)));
    }
  }
  __device__ __forceinline__ void mask_first_tile(const Tiles&, i32,
                                                  float (&s)[kPieces / 2][4]) const {
    const i32 first = kStripRows * strip;
    if (group == 1) {
      mask_ends<0, kPieces / 2>(s, clean_spans(first));
    } else {
      mask_spans<0, kPieces / 2>(s, noisy_spans(first));
    }
  }
  __device__ __forceinline__ void mask_first_tile(const Tiles& tiles, i32 tile,
                                                  float (&s)[kPieces][4]) const {
    if (tiles.merged) {
      mask_ends<0, kPieces / 2>(s, clean_spans(kStripRows * strip));
      mask_spans<kPieces / 2, kPieces>(s, noisy_spans(kStripRows * strip));
    } else {
      mask_tile(tiles, tile, s);
    }
  }

  // ---- results

  /// O and the rows' sums, complete, become the output of the item before the one at hand.
  __device__ __forceinline__ void finish(const RunningRow (&done)[2]) {
    float inverse[2];
    finish_rows(done, inverse, last_lse);
    if (kStripRows > last_valid) {  // rows that hold no token
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (first_strip_row() + 8 * r < last_valid) continue;
        last_lse[r] = minus_infinity();
#pragma unroll
        for (int i = 0; i < kOutPieces; ++i) o[i][2 * r] = o[i][2 * r + 1] = 0.0f;
        inverse[r] = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kOutPieces; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        packed_out[i / 2][i % 2 * 2 + r] =
            ptx::cvt_x2_f32<C.element>(o[i][2 * r] * inverse[r], o[i][2 * r + 1] * inverse[r]);
      }
    }
  }

  /// The first last_rows rows of the strip at `from`, by the 128 threads of a warpgroup.
  __device__ __forceinline__ void store_rows(const HalfRows& out, u32 from, u32 thread) const {
    const i32 pieces = p.head_dim_v / 8;
#pragma unroll 1
    for (i32 i = static_cast<i32>(thread); i < last_rows * pieces; i += 128) {
      const i32 row = i / pieces;
      const i32 piece = i - row * pieces;
      const u32 at = from + piece / 8 * kStripSlabBytes + row * 128 + (piece % 8 ^ row % 8) * 16;
      ptx::st_global_v4(out.at(last_batch, last_row + row, last_head) + 8 * piece,
                        ptx::ld_shared_v4(at));
    }
  }

  __device__ __forceinline__ void store() const {
    // All from the thread's index, read anew: what follows from it would else be kept in registers
    // from item to item.
    const int all = static_cast<int>(ptx::thread_index_again()) - 128;
    const int half = all / 128;
    const u32 thread = static_cast<u32>(all % 128);
    const u32 to = shared + kPlan.out + half * C.strip_bytes();
    if (thread == 0) ptx::bulk_wait_group_read<0>();
    ptx::bar_sync(3 + half, 128);
    const u32 row = thread / 32 * 16 + thread % 16;
#pragma unroll
    for (int i = 0; i < kOutPieces / 2; ++i) {  // 16 columns each
      const u32 piece = (i % 4 * 2 + thread % 32 / 16) ^ (row % 8);
      ptx::stmatrix_x4(to + i / 4 * kStripSlabBytes + row * 128 + piece * 16, packed_out[i]);
    }
    ptx::fence_proxy_async();
    ptx::bar_sync(3 + half, 128);
    if (C.packed && last_rows < kStripRows) {  // the next sample's rows follow
      store_rows(p.out_rows[half], to, thread);
    } else if (thread == 0) {
      ptx::tensor_store_5d(p.out[half], to, 0, last_row, 0, last_head, last_batch);
      if (C.slabs() > 1 && p.v_by_slab) {
        ptx::tensor_store_5d(p.out[half], to + kStripSlabBytes, 64, last_row, 0, last_head,
                             last_batch);
      }
      ptx::bulk_commit_group();
    }
    const FloatRows& lse = p.lse[half];
    if (lse.data != nullptr && thread % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i32 in_strip = first_strip_row() + 8 * r;
        if (C.packed ? in_strip < last_rows : last_row + in_strip < p.rows) {
          *lse.at(last_batch, last_head, p.first_row[half] + last_row + in_strip) = last_lse[r];
        }
      }
    }
  }

  __device__ __forceinline__ void run();
};

template <ForwardSm90Config C>
__device__ __forceinline__ void Forward90Consumer<C>::run() {
  if (!fetch()) return;
  u32 p0[kSteps][4], p1[kSteps][4];  // P of the product in flight, and of the next

  Tiles tiles(p, strip, len);
  i32 passed = group == 1 ? tiles.noisy : 0;
  i32 tile = passed;
  bool narrow = group == 1 ? tiles.merged : tiles.narrow;
  i32 left = 0;  // tiles passed over of which V is still to be passed
  const auto pass_v = [&]() {
    wait_v();
    ptx::syncwarp();
    release_v();
    begin_turn();  // turns are taken for all tiles
    end_turn();
  };
  const auto pass = [&]() {
    for (i32 i = 0; i < passed; ++i) {
      wait_k();
      ptx::syncwarp();
      release_k();
      // In the order of the loads: with two tiles or more, no slot would be left for what comes.
      if (!C.small_blocks && passed > 1 && i > 0) pass_v();
    }
    left = !C.small_blocks && passed > 1 ? 1 : passed;
  };
  if (group == 1) ptx::bar_arrive(1, 256);  // the noisy strip has the first turn
  pass();
  const auto first = [&](auto is_narrow) {
    float s[decltype(is_narrow)::kValue ? kPieces / 2 : kPieces][4];
    wait_k();
    issue_scores(s);
    ptx::wgmma_wait_group<0>(s);
    release_k();
    mask_first_tile(tiles, tile, s);
    softmax_of_masked<C.element, true>(s, rows, p.scale_log2, bases, rescale);
    pack<C.element>(p0, s);
  };
  if (narrow) {
    first(Narrow{});
  } else {
    first(Whole{});
  }

  bool have_last = false;
  while (true) {
    // ---- the second tile: its scores are issued before the output of the last item is stored
    i32 masked;
    {
      float s[kPieces][4];
      wait_k();
      issue_scores(s);
      if (have_last) store();
      for (; left > 0; --left) pass_v();
      ++tile;
      wait_v();
      ptx::pin_registers(p0);
      issue_first_output(p0, narrow);
      ptx::wgmma_wait_group<1>(s);
      release_k();
      bool moved = true;
      masked = masked_tiles(tiles);
      if (tile < masked) {
        mask_tile(tiles, tile, s);
        softmax_of_masked<C.element, false>(s, rows, p.scale_log2, bases, rescale);
        pack<C.element>(p1, s);
      } else {
        moved = softmax_ahead<C.element>(p1, s, rows, p.scale_log2, bases, rescale);
      }
      ptx::wgmma_wait_group<0>(o, p0);
      release_v();
      if (moved) rescale_output();
      ++tile;
    }

    const auto copy = [](u32(&to)[kSteps][4], const u32(&from)[kSteps][4]) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) to[i][j] = from[i][j];
      }
    };
    // ---- later tiles that need a mask, with blocks that do not divide 64
    if constexpr (!C.small_blocks) {
      if (tile < masked) {
        copy(p0, p1);
        for (; tile < masked; ++tile) {
          float s[kPieces][4];
          ptx::pin_registers(p0);
          take_turn(s, p0);
          mask_tile(tiles, tile, s);
          softmax_of_masked<C.element, false>(s, rows, p.scale_log2, bases, rescale);
          ptx::wgmma_wait_group<0>(o, p0);
          release_v();
          rescale_output();
          pack<C.element>(p0, s);
        }
        copy(p1, p0);
      }
    }
    // ---- the steady step
    const auto step = [&](u32(&in_flight)[kSteps][4], u32(&next)[kSteps][4]) {
      float s[kPieces][4];
      take_turn(s, in_flight);
      const bool moved = softmax_ahead<C.element>(next, s, rows, p.scale_log2, bases, rescale);
      ptx::wgmma_wait_group<0>(o, in_flight);
      release_v();
      if (moved) rescale_output();
    };
    bool odd = (tiles.count - tile) % 2 != 0;
    if (!odd) copy(p0, p1);
    while (tile < tiles.count) {
      if (odd) {
        odd = false;
      } else {
        step(p0, p1);
        ++tile;
      }
      step(p1, p0);
      ++tile;
    }

    // ---- between items
    retire();
    settle_references(rows, p.scale_log2, bases);
    const RunningRow done[2] = {rows[0], rows[1]};
    have_last = true;
    const auto last_product = [&]() {
      ptx::pin_registers(o);
      ptx::pin_registers(p0);
      issue_output(p0);
      ptx::wgmma_wait_group<0>(o, p0);
      release_v();
      finish(done);
    };
    if (!fetch()) {
      wait_v();
      last_product();
      store();
      break;
    }
    tiles = Tiles(p, strip, len);
    passed = group == 1 ? tiles.noisy : 0;
    tile = passed;
    narrow = group == 1 ? tiles.merged : tiles.narrow;
    if (!C.small_blocks && passed > 1) {
      wait_v();
      begin_turn();
      last_product();
      end_turn();
      pass();
      first(Whole{});
      continue;
    }
    pass();
    const auto boundary = [&](auto is_narrow) {
      float s[decltype(is_narrow)::kValue ? kPieces / 2 : kPieces][4];
      ptx::pin_registers(p0);
      take_turn(s, p0);
      mask_first_tile(tiles, tile, s);
      softmax_of_masked<C.element, true>(s, rows, p.scale_log2, bases, rescale);
      ptx::wgmma_wait_group<0>(o, p0);
      release_v();
      pack<C.element>(p0, s);
    };
    if (narrow) {
      boundary(Narrow{});
    } else {
      boundary(Whole{});
    }
    finish(done);
  }
  if (leads_group()) ptx::bulk_wait_group_read<0>();
}

template <ForwardSm90Config C>
__device__ __forceinline__ void attention_forward_sm90(const ForwardSm90Params& p) {
  static constexpr ForwardSm90Plan kPlan = forward_sm90_plan(C);
  const u32 shared = static_cast<u32>(uniform(static_cast<i32>(ptx::shared_base())));
  const int warp = uniform(static_cast<i32>(ptx::thread_index()) / 32);
  if (ptx::thread_index() == 0) ForwardSm90Barriers{shared + kPlan.barriers}.init();
  ptx::bar_sync(0, C.threads());
  if (warp < 4) {
    ptx::setmaxnreg_dec<40>();
    if (warp == 0) {
      produce_keys<C>(p, shared);
    } else if (warp == 1) {
      produce_queries<C>(p, shared);
    } else if (warp == 2) {
      write_empty<C>(p);
    }
  } else {
    ptx::setmaxnreg_inc<232>();
    Forward90Consumer<C>(p, shared, warp / 4 - 1).run();
  }
}

}  // namespace stepwell::cuda
