// Elementary functions of the softmax on vectors of float.

#if defined(STEPWELL_CPU_MATH_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_CPU_MATH_INL_HPP
#undef STEPWELL_CPU_MATH_INL_HPP
#else
#define STEPWELL_CPU_MATH_INL_HPP
#endif

#include "cpu/gemm-inl.hpp"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stepwell::cpu::HWY_NAMESPACE {

/// 2^x for x < 127 with a relative error below 1e-7; 0 for x < -126 (-inf included), NaN for NaN.
HWY_INLINE FloatVec exp2(FloatVec x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  // Adding 1.5 * 2^23 rounds to an integer that stands in the low mantissa bits; the 127 makes
  // those bits the exponent field of 2^round(x).
  const FloatVec magic = hn::Set(d, 12582912.0f + 127.0f);
  const FloatVec shifted = hn::Add(x, magic);
  const FloatVec r = hn::Sub(x, hn::Sub(shifted, magic));
  // 2^r on [-1/2, 1/2]: Chebyshev interpolation of (2^r - 1) / r with six terms, relative error
  // 9e-9.
  FloatVec p = hn::Set(d, 1.5453163e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3390863e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.6180830e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.5503570e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4022651e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.9314718e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const FloatVec power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(p, power));
}

/// 2^(s * scale - lse) for an exponent of at most 1, larger ones being taken as 1, and NaN for NaN.
/// The rounding of the exponent, which alone would leave an error of |exponent| 2^-25, is made up
/// for.
HWY_INLINE FloatVec exp2_of_score(FloatVec s, FloatVec scale, FloatVec lse) {
  const FloatTag d;
  const FloatVec exponent = hn::MulSub(s, scale, lse);
  // s * scale - (lse + exponent), the sum without an error (Knuth's TwoSum).
  const FloatVec sum = hn::Add(lse, exponent);
  const FloatVec of_exponent = hn::Sub(sum, lse);
  const FloatVec error =
      hn::Add(hn::Sub(lse, hn::Sub(sum, of_exponent)), hn::Sub(exponent, of_exponent));
  const FloatVec rest = hn::Sub(hn::MulSub(s, scale, sum), error);
  const FloatVec p = exp2(hn::Min(hn::Set(d, 1.0f), exponent));  // NaN passes
  // Past the precision of a float the rest means nothing, and may be NaN.
  const auto small = hn::Le(hn::Abs(rest), hn::Set(d, 0x1p-6f));
  return hn::MulAdd(p, hn::IfThenElseZero(small, hn::Mul(rest, hn::Set(d, 6.9314718e-1f))), p);
}

HWY_INLINE FloatVec tanh(FloatVec x) { return hn::Tanh(FloatTag(), x); }

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
