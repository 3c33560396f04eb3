// Configuration, parameters and shared memory of attention_forward_sm90, for host and device code.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/element.hpp"
#include "cuda/tensor_map.hpp"

namespace stepwell::cuda {

/// Query rows of a strip, which one warpgroup owns.
inline constexpr int kStripRows = 64;

/// Keys of a whole tile.
inline constexpr int kSm90TileKeys = 128;

struct ForwardSm90Config {
  int head_dim;  // 64 or 128, of q, k and v; tensors of smaller ones are padded to 64 by their maps
  Element element;
  bool small_blocks;  // the block size divides 64
  bool packed;        // samples of any length, one after the other

  constexpr int threads() const { return 384; }  // warpgroups: loads, noisy strip, clean strip
  constexpr int slabs() const { return head_dim / 64; }
  constexpr int strip_bytes() const { return kStripRows * head_dim * 2; }
  constexpr int tile_bytes() const { return kSm90TileKeys * head_dim * 2; }
};

inline constexpr int kQueryStages = 2;
inline constexpr int kKeyStages = 2;  // of K and of V each

/// Offsets into dynamic shared memory. Matrices lie as [64 dims of a slab][rows], rows of 128 bytes
/// swizzled.
struct ForwardSm90Plan {
  int out;    // [2 strips]
  int q;      // [kQueryStages][2 strips]
  int k;      // [kKeyStages]
  int v;      // [kKeyStages]
  int bases;  // [256 threads][2 rows]: maxima of rows whose scores are too large for the fast
              // softmax
  int items;  // [kQueryStages] of StripItem
  int barriers;
  int bytes;
};

constexpr ForwardSm90Plan forward_sm90_plan(ForwardSm90Config config) {
  ForwardSm90Plan plan{};
  plan.out = 0;
  plan.q = plan.out + 2 * config.strip_bytes();
  plan.k = plan.q + kQueryStages * 2 * config.strip_bytes();
  plan.v = plan.k + kKeyStages * config.tile_bytes();
  plan.bases = plan.v + kKeyStages * config.tile_bytes();
  plan.items = plan.bases + 256 * 2 * 4;
  plan.barriers = plan.items + kQueryStages * 32;
  plan.bytes = plan.barriers + 8 * (3 * kQueryStages + 4 * kKeyStages + 1);
  return plan;
}

/// By geometry::Half where there are two of a kind. Maps have the dimensions 64 dims of a slab, row
/// of the half (packed: of the tensor), slab, head and sample (packed: one); or, `by_slab`, dim,
/// row, 1, head and sample.
struct ForwardSm90Params {
  TensorMap q[2], out[2];          // boxes of a strip
  TensorMap k[2], v[2];            // boxes of a whole tile
  TensorMap k_part[2], v_part[2];  // boxes of 64 rows and one slab
  FloatRows lse[2];
  HalfRows out_rows[2];          // the same as `out`, for rows that hold no token
  i64 first_row[2] = {};         // of the half, in out_rows and lse; packed: 0
  const i32* lengths = nullptr;  // [batch] valid tokens of each half, or all
  TileGrid grid;                 // of strips, each of both halves; not packed
  geometry::Layout layout;       // packed
  i32 cached_rows = 1;           // packed: keys and values of one KV head that the L2 cache holds
  i32 ctas = 0;                  // launched; each has several strips
  geometry::Divisor by_block;
  i32 rows = 0;  // tokens of a half, valid or not; not packed
  i32 block_size = 1;
  bool clean_causal = false;
  bool noisy_causal = false;
  bool qk_by_slab = false;  // maps of q and k; those of v and out
  bool v_by_slab = false;
  i32 heads_q = 0;
  i32 heads_kv = 0;
  i32 head_dim_v = 0;
  float scale_log2 = 0.0f;  // softmax scale * log2(e), positive
};

}  // namespace stepwell::cuda
