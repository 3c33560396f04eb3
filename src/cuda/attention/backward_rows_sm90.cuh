// What comes before attention_backward_sm90, by tiles of 64 query rows: row values, and first
// contents of the sums of dQ. One CTA for each tile of one half of a sample and KV head, for all
// query heads of the KV head.
//
// Where the block divides 64 (`diagonal`), the noisy rows of a tile see the noisy keys of the same
// tile and no others, and nobody else sees these: the rows, which are read anyway, give complete dK
// and dV of 64 noisy keys and the first dQ of 64 noisy rows. The main kernel then has clean keys
// only. A warpgroup, one tile of each product:
//
//   S = K Q^T   P = exp2(S - lse)   dP = V dO^T   dS = P (dP - delta)
//   dV = P^T dO   dK = dS^T Q   dQ = dS K
//
// dK and dV of several query heads are summed in registers (`grouped`); of one head the three
// results have the same registers, one after the other, and three CTAs fit an SM.
#pragma once

#include "cuda/attention/backward_products_sm90.cuh"
#include "cuda/attention/backward_sm90_producer.cuh"
#include "cuda/attention/row_values.cuh"

namespace stepwell::cuda {

/// A tile of rows of one half.
template <BackwardRowsSm90Config C>
struct BackwardRows90 {
  static constexpr BackwardRowsSm90Plan kPlan = backward_rows_sm90_plan(C);
  static constexpr i32 kRows = kSm90BackwardRows;
  static constexpr u32 kSlabBytes = kRows * 128;
  static constexpr int kDimSteps = C.head_dim / 16;
  static constexpr int kDimPieces = C.head_dim / 8;
  static constexpr i32 kDiagonalFlags = kNoisyRowsStep | kNoisyKeysStep;

  const BackwardSm90Params& p;
  const u32 shared;
  const u32 thread;
  const i32 half;
  const i32 tile;
  const KeyItem keys;  // those of the same half at the same place
  const i32 first;     // row of the half
  u32 parity = 0;      // of loads

  __device__ __forceinline__ BackwardRows90(const BackwardSm90Params& params, u32 base,
                                            const TileItem& item)
      : p(params),
        shared(base),
        thread(ptx::thread_index()),
        half(item.segment),
        tile(params.row_tiles - 1 - item.tile),
        keys{0,
             item.sample,
             tile * kRows,
             valid_tokens(params, item.sample),
             item.head_kv,
             1 - item.segment},
        first(tile * kRows) {}

  /// The tile of a query head, in the workspace.
  __device__ __forceinline__ i64 number(i32 head) const {
    return row_tile_number(p, keys.sample, head, half, tile);
  }

  /// delta = sum of dout * out - dlse, and log-sum-exp in units of log 2; to shared memory too
  /// where products follow.
  __device__ __forceinline__ void row_values(i32 head, bool to_shared) const {
    constexpr u32 kLanes = C.head_dim / 8;  // of a row, 8 columns each
    constexpr i32 kAtOnce = static_cast<i32>(C.threads() / kLanes);
    constexpr int kBatch = 4;
    static_assert(kRows % (kBatch * kAtOnce) == 0);
    float* const values = p.row_values + number(head) * (2 * kRows);
    const auto keep = [&](i32 index, float value) {
      values[index] = value;
      if (!to_shared) return;
      ptx::st_shared_u32(shared + kPlan.row_values + static_cast<u32>(index) * 4,
                         ptx::bits_of(value));
    };
    const i32 valid = keys.len - first;
    const i64 first_at = p.first_row[half] + first;
    const i32 own_row = static_cast<i32>(thread);
    float lse = ptx::float_of(0x7f800000u);
    if (own_row < geometry::min_of(kRows, valid)) {
      lse = *p.lse.at(keys.sample, head, first_at + own_row) * kLog2OfE;
    }
    const int lane = static_cast<int>(thread % kLanes);
#pragma unroll 1
    for (i32 base = 0; base < kRows; base += kBatch * kAtOnce) {
      const i32 row = base + static_cast<i32>(thread / kLanes);
      float sums[kBatch];
      row_products<C.element, kLanes, kAtOnce>(sums, p.out, p.dout_rows, keys.sample,
                                               first_at + row, head, lane, valid - row,
                                               p.head_dim_v);
      if (lane != 0) continue;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const i32 at = row + i * kAtOnce;
        if (p.dlse.data != nullptr && at < valid) {
          sums[i] -= *p.dlse.at(keys.sample, head, first_at + at);
        }
        keep(kRows + at, sums[i]);
      }
    }
    if (own_row < kRows) keep(own_row, lse);
  }

  __device__ __forceinline__ float* sums(i32 head) const {
    return p.dq_sum + number(head) * (kRows * C.head_dim);
  }
  __device__ __forceinline__ void clear_sums(i32 head) const {
    float* const to = sums(head);
#pragma unroll
    for (int i = 0; i < kRows * C.head_dim / 4; i += C.threads()) {
      ptx::st_global_v4(to + (i + static_cast<int>(thread)) * 4, {0, 0, 0, 0});
    }
  }

  // ---- the diagonal

  __device__ __forceinline__ u32 barrier() const { return shared + kPlan.barrier; }

  /// Requests Q and dO of a head, K and V before the first one. By one thread.
  __device__ __forceinline__ void request(i32 head, bool with_keys) const {
    const auto load = [&](u32 to, const TensorMap& map, i32 at_head, bool by_slab) {
      load_slabs<C.slabs()>(shared + to, kSlabBytes, map, barrier(), first, at_head, keys.sample,
                            by_slab);
    };
    ptx::mbarrier_arrive_expect_tx(barrier(), (with_keys ? 4 : 2) * C.tile_bytes());
    if (with_keys) {
      load(kPlan.k, p.noisy_k, keys.head_kv, p.qk_by_slab);
      load(kPlan.v, p.noisy_v, keys.head_kv, p.v_by_slab);
    }
    load(kPlan.q, p.q[0], head, p.qk_by_slab);
    load(kPlan.dout, p.dout[0], head, p.v_by_slab);
  }

  /// Waits for what was requested. Rows without a token may hold anything, and become zeros: a warp
  /// does one of the four matrices.
  __device__ __forceinline__ void receive(bool with_keys) {
    ptx::mbarrier_wait_parity(barrier(), parity);
    parity ^= 1;
    const i32 valid = keys.len - first;
    if (valid < kRows && keys.len < p.rows) {
      const u32 warp = thread / 32;
      if (warp < 2 || with_keys) {
#pragma unroll 1
        for (u32 slab = 0; slab < C.slabs(); ++slab) {
          clear_rows(shared + kPlan.q + warp * C.tile_bytes() + slab * kSlabBytes, valid, kRows);
        }
      }
      ptx::fence_proxy_async();
    }
    ptx::bar_sync(0, C.threads());
  }

  /// P and dS of a head, packed; dS to shared memory too.
  __device__ __forceinline__ void scores(u32 (&packed_p)[4][4], u32 (&packed_ds)[4][4],
                                         const WarpKeysSm90<kSlabBytes>& ds_keys) const {
    const u32 lane = thread % 32;
    const u32 values = shared + kPlan.row_values + lane % 4 * 8;
    const i32 key = first + static_cast<i32>(thread / 32 * 16 + lane / 4);
    const i32 row = first + static_cast<i32>(lane % 4 * 2);
    float s[8][4];
    float dp[8][4];
    ptx::wgmma_fence();
    multiply_rows_sm90<C.element, kDimSteps, kSlabBytes, kSlabBytes>(
        s, k_major_sm90(shared + kPlan.k), k_major_sm90(shared + kPlan.q));
    multiply_rows_sm90<C.element, kDimSteps, kSlabBytes, kSlabBytes>(
        dp, k_major_sm90(shared + kPlan.v), k_major_sm90(shared + kPlan.dout));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(s);
    ptx::pin_registers(dp);
    float of_rows[8][2];
    load_row_values(of_rows, values);
    exponentials_sm90(s, of_rows, p.scale_log2);
    hide_sm90(s, p, key, keys.len, row, kDiagonalFlags);
    pack_probabilities_sm90<C.element>(packed_p, s);
    load_row_values(of_rows, values + kRowValuesBytes / 2);
    score_gradients_sm90<C.element>(dp, packed_p, of_rows);
    hide_sm90(dp, p, key, keys.len, row, kDiagonalFlags);
    pack_gradients_sm90<C.element>(packed_ds, dp);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) ptx::stmatrix_x4(ds_keys.matrix(0, 2 * i), packed_ds[i]);
    ptx::fence_proxy_async();
    ptx::bar_sync(0, C.threads());
  }

  /// dQ of a head, which begins its sums.
  __device__ __forceinline__ void first_dq(i32 head) const {
    float dq[kDimPieces][4];
    ptx::wgmma_fence();
    multiply_dq_sm90<C.element, kRows / 16>(dq, mn_major_sm90(shared + kPlan.ds, kSlabBytes),
                                            mn_major_sm90(shared + kPlan.k, kSlabBytes));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(dq);
    float* const to = sums(head) + thread / 32 * (kDimPieces * 128) + thread % 32 * 4;
#pragma unroll
    for (int i = 0; i < kDimPieces; ++i) {
      ptx::st_global_v4(to + i * 128, {ptx::bits_of(dq[i][0]), ptx::bits_of(dq[i][1]),
                                       ptx::bits_of(dq[i][2]), ptx::bits_of(dq[i][3])});
    }
  }

  /// sums += A B over the tile's rows; A B for the first head.
  template <bool kFirst>
  __device__ __forceinline__ void add_keys(float (&sums)[kDimPieces][4], u32 (&a)[4][4],
                                           int b) const {
    multiply_keys_sm90<C.element, kFirst>(sums, a,
                                          mn_major_sm90(shared + static_cast<u32>(b), kSlabBytes));
  }

  __device__ __forceinline__ void run_diagonal() {
    if (thread == 0) {
      ptx::mbarrier_init(barrier(), 1);
      ptx::fence_mbarrier_init();
    }
    ptx::bar_sync(0, C.threads());
    const u32 warp_rows = thread / 32 * 16;
    const i32 first_head = keys.head_kv * p.group();
    const WarpKeysSm90<kSlabBytes> ds_keys(shared + kPlan.ds + warp_rows * 128, thread % 32);
    // Results go out through V, once all products with it are done.
    const WarpKeysSm90<kSlabBytes> results(shared + kPlan.v + warp_rows * 128, thread % 32);
    const i32 first_key = first + static_cast<i32>(warp_rows);
    u32 packed_p[4][4], packed_ds[4][4];
    if constexpr (!C.grouped) {
      if (thread == 0) request(first_head, true);
      row_values(first_head, true);
      receive(true);
      scores(packed_p, packed_ds, ds_keys);
      float sum[kDimPieces][4];
      ptx::wgmma_fence();
      add_keys<true>(sum, packed_p, kPlan.dout);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>(sum, packed_p);
      results.template write<C.element>(sum, 1.0f, p, p.dv, p.head_dim_v, keys, first_key);
      ptx::wgmma_fence();
      add_keys<true>(sum, packed_ds, kPlan.q);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>(sum, packed_ds);
      results.template write<C.element>(sum, p.softmax_scale, p, p.dk, p.head_dim, keys, first_key);
      first_dq(first_head);
    } else {
      float dk[kDimPieces][4] = {};
      float dv[kDimPieces][4] = {};
#pragma unroll 1
      for (i32 head = first_head; head < first_head + p.group(); ++head) {
        if (thread == 0) request(head, head == first_head);
        row_values(head, true);
        receive(head == first_head);
        scores(packed_p, packed_ds, ds_keys);
        ptx::wgmma_fence();
        add_keys<false>(dv, packed_p, kPlan.dout);
        add_keys<false>(dk, packed_ds, kPlan.q);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<0>(dv, packed_p);
        ptx::pin_registers(dk);
        ptx::pin_registers(packed_ds);
        first_dq(head);
        // Nobody reads Q, dO, dS and row values any more.
        ptx::bar_sync(0, C.threads());
      }
      results.template write<C.element>(dv, 1.0f, p, p.dv, p.head_dim_v, keys, first_key);
      results.template write<C.element>(dk, p.softmax_scale, p, p.dk, p.head_dim, keys, first_key);
    }
  }

  __device__ __forceinline__ void run() {
    const bool diagonal = C.diagonal && keys.noisy != 0;
    if (first >= keys.len) {  // no token: nobody reads row values and sums
      if (!diagonal) return;
      const i32 end = geometry::min_of(first + kRows, p.rows);
      write_zero_keys<C.threads()>(p, keys, first, end);
      return;
    }
    if constexpr (C.diagonal) {
      if (diagonal) {
        run_diagonal();
        return;
      }
    }
    for (i32 head = keys.head_kv * p.group(); head < (keys.head_kv + 1) * p.group(); ++head) {
      row_values(head, false);
      clear_sums(head);
    }
  }
};

template <BackwardRowsSm90Config C>
__device__ __forceinline__ void attention_backward_rows_sm90(const BackwardSm90Params& p) {
  if (ptx::cta_index<0>() == 0 && ptx::thread_index() == 0) *p.next_item = 0;
  // Backwards: what the main kernel begins with is written last.
  const i32 index = p.ctas - 1 - static_cast<i32>(ptx::cta_index<0>());
  const u32 shared = C.diagonal ? ptx::shared_base() : 0;
  BackwardRows90<C>(p, shared, tile_item(p.grid, p.heads_kv, index)).run();
}

}  // namespace stepwell::cuda
