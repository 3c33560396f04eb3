// Masks on accumulators of wgmma: s[column / 8][4], where a lane holds columns 8 i + 2 (lane % 4) +
// {0, 1} of rows lane / 4 (values 0 and 1) and lane / 4 + 8 (values 2 and 3).
#pragma once

#include "cuda/tile/softmax.cuh"

namespace stepwell::cuda {

/// Keys that the lane's two rows see of a tile, counted from its first column.
struct LaneSpans {
  i32 begin[2];
  i32 end[2];
};

/// Scores of pieces [kFrom, kTo) outside of the spans, which count from piece kFrom, become -inf.
template <int kFrom, int kTo, int kPieces>
__device__ __forceinline__ void mask_spans(float (&s)[kPieces][4], const LaneSpans& spans) {
#pragma unroll
  for (int i = kFrom; i < kTo; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int key = 8 * (i - kFrom) + j % 2;
      const int r = j / 2;
      if (key < spans.begin[r] || key >= spans.end[r]) s[i][j] = minus_infinity();
    }
  }
}

/// The same for spans that begin at or before the first column.
template <int kFrom, int kTo, int kPieces>
__device__ __forceinline__ void mask_ends(float (&s)[kPieces][4], const LaneSpans& spans) {
#pragma unroll
  for (int i = kFrom; i < kTo; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (8 * (i - kFrom) + j % 2 >= spans.end[j / 2]) s[i][j] = minus_infinity();
    }
  }
}

}  // namespace stepwell::cuda
