// Moving rows between global and shared memory.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/rows.hpp"

namespace stepwell::cuda {

__device__ __forceinline__ u16* head_rows(const HalfRows& rows, i64 batch, i64 row, i32 head) {
  return rows.data + batch * rows.batch_stride + row * rows.row_stride + head * rows.head_stride;
}

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

/// A warp's accumulators, `value` of (16 rows m, half of them r, element), as rows: the first
/// `count`, columns [0, dim). They go through the warp's own rows of shared memory at `through`, so
/// that global stores are whole lines.
template <Element kElement, int kAtoms, int kTiles, class Value>
__device__ __forceinline__ void write_accumulators(const float (&c)[kAtoms][kTiles][4],
                                                   Value&& value, u32 through, u16* to,
                                                   i64 row_stride, i32 count, i32 dim) {
  constexpr int kRowBytes = padded_row_bytes(kTiles * 8);
  const int lane = static_cast<int>(ptx::thread_index()) % 32;
#pragma unroll
  for (int m = 0; m < kAtoms; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 row_at = through + (m * 16 + r * 8 + lane / 4) * kRowBytes + lane % 4 * 4;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        ptx::st_shared_u32(row_at + i * 16,
                           ptx::cvt_x2_f32<kElement>(value(m, r, c[m][i][2 * r]),
                                                     value(m, r, c[m][i][2 * r + 1])));
      }
    }
  }
  ptx::syncwarp();
#pragma unroll
  for (int i = lane; i < kAtoms * 16 * kTiles; i += 32) {
    const int row = i / kTiles;
    const int chunk = i % kTiles;
    if (row < count && chunk * 8 < dim) {
      ptx::st_global_v4(to + row * row_stride + chunk * 8,
                        ptx::ld_shared_v4(through + row * kRowBytes + chunk * 16));
    }
  }
}

/// The sign of every element of a shared tile changes.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void negate_tile(u32 tile) {
  constexpr int kChunks = kDim / 8;
#pragma unroll 1
  for (int i = static_cast<int>(ptx::thread_index()); i < kRows * kChunks; i += kThreads) {
    const u32 at = tile + i / kChunks * padded_row_bytes(kDim) + i % kChunks * 16;
    const U32x4 x = ptx::ld_shared_v4(at);
    constexpr u32 kSigns = 0x80008000u;
    ptx::st_shared_v4(at, {x.x ^ kSigns, x.y ^ kSigns, x.z ^ kSigns, x.w ^ kSigns});
  }
}

/// Zeros in rows [first, first + count) of one head.
template <int kThreads>
__device__ __forceinline__ void write_zero_rows(const HalfRows& rows, i64 batch, i32 head,
                                                i64 first, i64 count, i32 dim) {
  if (rows.data == nullptr) return;
  const int chunks = dim / 8;
  for (i64 i = ptx::thread_index(); i < count * chunks; i += kThreads) {
    const i64 row = first + i / chunks;
    u16* to =
        rows.data + batch * rows.batch_stride + row * rows.row_stride + head * rows.head_stride;
    ptx::st_global_v4(to + i % chunks * 8, {0, 0, 0, 0});
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
