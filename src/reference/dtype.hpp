// Elements of float32, float16 and bfloat16 as float64: exact loads, stores rounded once, to
// nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "stepwell/tensor.hpp"

namespace stepwell::reference {

/// A 16-bit IEEE-like format: sign, exponent with all ones for infinities and NaN, mantissa.
template <int kExponentBits, int kMantissaBits>
struct Float16Format {
  static_assert(1 + kExponentBits + kMantissaBits == 16);
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kAllOnes = (1 << kExponentBits) - 1;
  static constexpr int kMinExponent = 1 - kBias;  // of normal numbers

  static double decode(std::uint16_t bits) {
    const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
    const int exponent = (bits >> kMantissaBits) & kAllOnes;
    const int mantissa = bits & ((1 << kMantissaBits) - 1);
    if (exponent == kAllOnes) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                           : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, kMinExponent - kMantissaBits);
    return sign * std::ldexp(mantissa + (1 << kMantissaBits), exponent - kBias - kMantissaBits);
  }

  static std::uint16_t encode(double x) {
    const int sign = std::signbit(x) ? 1 << 15 : 0;
    const int infinity = kAllOnes << kMantissaBits;
    if (std::isnan(x))
      return static_cast<std::uint16_t>(sign | infinity | 1 << (kMantissaBits - 1));
    if (std::isinf(x)) return static_cast<std::uint16_t>(sign | infinity);
    int exponent = 0;
    std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
    exponent = x == 0.0 || exponent - 1 < kMinExponent ? kMinExponent : exponent - 1;
    const auto steps =
        static_cast<int>(std::nearbyint(std::ldexp(std::fabs(x), kMantissaBits - exponent)));
    // A carry out of the mantissa moves on to the exponent, as the formats are made for.
    const std::int64_t bits = steps < (1 << kMantissaBits)
                                  ? steps
                                  : ((std::int64_t{exponent} + kBias - 1) << kMantissaBits) + steps;
    return static_cast<std::uint16_t>(sign | (bits < infinity ? bits : infinity));
  }
};

using Half16 = Float16Format<5, 10>;
using BFloat16 = Float16Format<8, 7>;

inline double load(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat16:
      return Half16::decode(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kBFloat16:
      return std::bit_cast<float>(
          static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(data)[index]) << 16);
    default:
      return static_cast<const float*>(data)[index];
  }
}

inline void store(void* data, DType dtype, std::int64_t index, double value) {
  switch (dtype) {
    case DType::kFloat16:
      static_cast<std::uint16_t*>(data)[index] = Half16::encode(value);
      return;
    case DType::kBFloat16:
      static_cast<std::uint16_t*>(data)[index] = BFloat16::encode(value);
      return;
    default:
      static_cast<float*>(data)[index] = static_cast<float>(value);
  }
}

}  // namespace stepwell::reference
