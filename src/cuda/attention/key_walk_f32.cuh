// The walk of a CTA of the float32 kernels over the key tiles that its query rows see.
#pragma once

#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/params.hpp"
#include "cuda/attention/query_rows.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

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
  __device__ __forceinline__ void prepare(const Params& p, const QueryRows& query) const {
    using geometry::Half;
    const int thread = static_cast<int>(ptx::thread_index());
    const i32 position = geometry::query_position(query.sample.mask, query.half);
    for (int i = thread; i < 2 * C.tile_rows(); i += C.threads()) {
      const Half key_half = i < C.tile_rows() ? Half::kNoisy : Half::kClean;
      const i32 row = query.valid.begin + i % C.tile_rows();
      geometry::Interval seen{0, 0};
      if (row < query.valid.end && (key_half == Half::kClean || query.half == Half::kNoisy)) {
        seen = geometry::row_interval(
            geometry::rule_between(query.sample.mask, query.half, key_half), position + row);
      }
      ptx::st_shared_v2(row_bounds + i * 8, seen.begin, seen.end);
    }
    if (thread < 2) {
      const Half key_half = thread == 0 ? Half::kNoisy : Half::kClean;
      const i64 row = thread == 0 ? query.first : query.sample.clean_kv.first;
      const i64 batch = query.sample.batch_index;
      KeyPhase keys{p.k[thread].at(batch, row, query.head_kv),
                    p.v[thread].at(batch, row, query.head_kv),
                    {0, 0},
                    0,
                    0};
      if (key_half == Half::kClean || query.half == Half::kNoisy) {
        const geometry::IntervalRule rule =
            geometry::rule_between(query.sample.mask, query.half, key_half);
        keys.tiles = geometry::covering_tiles(geometry::key_hull(rule, position, query.valid),
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

  /// Requests K, or V, of the tile at hand to the shared address `to`.
  template <class Params>
  __device__ __forceinline__ void request_k(const Params& p, u32 to) const {
    const KeyPhase keys = this->keys();
    request_tile_f32<C.tile_columns(), C.head_dim, C.threads()>(
        to, keys.k, p.k[phase].row_stride, tile * C.tile_columns(), keys.keys, p.head_dim);
  }
  template <class Params>
  __device__ __forceinline__ void request_v(const Params& p, u32 to) const {
    const KeyPhase keys = this->keys();
    request_tile_f32<C.tile_columns(), C.head_dim_v, C.threads()>(
        to, keys.v, p.v[phase].row_stride, tile * C.tile_columns(), keys.keys, p.head_dim_v);
  }

 private:
  __device__ __forceinline__ KeyPhase keys() const {
    KeyPhase keys;
    ptx::ld_shared_object(phases + phase * kKeyPhaseBytes, keys);
    return keys;
  }

  static constexpr u32 kTilesOffset = 16;  // of KeyPhase::tiles
};

}  // namespace stepwell::cuda
