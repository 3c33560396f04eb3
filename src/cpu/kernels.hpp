// What the instruction-set specific code offers, and the units of work it takes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"

namespace stepwell::cpu {

/// Query rows of a forward tile. Keys and values are read once per tile, so twice the rows would
/// halve that traffic, and with short sequences double the masked work on the diagonals.
inline constexpr int kForwardTileQ = 64;
/// Keys whose K and V are converted and multiplied at a time: 2 * 128 * 256 floats fit half of a 1
/// MB L2.
inline constexpr int kForwardTileKv = 128;
/// The backward pass keeps a key tile's K, V (both orders), dK and dV beside a query tile's Q, dO,
/// S, dP.
inline constexpr int kBackwardTileQ = 64;
inline constexpr int kBackwardTileKv = 64;

/// float tiles are padded to a multiple of this many columns: the longest vector.
inline constexpr int kColumnPadding = 16;

constexpr int padded_columns(int dim) {
  return (dim + kColumnPadding - 1) / kColumnPadding * kColumnPadding;
}

/// Dropout as a tile needs it.
struct Dropout {
  bool active = false;
  std::uint64_t key = 0;
  std::uint32_t threshold = 0;  // numbers below it drop their pair
  float keep_scale = 1.0f;      // 1 / (1 - p), p as rounded there
};

/// One tile of query rows of one head.
struct ForwardTile {
  const AttentionProblem* problem;
  const geometry::Sample* sample;
  Dropout dropout;
  std::int32_t sample_index;
  geometry::Half half;
  std::int32_t view;
  std::int32_t head;
  geometry::Interval rows;
};

/// Per-row values of the backward pass, float32 `[batch, head, row]` like the tensors they belong
/// to.
struct BackwardRowValues {
  RowValues lse_log2;    // log-sum-exp in units of log 2
  RowValues lse_factor;  // what P of that is to be multiplied with
  RowValues delta;       // sum over the value dim of dout * out
};

/// Where dq is summed: float32 rows like q, padded_columns(head_dim) wide.
struct BackwardBuffers {
  BackwardRowValues row_values[2];  // by half
  Rows dq[2];                       // by half
};

/// Part of the backward pass of one sample and one KV head: all pairs of `query heads` x `query
/// rows` x `key tiles`. Whoever asks for dk and dv asks for all heads and rows, whoever asks for dq
/// for all key tiles, so that each sum has one owner and one order.
struct BackwardPart {
  const AttentionProblem* problem;
  const geometry::Sample* sample;
  const BackwardBuffers* buffers;
  Dropout dropout;
  std::int32_t sample_index;
  std::int32_t head_kv;

  bool want_dq;
  bool want_dkv;
  // Query heads of the group, and rows of one segment; view -1 with dkv: every segment, all rows.
  std::int32_t first_head;
  std::int32_t last_head;
  geometry::Half query_half;
  std::int32_t query_view;  // -1: all segments
  geometry::Interval query_rows;
  // Key tiles of one segment; view -1: every segment, all tiles.
  geometry::Half key_half;
  std::int32_t key_view;
  geometry::Interval key_rows;
};

/// Rows that belong to no valid token.
struct FillPart {
  geometry::Half half;
  std::int64_t batch;
  std::int64_t first;
  std::int64_t count;
};

struct Kernels {
  const char* name;  // of the instruction set
  int panel;         // queries (forward) or keys (backward) of one register panel

  std::size_t (*forward_scratch_floats)(int head_dim, int head_dim_v);
  void (*forward_tile)(const ForwardTile& tile, float* scratch);

  std::size_t (*backward_scratch_floats)(int head_dim, int head_dim_v);
  std::size_t (*row_values_scratch_floats)(int head_dim, int head_dim_v);
  /// The row values of a query tile.
  void (*row_values)(const ForwardTile& tile, const BackwardBuffers& buffers, float* scratch);
  void (*backward_part)(const BackwardPart& part, float* scratch);
  /// Rounds dq's sums, times the softmax scale, to the dtype of dq.
  void (*store_dq)(const ForwardTile& tile, const BackwardBuffers& buffers);
};

/// The best of the compiled instruction sets that this processor has.
const Kernels& kernels();

}  // namespace stepwell::cpu
