// A warp's products in float32 (fused multiply-adds), operands in rows of shared memory.
//
// Of a tile of scores a lane has rows 4 i + lane / 8 of its warp's and columns 8 j + lane % 8: the
// rows that the lanes of a warp read at once are neighbours, which padding puts in different banks.
// Of a product with the head dim as columns it has the same rows, and columns 32 g + 4 (lane % 8) +
// {0, 1, 2, 3}.
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

struct F32x4 {
  float x[4];
};

__device__ __forceinline__ F32x4 ld_shared_f32x4(u32 address, Loc loc = Loc::current()) {
  const U32x4 v = ptx::ld_shared_v4(address, loc);
  return {{ptx::float_of(v.x), ptx::float_of(v.y), ptx::float_of(v.z), ptx::float_of(v.w)}};
}

__device__ __forceinline__ F32x4 ld_global_f32x4(const float* from, Loc loc = Loc::current()) {
  const U32x4 v = ptx::ld_global_v4(from, loc);
  return {{ptx::float_of(v.x), ptx::float_of(v.y), ptx::float_of(v.z), ptx::float_of(v.w)}};
}

__device__ __forceinline__ void st_global_f32x4(float* to, float x, float y, float z, float w) {
  ptx::st_global_v4(to, {ptx::bits_of(x), ptx::bits_of(y), ptx::bits_of(z), ptx::bits_of(w)});
}

/// Terms of a dot product that are summed in one chain; longer ones are summed in slices, which
/// keeps the rounding of scores at large head dims near that of a blocked matrix product.
inline constexpr int kChain = 64;

/// c[i][j] = sum over d < dim (a multiple of 8) of A[row i][d] B[column j][d]; `a` and `b` are the
/// addresses of the lane's first row of A and of B.
template <int kRows, int kColumns>
__device__ __forceinline__ void multiply_rows_f32(float (&c)[kRows][kColumns], u32 a, int a_bytes,
                                                  u32 b, int b_bytes, int dim) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) c[i][j] = 0.0f;
  }
#pragma unroll 1
  for (int first = 0; first < dim; first += kChain) {
    const int end = first + kChain < dim ? first + kChain : dim;
    float sum[kRows][kColumns] = {};
#pragma unroll 2
    for (int d = first; d < end; d += 4) {
      F32x4 ra[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) ra[i] = ld_shared_f32x4(a + i * 4 * a_bytes + d * 4);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const F32x4 rb = ld_shared_f32x4(b + j * 8 * b_bytes + d * 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) sum[i][j] = ptx::fma_f32(ra[i].x[e], rb.x[e], sum[i][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) c[i][j] += sum[i][j];
    }
  }
}

/// c[i][4 g + e] = c[i][4 g + e] * factor[i] + sum over k < kInner of P[row i][k] B[k][column], for
/// columns below `dim`: the sum of one tile is rounded by itself. `p` is the address of the lane's
/// first row of P, `b` that of its first column of B.
template <int kInner, int kRows, int kValues>
__device__ __forceinline__ void add_product_f32(float (&c)[kRows][kValues],
                                                const float (&factor)[kRows], u32 p, int p_bytes,
                                                u32 b, int b_bytes, int dim) {
  static_assert(kValues % 8 == 0 && kInner % 4 == 0);
#pragma unroll
  for (int g = 0; g < kValues / 4; g += 2) {  // two groups: P is read half as often
    if (g * 32 >= dim) continue;
    float sum[kRows][8] = {};
#pragma unroll 2
    for (int k = 0; k < kInner; k += 4) {
      F32x4 rp[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) rp[i] = ld_shared_f32x4(p + i * 4 * p_bytes + k * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const F32x4 rb = ld_shared_f32x4(b + (k + e) * b_bytes + (g + h) * 128);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              sum[i][4 * h + n] = ptx::fma_f32(rp[i].x[e], rb.x[n], sum[i][4 * h + n]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        c[i][4 * g + n] = ptx::fma_f32(c[i][4 * g + n], factor[i], sum[i][n]);
      }
    }
  }
}

/// Scores of the lane to shared memory; `to` is the address of its first row and column.
template <int kRows, int kColumns>
__device__ __forceinline__ void store_scores_f32(u32 to, int bytes,
                                                 const float (&s)[kRows][kColumns]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      ptx::st_shared_u32(to + i * 4 * bytes + j * 32, ptx::bits_of(s[i][j]));
    }
  }
}

/// The lane's rows and columns below `dim`, times the rows' factor, to global memory: `to` is the
/// address of the lane's first row and column, row i is written where i * 4 < rows_left.
template <int kRows, int kValues>
__device__ __forceinline__ void write_rows_f32(float* to, i64 row_stride, int rows_left, int column,
                                               int dim, const float (&c)[kRows][kValues],
                                               const float (&factor)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i * 4 >= rows_left) continue;
#pragma unroll
    for (int g = 0; g < kValues / 4; ++g) {
      if (g * 32 + column >= dim) continue;
      const float* x = &c[i][4 * g];
      st_global_f32x4(to + i * 4 * row_stride + g * 32, x[0] * factor[i], x[1] * factor[i],
                      x[2] * factor[i], x[3] * factor[i]);
    }
  }
}

/// Of the eight lanes that share rows.
__device__ __forceinline__ float sum_of_row(float x) {
#pragma unroll
  for (u32 step = 1; step < 8; step *= 2) x += ptx::shfl_xor_f32(x, step);
  return x;
}

__device__ __forceinline__ float max_of_row(float x) {
#pragma unroll
  for (u32 step = 1; step < 8; step *= 2) x = ptx::max_f32(x, ptx::shfl_xor_f32(x, step));
  return x;
}

}  // namespace stepwell::cuda
