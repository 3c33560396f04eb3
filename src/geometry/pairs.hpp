// Visible pairs in closed form: O(1) per rule, O(blocks) with a table.
#pragma once

#include "geometry/interval.hpp"
#include "geometry/mask.hpp"
#include "geometry/rule.hpp"

namespace stepwell::geometry {

/// Sum over i in [0, count) of clamp(first + step * i, 0, limit), for step > 0.
constexpr i64 sum_of_clamped_progression(i64 first, i64 step, i64 count, i64 limit) {
  if (count <= 0) return 0;
  // Terms below zero come first, then those inside, then those at the limit.
  const i64 inside_from = clamp_to<i64>(floor_div(-first + step - 1, step), 0, count);
  const i64 inside_to =
      clamp_to<i64>(floor_div(limit - first + step - 1, step), inside_from, count);
  const i64 inside = inside_to - inside_from;
  const i64 low = first + step * inside_from;
  return inside * low + step * (inside * (inside - 1) / 2) + (count - inside_to) * limit;
}

/// Sum of the clipped bound over rows at positions [first, first + count).
constexpr i64 sum_of_bound(const IntervalRule& rule, Bound bound, i32 first, i32 count) {
  if (count <= 0) return 0;
  const i64 limit = rule.key_len;
  const i64 shift = i64{bound.offset} - rule.key_position;
  if (bound.anchor == Anchor::kConstant) return count * clamp_to<i64>(shift, 0, limit);
  if (bound.anchor == Anchor::kPosition) {
    return sum_of_clamped_progression(first + shift, 1, count, limit);
  }
  const i64 size = rule.block_size;
  const i64 start = block_start(rule, first);
  const i64 head = min_of<i64>(start + size - first, count);  // rows of the first block
  const i64 whole = (count - head) / size;
  const i64 rest = (count - head) % size;
  return head * clamp_to<i64>(start + shift, 0, limit) +
         size * sum_of_clamped_progression(start + size + shift, size, whole, limit) +
         rest * clamp_to<i64>(start + size * (whole + 1) + shift, 0, limit);
}

/// Visible pairs between query rows at [query_position, + query_len) and the rule's keys.
constexpr i64 visible_pairs(const IntervalRule& rule, i32 query_position, i32 query_len) {
  if (query_len <= 0 || rule.key_len <= 0) return 0;
  if (rule.table == nullptr) {
    return sum_of_bound(rule, rule.end, query_position, query_len) -
           sum_of_bound(rule, rule.begin, query_position, query_len);
  }
  i64 pairs = 0;
  for (i32 first = 0; first < query_len;) {
    const i32 p = query_position + first;
    const i32 next = min_of(block_start(rule, p) + rule.block_size - query_position, query_len);
    pairs += i64{next - first} * row_interval(rule, p).size();
    first = next;
  }
  return pairs;
}

/// Visible pairs of one sample, all views included.
constexpr i64 visible_pairs(const SampleMask& mask) {
  const i64 per_view = visible_pairs(own_rule(mask), mask.noisy_position, mask.noisy_len) +
                       visible_pairs(noisy_clean_rule(mask), mask.noisy_position, mask.noisy_len);
  return mask.num_views * per_view +
         visible_pairs(clean_rule(mask), mask.clean_q_position, mask.clean_q_len);
}

}  // namespace stepwell::geometry
