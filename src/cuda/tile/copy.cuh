// Moving rows between global and shared memory.
#pragma once

#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/rows.hpp"

namespace stepwell::cuda {

/// How threads share rows of 16-byte chunks: a power of two of lanes copies a row, in one piece or
/// in three.
template <int kDim, int kThreads>
struct RowLanes {
  static constexpr int kPieces = kDim % 3 == 0 ? 3 : 1;
  static constexpr int kLanes = kDim / 8 / kPieces;
  static constexpr int kRowsAtOnce = kThreads / kLanes;
  static_assert(kThreads % kLanes == 0);
};

/// Requests rows [first, first + kRows) of a matrix; rows at or past `len` and columns at or past
/// `dim` become zeros and are not read.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void request_tile(u32 to, const u16* from, i64 row_stride, i32 first,
                                             i32 len, i32 dim) {
  using Lanes = RowLanes<kDim, kThreads>;
  constexpr int kRowBytes = padded_row_bytes(kDim);
  const int thread = static_cast<int>(ptx::thread_index_again());
  const int row = thread / Lanes::kLanes;
  const int column = thread % Lanes::kLanes * 8;
  const u16* source = from + (first + row) * row_stride + column;
  to += row * kRowBytes + column * 2;
  if (kRows % Lanes::kRowsAtOnce == 0 && first + kRows <= len && dim == kDim) {  // as a rule
#pragma unroll
    for (int r = 0; r < kRows; r += Lanes::kRowsAtOnce) {
#pragma unroll
      for (int piece = 0; piece < Lanes::kPieces; ++piece) {
        const int right = piece * Lanes::kLanes * 8;
        ptx::cp_async_16(to + r * kRowBytes + right * 2, source + right);
      }
      source += Lanes::kRowsAtOnce * row_stride;
    }
  } else {
#pragma unroll
    for (int r = 0; r < kRows; r += Lanes::kRowsAtOnce) {
      if (kRows % Lanes::kRowsAtOnce != 0 && r + row >= kRows) break;
#pragma unroll
      for (int piece = 0; piece < Lanes::kPieces; ++piece) {
        const int right = piece * Lanes::kLanes * 8;
        const bool inside = r + row < len - first && column + right < dim;
        ptx::cp_async_16(to + r * kRowBytes + right * 2, inside ? source + right : from,
                         inside ? 16 : 0);
      }
      source += Lanes::kRowsAtOnce * row_stride;
    }
  }
}

/// Writes the first `count` rows of a shared tile, columns [0, dim); `thread` is one of kThreads.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void write_tile(u16* to, i64 row_stride, u32 from, i32 count, i32 dim,
                                           int thread) {
  using Lanes = RowLanes<kDim, kThreads>;
  constexpr int kRowBytes = padded_row_bytes(kDim);
  const int row = thread / Lanes::kLanes;
  const int column = thread % Lanes::kLanes * 8;
  to += row * row_stride + column;
  from += row * kRowBytes + column * 2;
  const bool whole = count >= kRows && dim == kDim;
#pragma unroll
  for (int r = 0; r < kRows; r += Lanes::kRowsAtOnce) {
    if (kRows % Lanes::kRowsAtOnce != 0 && r + row >= kRows) break;
#pragma unroll
    for (int piece = 0; piece < Lanes::kPieces; ++piece) {
      const int right = piece * Lanes::kLanes * 8;
      if (whole || (r + row < count && column + right < dim)) {
        ptx::st_global_v4(to + right, ptx::ld_shared_v4(from + r * kRowBytes + right * 2));
      }
    }
    to += Lanes::kRowsAtOnce * row_stride;
  }
}

/// request_tile of rows of float32; a row is kDim / 4 chunks of 16 bytes.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void request_tile_f32(u32 to, const float* from, i64 row_stride,
                                                 i32 first, i32 len, i32 dim) {
  request_tile<kRows, kDim * 2, kThreads>(to, reinterpret_cast<const u16*>(from), row_stride * 2,
                                          first, len, dim * 2);
}

/// A warp's accumulators, `value` of (16 rows m, half of them r, element), as rows: the first
/// `count`, columns [0, dim). They go through the warp's own rows of shared memory at `through`, so
/// that global stores are whole lines.
template <Element kElement, int kAtoms, int kTiles, class Value>
__device__ __forceinline__ void write_accumulators(const float (&c)[kAtoms][kTiles][4],
                                                   Value&& value, u32 through, u16* to,
                                                   i64 row_stride, i32 count, i32 dim, int lane) {
  constexpr int kRowBytes = padded_row_bytes(kTiles * 8);
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
  write_tile<kAtoms * 16, kTiles * 8, 32>(to, row_stride, through, count, dim, lane);
}

/// The sign of every element changes of a tile that request_tile requested. Each thread changes
/// what it copied: it has waited for its copies, and no barrier is needed before.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void negate_tile(u32 tile) {
  using Lanes = RowLanes<kDim, kThreads>;
  constexpr u32 kSigns = 0x80008000u;
  const int thread = static_cast<int>(ptx::thread_index());
  const int row = thread / Lanes::kLanes;
  const int column = thread % Lanes::kLanes * 8;
#pragma unroll 1
  for (int r = row; r < kRows; r += Lanes::kRowsAtOnce) {
#pragma unroll
    for (int piece = 0; piece < Lanes::kPieces; ++piece) {
      const u32 at = tile + r * padded_row_bytes(kDim) + (column + piece * Lanes::kLanes * 8) * 2;
      const U32x4 x = ptx::ld_shared_v4(at);
      ptx::st_shared_v4(at, {x.x ^ kSigns, x.y ^ kSigns, x.z ^ kSigns, x.w ^ kSigns});
    }
  }
}

/// Zeros in rows [first, first + count) of one head. `thread`, here and below: of kThreads.
template <int kThreads, class T>
__device__ __forceinline__ void write_zero_rows(const ElementRows<T>& rows, i64 batch, i32 head,
                                                i64 first, i64 count, i32 dim,
                                                u32 thread = ptx::thread_index()) {
  if (rows.data == nullptr) return;
  constexpr int kElements = 16 / sizeof(T);  // of a chunk
  const int chunks = dim / kElements;
  for (i64 i = thread; i < count * chunks; i += kThreads) {
    T* to = rows.at(batch, first + i / chunks, head);
    ptx::st_global_v4(to + i % chunks * kElements, {0, 0, 0, 0});
  }
}

/// A value in rows [first, first + count) of one head.
template <int kThreads>
__device__ __forceinline__ void write_values(const FloatRows& rows, i64 batch, i32 head, i64 first,
                                             i64 count, float value,
                                             u32 thread = ptx::thread_index()) {
  if (rows.data == nullptr) return;
  for (i64 i = thread; i < count; i += kThreads) {
    rows.data[batch * rows.batch_stride + head * rows.head_stride + (first + i) * rows.row_stride] =
        value;
  }
}

}  // namespace stepwell::cuda
