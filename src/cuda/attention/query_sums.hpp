// Where the backward pass keeps what it has for each query row: float32, in the order of the
// accumulators of mma.m16n8k16, for host and device code.
//
// Rows are padded: those of a segment (a view or the clean rows of a sample) begin at a multiple of
// 16, so that the 16 rows of an accumulator belong to one segment and a tile needs no test a row.
#pragma once

#include "geometry/layout.hpp"

namespace stepwell::cuda {

inline constexpr geometry::i32 kSumRows = 16;

/// float32 `[batch, head, padded row, width]`.
struct QuerySums {
  float* data = nullptr;
  geometry::i64 batch_stride = 0;  // in elements
  geometry::i64 head_stride = 0;

  /// The first element of a head.
  constexpr float* at(geometry::i64 batch, geometry::i64 head) const {
    return data + batch * batch_stride + head * head_stride;
  }
};

/// Segments of one sample in the query tensor of a half.
constexpr geometry::i32 query_segments(const geometry::Layout& layout, geometry::Half half) {
  const geometry::i32 views = layout.mask.num_views;
  if (layout.packing != geometry::Packing::kSplit) return views + 1;
  return half == geometry::Half::kNoisy ? views : 1;
}

/// The padded row of row `first`, the first one of a segment (view, or num_views for clean rows) of
/// a sample.
constexpr geometry::i64 padded_row(const geometry::Layout& layout, geometry::i32 sample,
                                   geometry::i32 segment, geometry::i64 first) {
  using geometry::Packing;
  const geometry::i32 views = layout.mask.num_views;
  const bool clean = segment == views;
  const bool joint = layout.packing != Packing::kSplit;
  const geometry::Half half = clean ? geometry::Half::kClean : geometry::Half::kNoisy;
  // The place among all segments of the tensor, in the order of their rows.
  geometry::i64 rank = joint && layout.clean_first ? (clean ? 0 : segment + 1)
                       : joint || !clean           ? segment
                                                   : 0;
  if (layout.packed()) {
    rank = layout.packing == Packing::kJointHalves
               ? rank * layout.batch + sample
               : geometry::i64{sample} * query_segments(layout, half) + rank;
  }
  // Each segment before may have been padded by up to 15 rows.
  return (first + (kSumRows - 1) * (rank + 1)) / kSumRows * kSumRows;
}

/// Padded rows of a half's query tensor with `rows` rows (of one batch entry, or packed).
constexpr geometry::i64 padded_rows(const geometry::Layout& layout, geometry::Half half,
                                    geometry::i64 rows) {
  const geometry::i64 samples = layout.packed() ? layout.batch : 1;
  const geometry::i64 segments = samples * query_segments(layout, half);
  return (rows + (kSumRows - 1) * (segments + 1)) / kSumRows * kSumRows;
}

/// An element's place among those of its segment, `width` columns: tiles of 16 rows and 8 columns,
/// in them 4 elements a lane, as accumulators have them.
constexpr geometry::i64 sum_index(geometry::i32 row, geometry::i32 column, geometry::i32 width) {
  const geometry::i32 lane = row % 8 * 4 + column % 8 / 2;
  const geometry::i64 tile = geometry::i64{row / kSumRows} * (width / 8) + column / 8;
  return tile * (kSumRows * 8) + lane * 4 + row % kSumRows / 8 * 2 + column % 2;
}

}  // namespace stepwell::cuda
