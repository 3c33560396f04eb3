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
#include "cuda/attention/walk_bytes.hpp"
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

  /// What the rows see, into row_bounds and warp_bounds. A barrier must follow, and prepare_phase
  /// of both phases come before it.
  __device__ __forceinline__ void prepare_rows(const QueryRows& rows) {
    using geometry::Half;
    using geometry::Interval;
    const int thread = static_cast<int>(ptx::thread_index());
    const int warp = thread / 32;
    const int lane = thread % 32;  // lane i of a warp looks at row i of its warp
    const int warp_row = warp * C.rows_per_warp;
    const geometry::Sample& sample = rows.sample;
    const i32 position = geometry::query_position(sample.mask, rows.half);
#pragma unroll
    for (int each = 0; each < 2; ++each) {
      const i32 row = rows.valid.begin + warp_row + lane;
      const bool valid = lane < C.rows_per_warp && row < rows.valid.end;
      Interval seen{0, 0};
      if (valid && (each == 1 || rows.half == Half::kNoisy)) {
        const Half keys = each == 0 ? Half::kNoisy : Half::kClean;
        seen = geometry::row_interval(geometry::rule_between(sample.mask, rows.half, keys),
                                      position + row);
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
  }

  /// Phase `each` but for its tiles, by one thread, in one branch with what others write then: in a
  /// branch of its own it costs the forward kernels up to 20 registers.
  __device__ __forceinline__ void prepare_phase(const QueryRows& rows, int each) {
    using geometry::Half;
    const geometry::Sample& sample = rows.sample;
    const bool own = each == 0;
    // Bounds that grow by whole blocks (windows) and tables leave gaps.
    const bool gaps = !own && (sample.mask.block_ranges != nullptr || sample.mask.clean_window > 0);
    const i64 row = own ? rows.first : sample.clean_kv.first;
    const u32 at = shared + kPlan.phases + each * kKeyPhaseBytes;
    ptx::st_shared_v2(at + 8, geometry::key_len(sample.mask, own ? Half::kNoisy : Half::kClean),
                      gaps ? 1 : 0);
    ptx::st_shared_pointers(at + 16, p.k[each].at(sample.batch_index, row, rows.head_kv),
                            p.v[each].at(sample.batch_index, row, rows.head_kv));
  }

  /// Goes to the first tile; false where there is none. With gaps it may turn out empty.
  __device__ __forceinline__ bool start() {
    const int thread = static_cast<int>(ptx::thread_index());
    const int lane = thread % 32;
    phase = 1;
    tile = -1;
#pragma unroll
    for (int each = 1; each >= 0; --each) {
      U32x4 bounds{geometry::kMaxLength, 0, 0, 0};
      if (lane < C.warps) {
        bounds = ptx::ld_shared_v4(shared + kPlan.warp_bounds + (each * C.warps + lane) * 16);
      }
      const geometry::Interval keys{ptx::redux_min_s32(static_cast<i32>(bounds.x)),
                                    ptx::redux_max_s32(static_cast<i32>(bounds.y))};
      const geometry::Interval tiles = geometry::covering_tiles(keys, C.tile_kv);
      if (thread == 0) {
        ptx::st_shared_v2(shared + kPlan.phases + each * kKeyPhaseBytes, tiles.begin,
                          tiles.end - 1);
      }
      if (!tiles.empty()) {
        phase = each;
        tile = tiles.end - 1;
      }
    }
    return tile >= 0;
  }

  /// Goes to the first tile once more; a barrier lies between.
  __device__ __forceinline__ bool restart() {
    phase = 0;
    tile = static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.phases + 4));
    return find();
  }

  /// Goes on to the next tile with a visible pair, at or before `tile` or in the next phase; false
  /// at the end. The whole CTA agrees: all read the same rows.
  __device__ __forceinline__ bool find() {
    const int lane = static_cast<int>(ptx::thread_index()) % 32;
    while (true) {
      const U32x4 tiles = ptx::ld_shared_v4(shared + kPlan.phases + phase * kKeyPhaseBytes);
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
      tile = static_cast<i32>(ptx::ld_shared_u32(shared + kPlan.phases + kKeyPhaseBytes + 4));
    }
  }

  /// Requests the tile's K and V.
  __device__ __forceinline__ void request(int stage) const {
    const u32 at = shared + kPlan.phases + phase * kKeyPhaseBytes;
    const i32 keys = static_cast<i32>(ptx::ld_shared_u32(at + 8));
    request_tile<C.tile_kv, C.head_dim, C.threads()>(
        shared + kPlan.k + stage * (C.tile_kv * padded_row_bytes(C.head_dim)),
        ptx::ld_shared_pointer<u16>(at + 16), p.k[phase].row_stride, first_key(), keys, p.head_dim);
    request_tile<C.tile_kv, C.head_dim_v, C.threads()>(
        shared + kPlan.v + stage * (C.tile_kv * padded_row_bytes(C.head_dim_v)),
        ptx::ld_shared_pointer<u16>(at + 24), p.v[phase].row_stride, first_key(), keys,
        p.head_dim_v);
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
};

}  // namespace stepwell::cuda
