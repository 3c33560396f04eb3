// Elementary functions of the softmax with the accuracy of float32: the hardware's own are off by
// several ulps. As cpu/math-inl.hpp has them.
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace stepwell::cuda {

__device__ __forceinline__ float abs_f32(float x) {
  return ptx::float_of(ptx::bits_of(x) & 0x7fffffffu);
}

/// 2^x for x < 127 with a relative error below 1e-7; 0 for x < -126 (-inf included), NaN for NaN.
__device__ __forceinline__ float exp2_f32(float x) {
  // Adding 1.5 * 2^23 rounds to an integer that stands in the low mantissa bits; the 127 makes
  // those bits the exponent field of 2^round(x).
  constexpr float kMagic = 12582912.0f + 127.0f;
  const float shifted = x + kMagic;
  const float r = x - (shifted - kMagic);
  // 2^r on [-1/2, 1/2]: Chebyshev interpolation of (2^r - 1) / r with six terms, relative error
  // 9e-9.
  float p = 1.5453163e-4f;
  p = ptx::fma_f32(p, r, 1.3390863e-3f);
  p = ptx::fma_f32(p, r, 9.6180830e-3f);
  p = ptx::fma_f32(p, r, 5.5503570e-2f);
  p = ptx::fma_f32(p, r, 2.4022651e-1f);
  p = ptx::fma_f32(p, r, 6.9314718e-1f);
  p = ptx::fma_f32(p, r, 1.0f);
  return x < -126.0f ? 0.0f : p * ptx::float_of(ptx::bits_of(shifted) << 23);
}

/// sum += x, and what its rounding took away to `error` (Knuth's TwoSum).
__device__ __forceinline__ void add_exactly(float& sum, float& error, float x) {
  const float total = sum + x;
  const float of_x = total - sum;
  error += (sum - (total - of_x)) + (x - of_x);
  sum = total;
}

/// 2^(s * scale - lse) for an exponent of at most 1, larger ones being taken as 1, and NaN for NaN.
/// The rounding of the exponent, which alone would leave an error of |exponent| 2^-25, is made up
/// for.
__device__ __forceinline__ float exp2_of_score(float s, float scale, float lse) {
  const float exponent = ptx::fma_f32(s, scale, -lse);
  // s * scale - (lse + exponent), the sum without an error.
  float sum = lse;
  float error = 0.0f;
  add_exactly(sum, error, exponent);
  const float rest = ptx::fma_f32(s, scale, -sum) - error;
  const float p = exp2_f32(ptx::min_nan_f32(exponent, 1.0f));
  // Past the precision of a float the rest means nothing, and may be NaN.
  return abs_f32(rest) <= 0x1p-6f ? ptx::fma_f32(p, rest * 6.9314718e-1f, p) : p;
}

/// tanh x with a relative error of two ulps: the polynomial is that of Cephes' tanhf.
__device__ __forceinline__ float tanh_f32(float x) {
  const float size = abs_f32(x);
  if (size < 0.625f) {
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = ptx::fma_f32(p, z, 2.06390887954e-2f);
    p = ptx::fma_f32(p, z, -5.37397155531e-2f);
    p = ptx::fma_f32(p, z, 1.33314422036e-1f);
    p = ptx::fma_f32(p, z, -3.33332819422e-1f);
    return ptx::fma_f32(p * z, x, x);
  }
  // exp(2 |x|); from 2^30 on the quotient rounds to 1.
  const float e = exp2_f32(ptx::min_nan_f32(size * 2.885390081777927f, 30.0f));
  const float y = 1.0f - 2.0f / (1.0f + e);
  return x < 0.0f ? -y : y;
}

/// The natural logarithm of x >= 2^-126, in float64; infinity and NaN for themselves.
__device__ __forceinline__ double log_f64(float x) {
  if (!(x < ptx::float_of(0x7f800000u))) return x;
  // x = 2^exponent m, m in [sqrt(1/2), sqrt(2)).
  const u32 bits = ptx::bits_of(x) + (0x3f800000u - 0x3f3504f3u);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const double m = ptx::float_of((bits & 0x7fffffu) + 0x3f3504f3u);
  // log m = 2 artanh t; the first term left out is below 2^-46.
  const double t = (m - 1.0) / (m + 1.0);
  const double z = t * t;
  double p = 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  p = p * z + 1.0;
  return exponent * 0.69314718055994530942 + 2.0 * t * p;
}

}  // namespace stepwell::cuda
