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
/// tiles' shared addresses, `bounds` that of the warp's row intervals; `ready` waits for V where it
/// may still be on its way.
template <ForwardConfig C, int kPieces, bool kMasked>
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
    float rescale[2];
    // Narrow outputs are rescaled each time: 64 multiplications cost less than a branch between
    // products.
    if (softmax_step<C.head_dim_v >= 96>(s[m], state.rows[m], p.scale_log2, rescale)) {
#pragma unroll
      for (int i = 0; i < C.head_dim_v / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) state.o[m][i][j] *= rescale[j / 2];
      }
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

  // ---- what the tile sees of its own view (phase 0) and of the clean keys (phase 1): lanes 0 and
  // 1 of every warp work it out, warp 0 keeps it in shared memory, since registers are short
  Interval tiles{0, 0};
  i32 keys = 0;
  const u16* k_rows = nullptr;  // key 0
  const u16* v_rows = nullptr;
  if (lane < 2) {
    const bool own = lane == 0;
    const Half key_half = own ? Half::kNoisy : Half::kClean;
    if (!own || half == Half::kNoisy) {
      const geometry::IntervalRule rule = geometry::rule_between(sample.mask, half, key_half);
      tiles = geometry::covering_tiles(geometry::key_hull(rule, position, rows), C.tile_kv);
      keys = rule.key_len;
    }
    const i64 row0 = own ? first_row : sample.clean_kv.first;
    k_rows = p.k[lane].data + sample.batch_index * p.k[lane].batch_stride +
             row0 * p.k[lane].row_stride + item.head_kv * p.k[lane].head_stride;
    v_rows = p.v[lane].data + sample.batch_index * p.v[lane].batch_stride +
             row0 * p.v[lane].row_stride + item.head_kv * p.v[lane].head_stride;
    if (warp == 0) {
      // Bounds that grow by whole blocks (windows) and tables leave gaps.
      const bool gaps =
          !own && (sample.mask.block_ranges != nullptr || sample.mask.clean_window > 0);
      const u32 at = shared + kPlan.phases + lane * 32;
      ptx::st_shared_v4(at, {static_cast<u32>(tiles.begin), static_cast<u32>(tiles.end - 1),
                             static_cast<u32>(keys), gaps ? 1u : 0u});
      ptx::st_shared_pointers(at + 16, k_rows, v_rows);
    } else if (warp == 1 && lane == 0) {
      const HalfRows& out = p.out[h];
      const FloatRows& lse = p.lse[h];
      const i64 row = first_row + rows.begin;
      ptx::st_shared_pointers(shared + kPlan.results,
                              out.data + sample.batch_index * out.batch_stride +
                                  row * out.row_stride + head * out.head_stride,
                              lse.data == nullptr
                                  ? nullptr
                                  : lse.data + sample.batch_index * lse.batch_stride +
                                        head * lse.head_stride + row * lse.row_stride);
    }
  }
  // The first tile is requested before the rest is known; with gaps it may turn out empty.
  int phase = half == Half::kNoisy && ptx::shfl_idx_u32(tiles.empty() ? 0 : 1, 0) != 0 ? 0 : 1;
  i32 tile = static_cast<i32>(ptx::shfl_idx_u32(static_cast<u32>(tiles.end), phase)) - 1;
  bool more = ptx::shfl_idx_u32(tiles.empty() ? 0 : 1, phase) != 0;
  if (more) {
    keys = static_cast<i32>(ptx::shfl_idx_u32(static_cast<u32>(keys), phase));
    request_tile<C.tile_kv, C.head_dim, C.threads()>(
        shared + kPlan.k, ptx::shfl_idx_pointer(k_rows, phase), p.k[phase].row_stride,
        tile * C.tile_kv, keys, p.head_dim);
    request_tile<C.tile_kv, C.head_dim_v, C.threads()>(
        shared + kPlan.v, ptx::shfl_idx_pointer(v_rows, phase), p.v[phase].row_stride,
        tile * C.tile_kv, keys, p.head_dim_v);
  }
  ptx::cp_async_commit_group();

  for (int each = half == Half::kNoisy ? 0 : 1; each < 2; ++each) {
    const geometry::IntervalRule rule =
        geometry::rule_between(sample.mask, half, each == 0 ? Half::kNoisy : Half::kClean);
    const i32 row =
        rows.begin + warp * C.rows_per_warp + lane;  // lane i looks at row i of its warp
    const bool valid = lane < C.rows_per_warp && row < rows.end;
    Interval seen{0, 0};
    if (valid) seen = geometry::row_interval(rule, position + row);
    if (lane < C.rows_per_warp) {
      ptx::st_shared_v2(
          shared + kPlan.row_bounds + (each * C.tile_q() + warp * C.rows_per_warp + lane) * 8,
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
  ptx::bar_sync(0, C.threads());

  // ---- the walk
  const int row_count = rows.size();
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
  const int warp_row = warp * C.rows_per_warp;
  ForwardState<C> state;
#pragma unroll
  for (int m = 0; m < kAtoms; ++m) {
    state.rows[m] = row_state_start();
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) state.o[m][i][j] = 0.0f;
    }
  }
  DropoutTile dropout;
  if constexpr (C.dropout) {
    dropout = dropout_tile(p.dropout, item.sample * p.heads_q + head, item.segment,
                           rows.begin + warp_row);
  }

  int stage = 0;
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

    if (full) {
      forward_step<C, C.tile_kv / 16, false>(p, state, shared + kPlan.q, k_tile, v_tile, 0,
                                             row_bounds, first_key, dropout);
    } else {
      for (int piece = first_piece & ~1; piece < last_piece; piece += 2) {
        forward_step<C, 2, true>(p, state, shared + kPlan.q, k_tile, v_tile, piece, row_bounds,
                                 first_key, dropout);
      }
    }
  }
  ptx::cp_async_wait_group<0>();
  ptx::bar_sync(0, C.threads());  // Q is here also where no tile was visited; its place is reused

  // ---- output: through the warp's own rows of Q, so that global stores are whole lines
  const u32 out_at = shared + kPlan.q + warp_row * kVRowBytes;
  float lse[kAtoms][2];
#pragma unroll
  for (int m = 0; m < kAtoms; ++m) {
    float inverse[2];
    softmax_finish(state.rows[m], p.scale_log2, inverse, lse[m]);
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
  const i64 out_stride = p.out[h].row_stride;
  constexpr int kChunks = C.head_dim_v / 8;
#pragma unroll
  for (int i = lane; i < C.rows_per_warp * kChunks; i += 32) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    if (warp_row + row < row_count && chunk * 8 < p.head_dim_v) {
      ptx::st_global_v4(out + (warp_row + row) * out_stride + chunk * 8,
                        ptx::ld_shared_v4(out_at + row * kVRowBytes + chunk * 16));
    }
  }
  float* lse_rows = ptx::ld_shared_pointer<float>(shared + kPlan.results + 8);
  if (lse_rows != nullptr && lane % 4 == 0) {
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + m * 16 + r * 8 + lane / 4;
        if (row < row_count) lse_rows[row * p.lse[h].row_stride] = lse[m][r];
      }
    }
  }
}

}  // namespace stepwell::cuda
