// What a backend gets: checked arguments in one form for every layout.
#pragma once

#include <cstdint>

#include "geometry/layout.hpp"
#include "stepwell/tensor.hpp"

namespace stepwell {

/// `[batch, row, head, dim]` with a contiguous last dimension; packed tensors have batch_stride 0.
struct Rows {
  void* data = nullptr;
  std::int64_t batch_stride = 0;  // in elements
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  std::int64_t offset(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return batch * batch_stride + row * row_stride + head * head_stride;
  }
};

/// float32 `[batch, head, row]` of any strides.
struct RowValues {
  float* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;

  float* at(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data + batch * batch_stride + head * head_stride + row * row_stride;
  }
};

/// The tensors of one half. In joint layouts both halves name the same tensors. An absent tensor
/// has null data: q and out of clean rows without queries, lse where it is not wanted, gradients in
/// forward.
struct HalfTensors {
  Rows q, k, v, out;
  RowValues lse;
  Rows dout, dq, dk, dv;
  RowValues dlse;
};

struct AttentionProblem {
  geometry::Layout layout;
  std::int64_t max_seqlen = -1;  // packed: tokens of the longest sample in one half; -1: not known
  int heads_q = 0;
  int heads_kv = 0;
  int head_dim = 0;
  int head_dim_v = 0;
  DType dtype = DType::kFloat32;
  HalfTensors halves[2];  // indexed by geometry::Half

  double softmax_scale = 1.0;
  double softcap = 0.0;
  double dropout_p = 0.0;
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
  const std::int64_t* dropout_state = nullptr;  // [2], instead of the two numbers
  bool deterministic = false;
  int num_threads = 0;

  const HalfTensors& half(geometry::Half h) const { return halves[static_cast<int>(h)]; }
  HalfTensors& half(geometry::Half h) { return halves[static_cast<int>(h)]; }
  int group() const { return heads_q / heads_kv; }
};

/// Calls visit(half, batch_index, first_row, count) for each run of query rows (keys = false) or
/// key rows (keys = true) that no sample's valid tokens cover: padding inside segments and the tail
/// of packed tensors. Results there are 0 (lse: -inf).
template <typename Visit>
void for_each_unused_run(const geometry::Layout& layout, bool keys, Visit&& visit) {
  using geometry::Half;
  using geometry::Packing;
  const int views = layout.mask.num_views;
  std::int64_t noisy_end = 0;  // packed: rows covered so far
  std::int64_t clean_end = 0;
  for (int i = 0; i < layout.batch; ++i) {
    const geometry::Sample sample = geometry::sample_at(layout, i);
    for (int view = 0; view < views; ++view) {
      const std::int64_t first = sample.noisy.first + view * sample.view_stride;
      const std::int64_t rest = sample.noisy.count - sample.mask.noisy_len;
      if (rest > 0) visit(Half::kNoisy, sample.batch_index, first + sample.mask.noisy_len, rest);
      noisy_end = geometry::max_of<std::int64_t>(noisy_end, first + sample.noisy.count);
    }
    const geometry::SegmentRows clean = keys ? sample.clean_kv : sample.clean_q;
    const std::int64_t len = keys ? sample.mask.clean_kv_len : sample.mask.clean_q_len;
    if (clean.count > len)
      visit(Half::kClean, sample.batch_index, clean.first + len, clean.count - len);
    clean_end = geometry::max_of<std::int64_t>(clean_end, clean.first + clean.count);
  }
  if (!layout.packed()) return;
  if (layout.packing == Packing::kJointHalves) {
    const std::int64_t part = layout.joint_rows / (views + 1);
    const std::int64_t used =
        layout.batch > 0 ? geometry::clamp_to<std::int64_t>(layout.cu_noisy[layout.batch], 0, part)
                         : 0;
    for (int p = 0; p <= views && used < part; ++p)
      visit(Half::kNoisy, 0, p * part + used, part - used);
    return;
  }
  if (layout.packing == Packing::kJoint) {
    const std::int64_t end = geometry::max_of(noisy_end, clean_end);
    if (end < layout.joint_rows) visit(Half::kNoisy, 0, end, layout.joint_rows - end);
    return;
  }
  if (noisy_end < layout.noisy_rows)
    visit(Half::kNoisy, 0, noisy_end, layout.noisy_rows - noisy_end);
  const std::int64_t clean_rows = keys ? layout.clean_kv_rows : layout.clean_q_rows;
  if (clean_end < clean_rows) visit(Half::kClean, 0, clean_end, clean_rows - clean_end);
}

}  // namespace stepwell
