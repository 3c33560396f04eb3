// What the attention kernels get by value, for host and device code. Includes nothing but geometry.
#pragma once

#include "cuda/attention/query_sums.hpp"
#include "geometry/layout.hpp"

namespace stepwell::cuda {

using geometry::i32;
using geometry::i64;

/// `[batch, row, head, dim]` with a contiguous last dimension; strides in elements.
template <class T>
struct ElementRows {
  T* data = nullptr;
  i64 batch_stride = 0;
  i64 row_stride = 0;
  i64 head_stride = 0;

  constexpr T* at(i64 batch, i64 row, i64 head) const {
    return data + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

using HalfRows = ElementRows<unsigned short>;  // of 16-bit floats

/// float32 `[batch, head, row]`.
struct FloatRows {
  float* data = nullptr;
  i64 batch_stride = 0;
  i64 head_stride = 0;
  i64 row_stride = 0;

  constexpr float* at(i64 batch, i64 head, i64 row) const {
    return data + batch * batch_stride + head * head_stride + row * row_stride;
  }
};

/// Dropout numbers are those of core/philox.hpp.
struct DropoutParams {
  unsigned long long seed = 0;
  unsigned long long offset = 0;
  const i64* state = nullptr;  // [2] seed and offset in device memory, instead of the two above
  unsigned threshold = 0;      // numbers below it drop their pair
  float keep_scale = 1.0f;     // 1 / (1 - p), p as rounded there
};

/// How CTAs find their tile: groups x tiles x pairs of (sample, KV head) in the group x segments x
/// query heads of the KV head, the last running fastest. Pairs are grouped so that the K and V of a
/// group fit the L2 cache together; within a group the tiles with the most keys come first.
struct TileGrid {
  i32 pairs = 0;               // (samples, and one more for the tail of packed tensors) * heads_kv
  i32 group = 1;               // pairs of a group
  i32 tiles = 0;               // tiles of the longest segment
  i32 segments = 0;            // views + 1
  i32 query_heads = 1;         // of a KV head, each with CTAs of its own
  geometry::Divisor by_group;  // CTAs of a group
  geometry::Divisor by_tile;   // CTAs of one tile index of a group
  geometry::Divisor by_last_tile;  // the same of the last group
  geometry::Divisor by_pair;       // CTAs of one tile index of a pair
  geometry::Divisor by_query_head;
  geometry::Divisor by_head_kv;

  constexpr i64 ctas() const { return i64{pairs} * tiles * segments * query_heads; }
};

/// The grid for pairs of which `group` fit the L2 cache together; fewer than 2^31 CTAs.
constexpr TileGrid make_tile_grid(i32 samples, i32 heads_kv, i32 group, i32 tiles, i32 segments,
                                  i32 query_heads) {
  TileGrid grid;
  grid.pairs = samples * heads_kv;
  grid.group = group < 1 ? 1 : group < grid.pairs ? group : grid.pairs;
  grid.tiles = tiles;
  grid.segments = segments;
  grid.query_heads = query_heads;
  const i32 inner = segments * query_heads;
  const i32 last = grid.pairs - (grid.pairs - 1) / grid.group * grid.group;
  grid.by_group = geometry::make_divisor(grid.group * tiles * inner);
  grid.by_tile = geometry::make_divisor(grid.group * inner);
  grid.by_last_tile = geometry::make_divisor(last * inner);
  grid.by_pair = geometry::make_divisor(inner);
  grid.by_query_head = geometry::make_divisor(query_heads);
  grid.by_head_kv = geometry::make_divisor(heads_kv);
  return grid;
}

template <class T>
struct ForwardParamsOf {
  geometry::Layout layout;
  TileGrid grid;
  // By geometry::Half; joint layouts name the same tensors twice.
  ElementRows<T> q[2], k[2], v[2], out[2];
  FloatRows lse[2];
  i32 heads_q = 0;
  i32 heads_kv = 0;
  i32 head_dim = 0;  // as the tensors have it; the kernel's own may be larger
  i32 head_dim_v = 0;
  float scale_log2 = 0.0f;     // softmax scale * log2(e); with a cap: softcap * log2(e)
  float softcap_scale = 0.0f;  // with a cap: softmax scale / softcap
  // 1: softmax scale is negative without a cap; the kernel takes -Q, and scale_log2 is positive, so
  // that the largest score is the largest product.
  i32 negate_q = 0;
  DropoutParams dropout;
};

template <class T>
struct BackwardParamsOf {
  geometry::Layout layout;
  TileGrid grid;  // of the kernel that gets the parameters: key tiles or query tiles
  // By geometry::Half; joint layouts name the same tensors twice.
  ElementRows<T> q[2], k[2], v[2], out[2], dout[2];
  ElementRows<T> dq[2], dk[2], dv[2];
  FloatRows lse[2], dlse[2];
  // Workspace. Per query row: log-sum-exp in units of log 2, and sum of dout * out less dlse.
  QuerySums row_values[2];  // [batch, head, padded row, 2]
  // [batch, head, padded row, dq_width] in the order of sum_index; null where dQ is not summed.
  QuerySums dq_sum[2];
  i32 dq_width = 0;
  i32 heads_q = 0;
  i32 heads_kv = 0;
  i32 head_dim = 0;
  i32 head_dim_v = 0;
  float softmax_scale = 0.0f;
  float scale_log2 = 0.0f;     // softmax scale * log2(e); with a cap: softcap * log2(e)
  float softcap_scale = 0.0f;  // with a cap: softmax scale / softcap
  DropoutParams dropout;

  constexpr i32 group() const { return heads_q / heads_kv; }
};

using ForwardParams = ForwardParamsOf<unsigned short>;
using BackwardParams = BackwardParamsOf<unsigned short>;

/// Of the float32 kernels. scale_log2 is positive, and raw scores are multiplied with score_sign.
struct ForwardParamsF32 : ForwardParamsOf<float> {
  float score_sign = 1.0f;  // of the softmax scale; 0: it is 0
};

/// Of the float32 kernels: row_values has four values a row (RowValuesF32), dq_sum is not used, and
/// scale_log2 has the sign of the softmax scale.
struct BackwardParamsF32 : BackwardParamsOf<float> {};

}  // namespace stepwell::cuda
