// A soft cap without special functions, for scores that are small against it.
#pragma once

namespace stepwell::cuda {

/// cap * tanh(s * scale) in units of log 2, as s * (c0 + s^2 (c1 + s^2 c2)): within 1.5e-6 of its
/// own size where s^2 is at most `limit`. Where that is negative there is no such s.
struct CapPolynomial {
  float c0 = 0.0f;
  float c1 = 0.0f;
  float c2 = 0.0f;
  float limit = -1.0f;
  /// Two thirds of that score, in units of log 2: where a row's first keys are below it, its other
  /// keys are small as a rule.
  float largest = -1.0f;

  /// tanh's largest argument, and tanh of it. tanh(x) / x is a polynomial in x^2, fitted for the
  /// smallest largest error.
  static constexpr double kRange = 0.3125;
  static constexpr double kLargest = 0.30271;
  static constexpr double kTerms[3] = {0.99999855, -0.33306199, 0.12578977};

  /// None where float32 cannot hold it.
  static constexpr CapPolynomial of(double cap_log2, double scale) {
    const double square = scale * scale;
    const double first = cap_log2 * scale;
    const double last = first * square * square;
    const auto fits = [](double x) {
      const double size = x < 0.0 ? -x : x;
      return size > 1e-37 && size < 1e37;
    };
    if (!fits(square) || !fits(first) || !fits(last)) return {};
    return {static_cast<float>(first * kTerms[0]), static_cast<float>(first * square * kTerms[1]),
            static_cast<float>(last * kTerms[2]), static_cast<float>(kRange * kRange / square),
            static_cast<float>(cap_log2 * kLargest / 1.5)};
  }
};

}  // namespace stepwell::cuda
