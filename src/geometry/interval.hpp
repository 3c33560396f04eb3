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
