// The walk of a CTA that owns query rows over the key tiles that any of them sees: own view first
// (phase 0), then clean keys (phase 1), in each the last tile first, so that masked tiles come at
// the front.
//
// Its kernels' configurations C have warps of rows_per_warp rows and tiles of tile_kv keys, their
// plans kPlan two stages of K and V, and in shared memory, since registers are short:
//   row_bounds   [2 phases][tile_q] of (begin, end): keys that each row sees
//   phases       [2 phases] of (first tile, last tile, keys, gaps, K pointer, V pointer)
//   warp_bounds  [2 phases][warps] of (any begin, any end, all begin, all end)
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/attention/query_rows.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// Of a warp's rows in one key tile.
struct WarpKeys {
  bool full;        // each row sees each key
  int first_piece;  // 16 keys each: those that some row sees
  int last_piece;
};

/// The tile at hand, or the one that is requested next.
template <auto C, auto kPlan, class Params>
struct KeyWalk {
  const Params& p;
  u32 shared;
  int phase;
  i32 tile;

  /// Works out what the rows see, fills row_bounds, phases and warp_bounds, which a barrier must
  /// follow, and requests the first tile as a group of copies of its own. Returns whether there is
  /// a tile.
  __device__ __forceinline__ bool start(const QueryRows& rows) {
    using geometry::Half;
    using geometry::Interval;
    const int thread = static_cast<int>(ptx::thread_index());
    const int warp = thread / 32;
    const int lane = thread % 32;
    const geometry::Sample& sample = rows.sample;
    const i32 position = geometry::query_position(sample.mask, rows.half);
    // Lanes 0 and 1 of every warp work out the two phases, warp 0 keeps them.
    Interval tiles{0, 0};
    i32 keys = 0;
    const u16* k_rows = nullptr;  // key 0
    const u16* v_rows = nullptr;
    if (lane < 2) {
      const bool own = lane == 0;
      const Half key_half = own ? Half::kNoisy : Half::kClean;
      if (!own || rows.half == Half::kNoisy) {
        const geometry::IntervalRule rule =
            geometry::rule_between(sample.mask, rows.half, key_half);
        tiles = geometry::covering_tiles(geometry::key_hull(rule, position, rows.valid), C.tile_kv);
        keys = rule.key_len;
      }
      const i64 row0 = own ? rows.first : sample.clean_kv.first;
      k_rows = head_rows(p.k[lane], sample.batch_index, row0, rows.head_kv);
      v_rows = head_rows(p.v[lane], sample.batch_index, row0, rows.head_kv);
      if (warp == 0) {
        // Bounds that grow by whole blocks (windows) and tables leave gaps.
        const bool gaps =
            !own && (sample.mask.block_ranges != nullptr || sample.mask.clean_window > 0);
        const u32 at = shared + kPlan.phases + lane * 32;
        ptx::st_shared_v4(at, {static_cast<u32>(tiles.begin), static_cast<u32>(tiles.end - 1),
                               static_cast<u32>(keys), gaps ? 1u : 0u});
        ptx::st_shared_pointers(at + 16, k_rows, v_rows);
      }
    }
    // The first tile is requested before the rest is known; with gaps it may turn out empty.
    phase = rows.half == Half::kNoisy && ptx::shfl_idx_u32(tiles.empty() ? 0 : 1, 0) != 0 ? 0 : 1;
    tile = static_cast<i32>(ptx::shfl_idx_u32(static_cast<u32>(tiles.end), phase)) - 1;
    const bool any = ptx::shfl_idx_u32(tiles.empty() ? 0 : 1, phase) != 0;
    if (any) {
      keys = static_cast<i32>(ptx::shfl_idx_u32(static_cast<u32>(keys), phase));
      request_rows(0, ptx::shfl_idx_pointer(k_rows, phase), ptx::shfl_idx_pointer(v_rows, phase),
                   keys);
    }
    ptx::cp_async_commit_group();

    for (int each = rows.half == Half::kNoisy ? 0 : 1; each < 2; ++each) {
      const geometry::IntervalRule rule =
          geometry::rule_between(sample.mask, rows.half, each == 0 ? Half::kNoisy : Half::kClean);
      const i32 row =
          rows.valid.begin + warp * C.rows_per_warp + lane;  // lane i looks at row i of its warp
      const bool valid = lane < C.rows_per_warp && row < rows.valid.end;
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
    return any;
  }

  /// Goes on to the next tile with a visible pair, at or before `tile` or in the next phase; false
  /// at the end. The whole CTA agrees: all read the same rows.
  __device__ __forceinline__ bool find() {
    const int lane = static_cast<int>(ptx::thread_index()) % 32;
    while (true) {
      const U32x4 tiles = ptx::ld_shared_v4(shared + kPlan.phases + phase * 32);
      while (tile >= static_cast<i32>(tiles.x)) {
        if (tiles.w == 0) return true;
        const geometry::Interval keys{tile * C.tile_kv, (tile + 1) * C.tile_kv};
        bool any = false;
        for (int row = lane; row < C.tile_q(); row += 32) {
          geometry::Interval seen;
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
  }

  /// Requests the tile's K and V.
  __device__ __forceinline__ void request(int stage) const {
    const u32 at = shared + kPlan.phases + phase * 32;
    const i32 keys = static_cast<i32>(ptx::ld_shared_u32(at + 8));
    request_rows(stage, ptx::ld_shared_pointer<u16>(at + 16), ptx::ld_shared_pointer<u16>(at + 24),
                 keys);
  }

  __device__ __forceinline__ i32 first_key() const { return tile * C.tile_kv; }

  __device__ __forceinline__ WarpKeys warp_keys(int warp) const {
    const U32x4 bounds =
        ptx::ld_shared_v4(shared + kPlan.warp_bounds + (phase * C.warps + warp) * 16);
    return {static_cast<i32>(bounds.z) <= first_key() &&
                static_cast<i32>(bounds.w) >= first_key() + C.tile_kv,
            geometry::max_of(static_cast<i32>(bounds.x) - first_key(), 0) / 16,
            geometry::min_of(static_cast<i32>(bounds.y) - first_key() + 15, C.tile_kv) / 16};
  }

  /// The address of the intervals of a warp's rows.
  __device__ __forceinline__ u32 bounds_at(int warp) const {
    return shared + kPlan.row_bounds + (phase * C.tile_q() + warp * C.rows_per_warp) * 8;
  }

 private:
  __device__ __forceinline__ void request_rows(int stage, const u16* k, const u16* v,
                                               i32 keys) const {
    request_tile<C.tile_kv, C.head_dim, C.threads()>(
        shared + kPlan.k + stage * (C.tile_kv * padded_row_bytes(C.head_dim)), k,
        p.k[phase].row_stride, first_key(), keys, p.head_dim);
    request_tile<C.tile_kv, C.head_dim_v, C.threads()>(
        shared + kPlan.v + stage * (C.tile_kv * padded_row_bytes(C.head_dim_v)), v,
        p.v[phase].row_stride, first_key(), keys, p.head_dim_v);
  }
};

}  // namespace stepwell::cuda
