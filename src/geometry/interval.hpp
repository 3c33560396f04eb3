// Half-open integer intervals and the few arithmetic helpers everything else is built from.
//
// The headers of this folder include nothing but each other, so that host compilers, NVRTC and HIP
// compile the same text. All functions are constexpr: NVRTC takes them with `--device-as-default-
// execution-space`, HIP with `#pragma clang force_cuda_host_device`.
#pragma once

namespace stepwell::geometry {

using i32 = int;
using i64 = long long;
static_assert(sizeof(i32) == 4 && sizeof(i64) == 8);

/// Lengths, positions, block sizes, origins and windows stay at or below this, so that any sum of
/// four of them fits 32 bits.
inline constexpr i32 kMaxLength = 1 << 28;

/// Half-open interval [begin, end); empty when end <= begin.
struct Interval {
  i32 begin = 0;
  i32 end = 0;

  constexpr bool empty() const { return end <= begin; }
  constexpr i32 size() const { return empty() ? 0 : end - begin; }
  constexpr bool contains(i32 x) const { return begin <= x && x < end; }
  constexpr bool contains(Interval other) const { return begin <= other.begin && other.end <= end; }
  constexpr bool meets(Interval other) const {
    return !empty() && !other.empty() && begin < other.end && other.begin < end;
  }
  friend constexpr bool operator==(Interval a, Interval b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

template <typename T>
constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}

template <typename T>
constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}

template <typename T>
constexpr T clamp_to(T x, T low, T high) {
  return max_of(low, min_of(x, high));
}

/// floor(a / b) for b > 0 and any sign of a.
template <typename T>
constexpr T floor_div(T a, T b) {
  const T quotient = a / b;
  return quotient - (a % b < 0 ? 1 : 0);
}

/// Division by a number that is known before a kernel starts, without a division instruction:
/// (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994).
struct Divisor {
  unsigned magic = 0;  // 0: not prepared
  i32 shift = 0;
};

/// For divisors in [1, 2 kMaxLength] and numerators in [0, 2^31).
constexpr Divisor make_divisor(i32 divisor) {
  i32 bits = 0;  // ceil(log2(divisor))
  while ((i64{1} << bits) < divisor) ++bits;
  // ceil(2^(31 + bits) / divisor) is below 2^32, and its error times a numerator below 2^31 too
  // small to reach the next quotient.
  const unsigned long long power = 1ull << (31 + bits);
  const unsigned long long size = static_cast<unsigned long long>(divisor);
  return {static_cast<unsigned>((power + size - 1) / size), 31 + bits};
}

constexpr i32 divide(i32 numerator, Divisor divisor) {
  return static_cast<i32>((static_cast<unsigned long long>(numerator) * divisor.magic) >>
                          divisor.shift);
}

/// ceil(a / b) for a >= 0, b > 0.
template <typename T>
constexpr T ceil_div(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The smallest interval that holds both; an empty one does not count.
constexpr Interval hull(Interval a, Interval b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {min_of(a.begin, b.begin), max_of(a.end, b.end)};
}

}  // namespace stepwell::geometry
