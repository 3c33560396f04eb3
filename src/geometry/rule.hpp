// One interval of keys per query row, as data: a rule is a pair of bounds, and everything the
// library needs of a mask follows from the two bounds alone: the keys of a row, the rows of a key,
// the class of a tile, the number of visible pairs.
//
// A bound is a non-decreasing function of the row's position p:
//
//   constant      offset
//   position      p + offset
//   block start   start of p's block + offset
//
// so `end of the block` is (block start, block_size), `the row itself included` is (position, +1),
// and a window of w keys anchored at the block start begins at (block start, 1 - w). A table
// instead of bounds gives each block an interval of its own, in any order.
#pragma once

#include "geometry/interval.hpp"

namespace stepwell::geometry {

enum class Anchor : i32 { kConstant, kPosition, kBlockStart };

struct Bound {
  Anchor anchor = Anchor::kConstant;
  i32 offset = 0;
};

/// An offset past every key: the end of "all keys".
inline constexpr i32 kPastEveryKey = kMaxLength * 2;

/// The keys of one segment (a half, a view) that query rows of one segment see.
struct IntervalRule {
  Bound begin;
  Bound end;
  i32 block_size = 1;     // of the partition that kBlockStart and the table refer to
  Divisor block_divisor;  // of block_size, where somebody prepared it
  i32 origin = 0;  // position at which a block starts; blocks count in both directions from it
  i32 key_position = 0;        // position of key index 0
  i32 key_len = 0;             // valid keys; indices outside [0, key_len) are never visible
  const i32* table = nullptr;  // [table_blocks, 2]: key indices (begin, end) of each block, or null
  i32 table_blocks = 0;        // blocks outside [0, table_blocks) see nothing
};

/// The block that holds position p, counted from the origin (negative before it).
constexpr i32 block_of(const IntervalRule& rule, i32 p) {
  const i32 from_origin = p - rule.origin;
  if (rule.block_divisor.magic != 0) {
    // floor(x / b) = -1 - floor((-1 - x) / b) for negative x.
    return from_origin >= 0 ? divide(from_origin, rule.block_divisor)
                            : -1 - divide(-1 - from_origin, rule.block_divisor);
  }
  return floor_div(from_origin, rule.block_size);
}

constexpr i32 block_start(const IntervalRule& rule, i32 p) {
  return rule.origin + block_of(rule, p) * rule.block_size;
}

/// The bound's value at position p: a key position, not yet clipped to the segment.
constexpr i32 bound_at(const IntervalRule& rule, Bound bound, i32 p) {
  if (bound.anchor == Anchor::kConstant) return bound.offset;
  if (bound.anchor == Anchor::kPosition) return p + bound.offset;
  return block_start(rule, p) + bound.offset;
}

/// The table's interval of block j, clipped to the valid keys.
constexpr Interval table_interval(const IntervalRule& rule, i32 j) {
  if (j < 0 || j >= rule.table_blocks) return {0, 0};
  const i32 begin = clamp_to(rule.table[2 * j], 0, rule.key_len);
  const i32 end = clamp_to(rule.table[2 * j + 1], begin, rule.key_len);
  return {begin, end};
}

/// Key indices that the row at position p sees.
constexpr Interval row_interval(const IntervalRule& rule, i32 p) {
  if (rule.table != nullptr) return table_interval(rule, block_of(rule, p));
  const i32 begin = clamp_to(bound_at(rule, rule.begin, p) - rule.key_position, 0, rule.key_len);
  const i32 end = clamp_to(bound_at(rule, rule.end, p) - rule.key_position, begin, rule.key_len);
  return {begin, end};
}

/// The first position whose bound exceeds x: bounds do not decrease, so all later ones do too.
constexpr i32 first_position_above(const IntervalRule& rule, Bound bound, i32 x) {
  if (bound.anchor == Anchor::kConstant) {
    return bound.offset > x ? -kPastEveryKey : kPastEveryKey;
  }
  const i32 least = x - bound.offset + 1;  // what p, or its block's start, has to reach
  if (bound.anchor == Anchor::kPosition) return least;
  return block_start(rule, least + rule.block_size - 1);
}

/// Query indices that see key index k, for query rows at positions [query_position, + query_len).
/// With a table this is only the hull: the rows between may or may not see the key.
constexpr Interval column_interval(const IntervalRule& rule, i32 k, i32 query_position,
                                   i32 query_len) {
  if (k < 0 || k >= rule.key_len) return {0, 0};
  if (rule.table != nullptr) {
    Interval rows{0, 0};
    for (i32 first = 0; first < query_len;) {
      const i32 p = query_position + first;
      const i32 next = min_of(block_start(rule, p) + rule.block_size - query_position, query_len);
      if (row_interval(rule, p).contains(k)) rows = hull(rows, {first, next});
      first = next;
    }
    return rows;
  }
  const i32 key = k + rule.key_position;
  const i32 first = first_position_above(rule, rule.end, key);   // end(p) > key from here on
  const i32 stop = first_position_above(rule, rule.begin, key);  // begin(p) <= key before here
  const i32 begin = clamp_to(first - query_position, 0, query_len);
  return {begin, clamp_to(stop - query_position, begin, query_len)};
}

}  // namespace stepwell::geometry
