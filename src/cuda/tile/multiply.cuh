// A warp's products with mma.m16n8k16, operands in rows of shared memory.
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

/// A lane's address offset in a tile of rows of `bytes` for ldmatrix: 16 rows and two pieces of 8
/// columns, rows first or (of A transposed, of B with the inner dimension contiguous) columns
/// first.
__device__ __forceinline__ u32 rows_first(int lane, int bytes) {
  return lane % 16 * bytes + lane / 16 * 16;
}
__device__ __forceinline__ u32 columns_first(int lane, int bytes) {
  return (lane / 16 * 8 + lane % 8) * bytes + lane / 8 % 2 * 16;
}

/// c[m][n] += A B over 16 of the inner dimension: fragments `a`, and pieces of 16 columns of B,
/// `piece_bytes` apart from `b` on (transposed: rows of B are those of the inner dimension).
template <Element kElement, bool kTransposedB, int kAtoms, int kTiles>
__device__ __forceinline__ void multiply_step(float (&c)[kAtoms][kTiles][4],
                                              const u32 (&a)[kAtoms][4], u32 b, int piece_bytes) {
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    u32 rb[4];
    ptx::ldmatrix_x4<kTransposedB>(rb, b + n / 2 * piece_bytes);
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
      ptx::mma_m16n8k16<kElement>(c[m][n], a[m], {rb[0], rb[1]});
      ptx::mma_m16n8k16<kElement>(c[m][n + 1], a[m], {rb[2], rb[3]});
    }
  }
}

/// c[m][n] += A B^T: A rows at `a` (row-major, k contiguous), B rows at `b` (k contiguous); `a`
/// with the lane's rows_first, `b` with its columns_first. kUnrolled steps are straight code: the
/// more, the more registers the compiler fills with loads that are early.
template <Element kElement, int kAtoms, int kPieces, int kSteps, int kUnrolled>
__device__ __forceinline__ void multiply_rows(float (&c)[kAtoms][kPieces * 2][4], u32 a,
                                              int a_bytes, u32 b, int b_bytes) {
#pragma unroll kUnrolled
  for (int step = 0; step < kSteps; ++step) {
    u32 ra[kAtoms][4];
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) ptx::ldmatrix_x4(ra[m], a + m * 16 * a_bytes + step * 32);
    multiply_step<kElement, false>(c, ra, b + step * 32, 16 * b_bytes);
  }
}

/// c[m][n] += A B over kSteps * 16 of the inner dimension: B [inner][columns] row-major at `b`; A
/// either [rows][inner] row-major, or [inner][rows] (kTransposedA). `a` and `b` with the lane's
/// rows_first, `a` transposed with its columns_first.
template <Element kElement, int kAtoms, int kPieces, int kSteps, bool kTransposedA>
__device__ __forceinline__ void multiply_columns(float (&c)[kAtoms][kPieces * 2][4], u32 a,
                                                 int a_bytes, u32 b, int b_bytes) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    u32 ra[kAtoms][4];
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
      if constexpr (kTransposedA) {
        ptx::ldmatrix_x4<true>(ra[m], a + step * 16 * a_bytes + m * 32);
      } else {
        ptx::ldmatrix_x4(ra[m], a + m * 16 * a_bytes + step * 32);
      }
    }
    multiply_step<kElement, true>(c, ra, b + step * 16 * b_bytes, 32);
  }
}

/// c[m][n] += A B over kSteps * 16 of the inner dimension, A the pairs of accumulators
/// [rows][inner] and B as in multiply_columns.
template <Element kElement, int kAtoms, int kPieces, int kSteps>
__device__ __forceinline__ void multiply_pairs(float (&c)[kAtoms][kPieces * 2][4],
                                               const u32 (&a)[kAtoms][kSteps * 2][2], u32 b,
                                               int b_bytes) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    u32 ra[kAtoms][4];
#pragma unroll
    for (int m = 0; m < kAtoms; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) ra[m][i] = a[m][2 * step + i / 2][i % 2];
    }
    multiply_step<kElement, true>(c, ra, b + step * 16 * b_bytes, 32);
  }
}

}  // namespace stepwell::cuda
