// Configurations of the mma.sync backward kernels.
#pragma once

#include "cuda/attention/walk_bytes.hpp"
#include "cuda/element.hpp"
#include "cuda/tile/rows.hpp"

namespace stepwell::cuda {

/// Each product of a tile is divided among the warps in its own way; warps_q * warps_kv = warps and
/// so on.
struct BackwardConfig {
  int head_dim;    // of q and k as the kernel computes it: 64, 96, 128, 192 or 256
  int head_dim_v;  // of v
  Element element;
  int warps;
  int tile_q;
  int tile_kv;
  int warps_q;    // S and dP [tile_q x tile_kv]: warps along the queries; 0: by key, see below
  int warps_key;  // dK and dV [tile_kv x dim]: warps along the keys
  int warps_dq;   // dQ [tile_q x dim]: warps along the queries
  int stages;     // Q and dO tiles in shared memory: 1, or 2 where they fit
  int ctas_per_sm;
  bool stmatrix;  // sm_90 and later have it
  bool softcap;
  bool dropout;
  bool dq;  // sums dQ too; else backward_dq_sm80.cuh computes it

  constexpr int threads() const { return warps * 32; }
  /// Each warp has keys of its own (warps_key = warps) and computes S^T for them, 32 query rows at
  /// a time: P and dS go on from registers, and only dQ gets dS through shared memory.
  constexpr bool by_key() const { return warps_q == 0; }
  constexpr int score_rows() const { return by_key() ? 32 : tile_q / warps_q; }
  constexpr int score_keys() const { return tile_kv / (by_key() ? warps : warps / warps_q); }
};

/// Of the two kernels before and after, which work on query rows.
struct RowsConfig {
  int dim;  // columns that a row has at most: head_dim_v (prepare) or head_dim (finish)
  Element element;

  constexpr int threads() const { return 128; }
  constexpr int tile_rows() const { return 128; }
  /// Lanes of a row, 8 columns each: a power of two.
  constexpr int lanes() const { return dim <= 64 ? 8 : dim <= 128 ? 16 : 32; }
};

/// Offsets into dynamic shared memory.
struct BackwardPlan {
  int k;           // [tile_kv][head_dim], at the end dK
  int v;           // [tile_kv][head_dim_v], at the end dV
  int q;           // [tile_q][head_dim]
  int dout;        // [tile_q][head_dim_v]
  int p;           // [tile_q][tile_kv]; by key nothing
  int ds;          // [tile_q][tile_kv]; by key [tile_kv][tile_q]
  int row_values;  // [stages][tile_q] of log-sum-exp and delta
  int row_bounds;  // [stages][tile_q] of (begin, end): keys that each row of a masked tile sees
  int visible;     // [warps]: which pieces of a warp's part of S have a visible pair
  int walks;       // QueryWalk of noisy and of clean queries
  int walk;        // KeyTileWalk
  int runs;        // [warps][2] of QueryRun: each warp's own, so that no barrier is needed
  int bytes;
};

constexpr BackwardPlan backward_plan(BackwardConfig config) {
  BackwardPlan plan{};
  plan.k = 0;
  plan.v = plan.k + config.tile_kv * padded_row_bytes(config.head_dim);
  plan.q = plan.v + config.tile_kv * padded_row_bytes(config.head_dim_v);
  plan.dout = plan.q + config.stages * config.tile_q * padded_row_bytes(config.head_dim);
  plan.p = plan.dout + config.stages * config.tile_q * padded_row_bytes(config.head_dim_v);
  const int score_bytes = config.tile_q * padded_row_bytes(config.tile_kv);
  plan.ds = plan.p + (config.by_key() ? 0 : score_bytes);
  plan.row_values =
      plan.ds + (config.by_key() ? config.tile_kv * padded_row_bytes(config.tile_q) : score_bytes);
  plan.row_bounds = plan.row_values + config.stages * config.tile_q * 8;
  plan.visible = plan.row_bounds + config.stages * config.tile_q * 8;
  plan.walks = plan.visible + (config.warps * 4 + 15) / 16 * 16;
  plan.walk = plan.walks + 2 * kWalkBytes;
  plan.runs =
      (plan.walk + kKeyTileWalkBytes + 2 * kRunBytes - 1) / (2 * kRunBytes) * (2 * kRunBytes);
  plan.bytes = plan.runs + config.warps * 2 * kRunBytes;
  return plan;
}

}  // namespace stepwell::cuda
