// Seeded numbers that are the same with every standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>
#include <random>

namespace stepwell::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// Uniform in [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const auto range = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>(engine_() % range);
  }
  bool chance(double p) { return uniform() < p; }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2.0 * std::log(1.0 - uniform())) *
           std::cos(2.0 * std::numbers::pi * uniform());
  }
  /// Log-uniform over [0, limit], so that every magnitude occurs.
  std::int64_t magnitude(std::int64_t limit) {
    const double top = std::log2(static_cast<double>(limit) + 1.0);
    const auto value = static_cast<std::int64_t>(std::exp2(uniform() * top));
    return value > limit + 1 ? limit : value - 1;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace stepwell::testing
