// Configurations, parameters and shared memory of the backward kernels for sm_90a, for host and
// device code.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/element.hpp"
#include "cuda/tensor_map.hpp"

namespace stepwell::cuda {

/// Query rows of a tile.
inline constexpr int kSm90BackwardRows = 64;

/// Keys of a work item, 64 for each of two warpgroups.
inline constexpr int kSm90BackwardKeys = 128;

/// Of attention_backward_sm90.
struct BackwardSm90Config {
  int head_dim;  // 64 or 128, of q, k and v; tensors of smaller ones are padded to 64 by their maps
  Element element;

  constexpr int threads() const { return 384; }  // warpgroups: loads, keys 0 to 63, keys 64 to 127
  constexpr int slabs() const { return head_dim / 64; }
  constexpr int rows_bytes() const { return kSm90BackwardRows * head_dim * 2; }
  constexpr int keys_bytes() const { return kSm90BackwardKeys * head_dim * 2; }
  /// K once more, in 32 columns for each warpgroup: a slab has those of both.
  constexpr bool splits_slab() const { return head_dim == 64; }
};

inline constexpr int kRowStages = 3;   // of Q and row values
inline constexpr int kDoutStages = 2;  // of dO
inline constexpr int kDsStages = 2;    // of dS
inline constexpr int kItemStages = 2;
inline constexpr int kStepStages = 8;  // of StepInfo: more than there can be Q and dO ahead

/// Row values of a tile: 64 log-sum-exps in units of log 2 (+inf: no token), then 64 deltas.
inline constexpr int kRowValuesBytes = 2 * kSm90BackwardRows * 4;

/// Offsets into dynamic shared memory. Matrices lie as [64 columns of a slab][rows], rows of 128
/// bytes swizzled.
struct BackwardSm90Plan {
  int k;
  int v;
  int k_columns;   // where slabs are split: [32 columns of a warpgroup][key], rows of 64 bytes
                   // swizzled; else k
  int q;           // [kRowStages]
  int dout;        // [kDoutStages]
  int ds;          // [kDsStages][key][64 query rows]; at the end of an item dV, then dK
  int row_values;  // [kRowStages]
  int steps;       // [kStepStages] of StepInfo
  int items;       // [kItemStages] of KeyItem
  int barriers;
  int bytes;
};

constexpr BackwardSm90Plan backward_sm90_plan(BackwardSm90Config config) {
  BackwardSm90Plan plan{};
  plan.k = 0;
  plan.v = plan.k + config.keys_bytes();
  plan.k_columns = config.splits_slab() ? plan.v + config.keys_bytes() : plan.k;
  plan.q = plan.v + (config.splits_slab() ? 2 : 1) * config.keys_bytes();
  plan.dout = plan.q + kRowStages * config.rows_bytes();
  plan.ds = plan.dout + kDoutStages * config.rows_bytes();
  plan.row_values = plan.ds + kDsStages * kSm90BackwardKeys * 128;
  plan.steps = plan.row_values + kRowStages * kRowValuesBytes;
  plan.items = plan.steps + kStepStages * 16;
  plan.barriers = plan.items + kItemStages * 32;
  plan.bytes = plan.barriers + 8 * (2 * (kRowStages + kDoutStages + kDsStages + kItemStages) + 4);
  return plan;
}

/// Of attention_backward_rows_sm90, which comes before.
struct BackwardRowsSm90Config {
  int head_dim;
  Element element;
  bool diagonal;  // the block size divides 64: noisy rows with noisy keys are done here, complete
  bool grouped;   // and KV heads have several query heads

  constexpr int threads() const { return 128; }
  constexpr int slabs() const { return head_dim / 64; }
  constexpr int tile_bytes() const { return kSm90BackwardRows * head_dim * 2; }
  /// As many as registers allow: results of several heads stay in them.
  constexpr int ctas_per_sm() const { return diagonal && !grouped ? 3 : 2; }
};

/// Offsets into dynamic shared memory; none is used without `diagonal`.
struct BackwardRowsSm90Plan {
  int q;
  int dout;
  int k;
  int v;   // at the end dV, then dK
  int ds;  // [key][64 query rows]
  int row_values;
  int barrier;  // of loads
  int bytes;
};

constexpr BackwardRowsSm90Plan backward_rows_sm90_plan(BackwardRowsSm90Config config) {
  BackwardRowsSm90Plan plan{};
  if (!config.diagonal) return plan;
  plan.q = 0;
  plan.dout = plan.q + config.tile_bytes();
  plan.k = plan.dout + config.tile_bytes();
  plan.v = plan.k + config.tile_bytes();
  plan.ds = plan.v + config.tile_bytes();
  plan.row_values = plan.ds + kSm90BackwardRows * 128;
  plan.barrier = plan.row_values + kRowValuesBytes;
  plan.bytes = plan.barrier + 8;
  return plan;
}

/// By geometry::Half where there are two of a kind. Maps have the dimensions 64 dims of a slab, row
/// of the half, slab, head and sample; or, `by_slab`, dim, row, 1, head and sample.
struct BackwardSm90Params {
  TensorMap q[2], dout[2];     // boxes of a tile of query rows
  TensorMap k[2], v[2];        // boxes of an item's keys
  TensorMap k_columns[2];      // boxes of an item's keys and 32 dims, where slabs are split
  TensorMap noisy_k, noisy_v;  // boxes of 64 noisy keys
  HalfRows out, dout_rows;     // joint tensors
  HalfRows dk, dv;
  FloatRows lse, dlse;
  i64 first_row[2] = {};  // of the half, in joint tensors
  // Workspace. A tile of 64 query rows has the number ((sample * heads_q + head) * 2 + half) *
  // row_tiles + its index.
  float* row_values = nullptr;    // [tile] of kRowValuesBytes
  float* dq_sum = nullptr;        // [tile][64 rows x head dim in the order of sum_index]
  unsigned* next_item = nullptr;  // work counter
  const i32* lengths = nullptr;   // [batch] valid tokens of each half, or all
  TileGrid grid;                  // of tiles of one half of the keys: 128 (main) or 64 (rows)
  i32 items = 0;                  // of the main kernel: clean keys, then noisy keys if it does them
  i32 ctas = 0;                   // launched; those of the main kernel have several items each
  geometry::Divisor by_block;
  i32 block_size = 1;
  bool clean_causal = false;
  bool noisy_causal = false;
  bool qk_by_slab = false;  // maps of q and k; those of v and dout
  bool v_by_slab = false;
  i32 rows = 0;       // tokens of a half, valid or not
  i32 row_tiles = 0;  // tiles of 64 rows of a half
  i32 heads_q = 0;
  i32 heads_kv = 0;
  i32 head_dim = 0;  // as the tensors have it; the kernel's own may be larger
  i32 head_dim_v = 0;
  float softmax_scale = 0.0f;
  float scale_log2 = 0.0f;  // softmax scale * log2(e)

  constexpr i32 group() const { return heads_q / heads_kv; }
};

}  // namespace stepwell::cuda
