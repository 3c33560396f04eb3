// Operands, products and results that the backward kernels for sm_90a have in common. Matrices lie
// in shared memory as [64 columns of a slab][rows], rows of 128 bytes swizzled.
#pragma once

#include "cuda/attention/backward_sm90_items.cuh"
#include "cuda/ptx/sm90.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace stepwell::cuda {

__device__ __forceinline__ u64 k_major_sm90(u32 at) {
  return ptx::matrix_descriptor(at, 16, 1024, Swizzle::k128);
}
__device__ __forceinline__ u64 mn_major_sm90(u32 at, u32 slab_bytes) {
  return ptx::matrix_descriptor(at, slab_bytes, 1024, Swizzle::k128);
}

/// MN-major, 32 columns in rows of 64 bytes.
__device__ __forceinline__ u64 mn_major_half_sm90(u32 at) {
  return ptx::matrix_descriptor(at, 16, 512, Swizzle::k64);
}

/// Bytes of 16 rows: a step of K in an MN-major operand.
inline constexpr u32 kRowsStepSm90 = 16 * 128;

/// S^T = K Q^T or dP^T = V dO^T: 64 keys x 64 query rows over the head dim, 16 kSteps columns.
template <Element kElement, int kSteps, u32 kSlabBytesA, u32 kSlabBytesB>
__device__ __forceinline__ void multiply_rows_sm90(float (&d)[8][4], u64 a, u64 b) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const u64 a_i = ptx::advance_descriptor(a, i / 4 * kSlabBytesA + i % 4 * 32);
    const u64 b_i = ptx::advance_descriptor(b, i / 4 * kSlabBytesB + i % 4 * 32);
    if (i == 0) {
      ptx::wgmma_ss_init<kElement, false>(d, a_i, b_i);
    } else {
      ptx::wgmma_ss<kElement, false>(d, a_i, b_i, true);
    }
  }
}

/// dV += P^T dO or dK += dS^T Q over 64 query rows; kFirst: d = A B.
template <Element kElement, bool kFirst, int kPieces>
__device__ __forceinline__ void multiply_keys_sm90(float (&d)[kPieces][4], u32 (&a)[4][4], u64 b) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u64 b_i = ptx::advance_descriptor(b, i * kRowsStepSm90);
    if (i == 0 && kFirst) {
      ptx::wgmma_rs_init<kElement, true>(d, a[i], b_i);
    } else {
      ptx::wgmma_rs<kElement, true>(d, a[i], b_i, true);
    }
  }
}

/// dQ = dS K over 16 kSteps keys, 64 query rows x the columns of B, of which 16 rows have kStepB
/// bytes.
template <Element kElement, int kSteps, u32 kStepB = kRowsStepSm90, int kPieces>
__device__ __forceinline__ void multiply_dq_sm90(float (&d)[kPieces][4], u64 a, u64 b) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const u64 a_i = ptx::advance_descriptor(a, i * kRowsStepSm90);
    const u64 b_i = ptx::advance_descriptor(b, i * kStepB);
    if (i == 0) {
      ptx::wgmma_ss_init<kElement, true, true>(d, a_i, b_i);
    } else {
      ptx::wgmma_ss<kElement, true, true>(d, a_i, b_i, true);
    }
  }
}

/// Zeros in a lane's elements of S^T or dP^T, of keys `key` and `key` + 8 and query rows
/// `first_row` + 8 i + {0, 1}, where a row does not see a key: hidden pairs may hold anything,
/// infinities and NaN included.
__device__ __forceinline__ void hide_sm90(float (&x)[8][4], const BackwardSm90Params& p, i32 key,
                                          i32 len, i32 first_row, i32 flags) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    KeySpan span = rows_that_see(p, key + 8 * r, len, flags);
    span.begin -= first_row;
    span.end -= first_row;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const i32 row = 8 * i + j;
        if (row < span.begin || row >= span.end) x[i][2 * r + j] = 0.0f;
      }
    }
  }
}

/// Values of rows 8 i + {0, 1}, from the lane's place among those of a tile: its log-sum-exp, or,
/// kRowValuesBytes / 2 behind, its delta.
__device__ __forceinline__ void load_row_values(float (&values)[8][2], u32 at) {
#pragma unroll
  for (int i = 0; i < 8; ++i) ptx::ld_shared_v2(at + i * 32, values[i][0], values[i][1]);
}

/// S becomes exp2(S scale_log2 - lse).
__device__ __forceinline__ void exponentials_sm90(float (&s)[8][4], const float (&lse)[8][2],
                                                  float scale_log2) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[i][j] = ptx::ex2_approx(ptx::fma_f32(s[i][j], scale_log2, -lse[i][j % 2]));
    }
  }
}

/// P as the operand A of the next product. It is at most 1: scores past 2^24 leave more than that
/// between them and their rounded log-sum-exp.
template <Element kElement>
__device__ __forceinline__ void pack_probabilities_sm90(u32 (&packed)[4][4],
                                                        const float (&p)[8][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      packed[i / 2][i % 2 * 2 + r] = ptx::min_nan_x2<kElement>(
          ptx::cvt_x2_f32<kElement>(p[i][2 * r], p[i][2 * r + 1]), ptx::ones_x2<kElement>());
    }
  }
}

/// dP becomes dS = P (dP - delta).
template <Element kElement>
__device__ __forceinline__ void score_gradients_sm90(float (&dp)[8][4], const u32 (&packed)[4][4],
                                                     const float (&delta)[8][2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 pair = packed[i / 2][i % 2 * 2 + j / 2];
      dp[i][j] = (dp[i][j] - delta[i][j % 2]) *
                 (j % 2 == 0 ? ptx::low_f32<kElement>(pair) : ptx::high_f32<kElement>(pair));
    }
  }
}

template <Element kElement>
__device__ __forceinline__ void pack_gradients_sm90(u32 (&packed)[4][4], const float (&ds)[8][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      packed[i / 2][i % 2 * 2 + r] = ptx::cvt_x2_f32<kElement>(ds[i][2 * r], ds[i][2 * r + 1]);
    }
  }
}

/// A warp's 16 keys in a matrix of kSlabBytes a slab.
template <u32 kSlabBytes>
struct WarpKeysSm90 {
  u32 row;  // that this lane addresses in stmatrix
  u32 piece, swizzle;

  /// `at`: of the first key.
  __device__ __forceinline__ WarpKeysSm90(u32 at, u32 lane)
      : row(at + lane % 16 * 128), piece(lane / 16), swizzle(lane % 8) {}

  /// Piece `first` (8 columns) of the row that this lane addresses, or the next.
  __device__ __forceinline__ u32 matrix(int slab, u32 first) const {
    return row + static_cast<u32>(slab) * kSlabBytes + (((first + piece) ^ swizzle) << 4);
  }

  /// Accumulators times `scale` as 16-bit rows of `to`, through this memory. Keys [first, first +
  /// 16) of an item; those without a token become zeros.
  template <Element kElement, int kPieces>
  __device__ __forceinline__ void write(const float (&sums)[kPieces][4], float scale,
                                        const BackwardSm90Params& p, const HalfRows& to, i32 dim,
                                        const KeyItem& item, i32 first) const {
#pragma unroll
    for (int i = 0; i < kPieces; i += 2) {
      u32 matrices[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* pair = &sums[i + j / 2][j % 2 * 2];
        matrices[j] = ptx::cvt_x2_f32<kElement>(pair[0] * scale, pair[1] * scale);
      }
      ptx::stmatrix_x4(matrix(i / 8, static_cast<u32>(i % 8)), matrices);
    }
    ptx::syncwarp();
    const u32 lane = ptx::thread_index_again() % 32;
    const u32 column = lane % kPieces;  // in pieces
    u16* const rows =
        to.at(item.sample, p.first_row[item.noisy != 0 ? 0 : 1] + first, item.head_kv) + column * 8;
    const u32 from = row - lane % 16 * 128 + column / 8 * kSlabBytes;
#pragma unroll
    for (u32 i = lane / kPieces; i < 16; i += 32 / kPieces) {
      U32x4 value = ptx::ld_shared_v4(from + i * 128 + ((column % 8 ^ i % 8) << 4));
      const i32 key = first + static_cast<i32>(i);
      if (key >= item.len) value = {0, 0, 0, 0};
      if (key < p.rows && static_cast<i32>(column) * 8 < dim) {
        ptx::st_global_v4(rows + static_cast<i64>(i) * to.row_stride, value);
      }
    }
    ptx::syncwarp();
  }
};

}  // namespace stepwell::cuda
