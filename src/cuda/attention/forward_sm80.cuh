// Attention forward with mma.sync, ldmatrix and cp.async: Ampere, Ada, and any GPU with no kernel
// of its own.
//
// Algorithm: FlashAttention-2 (Dao, arXiv:2307.08691) on two-interval masks. A CTA owns tile_q
// query rows of one segment and head; each warp owns 16 or 32 of them. The CTA walks the key tiles
// that any of its rows sees, own view first, then clean keys, last tile first, so that masked tiles
// come at the front of each walk. A warp multiplies only those 32 keys at a time of a masked
// tile that its own rows see.
//
// Scores of any size: the fast softmax rounds a row's reference once. Where that turns out too
// large in the end, the CTA walks again, with differences first (softmax_exact). Kernels of three
// CTAs an SM, which are short of registers, take the latter at once.
//
// Shared memory (ForwardPlan): Q (later the output), two K and V tiles, the rows' intervals, what
// the walk needs of both phases, where results go, flags of the second walk. Rows are padded to an
// odd number of 16-byte chunks: constant offsets, no bank conflicts, no swizzle arithmetic.
//
// Pipeline, one key tile:
//   wait for K and V | barrier | request the next K and V | S = Q K^T | softmax | O += P V
// The barrier after `wait` also says that all warps are done with the tile that the request
// overwrites.
//
// Registers: 32 rows x dim 128: 128 for O, 64 for S.
#pragma once

#include "cuda/attention/forward_config.hpp"
#include "cuda/attention/key_walk.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/attention/query_rows.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/multiply.cuh"
#include "cuda/tile/softmax.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// What a warp keeps of its rows from key tile to key tile.
template <ForwardConfig C>
struct ForwardState {
  float o[C.rows_per_warp / 16][C.head_dim_v / 8][4];
  RowState rows[C.rows_per_warp / 16];
};

/// One warp's part of a key tile: kPieces times 16 keys, from `piece` on. `k` and `v` are the
/// tiles' shared addresses, `bounds` that of the warp's row intervals, which count if kMasked.
template <ForwardConfig C, int kPieces, bool kMasked, bool kExact>
__device__ __forceinline__ void forward_step(const ForwardParams& p, ForwardState<C>& state, u32 q,
                                             u32 k, u32 v, int piece, u32 bounds, i32 first_key,
                                             const DropoutTile& dropout) {
  constexpr int kAtoms = C.rows_per_warp / 16;
  constexpr int kKRowBytes = padded_row_bytes(C.head_dim);
  constexpr int kVRowBytes = padded_row_bytes(C.head_dim_v);
  // ldmatrix takes the address of row l % 8 of matrix l / 8 from lane l. Of Q: rows 0-7 | rows
  // 8-15, k low; the same, k high. Of K: keys 0-7, k low | k high; keys 8-15, k low | k high. Of V,
  // transposed: keys 0-7 | keys 8-15, dims low; the same, dims high.
  const int thread = static_cast<int>(ptx::thread_index_again());
  const int lane = thread % 32;
  q += (thread / 32 * C.rows_per_warp + lane % 16) * kKRowBytes + lane / 16 * 16;
  k += (piece * 16 + lane / 16 * 8 + lane % 8) * kKRowBytes + lane / 8 % 2 * 16;

  float s[kAtoms][kPieces * 2][4] = {};
  multiply_rows<C.element, kAtoms, kPieces, C.head_dim / 16, C.head_dim / 16>(s, q, kKRowBytes, k,
                                                                              kKRowBytes);
  if constexpr (C.softcap) {
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) cap_scores(s[m], p.softcap_scale);
  }

  const i32 first = first_key + piece * 16;
  if constexpr (kMasked) {
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        i32 begin, end;
        ptx::ld_shared_v2(bounds + (m * 16 + r * 8 + lane / 4) * 8, begin, end);
        mask_row(s[m], r, begin - first, end - first);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kAtoms; ++m) {
    const auto rescale_output = [&](const float(&factors)[2]) {
#pragma unroll
      for (int i = 0; i < C.head_dim_v / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) state.o[m][i][j] *= factors[j / 2];
      }
    };
    if constexpr (kExact) {
      softmax_exact(s[m], state.rows[m], p.scale_log2, rescale_output);
    } else {
      float rescale[2];
      const bool moved = softmax_references(s[m], state.rows[m], p.scale_log2, rescale);
      softmax_terms(s[m], state.rows[m], p.scale_log2);
      if (moved) rescale_output(rescale);  // last: exponentials go with the next rows' products
    }
    if constexpr (C.dropout) {
      for_each_dropped<kPieces * 2>(dropout, m * 16, first,
                                    [&](int i, int j) { s[m][i][j] = 0.0f; });
    }
  }

  v += (piece * 16 + lane % 16) * kVRowBytes + lane / 16 * 16;
#pragma unroll
  for (int n = 0; n < kPieces; ++n) {
    u32 a[kAtoms][4];
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[m][j] = ptx::cvt_x2_f32<C.element>(s[m][2 * n + j / 2][j % 2 * 2],
                                             s[m][2 * n + j / 2][j % 2 * 2 + 1]);
      }
    }
    multiply_step<C.element, true>(state.o, a, v + n * 16 * kVRowBytes, 32);
  }
}

template <ForwardConfig C>
__device__ __forceinline__ void attention_forward_sm80(const ForwardParams& p) {
  static constexpr ForwardPlan kPlan = forward_plan(C);
  constexpr int kAtoms = C.rows_per_warp / 16;
  constexpr int kKRowBytes = padded_row_bytes(C.head_dim);
  constexpr int kVRowBytes = padded_row_bytes(C.head_dim_v);
  constexpr int kKStageBytes = C.tile_kv * kKRowBytes;
  constexpr int kVStageBytes = C.tile_kv * kVRowBytes;
  const u32 shared = ptx::shared_base();
  const int thread = static_cast<int>(ptx::thread_index());
  const int warp = thread / 32;
  const int lane = thread % 32;

  // ---- which tile
  QueryRows rows;
  const bool any_row =
      find_query_rows<C.tile_q()>(p, rows, [&](int h, i64 batch, i32 head, i64 first, i64 count) {
        write_zero_rows<C.threads()>(p.out[h], batch, head, first, count, p.head_dim_v);
        write_values<C.threads()>(p.lse[h], batch, head, first, count, minus_infinity());
      });
  if (!any_row) return;
  const int h = static_cast<int>(rows.half);
  const i64 batch = rows.sample.batch_index;

  request_tile<C.tile_q(), C.head_dim, C.threads()>(
      shared + kPlan.q, p.q[h].at(batch, rows.first, rows.head), p.q[h].row_stride,
      rows.valid.begin, rows.valid.end, p.head_dim);
  ptx::cp_async_commit_group();

  const int warp_row = warp * C.rows_per_warp;
  KeyWalk<C, kPlan, ForwardParams> walk{p, shared, 0, 0};
  walk.prepare_rows(rows);
  if (lane == 0) ptx::st_shared_u32(shared + kPlan.lost + warp * 4, 0);
  if (warp == 0 && lane < 2) {
    walk.prepare_phase(rows, lane);
  } else if (warp == 1 && lane == 0) {
    const FloatRows& lse = p.lse[h];
    const i64 row = rows.first + rows.valid.begin;
    ptx::st_shared_pointers(shared + kPlan.results, p.out[h].at(batch, row, rows.head),
                            lse.data == nullptr ? nullptr : lse.at(batch, rows.head, row));
    ptx::st_shared_v2(shared + kPlan.results + 16, rows.valid.size(), h);
    ptx::st_shared_u32(shared + kPlan.exact, 0);
  }
  if (p.negate_q != 0) {
    ptx::cp_async_wait_group<0>();
    negate_tile<C.tile_q(), C.head_dim, C.threads()>(shared + kPlan.q);
  }
  ptx::bar_sync(0, C.threads());  // the rows' intervals are here

  // ---- the walk
  bool more = walk.start();
  if (more) walk.request(0);
  ptx::cp_async_commit_group();

  ForwardState<C> state;
  DropoutTile dropout;
  if constexpr (C.dropout) {
    dropout = dropout_tile(p.dropout, rows.sample_index * p.heads_q + rows.head, rows.segment,
                           rows.valid.begin + warp_row);
  }

  // With restarts, scores too large for the fast softmax are found in the end, and the tile is done
  // again. The exact one has a branch before the exponentials: worth it where registers are short.
  constexpr bool kRestarts = C.ctas_per_sm <= 2;
  int stage = 0;
  while (true) {
    const bool fast = kRestarts && ptx::ld_shared_u32(shared + kPlan.exact) == 0;
    const float start = fast ? -kLargestReference : minus_infinity();
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
      state.rows[m] = {{start, start}, {0.0f, 0.0f}};
#pragma unroll
      for (int i = 0; i < C.head_dim_v / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) state.o[m][i][j] = 0.0f;
      }
    }
    while (more) {
      const i32 first_key = walk.first_key();
      const WarpKeys keys = walk.warp_keys(warp);
      const u32 row_bounds = walk.bounds_at(warp);
      const u32 k_tile = shared + kPlan.k + stage * kKStageBytes;
      const u32 v_tile = shared + kPlan.v + stage * kVStageBytes;
      if constexpr (C.dropout) dropout.clean_keys = walk.phase;

      ptx::cp_async_wait_group<0>();
      ptx::bar_sync(0, C.threads());  // this tile is here, and all warps are done with the last one
      --walk.tile;
      more = walk.find();
      stage ^= 1;
      if (more) walk.request(stage);
      ptx::cp_async_commit_group();

      const auto masked_steps = [&](auto exact) {
        for (int piece = keys.first_piece & ~1; piece < keys.last_piece; piece += 2) {
          forward_step<C, 2, true, decltype(exact)::kValue>(
              p, state, shared + kPlan.q, k_tile, v_tile, piece, row_bounds, first_key, dropout);
        }
      };
      if (keys.full) {
        forward_step<C, C.tile_kv / 16, false, !kRestarts>(
            p, state, shared + kPlan.q, k_tile, v_tile, 0, row_bounds, first_key, dropout);
      } else if (kRestarts && ptx::ld_shared_u32(shared + kPlan.exact) == 0) {
        masked_steps(Constant<false>{});
      } else {
        masked_steps(Constant<true>{});
      }
    }
    ptx::cp_async_wait_group<0>();
    const bool exact = !kRestarts || ptx::ld_shared_u32(shared + kPlan.exact) != 0;
    if (kRestarts) {
      bool lost = false;
#pragma unroll
      for (int m = 0; m < kAtoms; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const u32 at = shared + kPlan.row_bounds + (warp_row + m * 16 + r * 8 + lane / 4) * 8;
          geometry::Interval own, clean;
          ptx::ld_shared_v2(at, own.begin, own.end);
          ptx::ld_shared_v2(at + C.tile_q() * 8, clean.begin, clean.end);
          const bool sees = !own.empty() || !clean.empty();
          const float sum = whole_sum(state.rows[m], r);
          lost = softmax_lost(state.rows[m].reference[r], sum, sees) || lost;
        }
      }
      if (ptx::ballot(lost) != 0 && lane == 0) {
        ptx::st_shared_u32(shared + kPlan.lost + warp * 4, 1);
      }
    }
    ptx::bar_sync(0, C.threads());  // Q is here also where no tile was visited; its place is reused
    if (exact) {
#pragma unroll
      for (int m = 0; m < kAtoms; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) state.rows[m].reference[r] *= p.scale_log2;
      }
      break;
    }
    const u32 lost = lane < C.warps ? ptx::ld_shared_u32(shared + kPlan.lost + lane * 4) : 0;
    if (ptx::ballot(lost != 0) == 0) break;
    if (lane < 2) {  // no tile is full any more
      ptx::st_shared_u32(shared + kPlan.warp_bounds + (lane * C.warps + warp) * 16 + 12, 0);
    }
    if (thread == 0) ptx::st_shared_u32(shared + kPlan.exact, 1);
    ptx::bar_sync(0, C.threads());
    more = walk.restart();
    if (more) walk.request(stage);
    ptx::cp_async_commit_group();
  }

  // ---- output: through the warp's own rows of Q, so that global stores are whole lines
  i32 row_count, result_half;
  ptx::ld_shared_v2(shared + kPlan.results + 16, row_count, result_half);
  float inverse[kAtoms][2];
  float lse[kAtoms][2];
#pragma unroll
  for (int m = 0; m < kAtoms; ++m) softmax_finish(state.rows[m], inverse[m], lse[m]);
  const float keep = C.dropout ? p.dropout.keep_scale : 1.0f;
  const i64 out_stride = p.out[result_half].row_stride;
  write_accumulators<C.element>(
      state.o, [&](int m, int r, float x) { return x * inverse[m][r] * keep; },
      shared + kPlan.q + warp_row * kVRowBytes,
      ptx::ld_shared_pointer<u16>(shared + kPlan.results) + warp_row * out_stride, out_stride,
      row_count - warp_row, p.head_dim_v, lane);
  float* lse_rows = ptx::ld_shared_pointer<float>(shared + kPlan.results + 8);
  if (lse_rows != nullptr && lane % 4 == 0) {
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + m * 16 + r * 8 + lane / 4;
        if (row < row_count) lse_rows[row * p.lse[result_half].row_stride] = lse[m][r];
      }
    }
  }
}

}  // namespace stepwell::cuda
