// Attention backward of block diffusion masks on Hopper: TMA, wgmma, specialised warps.
//
// Three kernels: attention_backward_rows_sm90 (per query row: delta, log-sum-exp in log2 units,
// zeros where dQ is summed), the main kernel here, and attention_backward_finish
// (backward_rows.cuh), which rounds the sums of dQ.
//
// WORK ITEM: 128 keys of one half of one sample and KV head, with the tiles of 64 query rows of
// both halves and all query heads of the KV head that see them: K and V stay in shared memory, dK
// and dV in registers. CTAs are persistent, one on each SM, and claim items from a counter: the
// longest first, in groups of KV heads whose Q, dO and sums of dQ share the L2 cache.
//
// WARPS (384 threads)
//   warpgroup 0   warp 0 claims items and loads; the others have nothing to do. 40 registers.
//   warpgroup w   (1, 2) keys [64 (w - 1), 64 w) of S^T, dP^T, dV and dK, and columns
//                 [64 (w - 1), 64 w) of dQ (32 each at head dim 64). 232 registers each.
//
// SHARED MEMORY at head dim 128 (178 KB): K 32 KB, V 32, Q 3 stages of 16, dO 2 of 16, dS 2 of 16;
// row values, steps, items, barriers. At head dim 64 K is there twice: as B of dQ in two halves of
// 32 columns, as S takes it in rows of 64.
//
// BARRIERS: mbarriers are those of BackwardSm90Barriers.
//
// REGISTERS of a consumer at head dim 128: dK 64, dV 64, S 32, dP 32, dQ 32 (dead while S is read),
// P 16, dS 16.
//
// THE STEADY STEP i: in flight S(i). Load what the step needs of shared memory; wait for S; issue
// dP(i); exponentials, P packed; issue dV += P^T dO; load delta; wait for dP; dS = P (dP - delta)
// to registers and to shared memory; issue dQ(i - 1) = dS(i - 1) K and dK += dS^T Q; wait for all;
// issue S(i + 1); release Q and dO; add dQ(i - 1) to its sums. dQ is one step late, so that the
// other warpgroup's dS has long arrived. S^T and dP^T (keys x queries) make P^T and dS^T operands
// in registers. The sums of dQ are in the order of accumulators (query_sums.hpp), so that red.v4
// writes whole lines.
//
// The compiler serialises wgmma, silently right and slow, where it cannot follow (notes C75xx; the
// compile gate fails on them). Hence: S, dP and dQ by a first instruction that does not read them
// (wgmma_ss_init), S alone in flight at a step's end, and copies of the step for an item's first
// and last tile, not branches.
//
// TRIED in the prototype, at head dim 128 in bf16 on one H200; shares of FlashAttention-3's speed
// at n = 1K and 16K, the order of this file being at 0.97 and 0.95:
//   a barrier in each step, dQ of the same step by way of shared memory      0.87, 0.88
//   FlashAttention-3's order (S, dP, then dV, dQ, dK in one burst)           0.94, 0.87
//   dS from float32 P                                                        0.89
//   warpgroups take turns                                                    0.81 - 0.92
//   half of a step skipped where one warpgroup's keys are all hidden         0.88, 0.74
//   barriers tested early, log-sum-exp loaded before the wait, other places of single loads:
//                                                                            0.85 - 0.96
//   (here all loads before the waits, and Q released early, gave 1.06 - 1.15)
//   the last arrival at a tile of dQ rounds it here                          0.67, 0.70
#pragma once

#include "cuda/attention/backward_products_sm90.cuh"
#include "cuda/attention/backward_sm90_producer.cuh"

namespace stepwell::cuda {

/// A warpgroup that multiplies.
template <BackwardSm90Config C>
struct Backward90Consumer {
  static constexpr BackwardSm90Plan kPlan = backward_sm90_plan(C);
  static constexpr int kPieces = kSm90BackwardRows / 8;     // of S and dP, keys x query rows
  static constexpr int kSteps = kSm90BackwardRows / 16;     // of P^T dO and dS^T Q
  static constexpr int kDimSteps = C.head_dim / 16;         // of K Q^T and V dO^T
  static constexpr int kKeySteps = kSm90BackwardKeys / 16;  // of dS K
  static constexpr int kDimPieces = C.head_dim / 8;         // of dK and dV
  static constexpr int kDqPieces = C.head_dim / 16;         // of a warpgroup's columns of dQ
  static constexpr u32 kRowsSlabBytes = kSm90BackwardRows * 128;
  static constexpr u32 kKeysSlabBytes = kSm90BackwardKeys * 128;
  static constexpr u32 kDsBytes = kSm90BackwardKeys * 128;

  const BackwardSm90Params& p;
  const u32 shared;
  const u32 group;  // of warps
  const u32 warp;   // of the group
  const u32 lane;
  const BackwardSm90Barriers barriers;

  StagePlace<kRowStages> q;
  StagePlace<kItemStages> place;
  u32 step = 0;
  u32 kv_parity = 0;
  i32 last_tile = 0;  // of query rows, of the step before

  float dk[kDimPieces][4];
  float dv[kDimPieces][4];
  float s[kPieces][4];
  float dp[kPieces][4];
  float dq[kDqPieces][4];
  u32 packed_p[kSteps][4];
  u32 packed_ds[kSteps][4];

  // Of operands, at stage 0.
  const u64 k_rows, v_rows;           // A of S^T and dP^T
  const u64 k_columns;                // B of dQ
  const u64 q_rows, dout_rows;        // B of S^T and dP^T
  const u64 q_columns, dout_columns;  // B of dK and dV
  const u64 ds_columns;               // A of dQ

  const WarpKeysSm90<kDsBytes> ds_keys;  // the warp's, in stage 0 of dS

  __device__ __forceinline__ Backward90Consumer(const BackwardSm90Params& params, u32 base, u32 wg,
                                                u32 warp_index)
      : p(params),
        shared(base),
        group(wg),
        warp(warp_index),
        lane(ptx::thread_index() % 32),
        barriers{base + kPlan.barriers},
        k_rows(k_major_sm90(base + kPlan.k + wg * 64 * 128)),
        v_rows(k_major_sm90(base + kPlan.v + wg * 64 * 128)),
        k_columns(C.splits_slab()
                      ? mn_major_half_sm90(base + kPlan.k_columns + wg * (kKeysSlabBytes / 2))
                      : mn_major_sm90(base + kPlan.k + wg * kKeysSlabBytes, kKeysSlabBytes)),
        q_rows(k_major_sm90(base + kPlan.q)),
        dout_rows(k_major_sm90(base + kPlan.dout)),
        q_columns(mn_major_sm90(base + kPlan.q, kRowsSlabBytes)),
        dout_columns(mn_major_sm90(base + kPlan.dout, kRowsSlabBytes)),
        ds_columns(mn_major_sm90(base + kPlan.ds, kDsBytes)),
        ds_keys{base + kPlan.ds + (wg * 64 + warp_index * 16) * 128, ptx::thread_index() % 32} {}

  // ---- barriers

  /// Lets the warp arrive, once all of its lanes are done.
  __device__ __forceinline__ void arrive(u32 barrier) const {
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ u32 step_at(u32 index) const {
    return shared + kPlan.steps + index % kStepStages * 16;
  }
  __device__ __forceinline__ u32 item_at() const { return shared + kPlan.items + 32 * place.stage; }

  // ---- products

  __device__ __forceinline__ void issue_scores() {
    ptx::wgmma_fence();
    multiply_rows_sm90<C.element, kDimSteps, kKeysSlabBytes, kRowsSlabBytes>(
        s, k_rows, ptx::advance_descriptor(q_rows, q.stage * C.rows_bytes()));
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void issue_dq(u32 index) {
    const u32 stage = index % kDsStages;
    ptx::mbarrier_wait_parity(barriers.ds_full(stage), index / kDsStages % 2);
    ptx::wgmma_fence();
    multiply_dq_sm90<C.element, kKeySteps, kRowsStepSm90 / (C.splits_slab() ? 2 : 1)>(
        dq, ptx::advance_descriptor(ds_columns, stage * kDsBytes), k_columns);
    ptx::wgmma_commit_group();
  }
  /// Adds dQ of a step to the sums of its rows.
  __device__ __forceinline__ void add_dq(i32 tile) const {
    float* const to = p.dq_sum + i64{tile} * (kSm90BackwardRows * C.head_dim) +
                      (warp * (C.head_dim / 8) + group * kDqPieces) * 128 + lane * 4;
#pragma unroll
    for (int i = 0; i < kDqPieces; ++i) ptx::red_add_x4_f32(to + i * 128, dq[i]);
  }

  // ---- scores

  /// In a step that some row of which does not see some key of the warpgroup.
  __device__ __forceinline__ void hide(float (&x)[kPieces][4], i32 flags) const {
    i32 first_key, len;
    ptx::ld_shared_v2(item_at() + kItemKeys, first_key, len);
    const i32 first_row =
        static_cast<i32>(ptx::ld_shared_u32(step_at(step) + kStepFirstRow) + lane % 4 * 2);
    hide_sm90(x, p, first_key + static_cast<i32>(group * 64 + warp * 16 + lane / 4), len, first_row,
              flags);
  }

  __device__ __forceinline__ void store_ds() const {
    const u32 stage = step % kDsStages;
    ptx::mbarrier_wait_parity(barriers.ds_empty(stage), step / kDsStages % 2 ^ 1);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      ptx::stmatrix_x4(ds_keys.matrix(static_cast<int>(stage), 2 * i), packed_ds[i]);
    }
    ptx::fence_proxy_async();
    arrive(barriers.ds_full(stage));
  }

  // ---- a step, and an item

  template <bool kFirst, bool kLast>
  __device__ __forceinline__ void run_step() {
    const u32 row_values = shared + kPlan.row_values + q.stage * kRowValuesBytes + lane % 4 * 8;
    const u32 dout_stage = step % kDoutStages;
    float of_rows[8][2];
    load_row_values(of_rows, row_values);
    const StepInfo info = load_step(step_at(step));
    ptx::wgmma_wait_group<0>(s);

    ptx::mbarrier_wait_parity(barriers.dout_full(dout_stage), step / kDoutStages % 2);
    ptx::wgmma_fence();
    multiply_rows_sm90<C.element, kDimSteps, kKeysSlabBytes, kRowsSlabBytes>(
        dp, v_rows, ptx::advance_descriptor(dout_rows, dout_stage * C.rows_bytes()));
    ptx::wgmma_commit_group();

    exponentials_sm90(s, of_rows, p.scale_log2);
    const i32 flags = static_cast<i32>(ptx::shfl_idx_u32(static_cast<u32>(info.flags), 0));
    if ((flags & kPartialStep << group) != 0) hide(s, flags);
    pack_probabilities_sm90<C.element>(packed_p, s);
    ptx::pin_registers(packed_p);
    ptx::wgmma_fence();
    multiply_keys_sm90<C.element, kFirst>(
        dv, packed_p, ptx::advance_descriptor(dout_columns, dout_stage * C.rows_bytes()));
    ptx::wgmma_commit_group();
    load_row_values(of_rows, row_values + kRowValuesBytes / 2);
    ptx::wgmma_wait_group<1>(dp);

    score_gradients_sm90<C.element>(dp, packed_p, of_rows);
    if ((flags & kPartialStep << group) != 0) hide(dp, flags);
    pack_gradients_sm90<C.element>(packed_ds, dp);
    store_ds();
    if constexpr (!kFirst) issue_dq(step - 1);
    ptx::pin_registers(packed_ds);
    ptx::wgmma_fence();
    multiply_keys_sm90<C.element, kFirst>(
        dk, packed_ds, ptx::advance_descriptor(q_columns, q.stage * C.rows_bytes()));
    ptx::wgmma_commit_group();
    const u32 q_stage = q.stage;
    q.next();
    ptx::wgmma_wait_group<0>(dv);
    ptx::pin_registers(dk);
    if constexpr (!kFirst) ptx::pin_registers(dq);
    if constexpr (!kLast) {
      ptx::mbarrier_wait_parity(barriers.q_full(q.stage), q.parity);
      issue_scores();
    }
    ptx::syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive(barriers.dout_empty(dout_stage));
      ptx::mbarrier_arrive(barriers.q_empty(q_stage));
      if constexpr (!kFirst) ptx::mbarrier_arrive(barriers.ds_empty((step - 1) % kDsStages));
    }
    if constexpr (!kFirst) add_dq(last_tile);
    last_tile = info.tile;
    ++step;
  }

  __device__ __forceinline__ void run() {
    while (true) {
      ptx::mbarrier_wait_parity(barriers.item_full(place.stage), place.parity);
      const i32 steps = static_cast<i32>(ptx::shfl_idx_u32(ptx::ld_shared_u32(item_at()), 0));
      if (steps == 0) return;
      ptx::mbarrier_wait_parity(barriers.k_full(), kv_parity);
      ptx::mbarrier_wait_parity(barriers.q_full(q.stage), q.parity);
      issue_scores();
      ptx::mbarrier_wait_parity(barriers.v_full(), kv_parity);
      kv_parity ^= 1;
      if (steps == 1) {
        run_step<true, true>();
      } else {
        run_step<true, false>();
        for (i32 i = 2; i < steps; ++i) run_step<false, false>();
        run_step<false, true>();
      }
      issue_dq(step - 1);
      ptx::wgmma_wait_group<0>(dq);
      ptx::pin_registers(dk);
      const u32 stage = (step - 1) % kDsStages;
      ptx::syncwarp();
      if (lane == 0) {
        ptx::mbarrier_arrive(barriers.ds_empty(stage));
        ptx::mbarrier_arrive(barriers.kv_empty());
      }
      add_dq(last_tile);
      // Both warpgroups' dQ have read dS, of this step and of the one before.
      ptx::mbarrier_wait_parity(barriers.ds_empty(stage), (step - 1) / kDsStages % 2);
      const KeyItem item = load_item<KeyItem>(item_at());
      // Through the rows of dS that the same warp writes.
      const i32 key = item.first_key + static_cast<i32>(group * 64 + warp * 16);
      ds_keys.template write<C.element>(dv, 1.0f, p, p.dv, p.head_dim_v, item, key);
      ds_keys.template write<C.element>(dk, p.softmax_scale, p, p.dk, p.head_dim, item, key);
      arrive(barriers.item_empty(place.stage));
      place.next();
    }
  }
};

template <BackwardSm90Config C>
__device__ __forceinline__ void attention_backward_sm90(const BackwardSm90Params& p) {
  static constexpr BackwardSm90Plan kPlan = backward_sm90_plan(C);
  const u32 shared = ptx::shared_base();
  const u32 warp = ptx::shfl_idx_u32(ptx::thread_index() / 32, 0);
  if (ptx::thread_index() == 0) BackwardSm90Barriers{shared + kPlan.barriers}.init();
  ptx::bar_sync(0, C.threads());
  if (warp < 4) {
    ptx::setmaxnreg_dec<40>();
    if (warp == 0) Backward90Producer<C>(p, shared).run();
  } else {
    ptx::setmaxnreg_inc<232>();
    Backward90Consumer<C>(p, shared, warp / 4 - 1, warp % 4).run();
  }
}

}  // namespace stepwell::cuda
