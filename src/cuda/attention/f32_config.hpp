// Configurations of the float32 kernels.
#pragma once

#include "cuda/attention/walk_bytes.hpp"
#include "cuda/tile/rows.hpp"

namespace stepwell::cuda {

/// A CTA owns a tile of rows (queries; for dK and dV keys) and walks tiles of columns (keys;
/// queries). 4 warps share the rows; of a warp, lane / 8 counts rows and lane % 8 columns, and a
/// thread has `rows` x `columns` scores.
struct F32Config {
  int head_dim;    // of q and k, as shared memory has it: 64, 128 or 256
  int head_dim_v;  // of v
  int rows;        // of a thread
  int columns;
  int ctas_per_sm;
  bool softcap;
  bool dropout;

  static constexpr int kWarps = 4;
  constexpr int threads() const { return kWarps * 32; }
  constexpr int warp_rows() const { return rows * 4; }
  constexpr int tile_rows() const { return kWarps * warp_rows(); }
  constexpr int tile_columns() const { return columns * 8; }
  constexpr int score_bytes() const { return padded_row_bytes_f32(tile_columns()); }
};

/// Offsets into dynamic shared memory.
struct ForwardF32Plan {
  int q;           // [tile_rows][head_dim]
  int k;           // [tile_columns][head_dim]
  int v;           // [tile_columns][head_dim_v]
  int p;           // [tile_rows][tile_columns]
  int row_bounds;  // [2 phases][tile_rows] of (begin, end): keys that each row sees
  int phases;      // KeyPhase of own and of clean keys
  int bytes;
};

constexpr ForwardF32Plan forward_f32_plan(F32Config config) {
  ForwardF32Plan plan{};
  plan.q = 0;
  plan.k = plan.q + config.tile_rows() * padded_row_bytes_f32(config.head_dim);
  plan.v = plan.k + config.tile_columns() * padded_row_bytes_f32(config.head_dim);
  plan.p = plan.v + config.tile_columns() * padded_row_bytes_f32(config.head_dim_v);
  plan.row_bounds = plan.p + config.tile_rows() * config.score_bytes();
  plan.phases = plan.row_bounds + 2 * config.tile_rows() * 8;
  plan.bytes = plan.phases + 2 * kKeyPhaseBytes;
  return plan;
}

/// Of the kernel that gives dQ: rows are queries.
struct BackwardDqF32Plan {
  int q;           // [tile_rows][head_dim]
  int dout;        // [tile_rows][head_dim_v]
  int k;           // [tile_columns][head_dim]
  int v;           // [tile_columns][head_dim_v]
  int ds;          // [tile_rows][tile_columns]
  int row_bounds;  // [2 phases][tile_rows] of (begin, end): keys that each row sees
  int phases;      // KeyPhase of own and of clean keys
  int bytes;
};

constexpr BackwardDqF32Plan backward_dq_f32_plan(F32Config config) {
  BackwardDqF32Plan plan{};
  plan.q = 0;
  plan.dout = plan.q + config.tile_rows() * padded_row_bytes_f32(config.head_dim);
  plan.k = plan.dout + config.tile_rows() * padded_row_bytes_f32(config.head_dim_v);
  plan.v = plan.k + config.tile_columns() * padded_row_bytes_f32(config.head_dim);
  plan.ds = plan.v + config.tile_columns() * padded_row_bytes_f32(config.head_dim_v);
  plan.row_bounds = plan.ds + config.tile_rows() * config.score_bytes();
  plan.phases = plan.row_bounds + 2 * config.tile_rows() * 8;
  plan.bytes = plan.phases + 2 * kKeyPhaseBytes;
  return plan;
}

/// Of the kernel that gives dK and dV: rows are keys.
struct BackwardDkvF32Plan {
  int k;           // [tile_rows][head_dim]
  int v;           // [tile_rows][head_dim_v]
  int q;           // [tile_columns][head_dim]
  int dout;        // [tile_columns][head_dim_v]
  int p;           // [tile_rows][tile_columns]: P, then dS
  int row_values;  // [tile_columns] of RowValuesF32
  int row_bounds;  // [tile_columns] of (begin, end): keys that each query sees
  int walks;       // QueryWalk of noisy and of clean queries
  int walk;        // KeyTileWalk
  int bytes;
};

constexpr BackwardDkvF32Plan backward_dkv_f32_plan(F32Config config) {
  BackwardDkvF32Plan plan{};
  plan.k = 0;
  plan.v = plan.k + config.tile_rows() * padded_row_bytes_f32(config.head_dim);
  plan.q = plan.v + config.tile_rows() * padded_row_bytes_f32(config.head_dim_v);
  plan.dout = plan.q + config.tile_columns() * padded_row_bytes_f32(config.head_dim);
  plan.p = plan.dout + config.tile_columns() * padded_row_bytes_f32(config.head_dim_v);
  plan.row_values = plan.p + config.tile_rows() * config.score_bytes();
  plan.row_bounds = plan.row_values + config.tile_columns() * 16;
  plan.walks = plan.row_bounds + config.tile_columns() * 8;
  plan.walk = plan.walks + 2 * kWalkBytes;
  plan.bytes = plan.walk + kKeyTileWalkBytes;
  return plan;
}

}  // namespace stepwell::cuda
