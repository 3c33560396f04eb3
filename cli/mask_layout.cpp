#include "mask_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stepwell::cli {
namespace {

using geometry::CleanRule;
using geometry::kMaxLength;
using geometry::Layout;
using geometry::NoisyRule;
using geometry::Packing;

/// As many values as there are samples, or one for all.
std::vector<int> per_sample(const std::string& option, const std::vector<int>& values,
                            std::size_t samples) {
  if (values.size() == samples) return values;
  if (values.size() == 1) return std::vector<int>(samples, values.front());
  throw UsageError(option,
                   fmt::format("has {} values but --length has {}", values.size(), samples));
}

/// Running counts from 0.
std::vector<int> running_counts(const std::string& option, const std::vector<int>& counts,
                                int factor) {
  std::vector<int> sums{0};
  for (const int count : counts) {
    const long long sum = sums.back() + static_cast<long long>(count) * factor;
    if (sum > kMaxLength) {
      throw UsageError(
          option, fmt::format("has {} rows in all but at most {} are possible", sum, kMaxLength));
    }
    sums.push_back(static_cast<int>(sum));
  }
  return sums;
}

/// The rows of noisy and clean tokens in one tensor.
void set_joint(const MaskOptions& options, OwnedLayout& owned) {
  Layout& layout = owned.layout;
  const int parts = options.num_views + 1;
  const bool halves = options.layout == "halves";
  layout.packing = halves ? Packing::kJointHalves : Packing::kJoint;
  layout.clean_first = options.order == "clean_noisy";
  owned.cu_noisy = running_counts("--length", options.length, halves ? 1 : parts);
  const long long rows = static_cast<long long>(owned.cu_noisy.back()) * (halves ? parts : 1);
  if (rows > kMaxLength) {
    throw UsageError("--length",
                     fmt::format("gives {} rows but at most {} are possible", rows, kMaxLength));
  }
  layout.joint_rows = rows;
  if (options.total > 0) {
    if (options.total < rows || (halves && options.total % parts != 0)) {
      throw UsageError("--total", fmt::format("is {} but must be at least the {} rows of all "
                                              "samples{}",
                                              options.total, rows,
                                              halves ? fmt::format(" and a multiple of {}", parts)
                                                     : std::string()));
    }
    layout.joint_rows = options.total;
  }
  if (options.layout != "batched") layout.cu_noisy = owned.cu_noisy.data();
}

/// Noisy rows and clean rows in tensors of their own.
void set_split(const MaskOptions& options, OwnedLayout& owned) {
  Layout& layout = owned.layout;
  const std::size_t samples = options.length.size();
  layout.packing = Packing::kSplit;
  const std::vector<int> clean_kv =
      options.clean_length.empty() ? options.length
                                   : per_sample("--clean-length", options.clean_length, samples);
  const std::vector<int> clean_q =
      options.clean_queries.empty() ? clean_kv
                                    : per_sample("--clean-queries", options.clean_queries, samples);
  owned.cu_noisy = running_counts("--length", options.length, options.num_views);
  owned.cu_clean_q = running_counts("--clean-queries", clean_q, 1);
  owned.cu_clean_kv = running_counts("--clean-length", clean_kv, 1);
  if (owned.cu_clean_q.back() == 0) {
    for (const int offset : options.clean_q_offset) {
      if (offset == 0) continue;
      throw UsageError("--clean-q-offset",
                       fmt::format("is {}, but there are no clean queries", offset));
    }
  }
  if (!options.noisy_offset.empty()) {
    owned.noisy_positions = per_sample("--noisy-offset", options.noisy_offset, samples);
    layout.noisy_positions = owned.noisy_positions.data();
  }
  if (!options.clean_q_offset.empty()) {
    owned.clean_q_positions = per_sample("--clean-q-offset", options.clean_q_offset, samples);
    layout.clean_q_positions = owned.clean_q_positions.data();
  }
  if (!options.seqused_clean.empty()) {
    owned.seqused_clean_kv = per_sample("--seqused-clean", options.seqused_clean, samples);
    layout.seqused_clean_kv = owned.seqused_clean_kv.data();
    // Queries are the clean tokens at their positions: those past the valid ones are padding.
    for (std::size_t i = 0; i < samples; ++i) {
      const int offset = owned.clean_q_positions.empty() ? 0 : owned.clean_q_positions[i];
      owned.seqused_clean_q.push_back(std::max(0, owned.seqused_clean_kv[i] - offset));
    }
    layout.seqused_clean_q = owned.seqused_clean_q.data();
  }
  if (!options.block_ranges.empty()) {
    for (const auto& [begin, end] : options.block_ranges) {
      owned.block_ranges.insert(owned.block_ranges.end(), {begin, end});
    }
    layout.mask.block_ranges = owned.block_ranges.data();
    layout.mask.num_block_ranges = static_cast<int>(options.block_ranges.size());
  }
}

void set_sequence(const MaskOptions& options, OwnedLayout& owned) {
  Layout& layout = owned.layout;
  const std::size_t samples = options.length.size();
  layout.packing = Packing::kSplit;
  owned.clean_q_positions = per_sample(
      "--q-offset", options.q_offset.empty() ? std::vector<int>{0} : options.q_offset, samples);
  layout.clean_q_positions = owned.clean_q_positions.data();
  std::vector<int> length_kv;
  if (options.length_kv.empty()) {
    for (std::size_t i = 0; i < samples; ++i) {
      length_kv.push_back(options.length[i] + owned.clean_q_positions[i]);
    }
  } else {
    length_kv = per_sample("--length-kv", options.length_kv, samples);
  }
  owned.cu_clean_q = running_counts("--length", options.length, 1);
  owned.cu_clean_kv = running_counts("--length-kv", length_kv, 1);
  if (!options.seqused_kv.empty()) {
    owned.seqused_clean_kv = per_sample("--seqused-kv", options.seqused_kv, samples);
    layout.seqused_clean_kv = owned.seqused_clean_kv.data();
  }
  const auto bounded = [](int side) { return side < 0 ? kMaxLength : side; };
  layout.mask.window_left = bounded(options.window_left);
  layout.mask.window_right = bounded(options.window_right);
}

/// What a table of clean intervals takes the place of.
void check_table(const MaskOptions& options, const Layout& layout) {
  if (options.block_ranges.empty()) return;
  if (options.clean_window > 0) {
    throw UsageError("--block-ranges", fmt::format("is given with --clean-window {}; the table "
                                                   "replaces the window",
                                                   options.clean_window));
  }
  if (options.num_views > 1) {
    throw UsageError("--block-ranges", fmt::format("is given with --num-views {}; it takes one "
                                                   "view",
                                                   options.num_views));
  }
  const bool clean_blocks = layout.clean_q_rows > 0 && layout.mask.clean == CleanRule::kBlock;
  if (!options.prefix_lens.empty() && !clean_blocks) {
    throw UsageError("--prefix-lens",
                     "is given with --block-ranges, whose blocks count from the first noisy row, "
                     "and no clean query has blocks");
  }
}

void check_used(const char* option, const std::vector<int>& values, int sample, int samples,
                int count) {
  if (values.empty() || values[sample] <= count) return;
  throw UsageError(option, fmt::format("is {} for sample {} of {}; it must be in [0, {}], the rows "
                                       "of this sample",
                                       values[sample], sample + 1, samples, count));
}

/// Intervals of blocks that have a valid noisy row; later ones are never read.
void check_ranges(const geometry::Sample& sample, int index, int samples) {
  const geometry::SampleMask& mask = sample.mask;
  const int blocks = geometry::ceil_div(mask.noisy_len, mask.block_size);
  if (blocks > mask.num_block_ranges) {
    throw UsageError("--block-ranges",
                     fmt::format("has {} blocks; sample {} of {} has {} noisy rows in blocks of {} "
                                 "and needs {}",
                                 mask.num_block_ranges, index + 1, samples, mask.noisy_len,
                                 mask.block_size, blocks));
  }
  for (int j = 0; j < blocks; ++j) {
    const int begin = mask.block_ranges[2 * j];
    const int end = mask.block_ranges[2 * j + 1];
    if (begin <= end && end <= sample.clean_kv.count) continue;
    throw UsageError("--block-ranges",
                     fmt::format("gives block {} of sample {} of {} the interval {}:{}; it must "
                                 "satisfy 0 <= LO <= HI <= {}, the clean rows of this sample",
                                 j + 1, index + 1, samples, begin, end, sample.clean_kv.count));
  }
}

/// Refuses values past the rows of their sample, which the geometry would clamp.
void check_values(const MaskOptions& options, const OwnedLayout& owned) {
  const Layout& layout = owned.layout;
  check_table(options, layout);
  for (int i = 0; i < layout.batch; ++i) {
    const geometry::Sample sample = geometry::sample_at(layout, i);
    check_used("--seqused", is_diffusion(options) ? owned.seqused_noisy : owned.seqused_clean_q, i,
               layout.batch, is_diffusion(options) ? sample.noisy.count : sample.clean_q.count);
    if (layout.packing == Packing::kSplit) {
      check_used(is_diffusion(options) ? "--seqused-clean" : "--seqused-kv", owned.seqused_clean_kv,
                 i, layout.batch, sample.clean_kv.count);
    }
    if (layout.mask.block_ranges != nullptr) check_ranges(sample, i, layout.batch);
  }
}

}  // namespace

std::unique_ptr<OwnedLayout> layout_of(const MaskOptions& options) {
  if (is_diffusion(options) && options.layout == "batched" && options.length.size() > 1) {
    throw UsageError("--layout",
                     "is batched, where all samples are alike: give one --length, or "
                     "choose interleaved, halves or split");
  }
  auto owned = std::make_unique<OwnedLayout>();
  Layout& layout = owned->layout;
  const std::size_t samples = options.length.size();
  layout.batch = static_cast<int>(samples);
  geometry::SampleMask& mask = layout.mask;
  mask.block_size = std::max(options.block_size, 1);
  if (is_diffusion(options)) {
    mask.num_views = options.num_views;
    mask.clean_window = options.clean_window;
    mask.clean = options.clean == "causal" ? CleanRule::kCausal : CleanRule::kBlock;
    mask.noisy = options.noisy == "causal" ? NoisyRule::kCausal : NoisyRule::kBidirectional;
  } else {
    mask.clean = options.kind == "full"     ? CleanRule::kFull
                 : options.kind == "causal" ? CleanRule::kCausal
                 : options.kind == "window" ? CleanRule::kWindow
                                            : CleanRule::kBlock;
  }
  if (!options.prefix_lens.empty()) {
    owned->origins = per_sample("--prefix-lens", options.prefix_lens, samples);
    layout.origins = owned->origins.data();
  }

  if (!is_diffusion(options)) {
    set_sequence(options, *owned);
  } else if (options.layout == "split") {
    set_split(options, *owned);
  } else {
    set_joint(options, *owned);
  }
  if (layout.packing == Packing::kSplit) {
    const bool noisy = mask.num_views > 0;
    if (noisy) layout.noisy_rows = owned->cu_noisy.back();
    layout.clean_q_rows = owned->cu_clean_q.back();
    layout.clean_kv_rows = owned->cu_clean_kv.back();
    if (samples > 1) {
      if (noisy) layout.cu_noisy = owned->cu_noisy.data();
      layout.cu_clean_q = owned->cu_clean_q.data();
      layout.cu_clean_kv = owned->cu_clean_kv.data();
    }
  }
  if (!options.seqused.empty()) {
    std::vector<int> used = per_sample("--seqused", options.seqused, samples);
    const bool joint = layout.packing != Packing::kSplit;
    if (mask.num_views > 0) {
      owned->seqused_noisy = used;
      layout.seqused_noisy = owned->seqused_noisy.data();
    }
    if (joint || mask.num_views == 0) {
      owned->seqused_clean_q = used;
      layout.seqused_clean_q = owned->seqused_clean_q.data();
    }
    if (joint) {
      owned->seqused_clean_kv = std::move(used);
      layout.seqused_clean_kv = owned->seqused_clean_kv.data();
    }
  }
  check_values(options, *owned);
  return owned;
}

}  // namespace stepwell::cli
