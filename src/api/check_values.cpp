// Elements of integer arrays in host memory.
#include "api/arguments.hpp"
#include "api/names.hpp"
#include "core/check.hpp"

namespace stepwell {
namespace {

using geometry::Layout;
using geometry::Sample;

/// Starts at 0, does not decrease, stays within `rows`, and each length is a multiple of `parts`.
void check_running(const std::int32_t* values, const char* name, int batch, std::int64_t rows,
                   const char* rows_of, std::int64_t parts, std::int64_t max_seqlen,
                   std::int64_t num_views) {
  STEPWELL_CHECK(values[0] == 0, kValue, "{}[0] is {}; it must be 0", name, values[0]);
  for (int i = 0; i < batch; ++i) {
    const std::int64_t begin = values[i];
    const std::int64_t end = values[i + 1];
    STEPWELL_CHECK(end >= begin, kValue, "{}[{}] is {} but {}[{}] is {}; it must not decrease",
                   name, i + 1, end, name, i, begin);
    STEPWELL_CHECK(end <= rows, kValue, "{}[{}] is {}; {} {} rows", name, i + 1, end, rows_of,
                   rows);
    STEPWELL_CHECK((end - begin) % parts == 0, kValue,
                   "{}[{}] - {}[{}] is {}; with num_views = {} it must be a multiple of {}", name,
                   i + 1, name, i, end - begin, num_views, parts);
    STEPWELL_CHECK(max_seqlen < 0 || (end - begin) / parts <= max_seqlen, kValue,
                   "{} gives sample {} a length of {} tokens; max_seqlen is {}", name, i,
                   (end - begin) / parts, max_seqlen);
  }
}

void check_positions(const Tensor& tensor, const char* name, int batch) {
  if (!tensor.given()) return;
  const auto* values = static_cast<const std::int32_t*>(tensor.data);
  for (int i = 0; i < batch; ++i) {
    STEPWELL_CHECK(values[i] >= 0 && values[i] <= geometry::kMaxLength, kValue,
                   "{}[{}] is {}; it must be in [0, {}]", name, i, values[i], geometry::kMaxLength);
  }
}

void check_used(const Tensor& tensor, const char* name, int sample, int count) {
  if (!tensor.given()) return;
  const std::int32_t value = static_cast<const std::int32_t*>(tensor.data)[sample];
  STEPWELL_CHECK(value >= 0 && value <= count, kValue,
                 "{}[{}] is {}; it must be in [0, {}], the rows of this sample", name, sample,
                 value, count);
}

/// Entries of blocks that have a valid noisy row; later ones are never read.
void check_ranges(const Sample& sample, const char* name, int index) {
  const geometry::SampleMask& mask = sample.mask;
  const int blocks = geometry::ceil_div(mask.noisy_len, mask.block_size);
  STEPWELL_CHECK(blocks <= mask.num_block_ranges, kValue,
                 "{} has {} blocks; sample {} has {} noisy rows in blocks of {} and needs {}", name,
                 mask.num_block_ranges, index, mask.noisy_len, mask.block_size, blocks);
  for (int j = 0; j < blocks; ++j) {
    const std::int32_t low = mask.block_ranges[2 * j];
    const std::int32_t high = mask.block_ranges[2 * j + 1];
    STEPWELL_CHECK(0 <= low && low <= high && high <= sample.clean_kv.count, kValue,
                   "{} gives block {} of sample {} the interval [{}, {}); it must satisfy "
                   "0 <= lo <= hi <= {}, the clean rows of this sample",
                   name, j, index, low, high, sample.clean_kv.count);
  }
}

void check_running_lengths(const AttentionArgs& args, const Layout& layout,
                           const ArgumentNames& names) {
  const std::int64_t views = layout.mask.num_views;
  const auto check = [&](const std::int32_t* values, const char* name, std::int64_t rows,
                         const char* rows_of, std::int64_t parts) {
    if (values == nullptr) return;
    check_running(values, name, layout.batch, rows, rows_of, parts, args.max_seqlen, views);
  };
  switch (args.layout) {
    case TokenLayout::kBatched:
      break;
    case TokenLayout::kInterleaved:
      check(layout.cu_noisy, names.cu_seqlens, layout.joint_rows, "q has", views + 1);
      break;
    case TokenLayout::kHalves:
      check(layout.cu_noisy, names.cu_seqlens, layout.joint_rows / (views + 1),
            "each half of q has", 1);
      break;
    case TokenLayout::kSplit:
      check(layout.cu_noisy, names.cu_seqlens, layout.noisy_rows, "q_noisy has", views);
      check(layout.cu_clean_kv, names.cu_seqlens_clean, layout.clean_kv_rows, "k_clean has", 1);
      if (layout.cu_clean_q != nullptr) {
        const bool own = args.cu_seqlens_clean_q.given();
        check(layout.cu_clean_q, own ? names.cu_seqlens_clean_q : names.cu_seqlens_clean,
              layout.clean_q_rows, "q_clean has", 1);
      }
      break;
    case TokenLayout::kSequence:
      check(layout.cu_clean_q, names.cu_seqlens, layout.clean_q_rows, "q has", 1);
      check(layout.cu_clean_kv, args.cu_seqlens_kv.given() ? names.cu_seqlens_kv : names.cu_seqlens,
            layout.clean_kv_rows, "k has", 1);
      break;
  }
}

}  // namespace

void check_values(const AttentionArgs& args, const Layout& layout) {
  const ArgumentNames& names = names_of(args.layout);
  check_running_lengths(args, layout, names);
  check_positions(args.prefix_lens, names.prefix_lens, layout.batch);
  check_positions(args.noisy_offsets, names.noisy_offset, layout.batch);
  check_positions(args.q_offsets, names.q_offset, layout.batch);
  const bool per_sample = args.seqused.given() || args.seqused_clean.given() ||
                          args.seqused_kv.given() || args.block_ranges.given();
  if (!per_sample) return;
  for (int i = 0; i < layout.batch; ++i) {
    const Sample sample = geometry::sample_at(layout, i);
    const bool sequence = args.layout == TokenLayout::kSequence;
    check_used(args.seqused, names.seqused, i,
               sequence ? sample.clean_q.count : sample.noisy.count);
    check_used(args.seqused_clean, names.seqused_clean, i, sample.clean_kv.count);
    check_used(args.seqused_kv, names.seqused_kv, i, sample.clean_kv.count);
    if (args.block_ranges.given()) check_ranges(sample, names.block_ranges, i);
  }
}

}  // namespace stepwell
