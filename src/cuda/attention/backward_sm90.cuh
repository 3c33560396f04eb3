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
//                 [64 (w - 1), 64 w) of dQ. 232 registers each.
//
// SHARED MEMORY at head dim 128 (178 KB): K 32 KB, V 32, Q 3 stages of 16, dO 2 of 16, dS 2 of 16;
// row values, steps, items, barriers.
//
// BARRIERS: mbarriers are those of BackwardSm90Barriers.
//
// REGISTERS of a consumer at head dim 128: dK 64, dV 64, S 32, dP 32, dQ 32 (dead while S is read),
// P 16, dS 16.
//
// THE STEADY STEP i: in flight S(i). Wait for it; issue dP(i); exponentials, P packed; issue
// dV += P^T dO; wait for dP; dS = P (dP - delta) to registers and to shared memory; issue
// dQ(i - 1) = dS(i - 1) K and dK += dS^T Q; wait for all; issue S(i + 1); add dQ(i - 1) to its
// sums. dQ is one step late, so that the other warpgroup's dS has long arrived. S^T and dP^T (keys
// x queries) make P^T and dS^T operands in registers. The sums of dQ are in the order of
// accumulators (query_sums.hpp), so that red.v4 writes whole lines.
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
//   the last arrival at a tile of dQ rounds it here                          0.67, 0.70
#pragma once

#include "cuda/attention/backward_sm90_producer.cuh"
#include "cuda/ptx/wgmma.cuh"

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
  static constexpr u32 kStep = 16 * 128;  // bytes of 16 rows of K in an MN-major operand
  template <bool kValue>
  using Flag = Constant<kValue>;

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

  const u32 ds_row;  // that this lane addresses in stmatrix
  const u32 ds_chunk, ds_swizzle;

  __device__ __forceinline__ static u64 k_major(u32 at) {
    return ptx::matrix_descriptor(at, 16, 1024, Swizzle::k128);
  }
  __device__ __forceinline__ static u64 mn_major(u32 at, u32 slab_bytes) {
    return ptx::matrix_descriptor(at, slab_bytes, 1024, Swizzle::k128);
  }
  /// The key of the CTA's item that this lane addresses in stmatrix.
  __device__ __forceinline__ static u32 matrix_row(u32 wg, u32 warp_index, u32 lane_index) {
    return wg * 64 + warp_index * 16 + lane_index % 16;
  }

  __device__ __forceinline__ Backward90Consumer(const BackwardSm90Params& params, u32 base, u32 wg,
                                                u32 warp_index)
      : p(params),
        shared(base),
        group(wg),
        warp(warp_index),
        lane(ptx::thread_index() % 32),
        barriers{base + kPlan.barriers},
        k_rows(k_major(base + kPlan.k + wg * 64 * 128)),
        v_rows(k_major(base + kPlan.v + wg * 64 * 128)),
        k_columns(mn_major(base + kPlan.k + wg * kKeysSlabBytes, kKeysSlabBytes)),
        q_rows(k_major(base + kPlan.q)),
        dout_rows(k_major(base + kPlan.dout)),
        q_columns(mn_major(base + kPlan.q, kRowsSlabBytes)),
        dout_columns(mn_major(base + kPlan.dout, kRowsSlabBytes)),
        ds_columns(mn_major(base + kPlan.ds, kDsBytes)),
        ds_row(base + kPlan.ds + matrix_row(wg, warp_index, ptx::thread_index() % 32) * 128),
        ds_chunk(ptx::thread_index() % 32 / 16),
        ds_swizzle(ptx::thread_index() % 8) {}

  // ---- barriers

  /// Lets the warp arrive, once all of its lanes are done.
  __device__ __forceinline__ void arrive(u32 barrier) const {
    ptx::syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  /// The stage of Q before the one at hand.
  __device__ __forceinline__ u32 last_q() const {
    return q.stage == 0 ? kRowStages - 1 : q.stage - 1;
  }
  __device__ __forceinline__ u32 step_at(u32 index) const {
    return shared + kPlan.steps + index % kStepStages * 16;
  }
  __device__ __forceinline__ u32 item_at() const { return shared + kPlan.items + 32 * place.stage; }

  // ---- products

  __device__ __forceinline__ void issue_scores() {
    ptx::wgmma_fence();
    const u64 b = ptx::advance_descriptor(q_rows, q.stage * C.rows_bytes());
    multiply_rows(s, k_rows, b);
    ptx::wgmma_commit_group();
  }
  /// d = A B^T over the head dim, A of 64 keys and B of query rows.
  __device__ __forceinline__ void multiply_rows(float (&d)[kPieces][4], u64 a, u64 b) {
#pragma unroll
    for (int i = 0; i < kDimSteps; ++i) {
      const u64 a_i = ptx::advance_descriptor(a, i / 4 * kKeysSlabBytes + i % 4 * 32);
      const u64 b_i = ptx::advance_descriptor(b, i / 4 * kRowsSlabBytes + i % 4 * 32);
      if (i == 0) {
        ptx::wgmma_ss_init<C.element, false>(d, a_i, b_i);
      } else {
        ptx::wgmma_ss<C.element, false>(d, a_i, b_i, true);
      }
    }
  }
  /// d += A B over query rows; d = A B in an item's first step.
  template <bool kFirst>
  __device__ __forceinline__ void multiply_keys(float (&d)[kDimPieces][4], u32 (&a)[kSteps][4],
                                                u64 b) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const u64 b_i = ptx::advance_descriptor(b, i * kStep);
      if (i == 0 && kFirst) {
        ptx::wgmma_rs_init<C.element, true>(d, a[i], b_i);
      } else {
        ptx::wgmma_rs<C.element, true>(d, a[i], b_i, true);
      }
    }
  }
  __device__ __forceinline__ void issue_dq(u32 index) {
    const u32 stage = index % kDsStages;
    ptx::mbarrier_wait_parity(barriers.ds_full(stage), index / kDsStages % 2);
    ptx::wgmma_fence();
    const u64 a = ptx::advance_descriptor(ds_columns, stage * kDsBytes);
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) {
      const u64 a_i = ptx::advance_descriptor(a, i * kStep);
      const u64 b_i = ptx::advance_descriptor(k_columns, i * kStep);
      if (i == 0) {
        ptx::wgmma_ss_init<C.element, true, true>(dq, a_i, b_i);
      } else {
        ptx::wgmma_ss<C.element, true, true>(dq, a_i, b_i, true);
      }
    }
    ptx::wgmma_commit_group();
  }
  /// Adds dQ of a step to its sums.
  __device__ __forceinline__ void add_dq(u32 index) const {
    const i64 tile = static_cast<i32>(ptx::ld_shared_u32(step_at(index)));
    float* const to = p.dq_sum + tile * (kSm90BackwardRows * C.head_dim) +
                      (warp * (C.head_dim / 8) + group * kDqPieces) * 128 + lane * 4;
#pragma unroll
    for (int i = 0; i < kDqPieces; ++i) ptx::red_add_x4_f32(to + i * 128, dq[i]);
  }

  // ---- scores

  /// Zeros where a row does not see a key: hidden pairs may hold anything, infinities and NaN
  /// included.
  __device__ __forceinline__ void hide(float (&x)[kPieces][4], i32 flags) const {
    i32 first_key, len;
    ptx::ld_shared_v2(item_at() + kItemKeys, first_key, len);
    const i32 first_row = static_cast<i32>(ptx::ld_shared_u32(step_at(step) + 4) + lane % 4 * 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i32 key = first_key + static_cast<i32>(group * 64 + warp * 16 + lane / 4) + 8 * r;
      KeySpan span = rows_that_see(p, key, len, flags);
      span.begin -= first_row;
      span.end -= first_row;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const i32 row = 8 * i + j;
          if (row < span.begin || row >= span.end) x[i][2 * r + j] = 0.0f;
        }
      }
    }
  }

  /// P = exp2(S scale_log2 - lse), packed.
  __device__ __forceinline__ i32 probabilities(u32 row_values) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float lse[2];
      ptx::ld_shared_v2(row_values + i * 32, lse[0], lse[1]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = ptx::ex2_approx(ptx::fma_f32(s[i][j], p.scale_log2, -lse[j % 2]));
      }
    }
    const i32 flags = static_cast<i32>(ptx::shfl_idx_u32(ptx::ld_shared_u32(step_at(step) + 8), 0));
    if ((flags & kPartialStep << group) != 0) hide(s, flags);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // P is at most 1. Scores past 2^24 leave more than that between them and their rounded
        // log-sum-exp.
        packed_p[i / 2][i % 2 * 2 + r] = ptx::min_nan_x2<C.element>(
            ptx::cvt_x2_f32<C.element>(s[i][2 * r], s[i][2 * r + 1]), ptx::ones_x2<C.element>());
      }
    }
    return flags;
  }

  /// dS = P (dP - delta), packed.
  __device__ __forceinline__ void score_gradients(u32 row_values, i32 flags) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float delta[2];
      ptx::ld_shared_v2(row_values + kRowValuesBytes / 2 + i * 32, delta[0], delta[1]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const u32 pair = packed_p[i / 2][i % 2 * 2 + j / 2];
        dp[i][j] = (dp[i][j] - delta[j % 2]) *
                   (j % 2 == 0 ? ptx::low_f32<C.element>(pair) : ptx::high_f32<C.element>(pair));
      }
    }
    if ((flags & kPartialStep << group) != 0) hide(dp, flags);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        packed_ds[i / 2][i % 2 * 2 + r] =
            ptx::cvt_x2_f32<C.element>(dp[i][2 * r], dp[i][2 * r + 1]);
      }
    }
  }

  __device__ __forceinline__ void store_ds() const {
    const u32 stage = step % kDsStages;
    ptx::mbarrier_wait_parity(barriers.ds_empty(stage), step / kDsStages % 2 ^ 1);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      ptx::stmatrix_x4(ds_row + stage * kDsBytes + (((2 * i + ds_chunk) ^ ds_swizzle) << 4),
                       packed_ds[i]);
    }
    ptx::fence_proxy_async();
    arrive(barriers.ds_full(stage));
  }

  // ---- a step, and an item

  template <bool kFirst, bool kLast>
  __device__ __forceinline__ void run_step() {
    const u32 row_values = shared + kPlan.row_values + q.stage * kRowValuesBytes + lane % 4 * 8;
    const u32 dout_stage = step % kDoutStages;
    ptx::wgmma_wait_group<0>(s);
    if constexpr (!kFirst) arrive(barriers.q_empty(last_q()));

    ptx::mbarrier_wait_parity(barriers.dout_full(dout_stage), step / kDoutStages % 2);
    ptx::wgmma_fence();
    multiply_rows(dp, v_rows, ptx::advance_descriptor(dout_rows, dout_stage * C.rows_bytes()));
    ptx::wgmma_commit_group();

    const i32 flags = probabilities(row_values);
    ptx::pin_registers(packed_p);
    ptx::wgmma_fence();
    multiply_keys<kFirst>(dv, packed_p,
                          ptx::advance_descriptor(dout_columns, dout_stage * C.rows_bytes()));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>(dp);

    score_gradients(row_values, flags);
    store_ds();
    if constexpr (!kFirst) issue_dq(step - 1);
    ptx::pin_registers(packed_ds);
    ptx::wgmma_fence();
    multiply_keys<kFirst>(dk, packed_ds,
                          ptx::advance_descriptor(q_columns, q.stage * C.rows_bytes()));
    ptx::wgmma_commit_group();
    q.next();
    ptx::wgmma_wait_group<0>(dv);
    ptx::pin_registers(dk);
    if constexpr (!kFirst) ptx::pin_registers(dq);
    if constexpr (!kLast) {
      ptx::mbarrier_wait_parity(barriers.q_full(q.stage), q.parity);
      issue_scores();
    }
    arrive(barriers.dout_empty(dout_stage));
    if constexpr (!kFirst) {
      if (lane == 0) ptx::mbarrier_arrive(barriers.ds_empty((step - 1) % kDsStages));
      add_dq(step - 1);
    }
    ++step;
  }

  /// Results of the warp's 16 keys, through the rows of dS that the same warp writes.
  __device__ __forceinline__ void write(const float (&sums)[kDimPieces][4], float scale,
                                        const HalfRows& rows, i32 dim, const KeyItem& item) const {
#pragma unroll
    for (int i = 0; i < kDimPieces; i += 2) {
      u32 matrices[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* pair = &sums[i + j / 2][j % 2 * 2];
        matrices[j] = ptx::cvt_x2_f32<C.element>(pair[0] * scale, pair[1] * scale);
      }
      ptx::stmatrix_x4(ds_row + i / 8 * kDsBytes + (((i % 8 + ds_chunk) ^ ds_swizzle) << 4),
                       matrices);
    }
    ptx::syncwarp();
    constexpr u32 kChunks = C.head_dim / 8;  // 16 bytes of a row
    const u32 chunk = lane % kChunks;
    const i32 first = item.first_key + static_cast<i32>(group * 64 + warp * 16);
    u16* const to =
        rows.at(item.sample, p.first_row[item.noisy != 0 ? 0 : 1] + first, item.head_kv) +
        chunk * 8;
#pragma unroll
    for (u32 row = lane / kChunks; row < 16; row += 32 / kChunks) {
      const u32 at = shared + kPlan.ds + chunk / 8 * kDsBytes +
                     (group * 64 + warp * 16 + row) * 128 + ((chunk % 8 ^ row % 8) << 4);
      U32x4 value = ptx::ld_shared_v4(at);
      const i32 key = first + static_cast<i32>(row);
      if (key >= item.len) value = {0, 0, 0, 0};
      if (key < p.rows && static_cast<i32>(chunk) * 8 < dim) {
        ptx::st_global_v4(to + static_cast<i64>(row) * rows.row_stride, value);
      }
    }
    ptx::syncwarp();
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
      arrive(barriers.q_empty(last_q()));
      const u32 stage = (step - 1) % kDsStages;
      if (lane == 0) {
        ptx::mbarrier_arrive(barriers.ds_empty(stage));
        ptx::mbarrier_arrive(barriers.kv_empty());
      }
      add_dq(step - 1);
      // Both warpgroups' dQ have read dS, of this step and of the one before.
      ptx::mbarrier_wait_parity(barriers.ds_empty(stage), (step - 1) / kDsStages % 2);
      const KeyItem item = load_key_item(item_at());
      write(dv, 1.0f, p.dv, p.head_dim_v, item);
      write(dk, p.softmax_scale, p.dk, p.head_dim, item);
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
