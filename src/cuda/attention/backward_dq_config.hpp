// Configuration of the kernel that computes dQ by query rows.
#pragma once

#include "cuda/attention/walk_bytes.hpp"
#include "cuda/element.hpp"
#include "cuda/tile/rows.hpp"

namespace stepwell::cuda {

struct BackwardDqConfig {
  int head_dim;    // of q and k as the kernel computes it: 64, 96, 128, 192 or 256
  int head_dim_v;  // of v
  Element element;
  int warps;
  int rows_per_warp;  // 16 or 32 query rows
  int tile_kv;
  int ctas_per_sm;
  bool softcap;
  bool dropout;

  constexpr int threads() const { return warps * 32; }
  constexpr int tile_q() const { return warps * rows_per_warp; }
  /// Keys of which a warp has S and dP at a time.
  constexpr int step_keys() const { return tile_kv < 32 ? tile_kv : 32; }
};

/// Offsets into dynamic shared memory.
struct BackwardDqPlan {
  int q;            // [tile_q][head_dim], at the end dQ
  int dout;         // [tile_q][head_dim_v]
  int k;            // [2][tile_kv][head_dim]
  int v;            // [2][tile_kv][head_dim_v]
  int row_values;   // [tile_q] of log-sum-exp and delta
  int row_bounds;   // as in key_walk.cuh
  int phases;       // as in key_walk.cuh
  int warp_bounds;  // as in key_walk.cuh
  int result;       // pointer to the tile's first row of dq
  int bytes;
};

constexpr BackwardDqPlan backward_dq_plan(BackwardDqConfig config) {
  BackwardDqPlan plan{};
  plan.q = 0;
  plan.dout = plan.q + config.tile_q() * padded_row_bytes(config.head_dim);
  plan.k = plan.dout + config.tile_q() * padded_row_bytes(config.head_dim_v);
  plan.v = plan.k + 2 * config.tile_kv * padded_row_bytes(config.head_dim);
  plan.row_values = plan.v + 2 * config.tile_kv * padded_row_bytes(config.head_dim_v);
  plan.row_bounds = plan.row_values + config.tile_q() * 8;
  plan.phases = plan.row_bounds + 2 * config.tile_q() * 8;
  plan.warp_bounds = plan.phases + 2 * kKeyPhaseBytes;
  plan.result = plan.warp_bounds + 2 * config.warps * 16;
  plan.bytes = plan.result + 16;
  return plan;
}

}  // namespace stepwell::cuda
