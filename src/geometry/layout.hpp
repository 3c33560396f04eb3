// Where the rows of each sample lie, for every way users lay out their tensors.
//
// A Layout is plain data and may travel to a kernel by value: the integer arrays are pointers in
// the memory of whoever evaluates it. Array values are clamped to the tensors' bounds here, so that
// no bad value makes a kernel read outside; the host checks and reports where it can see them.
#pragma once

#include "geometry/interval.hpp"
#include "geometry/mask.hpp"

namespace stepwell::geometry {

enum class Packing : i32 {
  kJoint,        // one tensor: views and clean half of a sample one after the other
  kJointHalves,  // one tensor: view 0 of all samples, view 1 of all samples, ..., clean of all
                 // samples
  kSplit,        // separate tensors for noisy and clean rows; a single sequence has no noisy tensor
};

/// Rows of one segment: `first` counts from the start of the batch entry (batched) or tensor
/// (packed).
struct SegmentRows {
  i64 first = 0;
  i32 count = 0;  // rows of the segment, padding included
};

/// One sample: its mask with all per-sample values filled in, and its rows.
struct Sample {
  SampleMask mask;
  i32 batch_index = 0;  // what the batch stride is multiplied with; 0 when packed
  SegmentRows noisy;    // view 0
  i64 view_stride = 0;  // rows from one view to the next
  SegmentRows clean_q;
  SegmentRows clean_kv;
};

struct Layout {
  SampleMask
      mask;  // what all samples share; lengths and per-sample values are filled in by sample_at
  Packing packing = Packing::kJoint;
  bool clean_first = false;  // kJoint*: the clean half comes before the noisy ones
  i32 batch = 0;

  // Rows of one batch entry (batched) or of the whole tensor (packed). kJoint*: joint_rows only.
  i64 joint_rows = 0;
  i64 noisy_rows = 0;  // all views
  i64 clean_q_rows = 0;
  i64 clean_kv_rows = 0;

  // [batch + 1] running row counts, or null when batched. kJoint: cu_noisy counts (views + 1) * n
  // per sample; kJointHalves: n; kSplit: cu_noisy counts views * n, the others their own rows.
  const i32* cu_noisy = nullptr;
  const i32* cu_clean_q = nullptr;
  const i32* cu_clean_kv = nullptr;

  // [batch] per-sample values; null: the value in `mask` (offsets, origin) or all rows (seqused).
  const i32* origins = nullptr;
  const i32* noisy_positions = nullptr;
  const i32* clean_q_positions = nullptr;
  const i32* seqused_noisy = nullptr;  // valid tokens of each view
  const i32* seqused_clean_q = nullptr;
  const i32* seqused_clean_kv = nullptr;
  bool clean_q_used_by_position = false;  // seqused_clean_q: those at positions below the value

  i64 block_ranges_stride = 0;  // entries from one sample's table to the next; 0: one for all

  i64 joint_part_rows = -1;  // joint_rows / (views + 1), where somebody prepared it

  /// Rows of one half of joint tensors.
  constexpr i64 part_rows() const {
    return joint_part_rows >= 0 ? joint_part_rows : joint_rows / (mask.num_views + 1);
  }

  constexpr bool packed() const {
    return cu_noisy != nullptr || cu_clean_q != nullptr || cu_clean_kv != nullptr;
  }
};

constexpr SegmentRows rows_between(const i32* cu_seqlens, i32 sample, i64 total) {
  const i64 begin = clamp_to<i64>(cu_seqlens[sample], 0, total);
  const i64 end = clamp_to<i64>(cu_seqlens[sample + 1], begin, total);
  return {begin, static_cast<i32>(end - begin)};
}

/// Consecutive rows of a packed tensor.
struct RowRun {
  i64 first = 0;
  i64 count = 0;
};

/// Rows behind the last sample of a packed layout that belong to a segment's share of the tensor
/// (view, or num_views for clean rows); `clean_rows` and `cu_clean` are those of clean queries or
/// keys.
constexpr RowRun packed_tail(const Layout& layout, i32 segment, const i32* cu_clean,
                             i64 clean_rows) {
  const i32 views = layout.mask.num_views;
  const auto used = [&layout](const i32* cu_seqlens, i64 total) {
    return cu_seqlens != nullptr ? clamp_to<i64>(cu_seqlens[layout.batch], 0, total) : 0;
  };
  if (layout.packing == Packing::kJointHalves) {
    const i64 part = layout.part_rows();
    const i64 end = used(layout.cu_noisy, part);
    return {segment * part + end, part - end};
  }
  if (segment < views) {  // one tail for all views
    const i64 total = layout.packing == Packing::kJoint ? layout.joint_rows : layout.noisy_rows;
    const i64 end = used(layout.cu_noisy, total);
    return {end, segment == 0 ? total - end : 0};
  }
  if (layout.packing == Packing::kJoint) return {0, 0};
  const i64 end = used(cu_clean, clean_rows);
  return {end, clean_rows - end};
}

constexpr RowRun packed_query_tail(const Layout& layout, i32 segment) {
  return packed_tail(layout, segment, layout.cu_clean_q, layout.clean_q_rows);
}

constexpr RowRun packed_key_tail(const Layout& layout, i32 segment) {
  return packed_tail(layout, segment, layout.cu_clean_kv, layout.clean_kv_rows);
}

/// Sample i of the layout.
constexpr Sample sample_at(const Layout& layout, i32 i) {
  Sample sample;
  sample.mask = layout.mask;
  SampleMask& mask = sample.mask;
  const i32 views = mask.num_views;
  const bool packed = layout.packed();
  sample.batch_index = packed ? 0 : i;

  if (layout.packing == Packing::kSplit) {
    if (views > 0) {
      const SegmentRows all = packed ? rows_between(layout.cu_noisy, i, layout.noisy_rows)
                                     : SegmentRows{0, static_cast<i32>(layout.noisy_rows)};
      sample.noisy = {all.first, all.count / views};
      sample.view_stride = sample.noisy.count;
    }
    sample.clean_q = {0, static_cast<i32>(layout.clean_q_rows)};
    sample.clean_kv = {0, static_cast<i32>(layout.clean_kv_rows)};
    if (packed) {
      sample.clean_q = layout.cu_clean_q != nullptr
                           ? rows_between(layout.cu_clean_q, i, layout.clean_q_rows)
                           : SegmentRows{};
      sample.clean_kv = layout.cu_clean_kv != nullptr
                            ? rows_between(layout.cu_clean_kv, i, layout.clean_kv_rows)
                            : SegmentRows{};
    }
  } else {
    const i32 parts = views + 1;
    const i64 part_rows = layout.part_rows();  // kJointHalves: rows of one half, tail included
    SegmentRows all{0, static_cast<i32>(layout.joint_rows)};
    i32 n = static_cast<i32>(part_rows);  // of one half
    if (layout.packing == Packing::kJointHalves) {
      all = rows_between(layout.cu_noisy, i, part_rows);
      n = all.count;
      sample.view_stride = part_rows;
    } else {
      if (packed) all = rows_between(layout.cu_noisy, i, layout.joint_rows);
      if (packed) n = all.count / parts;
      sample.view_stride = n;
    }
    const i64 noisy_first = all.first + (layout.clean_first ? sample.view_stride : 0);
    const i64 clean_first = all.first + (layout.clean_first ? 0 : views * sample.view_stride);
    sample.noisy = {noisy_first, n};
    sample.clean_q = {clean_first, n};
    sample.clean_kv = {clean_first, n};
  }

  const auto used = [i](const i32* seqused, i32 count) {
    return seqused != nullptr ? clamp_to(seqused[i], 0, count) : count;
  };
  mask.noisy_len = used(layout.seqused_noisy, sample.noisy.count);
  mask.clean_q_len = used(layout.seqused_clean_q, sample.clean_q.count);
  mask.clean_kv_len = used(layout.seqused_clean_kv, sample.clean_kv.count);

  const auto position = [i](const i32* values, i32 shared) {
    return clamp_to(values != nullptr ? values[i] : shared, 0, kMaxLength);
  };
  mask.origin = position(layout.origins, mask.origin);
  mask.noisy_position = position(layout.noisy_positions, mask.noisy_position);
  mask.clean_q_position = position(layout.clean_q_positions, mask.clean_q_position);
  if (layout.clean_q_used_by_position && layout.seqused_clean_q != nullptr) {
    const i32 end = clamp_to(layout.seqused_clean_q[i], 0, kMaxLength);
    mask.clean_q_len = clamp_to(end - mask.clean_q_position, 0, sample.clean_q.count);
  }
  if (mask.block_ranges != nullptr) mask.block_ranges += i * layout.block_ranges_stride * 2;
  return sample;
}

}  // namespace stepwell::geometry
