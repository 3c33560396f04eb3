// Attention forward with mma.sync, ldmatrix and cp.async: Ampere, Ada, and any GPU with no kernel
// of its own.
//
// Algorithm: FlashAttention-2 (Dao, arXiv:2307.08691) on two-interval masks. A CTA owns tile_q
// query rows of one segment and head; each warp owns 16 or 32 of them. The CTA walks the key tiles
// that any of its rows sees, own view first, then clean keys, last tile first, so that masked tiles
// come at the front of each walk. A warp multiplies only the 16-key pieces of a masked tile that
// its own rows see.
//
// Shared memory: Q (later the output), two K and V tiles, the rows' intervals. Rows are padded to
// an odd number of 16-byte chunks: constant offsets, no bank conflicts, no swizzle arithmetic.
//
// Pipeline, one key tile:
//   wait for K and V | barrier | request the next K and V | S = Q K^T | softmax | O += P V
// The barrier after `wait` also says that all warps are done with the tile that the request
// overwrites.
//
// Registers: 32 rows x dim 128: 128 for O, 64 for S.
#pragma once

#include "cuda/attention/forward_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
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
  using geometry::Half;
  using geometry::Interval;
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
  const TileItem item = tile_item(p.grid, p.heads_kv, static_cast<i32>(ptx::cta_index<0>()));
  const i32 head = item.head_kv * p.grid.query_heads + item.query_head;
  const i32 views = p.layout.mask.num_views;
  const Half half = item.segment < views ? Half::kNoisy : Half::kClean;
  const int h = static_cast<int>(half);
  if (item.sample == p.layout.batch) {
    const geometry::RowRun tail = geometry::packed_query_tail(p.layout, item.segment);
    const i64 step = static_cast<i64>(p.grid.tiles) * C.tile_q();
    for (i64 row = static_cast<i64>(item.tile) * C.tile_q(); row < tail.count; row += step) {
      const i64 count = geometry::min_of<i64>(C.tile_q(), tail.count - row);
      write_zero_rows<C.threads()>(p.out[h], 0, head, tail.first + row, count, p.head_dim_v);
      write_values<C.threads()>(p.lse[h], 0, head, tail.first + row, count, minus_infinity());
    }
    return;
  }
  const geometry::Sample sample = geometry::sample_at(p.layout, item.sample);
  const geometry::SegmentRows segment = half == Half::kNoisy ? sample.noisy : sample.clean_q;
  const i64 first_row =
      segment.first + (half == Half::kNoisy ? item.segment * sample.view_stride : 0);
  const i32 len = geometry::query_len(sample.mask, half);
  const Interval rows = geometry::tile_interval(item.tile, C.tile_q(), len);
  const Interval padding{geometry::max_of(item.tile * C.tile_q(), len),
                         geometry::min_of((item.tile + 1) * C.tile_q(), segment.count)};
  if (!padding.empty()) {
    write_zero_rows<C.threads()>(p.out[h], sample.batch_index, head, first_row + padding.begin,
                                 padding.size(), p.head_dim_v);
    write_values<C.threads()>(p.lse[h], sample.batch_index, head, first_row + padding.begin,
                              padding.size(), minus_infinity());
  }
  if (rows.empty()) return;
  const i32 position = geometry::query_position(sample.mask, half);

  const HalfRows& q_rows = p.q[h];
  request_tile<C.tile_q(), C.head_dim, C.threads()>(
      shared + kPlan.q,
      q_rows.data + sample.batch_index * q_rows.batch_stride + first_row * q_rows.row_stride +
          head * q_rows.head_stride,
      q_rows.row_stride, rows.begin, rows.end, p.head_dim);
  ptx::cp_async_commit_group();

  // ---- what each row sees of its own view (phase 0) and of the clean keys (phase 1): lane i of a
  // warp looks at row i of its warp
  const int warp_row = warp * C.rows_per_warp;
#pragma unroll
  for (int each = 0; each < 2; ++each) {
    const i32 row = rows.begin + warp_row + lane;
    const bool valid = lane < C.rows_per_warp && row < rows.end;
    Interval seen{0, 0};
    if (valid && (each == 1 || half == Half::kNoisy)) {
      const Half keys = each == 0 ? Half::kNoisy : Half::kClean;
      seen =
          geometry::row_interval(geometry::rule_between(sample.mask, half, keys), position + row);
    }
    if (lane < C.rows_per_warp) {
      ptx::st_shared_v2(shared + kPlan.row_bounds + (each * C.tile_q() + warp_row + lane) * 8,
                        seen.begin, seen.end);
    }
    const bool counts = valid && !seen.empty();
    const i32 any_begin = ptx::redux_min_s32(counts ? seen.begin : geometry::kMaxLength);
    const i32 any_end = ptx::redux_max_s32(counts ? seen.end : 0);
    // Rows past the end do not matter; a row that sees nothing makes no tile full.
    const i32 all_begin = ptx::redux_max_s32(valid ? seen.begin : 0);
    const i32 all_end = ptx::redux_min_s32(valid ? seen.end : geometry::kMaxLength);
    if (lane == 0) {
      ptx::st_shared_v4(shared + kPlan.warp_bounds + (each * C.warps + warp) * 16,
                        {static_cast<u32>(any_begin), static_cast<u32>(any_end),
                         static_cast<u32>(all_begin), static_cast<u32>(all_end)});
    }
  }
  if (lane == 0) ptx::st_shared_u32(shared + kPlan.lost + warp * 4, 0);
  // What the walk needs from time to time lies in shared memory, since registers are short.
  if (warp == 0 && lane < 2) {
    const bool own = lane == 0;
    // Bounds that grow by whole blocks (windows) and tables leave gaps.
    const bool gaps = !own && (sample.mask.block_ranges != nullptr || sample.mask.clean_window > 0);
    const HalfRows& k = p.k[lane];
    const HalfRows& v = p.v[lane];
    const i64 row = own ? first_row : sample.clean_kv.first;
    const u32 at = shared + kPlan.phases + lane * 32;
    ptx::st_shared_v2(at + 8, geometry::key_len(sample.mask, own ? Half::kNoisy : Half::kClean),
                      gaps ? 1 : 0);
    ptx::st_shared_pointers(at + 16,
                            k.data + sample.batch_index * k.batch_stride + row * k.row_stride +
                                item.head_kv * k.head_stride,
                            v.data + sample.batch_index * v.batch_stride + row * v.row_stride +
                                item.head_kv * v.head_stride);
  } else if (warp == 1 && lane == 0) {
    const HalfRows& out = p.out[h];
    const FloatRows& lse = p.lse[h];
    const i64 row = first_row + rows.begin;
    ptx::st_shared_pointers(shared + kPlan.results,
                            out.data + sample.batch_index * out.batch_stride +
                                row * out.row_stride + head * out.head_stride,
                            lse.data == nullptr ? nullptr : lse.at(sample.batch_index, head, row));
    ptx::st_shared_v2(shared + kPlan.results + 16, rows.size(), h);
    ptx::st_shared_u32(shared + kPlan.exact, 0);
  }
  ptx::bar_sync(0, C.threads());
  int phase = 1;
  i32 tile = -1;
#pragma unroll
  for (int each = 1; each >= 0; --each) {
    U32x4 bounds{geometry::kMaxLength, 0, 0, 0};
    if (lane < C.warps) {
      bounds = ptx::ld_shared_v4(shared + kPlan.warp_bounds + (each * C.warps + lane) * 16);
    }
    const Interval keys{ptx::redux_min_s32(static_cast<i32>(bounds.x)),
                        ptx::redux_max_s32(static_cast<i32>(bounds.y))};
    const Interval tiles = geometry::covering_tiles(keys, C.tile_kv);
    if (thread == 0) {
      ptx::st_shared_v2(shared + kPlan.phases + each * 32, tiles.begin, tiles.end - 1);
    }
    if (!tiles.empty()) {
      phase = each;
      tile = tiles.end - 1;
    }
  }
  bool more = tile >= 0;

  // ---- the walk
  // Goes on to the next tile with a visible pair, at or before `tile` or in the next phase; false
  // at the end. The whole CTA agrees: all read the same rows.
  const auto find = [&]() {
    while (true) {
      const U32x4 tiles = ptx::ld_shared_v4(shared + kPlan.phases + phase * 32);
      while (tile >= static_cast<i32>(tiles.x)) {
        if (tiles.w == 0) return true;
        const Interval keys{tile * C.tile_kv, (tile + 1) * C.tile_kv};
        bool any = false;
        for (int row = lane; row < C.tile_q(); row += 32) {
          Interval seen;
          ptx::ld_shared_v2(shared + kPlan.row_bounds + (phase * C.tile_q() + row) * 8, seen.begin,
                            seen.end);
          any = any || seen.meets(keys);
        }
        if (ptx::ballot(any) != 0) return true;
        --tile;
      }
      if (phase == 1) return false;
      phase = 1;
      tile = static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.phases + 32 + 4));
    }
  };
  const auto request_kv = [&](int to_stage) {
    const u32 at = shared + kPlan.phases + phase * 32;
    const i32 keys = static_cast<i32>(ptx::ld_shared_u32(at + 8));
    request_tile<C.tile_kv, C.head_dim, C.threads()>(
        shared + kPlan.k + to_stage * kKStageBytes, ptx::ld_shared_pointer<u16>(at + 16),
        p.k[phase].row_stride, tile * C.tile_kv, keys, p.head_dim);
    request_tile<C.tile_kv, C.head_dim_v, C.threads()>(
        shared + kPlan.v + to_stage * kVStageBytes, ptx::ld_shared_pointer<u16>(at + 24),
        p.v[phase].row_stride, tile * C.tile_kv, keys, p.head_dim_v);
  };
  if (more) request_kv(0);
  ptx::cp_async_commit_group();

  ForwardState<C> state;
  DropoutTile dropout;
  if constexpr (C.dropout) {
    dropout = dropout_tile(p.dropout, item.sample * p.heads_q + head, item.segment,
                           rows.begin + warp_row);
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
      const i32 first_key = tile * C.tile_kv;
      const U32x4 bounds =
          ptx::ld_shared_v4(shared + kPlan.warp_bounds + (phase * C.warps + warp) * 16);
      const bool full = static_cast<i32>(bounds.z) <= first_key &&
                        static_cast<i32>(bounds.w) >= first_key + C.tile_kv;
      const int first_piece = geometry::max_of(static_cast<i32>(bounds.x) - first_key, 0) / 16;
      const int last_piece =
          geometry::min_of(static_cast<i32>(bounds.y) - first_key + 15, C.tile_kv) / 16;
      const u32 row_bounds = shared + kPlan.row_bounds + (phase * C.tile_q() + warp_row) * 8;
      const u32 k_tile = shared + kPlan.k + stage * kKStageBytes;
      const u32 v_tile = shared + kPlan.v + stage * kVStageBytes;
      if constexpr (C.dropout) dropout.clean_keys = phase;

      ptx::cp_async_wait_group<0>();
      ptx::bar_sync(0, C.threads());  // this tile is here, and all warps are done with the last one
      --tile;
      more = find();
      stage ^= 1;
      if (more) request_kv(stage);
      ptx::cp_async_commit_group();

      const auto masked_steps = [&](auto exact) {
        for (int piece = first_piece & ~1; piece < last_piece; piece += 2) {
          forward_step<C, 2, true, decltype(exact)::value>(
              p, state, shared + kPlan.q, k_tile, v_tile, piece, row_bounds, first_key, dropout);
        }
      };
      if (full) {
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
          Interval own, clean;
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
    phase = 0;
    tile = static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.phases + 4));
    more = find();
    if (more) request_kv(stage);
    ptx::cp_async_commit_group();
  }

  // ---- output: through the warp's own rows of Q, so that global stores are whole lines
  i32 row_count, result_half;
  ptx::ld_shared_v2(shared + kPlan.results + 16, row_count, result_half);
  const u32 out_at = shared + kPlan.q + warp_row * kVRowBytes;
  float lse[kAtoms][2];
#pragma unroll
  for (int m = 0; m < kAtoms; ++m) {
    float inverse[2];
    softmax_finish(state.rows[m], inverse, lse[m]);
    const float keep = C.dropout ? p.dropout.keep_scale : 1.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 row_at = out_at + (m * 16 + r * 8 + lane / 4) * kVRowBytes + lane % 4 * 4;
#pragma unroll
      for (int i = 0; i < C.head_dim_v / 8; ++i) {
        ptx::st_shared_u32(row_at + i * 16, ptx::cvt_x2_f32<C.element>(
                                                state.o[m][i][2 * r] * inverse[r] * keep,
                                                state.o[m][i][2 * r + 1] * inverse[r] * keep));
      }
    }
  }
  ptx::syncwarp();
  u16* out = ptx::ld_shared_pointer<u16>(shared + kPlan.results);
  const i64 out_stride = p.out[result_half].row_stride;
  write_tile<C.rows_per_warp, C.head_dim_v, 32>(out + warp_row * out_stride, out_stride, out_at,
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
