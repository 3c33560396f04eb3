// What a CTA of the float32 kernels does that owns a tile of queries: which tile that is, and which
// key tiles its rows see.
#pragma once

#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// A CTA's tile of queries.
struct QueryTileF32 {
  geometry::Sample sample;
  geometry::Half half;
  i32 sample_index;
  i32 segment;
  i32 head;
  i32 head_kv;
  i64 first_row;  // of the segment
  geometry::Interval rows;
  geometry::Interval padding;
};

/// False for CTAs that own a share of the tail of a packed tensor; then visit_tail(half, head,
/// first, count) has been called for it.
template <F32Config C, class Params, class VisitTail>
__device__ __forceinline__ bool locate_query_tile(const Params& p, QueryTileF32& tile,
                                                  VisitTail&& visit_tail) {
  using geometry::Half;
  const TileItem item = tile_item(p.grid, p.heads_kv, static_cast<i32>(ptx::cta_index<0>()));
  tile.sample_index = item.sample;
  tile.segment = item.segment;
  tile.head = item.head_kv * p.grid.query_heads + item.query_head;
  tile.head_kv = item.head_kv;
  tile.half = item.segment < p.layout.mask.num_views ? Half::kNoisy : Half::kClean;
  if (item.sample == p.layout.batch) {
    const geometry::RowRun tail = geometry::packed_query_tail(p.layout, item.segment);
    const i64 step = static_cast<i64>(p.grid.tiles) * C.tile_rows();
    for (i64 row = static_cast<i64>(item.tile) * C.tile_rows(); row < tail.count; row += step) {
      visit_tail(static_cast<int>(tile.half), tile.head, tail.first + row,
                 geometry::min_of<i64>(C.tile_rows(), tail.count - row));
    }
    return false;
  }
  tile.sample = geometry::sample_at(p.layout, item.sample);
  const bool noisy = tile.half == Half::kNoisy;
  const geometry::SegmentRows segment = noisy ? tile.sample.noisy : tile.sample.clean_q;
  tile.first_row = segment.first + (noisy ? item.segment * tile.sample.view_stride : 0);
  const i32 len = geometry::query_len(tile.sample.mask, tile.half);
  tile.rows = geometry::tile_interval(item.tile, C.tile_rows(), len);
  tile.padding = {geometry::max_of(item.tile * C.tile_rows(), len),
                  geometry::min_of((item.tile + 1) * C.tile_rows(), segment.count)};
  return true;
}

/// The keys of the query tile's own view (phase 0) or the clean keys (phase 1).
struct KeyPhase {
  const float* k;  // key 0
  const float* v;
  geometry::Interval tiles;  // that hold all that the query tile sees
  i32 keys;
  i32 unused;
};
static_assert(sizeof(KeyPhase) == kKeyPhaseBytes);

/// Walks the key tiles that have a visible pair with the query tile: own view, then clean keys.
template <F32Config C>
struct KeyWalkF32 {
  u32 row_bounds;  // shared addresses
  u32 phases;
  i32 phase;
  i32 tile;
  i32 end;

  /// Writes what the walk needs to shared memory; a barrier must follow.
  template <class Params>
  __device__ __forceinline__ void prepare(const Params& p, const QueryTileF32& query) const {
    using geometry::Half;
    const int thread = static_cast<int>(ptx::thread_index());
    const i32 position = geometry::query_position(query.sample.mask, query.half);
    for (int i = thread; i < 2 * C.tile_rows(); i += C.threads()) {
      const Half key_half = i < C.tile_rows() ? Half::kNoisy : Half::kClean;
      const i32 row = query.rows.begin + i % C.tile_rows();
      geometry::Interval seen{0, 0};
      if (row < query.rows.end && (key_half == Half::kClean || query.half == Half::kNoisy)) {
        seen = geometry::row_interval(
            geometry::rule_between(query.sample.mask, query.half, key_half), position + row);
      }
      ptx::st_shared_v2(row_bounds + i * 8, seen.begin, seen.end);
    }
    if (thread < 2) {
      const Half key_half = thread == 0 ? Half::kNoisy : Half::kClean;
      const i64 row = thread == 0 ? query.first_row : query.sample.clean_kv.first;
      const i64 batch = query.sample.batch_index;
      KeyPhase keys{p.k[thread].at(batch, row, query.head_kv),
                    p.v[thread].at(batch, row, query.head_kv),
                    {0, 0},
                    0,
                    0};
      if (key_half == Half::kClean || query.half == Half::kNoisy) {
        const geometry::IntervalRule rule =
            geometry::rule_between(query.sample.mask, query.half, key_half);
        keys.tiles = geometry::covering_tiles(geometry::key_hull(rule, position, query.rows),
                                              C.tile_columns());
        keys.keys = rule.key_len;
      }
      ptx::st_shared_object(phases + thread * kKeyPhaseBytes, keys);
    }
  }

  __device__ __forceinline__ void start() {
    phase = 0;
    ptx::ld_shared_v2(phases + kTilesOffset, tile, end);
  }

  /// Goes on to a tile at or after `tile`, in this phase or the next; false at the end. The whole
  /// CTA agrees: all read the same rows.
  __device__ __forceinline__ bool find() {
    const int lane = static_cast<int>(ptx::thread_index()) % 32;
    while (true) {
      for (; tile < end; ++tile) {
        bool any = false;
        for (int row = lane; row < C.tile_rows(); row += 32) any = any || meets(row);
        if (ptx::ballot(any) != 0) return true;
      }
      if (phase == 1) return false;
      phase = 1;
      ptx::ld_shared_v2(phases + kKeyPhaseBytes + kTilesOffset, tile, end);
    }
  }

  /// Whether row `row` of the query tile sees a key of the tile at hand.
  __device__ __forceinline__ bool meets(int row) const {
    geometry::Interval seen;
    ptx::ld_shared_v2(row_bounds + (phase * C.tile_rows() + row) * 8, seen.begin, seen.end);
    return seen.meets({tile * C.tile_columns(), (tile + 1) * C.tile_columns()});
  }

  __device__ __forceinline__ KeyPhase keys() const {
    KeyPhase keys;
    ptx::ld_shared_object(phases + phase * kKeyPhaseBytes, keys);
    return keys;
  }

 private:
  static constexpr u32 kTilesOffset = 16;  // of KeyPhase::tiles
};

}  // namespace stepwell::cuda
