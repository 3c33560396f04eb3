// Moving rows between global and shared memory.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/rows.hpp"

namespace stepwell::cuda {

/// Requests rows [first, first + kRows) of a matrix; rows at or past `len` and columns at or past
/// `dim` become zeros and are not read.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void request_tile(u32 to, const u16* from, i64 row_stride, i32 first,
                                             i32 len, i32 dim) {
  constexpr int kChunks = kDim / 8;
  constexpr int kRowBytes = padded_row_bytes(kDim);
  const int thread = static_cast<int>(ptx::thread_index_again());
  if constexpr (kThreads % kChunks == 0 && kRows % (kThreads / kChunks) == 0) {
    constexpr int kRowsAtOnce = kThreads / kChunks;
    const int row = thread / kChunks;
    const int chunk = thread % kChunks;
    const u16* source = from + (first + row) * row_stride + chunk * 8;
    to += row * kRowBytes + chunk * 16;
    if (first + kRows <= len && dim == kDim) {  // the usual case without a test a row
#pragma unroll
      for (int r = 0; r < kRows; r += kRowsAtOnce) {
        ptx::cp_async_16(to + r * kRowBytes, source);
        source += kRowsAtOnce * row_stride;
      }
    } else {
      const int rows = chunk * 8 < dim ? len - first - row : 0;
#pragma unroll
      for (int r = 0; r < kRows; r += kRowsAtOnce) {
        const bool inside = r < rows;
        ptx::cp_async_16(to + r * kRowBytes, inside ? source : from, inside ? 16 : 0);
        source += kRowsAtOnce * row_stride;
      }
    }
  } else {
#pragma unroll
    for (int base = 0; base < kRows * kChunks; base += kThreads) {
      const int i = base + thread;
      if (kRows * kChunks % kThreads != 0 && i >= kRows * kChunks) break;
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      const bool inside = first + row < len && chunk * 8 < dim;
      const u16* source = inside ? from + (first + row) * row_stride + chunk * 8 : from;
      ptx::cp_async_16(to + row * kRowBytes + chunk * 16, source, inside ? 16 : 0);
    }
  }
}

/// Writes the first `count` rows of a shared tile, columns [0, dim).
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void write_tile(u16* to, i64 row_stride, u32 from, i32 count, i32 dim) {
  constexpr int kChunks = kDim / 8;
  constexpr int kRowBytes = padded_row_bytes(kDim);
#pragma unroll 4
  for (int i = static_cast<int>(ptx::thread_index()); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    if (row < count && chunk * 8 < dim) {
      ptx::st_global_v4(to + row * row_stride + chunk * 8,
                        ptx::ld_shared_v4(from + row * kRowBytes + chunk * 16));
    }
  }
}

/// request_tile of rows of float32; a row is kDim / 4 chunks of 16 bytes.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void request_tile_f32(u32 to, const float* from, i64 row_stride,
                                                 i32 first, i32 len, i32 dim) {
  request_tile<kRows, kDim * 2, kThreads>(to, reinterpret_cast<const u16*>(from), row_stride * 2,
                                          first, len, dim * 2);
}

/// Zeros in rows [first, first + count) of one head.
template <int kThreads, class T>
__device__ __forceinline__ void write_zero_rows(const ElementRows<T>& rows, i64 batch, i32 head,
                                                i64 first, i64 count, i32 dim) {
  if (rows.data == nullptr) return;
  constexpr int kElements = 16 / sizeof(T);  // of a chunk
  const int chunks = dim / kElements;
  for (i64 i = ptx::thread_index(); i < count * chunks; i += kThreads) {
    T* to = rows.at(batch, first + i / chunks, head);
    ptx::st_global_v4(to + i % chunks * kElements, {0, 0, 0, 0});
  }
}

/// A value in rows [first, first + count) of one head.
template <int kThreads>
__device__ __forceinline__ void write_values(const FloatRows& rows, i64 batch, i32 head, i64 first,
                                             i64 count, float value) {
  if (rows.data == nullptr) return;
  for (i64 i = ptx::thread_index(); i < count; i += kThreads) {
    rows.data[batch * rows.batch_stride + head * rows.head_stride + (first + i) * rows.row_stride] =
        value;
  }
}

}  // namespace stepwell::cuda
