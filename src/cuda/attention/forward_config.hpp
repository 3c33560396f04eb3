// Configuration of the mma.sync forward kernel.
#pragma once

#include "cuda/attention/walk_bytes.hpp"
#include "cuda/element.hpp"
#include "cuda/tile/rows.hpp"

namespace stepwell::cuda {

struct ForwardConfig {
  int head_dim;    // of q and k as the kernel computes it: 64, 96, 128, 192 or 256
  int head_dim_v;  // of v
  Element element;
  int warps;
  int rows_per_warp;  // 16 or 32 query rows
  int tile_kv;
  int ctas_per_sm;  // what __launch_bounds__ asks for
  bool softcap;
  bool dropout;

  constexpr int threads() const { return warps * 32; }
  constexpr int tile_q() const { return warps * rows_per_warp; }
};

/// Offsets into dynamic shared memory.
struct ForwardPlan {
  int q;            // [tile_q][head_dim], at the end [tile_q][head_dim_v] of the output
  int k;            // [2][tile_kv][head_dim]
  int v;            // [2][tile_kv][head_dim_v]
  int row_bounds;   // [2 phases][tile_q] of (begin, end): keys that each row sees
  int phases;       // [2 phases] of (first tile, last tile, keys, gaps, K pointer, V pointer)
  int warp_bounds;  // [2 phases][warps] of (any begin, any end, all begin, all end)
  int results;      // pointers to the tile's first row of out and of lse, rows, half
  int lost;         // [warps]: whether scores were too large for the fast softmax
  int exact;        // whether the tile is done again for that
  int bytes;
};

constexpr ForwardPlan forward_plan(ForwardConfig config) {
  const int wide = config.head_dim > config.head_dim_v ? config.head_dim : config.head_dim_v;
  ForwardPlan plan{};
  plan.q = 0;
  plan.k = plan.q + config.tile_q() * padded_row_bytes(wide);
  plan.v = plan.k + 2 * config.tile_kv * padded_row_bytes(config.head_dim);
  plan.row_bounds = plan.v + 2 * config.tile_kv * padded_row_bytes(config.head_dim_v);
  plan.phases = plan.row_bounds + 2 * config.tile_q() * 8;
  plan.warp_bounds = plan.phases + 2 * kKeyPhaseBytes;
  plan.results = plan.warp_bounds + 2 * config.warps * 16;
  plan.lost = plan.results + 32;
  plan.exact = plan.lost + (config.warps * 4 + 15) / 16 * 16;
  plan.bytes = plan.exact + 16;
  return plan;
}

}  // namespace stepwell::cuda
