// Mask descriptions of one sample, and the rules they turn into.
//
// A sample has `num_views` noisy segments (each with its own keys) and one clean segment. Every
// mask is at most three rules, and a query row uses at most two of them:
//
//   noisy row   its own view (own_rule)  and the clean keys (noisy_clean_rule)
//   clean row   the clean keys (clean_rule)
//
// A mask of a single sequence (full, causal, window, block-causal) has no noisy segment.
// Formulas: docs/masks.md.
#pragma once

#include "geometry/interval.hpp"
#include "geometry/rule.hpp"

namespace stepwell::geometry {

enum class CleanRule : i32 { kBlock, kCausal, kFull, kWindow };
enum class NoisyRule : i32 { kBidirectional, kCausal };
enum class Half : i32 { kNoisy, kClean };

/// Everything that decides which pairs of one sample are visible.
struct SampleMask {
  i32 block_size = 1;
  Divisor block_divisor;  // make_divisor(block_size), or not prepared
  i32 origin = 0;         // position where a block starts; blocks count backward before it
  CleanRule clean = CleanRule::kBlock;
  NoisyRule noisy = NoisyRule::kBidirectional;
  i32 clean_window = 0;  // noisy rows see clean [start - clean_window + 1, start); 0: no window
  i32 window_left = 0;   // kWindow: a row at p sees keys at [p - window_left, p + window_right]
  i32 window_right = 0;

  i32 num_views = 0;         // noisy segments
  i32 noisy_len = 0;         // valid tokens of each view
  i32 noisy_position = 0;    // position of index 0 of each view
  i32 clean_q_len = 0;       // valid clean query rows
  i32 clean_q_position = 0;  // position of clean query row 0; clean keys start at position 0
  i32 clean_kv_len = 0;      // valid clean keys

  const i32* block_ranges = nullptr;  // [num_block_ranges, 2] clean interval of each noisy block
  i32 num_block_ranges = 0;
};

/// With a table, noisy blocks are counted from the first noisy row.
constexpr i32 noisy_origin(const SampleMask& mask) {
  return mask.block_ranges != nullptr ? mask.noisy_position : mask.origin;
}

/// Noisy rows to the keys of their own view: the row's block.
constexpr IntervalRule own_rule(const SampleMask& mask) {
  IntervalRule rule;
  rule.begin = {Anchor::kBlockStart, 0};
  rule.end = mask.noisy == NoisyRule::kCausal ? Bound{Anchor::kPosition, 1}
                                              : Bound{Anchor::kBlockStart, mask.block_size};
  rule.block_size = mask.block_size;
  rule.block_divisor = mask.block_divisor;
  rule.origin = noisy_origin(mask);
  rule.key_position = mask.noisy_position;
  rule.key_len = mask.noisy_len;
  return rule;
}

/// Noisy rows to clean keys: everything before the row's block, or the block's table entry.
constexpr IntervalRule noisy_clean_rule(const SampleMask& mask) {
  IntervalRule rule;
  if (mask.clean_window > 0) rule.begin = {Anchor::kBlockStart, 1 - mask.clean_window};
  rule.end = {Anchor::kBlockStart, 0};
  rule.block_size = mask.block_size;
  rule.block_divisor = mask.block_divisor;
  rule.origin = noisy_origin(mask);
  rule.key_len = mask.clean_kv_len;
  rule.table = mask.block_ranges;
  rule.table_blocks = mask.num_block_ranges;
  return rule;
}

/// Clean rows to clean keys.
constexpr IntervalRule clean_rule(const SampleMask& mask) {
  IntervalRule rule;
  rule.block_size = mask.block_size;
  rule.block_divisor = mask.block_divisor;
  rule.origin = mask.origin;
  rule.key_len = mask.clean_kv_len;
  switch (mask.clean) {
    case CleanRule::kBlock:
      rule.end = {Anchor::kBlockStart, mask.block_size};
      break;
    case CleanRule::kCausal:
      rule.end = {Anchor::kPosition, 1};
      break;
    case CleanRule::kFull:
      rule.end = {Anchor::kConstant, kPastEveryKey};
      break;
    case CleanRule::kWindow:
      rule.begin = {Anchor::kPosition, -mask.window_left};
      rule.end = {Anchor::kPosition, mask.window_right + 1};
      break;
  }
  return rule;
}

/// The rule from query rows of one half to keys of another (noisy keys: of the row's own view).
/// Clean rows see no noisy key, so (kClean, kNoisy) has no rule and must not be asked for.
constexpr IntervalRule rule_between(const SampleMask& mask, Half query, Half key) {
  if (query == Half::kClean) return clean_rule(mask);
  return key == Half::kNoisy ? own_rule(mask) : noisy_clean_rule(mask);
}

constexpr i32 query_len(const SampleMask& mask, Half half) {
  return half == Half::kNoisy ? mask.noisy_len : mask.clean_q_len;
}

constexpr i32 query_position(const SampleMask& mask, Half half) {
  return half == Half::kNoisy ? mask.noisy_position : mask.clean_q_position;
}

constexpr i32 key_len(const SampleMask& mask, Half half) {
  return half == Half::kNoisy ? mask.noisy_len : mask.clean_kv_len;
}

}  // namespace stepwell::geometry
