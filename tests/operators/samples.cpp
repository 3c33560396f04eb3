#include "operators/samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "operators/operands.hpp"
#include "reference/attention.hpp"

namespace stepwell::testing {

using geometry::CleanRule;
using geometry::Half;
using geometry::NoisyRule;
using geometry::SampleMask;

namespace {

SampleMask mask_of(const DiffusionMask& mask) {
  SampleMask m;
  m.block_size = static_cast<int>(mask.block_size);
  m.clean = mask.clean == CleanAttention::kBlock ? CleanRule::kBlock : CleanRule::kCausal;
  m.noisy =
      mask.noisy == NoisyAttention::kBidirectional ? NoisyRule::kBidirectional : NoisyRule::kCausal;
  m.clean_window = static_cast<int>(mask.clean_window);
  m.num_views = static_cast<int>(mask.num_views);
  return m;
}

SampleMask mask_of(const SequenceMask& mask) {
  SampleMask m;
  const auto bounded = [](std::int64_t window) {
    return static_cast<int>(std::min<std::int64_t>(window, geometry::kMaxLength));
  };
  switch (mask.kind) {
    case SequenceMask::Kind::kFull:
      m.clean = CleanRule::kFull;
      break;
    case SequenceMask::Kind::kCausal:
      m.clean = CleanRule::kCausal;
      break;
    case SequenceMask::Kind::kWindow:
      m.clean = CleanRule::kWindow;
      m.window_left = bounded(mask.window_left);
      m.window_right = bounded(mask.window_right);
      break;
    case SequenceMask::Kind::kBlockCausal:
      m.clean = CleanRule::kBlock;
      m.block_size = static_cast<int>(mask.block_size);
      break;
  }
  return m;
}

int value_of(const std::vector<int>& values, int sample, int otherwise) {
  return values.empty() ? otherwise : values[sample];
}

/// Rows before sample i when every sample takes `copies` times its length.
std::int64_t rows_before(const Case& c, const std::vector<int>& lengths, int sample, int copies) {
  if (!c.is_packed()) return 0;
  std::int64_t rows = 0;
  for (int i = 0; i < sample; ++i) rows += std::int64_t{lengths[i]} * copies;
  return rows;
}

class Builder {
 public:
  Builder(const Case& c, int sample) : c_(c), sample_(sample) {
    model_.mask = std::visit([](const auto& mask) { return mask_of(mask); }, c.mask);
    model_.mask.origin = value_of(c.prefix_lens, sample, 0);
    batch_ = c.is_packed() ? 0 : sample;
  }

  SampleModel build() {
    switch (c_.layout) {
      case TokenLayout::kSplit:
        build_split();
        break;
      case TokenLayout::kSequence:
        build_sequence();
        break;
      default:
        build_joint();
    }
    return std::move(model_);
  }

 private:
  void add(std::vector<Place>& places, Half half, int view, int count, int set, std::int64_t row) {
    for (int i = 0; i < count; ++i) places.push_back({{half, view, i}, set, batch_, row + i});
  }

  void build_joint() {
    SampleMask& mask = model_.mask;
    const int n = c_.lengths[sample_];
    const int used = value_of(c_.seqused, sample_, n);
    const int parts = mask.num_views + 1;
    mask.noisy_len = mask.clean_q_len = mask.clean_kv_len = used;
    std::int64_t first = 0;
    std::int64_t part_rows = n;
    if (c_.layout == TokenLayout::kHalves) {
      first = rows_before(c_, c_.lengths, sample_, 1);
      part_rows = extents_of(c_).rows_q[kFirst] / parts;
    } else {
      first = rows_before(c_, c_.lengths, sample_, parts);
    }
    const bool clean_first = std::get<DiffusionMask>(c_.mask).order == Order::kCleanNoisy;
    for (int view = 0; view < mask.num_views; ++view) {
      const int part = clean_first ? view + 1 : view;
      for (auto* places : {&model_.queries, &model_.keys})
        add(*places, Half::kNoisy, view, used, kFirst, first + part * part_rows);
    }
    const int part = clean_first ? 0 : mask.num_views;
    for (auto* places : {&model_.queries, &model_.keys})
      add(*places, Half::kClean, 0, used, kFirst, first + part * part_rows);
  }

  void build_split() {
    SampleMask& mask = model_.mask;
    const int n = c_.lengths[sample_];
    mask.noisy_len = value_of(c_.seqused, sample_, n);
    mask.noisy_position = value_of(c_.noisy_offsets, sample_, c_.noisy_offset);
    const int keys = c_.key_lengths()[sample_];
    mask.clean_kv_len = value_of(c_.seqused_clean, sample_, keys);
    if (c_.clean_queries) {
      mask.clean_q_position = value_of(c_.q_offsets, sample_, c_.q_offset);
      mask.clean_q_len = c_.clean_query_lengths()[sample_];
      if (!c_.seqused_clean.empty()) {
        mask.clean_q_len =
            std::clamp(mask.clean_kv_len - mask.clean_q_position, 0, mask.clean_q_len);
      }
    }
    if (!c_.block_ranges.empty()) {
      const bool shared = static_cast<int>(c_.block_ranges.size()) == 2 * c_.num_blocks;
      mask.block_ranges = c_.block_ranges.data() + (shared ? 0 : 2 * c_.num_blocks * sample_);
      mask.num_block_ranges = c_.num_blocks;
    }
    const std::int64_t first = rows_before(c_, c_.lengths, sample_, mask.num_views);
    for (int view = 0; view < mask.num_views; ++view) {
      for (auto* places : {&model_.queries, &model_.keys})
        add(*places, Half::kNoisy, view, mask.noisy_len, kFirst, first + std::int64_t{view} * n);
    }
    add(model_.queries, Half::kClean, 0, mask.clean_q_len, kClean,
        rows_before(c_, c_.clean_query_lengths(), sample_, 1));
    add(model_.keys, Half::kClean, 0, mask.clean_kv_len, kClean,
        rows_before(c_, c_.key_lengths(), sample_, 1));
  }

  void build_sequence() {
    SampleMask& mask = model_.mask;
    mask.clean_q_len = value_of(c_.seqused, sample_, c_.lengths[sample_]);
    mask.clean_q_position = value_of(c_.q_offsets, sample_, c_.q_offset);
    mask.clean_kv_len = value_of(c_.seqused_kv, sample_, c_.key_lengths()[sample_]);
    add(model_.queries, Half::kClean, 0, mask.clean_q_len, kFirst,
        rows_before(c_, c_.lengths, sample_, 1));
    add(model_.keys, Half::kClean, 0, mask.clean_kv_len, kFirst,
        rows_before(c_, c_.key_lengths(), sample_, 1));
  }

  const Case& c_;
  int sample_;
  std::int64_t batch_ = 0;
  SampleModel model_;
};

}  // namespace

bool SampleModel::visible(const Place& query, const Place& key) const {
  return reference::visible(mask, query.token.half, query.token.view, query.token.index,
                            key.token.half, key.token.view, key.token.index);
}

std::vector<SampleModel> samples_of(const Case& c) {
  std::vector<SampleModel> samples;
  for (int i = 0; i < c.batch(); ++i) samples.push_back(Builder(c, i).build());
  return samples;
}

std::string to_string(const Place& place) {
  const std::string at = place.token.half == Half::kNoisy
                             ? fmt::format("noisy {}:{}", place.token.view, place.token.index)
                             : fmt::format("clean {}", place.token.index);
  return fmt::format("{} (row {} of batch {})", at, place.row, place.batch);
}

}  // namespace stepwell::testing
