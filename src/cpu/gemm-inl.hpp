// The one inner loop of the CPU backend: C (+)= A B for tiles that fit the caches. All five
// products of attention have this form; they differ in which way A is stored.
//
// Included once per instruction set (see kernels.cpp).

#if defined(STEPWELL_CPU_GEMM_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_CPU_GEMM_INL_HPP
#undef STEPWELL_CPU_GEMM_INL_HPP
#else
#define STEPWELL_CPU_GEMM_INL_HPP
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace stepwell::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

/// Vectors of C kept in registers: kRowsInRegisters x kVectorsInRegisters. With 32 registers 8 x 2
/// runs at the peak of two FMAs a clock and keeps a panel of queries narrow; 16 registers hold 6
/// x 2.
inline constexpr int kVectorsInRegisters = 2;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kRowsInRegisters = 8;
#else
inline constexpr int kRowsInRegisters = 6;
#endif

/// Columns of C that one pass of the inner loop covers.
inline constexpr int kPanel = kVectorsInRegisters * static_cast<int>(hn::MaxLanes(FloatTag()));

enum class StoredBy { kRows, kColumns };        // A(m, k) at a[m * lda + k] or at a[k * lda + m]
enum class Update { kStore, kAdd, kScaleAdd };  // C = AB, C += AB, C = C * column_scale + AB

template <int kRows, int kVectors, StoredBy kA, Update kUpdate>
HWY_INLINE void multiply_registers(std::size_t depth, const float* HWY_RESTRICT a, std::size_t lda,
                                   const float* HWY_RESTRICT b, std::size_t ldb,
                                   float* HWY_RESTRICT c, std::size_t ldc,
                                   const float* HWY_RESTRICT column_scale) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  FloatVec sum[kRows][kVectors];
  HWY_UNROLL(8) for (int m = 0; m < kRows; ++m) {
    HWY_UNROLL(2) for (int n = 0; n < kVectors; ++n) sum[m][n] = hn::Zero(d);
  }
  for (std::size_t k = 0; k < depth; ++k) {
    FloatVec row[kVectors];
    HWY_UNROLL(2) for (int n = 0; n < kVectors; ++n) row[n] = hn::LoadU(d, b + k * ldb + n * lanes);
    HWY_UNROLL(8) for (int m = 0; m < kRows; ++m) {
      const FloatVec x = hn::Set(d, kA == StoredBy::kRows ? a[m * lda + k] : a[k * lda + m]);
      HWY_UNROLL(2) for (int n = 0; n < kVectors; ++n) sum[m][n] = hn::MulAdd(x, row[n], sum[m][n]);
    }
  }
  HWY_UNROLL(8) for (int m = 0; m < kRows; ++m) {
    HWY_UNROLL(2) for (int n = 0; n < kVectors; ++n) {
      float* HWY_RESTRICT to = c + m * ldc + n * lanes;
      if (kUpdate == Update::kAdd) {
        sum[m][n] = hn::Add(hn::LoadU(d, to), sum[m][n]);
      } else if (kUpdate == Update::kScaleAdd) {
        sum[m][n] = hn::MulAdd(hn::LoadU(d, to), hn::LoadU(d, column_scale + n * lanes), sum[m][n]);
      }
      hn::StoreU(sum[m][n], d, to);
    }
  }
}

/// The rows of C that are left over when `rows` is no multiple of kRowsInRegisters.
template <int kRows, int kVectors, StoredBy kA, Update kUpdate>
HWY_INLINE void multiply_remainder(std::size_t rows, std::size_t depth, const float* a,
                                   std::size_t lda, const float* b, std::size_t ldb, float* c,
                                   std::size_t ldc, const float* column_scale) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      multiply_registers<kRows, kVectors, kA, kUpdate>(depth, a, lda, b, ldb, c, ldc, column_scale);
    } else {
      multiply_remainder<kRows - 1, kVectors, kA, kUpdate>(rows, depth, a, lda, b, ldb, c, ldc,
                                                           column_scale);
    }
  }
}

template <int kVectors, StoredBy kA, Update kUpdate>
HWY_INLINE void multiply_panel(std::size_t rows, std::size_t depth, const float* a, std::size_t lda,
                               const float* b, std::size_t ldb, float* c, std::size_t ldc,
                               const float* column_scale) {
  const std::size_t row_step = kA == StoredBy::kRows ? lda : 1;
  std::size_t m = 0;
  for (; m + kRowsInRegisters <= rows; m += kRowsInRegisters) {
    multiply_registers<kRowsInRegisters, kVectors, kA, kUpdate>(
        depth, a + m * row_step, lda, b, ldb, c + m * ldc, ldc, column_scale);
  }
  multiply_remainder<kRowsInRegisters - 1, kVectors, kA, kUpdate>(
      rows - m, depth, a + m * row_step, lda, b, ldb, c + m * ldc, ldc, column_scale);
}

/// C[rows][columns] (+)= A[rows][depth] B[depth][columns]; `columns` is a multiple of the vector
/// length, B and C are stored by rows. `column_scale` is read with kScaleAdd only.
template <StoredBy kA, Update kUpdate>
HWY_NOINLINE void multiply(std::size_t rows, std::size_t columns, std::size_t depth, const float* a,
                           std::size_t lda, const float* b, std::size_t ldb, float* c,
                           std::size_t ldc, const float* column_scale = nullptr) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  std::size_t n = 0;
  for (; n + 2 * lanes <= columns; n += 2 * lanes) {
    multiply_panel<2, kA, kUpdate>(rows, depth, a, lda, b + n, ldb, c + n, ldc, column_scale + n);
  }
  if (n < columns) {
    multiply_panel<1, kA, kUpdate>(rows, depth, a, lda, b + n, ldb, c + n, ldc, column_scale + n);
  }
}

/// Terms of a dot product that are summed in one chain; longer ones are summed in slices, which
/// keeps the rounding error of scores at large head dims near that of a blocked matrix product.
inline constexpr std::size_t kChain = 64;

/// C = A B with A stored by rows, in slices of kChain.
inline void multiply_long(std::size_t rows, std::size_t columns, std::size_t depth, const float* a,
                          std::size_t lda, const float* b, std::size_t ldb, float* c,
                          std::size_t ldc) {
  multiply<StoredBy::kRows, Update::kStore>(rows, columns, depth < kChain ? depth : kChain, a, lda,
                                            b, ldb, c, ldc);
  for (std::size_t k = kChain; k < depth; k += kChain) {
    multiply<StoredBy::kRows, Update::kAdd>(rows, columns, depth - k < kChain ? depth - k : kChain,
                                            a + k, lda, b + k * ldb, ldb, c, ldc);
  }
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
