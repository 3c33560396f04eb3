// Configuration, parameters and shared memory of attention_forward_walk_sm90, for host and device
// code.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/element.hpp"
#include "cuda/tensor_map.hpp"

namespace stepwell::cuda {

/// Query rows of a work item, 64 for each of two warpgroups.
inline constexpr int kWalkRows = 128;

struct ForwardWalkSm90Config {
  int head_dim;  // 64, 128, 192 or 256, of q, k and v; tensors of smaller ones are padded by TMA
  Element element;
  bool softcap;
  bool dropout;

  // Warpgroups: loads, upper rows, lower rows, and one that draws dropout's numbers.
  constexpr int threads() const { return dropout ? 512 : 384; }
  constexpr int consumer_registers() const { return dropout ? 216 : 224; }
  constexpr int producer_registers() const { return dropout ? 40 : 56; }
  constexpr int slabs() const { return head_dim / 64; }
  constexpr int tile_keys() const { return head_dim <= 128 ? 128 : head_dim == 192 ? 96 : 64; }
  constexpr int query_stages() const { return head_dim <= 128 ? 2 : 1; }
  constexpr int strip_bytes() const { return 64 * head_dim * 2; }
  constexpr int tile_bytes() const { return tile_keys() * head_dim * 2; }
};

inline constexpr int kWalkItemStages = 2;
inline constexpr int kWalkKeyStages = 2;      // of K and of V each
inline constexpr int kWalkDroppedStages = 4;  // of what dropout drops

/// Of a work item in shared memory, in bytes from its start; words of 32 bits.
struct WalkItemLayout {
  static constexpr int kWhere = 0;     // valid rows (0: the end of the work), whether any of them
                                       // sees a key, half, coordinate of the sample
  static constexpr int kWhich = 16;    // head, KV head, first row in the maps, gaps
  static constexpr int kNumbers = 32;  // for dropout: sample and head, segment, first row
  static constexpr int kPhases = 48;  // [2]: first row of the keys in the maps, keys, tiles (begin,
                                      // end)
  static constexpr int kFull = 80;    // [2][2 warpgroups]: keys (begin, end) that each row sees
  static constexpr int kKey = 112;    // of dropout, two words
  static constexpr int kBytes = 128;
};

/// Offsets into dynamic shared memory. Matrices lie as [64 dims of a slab][rows], rows of 128 bytes
/// swizzled.
struct ForwardWalkSm90Plan {
  int q;        // [query_stages][2 strips]
  int k;        // [kWalkKeyStages]
  int v;        // [kWalkKeyStages]
  int bounds;   // [kWalkItemStages][2 phases][kWalkRows] of (begin, end): keys that each row sees
  int bases;    // [256 threads][2 rows]: maxima of rows whose scores are too large for the fast
                // softmax
  int items;    // [kWalkItemStages] of WalkItemLayout
  int tiles;    // [kWalkKeyStages] of (first key, phase, warpgroups that need the mask, last one)
  int dropped;  // with dropout: [kWalkDroppedStages][256 threads] of two words
  int barriers;
  int bytes;
};

constexpr ForwardWalkSm90Plan forward_walk_sm90_plan(ForwardWalkSm90Config config) {
  ForwardWalkSm90Plan plan{};
  plan.q = 0;
  plan.k = plan.q + config.query_stages() * 2 * config.strip_bytes();
  plan.v = plan.k + kWalkKeyStages * config.tile_bytes();
  plan.bounds = plan.v + kWalkKeyStages * config.tile_bytes();
  plan.bases = plan.bounds + kWalkItemStages * 2 * kWalkRows * 8;
  plan.items = plan.bases + 256 * 2 * 4;
  plan.tiles = plan.items + kWalkItemStages * WalkItemLayout::kBytes;
  plan.dropped = plan.tiles + kWalkKeyStages * 16;
  plan.barriers = plan.dropped + (config.dropout ? kWalkDroppedStages * 256 * 8 : 0);
  plan.bytes = plan.barriers + 8 * (2 * kWalkItemStages + 2 * config.query_stages() +
                                    4 * kWalkKeyStages + 1 + 2 * kWalkDroppedStages);
  return plan;
}

/// By geometry::Half where there are two of a kind; joint layouts name the same tensors twice. Maps
/// have the dimensions 64 dims of a slab, row of the tensor, slab, head and sample (packed: one);
/// or, `by_slab`, dim, row, 1, head and sample.
struct ForwardWalkSm90Params {
  TensorMap q[2];        // boxes of 64 rows
  TensorMap k[2], v[2];  // boxes of a tile
  ForwardParams call;
  i32 ctas = 0;             // launched; each has several items
  bool qk_by_slab = false;  // maps of q and k; those of v
  bool v_by_slab = false;
  bool padding = false;  // there may be rows that hold no token
};

}  // namespace stepwell::cuda
