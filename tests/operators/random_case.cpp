#include <algorithm>

#include "operators/cases.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

int between(Random& random, std::int64_t low, std::int64_t high) {
  return static_cast<int>(random.between(low, high));
}

std::vector<int> random_lengths(Random& random, int batch, bool packed, int longest) {
  std::vector<int> lengths(batch, between(random, 0, longest));
  if (!packed) return lengths;
  for (int& length : lengths) length = random.chance(0.2) ? 0 : between(random, 1, longest);
  return lengths;
}

std::vector<int> random_values(Random& random, int batch, int highest) {
  std::vector<int> values(batch);
  for (int& value : values) value = between(random, 0, highest);
  return values;
}

std::vector<int> random_used(Random& random, const std::vector<int>& lengths) {
  std::vector<int> used;
  for (const int length : lengths) used.push_back(between(random, 0, length));
  return used;
}

SequenceMask random_sequence_mask(Random& random) {
  using Kind = SequenceMask::Kind;
  SequenceMask mask;
  mask.kind = random.pick({Kind::kFull, Kind::kCausal, Kind::kWindow, Kind::kBlockCausal});
  if (mask.kind == Kind::kBlockCausal) mask.block_size = random.between(1, 40);
  if (mask.kind == Kind::kWindow) {
    if (random.chance(0.8)) mask.window_left = random.between(0, 60);
    if (random.chance(0.8)) mask.window_right = random.between(0, 30);
  }
  return mask;
}

void fill_sequence(Random& random, Case& c, int longest) {
  const auto mask = random_sequence_mask(random);
  c.mask = mask;
  c.packed = random.chance(0.5);
  c.lengths = random_lengths(random, c.batch(), c.packed, longest);
  if (random.chance(0.6)) c.clean_lengths = random_lengths(random, c.batch(), c.packed, longest);
  if (random.chance(0.3)) {
    c.q_offset = between(random, 0, longest);
  } else if (random.chance(0.3)) {
    c.q_offsets = random_values(random, c.batch(), longest);
  }
  if (random.chance(0.3)) c.seqused = random_used(random, c.lengths);
  if (random.chance(0.3)) c.seqused_kv = random_used(random, c.key_lengths());
  if (mask.kind == SequenceMask::Kind::kBlockCausal && random.chance(0.4))
    c.prefix_lens = random_values(random, c.batch(), longest);
}

void fill_ranges(Random& random, Case& c, const DiffusionMask& mask) {
  const auto b = static_cast<int>(mask.block_size);
  for (const int length : c.lengths) c.num_blocks = std::max(c.num_blocks, (length + b - 1) / b);
  c.num_blocks += between(random, 0, 2);
  for (int i = 0; i < c.batch(); ++i) {
    for (int j = 0; j < c.num_blocks; ++j) {
      const int low = between(random, 0, c.key_lengths()[i]);
      c.block_ranges.push_back(low);
      c.block_ranges.push_back(between(random, low, c.key_lengths()[i]));
    }
  }
}

void fill_split(Random& random, Case& c, DiffusionMask& mask, int longest) {
  mask.order = Order::kNoisyClean;
  c.packed = random.chance(0.5);
  c.lengths = random_lengths(random, c.batch(), c.packed, longest);
  c.clean_lengths = random_lengths(random, c.batch(), c.packed, longest);
  c.clean_queries = random.chance(0.7);
  if (random.chance(0.5)) c.noisy_offsets = random_values(random, c.batch(), longest);
  if (c.clean_queries && random.chance(0.4)) {
    c.clean_q_lengths = random_lengths(random, c.batch(), c.packed, longest);
    c.q_offsets = random_values(random, c.batch(), longest);
  }
  if (random.chance(0.3)) c.seqused = random_used(random, c.lengths);
  if (random.chance(0.3)) c.seqused_clean = random_used(random, c.clean_lengths);
  if (random.chance(0.3) && c.batch() > 0) {
    mask.num_views = 1;
    mask.clean_window = 0;
    fill_ranges(random, c, mask);
  } else if (random.chance(0.4)) {
    c.prefix_lens = random_values(random, c.batch(), longest);
  }
}

}  // namespace

Case random_case(std::uint64_t seed) {
  Random random(seed);
  Case c;
  c.name = "random" + std::to_string(seed);
  c.lengths.resize(between(random, 1, 4));  // fixes the batch size
  const int longest = random.pick({6, 20, 70, 140});
  c.tail = random.chance(0.4) ? between(random, 1, 5) : 0;
  c.layout = random.pick({TokenLayout::kBatched, TokenLayout::kInterleaved, TokenLayout::kHalves,
                          TokenLayout::kSplit, TokenLayout::kSequence});
  if (c.layout == TokenLayout::kSequence) {
    fill_sequence(random, c, longest);
  } else {
    DiffusionMask mask;
    mask.block_size = random.chance(0.8) ? random.between(1, 34) : random.between(35, 300);
    mask.clean = random.pick({CleanAttention::kBlock, CleanAttention::kCausal});
    mask.noisy = random.pick({NoisyAttention::kBidirectional, NoisyAttention::kCausal});
    mask.order = random.pick({Order::kNoisyClean, Order::kCleanNoisy});
    mask.clean_window = random.chance(0.25) ? random.between(1, 2 * longest) : 0;
    mask.num_views = random.chance(0.3) ? random.between(2, 3) : 1;
    if (c.layout == TokenLayout::kSplit) {
      fill_split(random, c, mask, longest);
    } else {
      c.lengths = random_lengths(random, c.batch(), c.is_packed(), longest);
      if (random.chance(0.3)) c.seqused = random_used(random, c.lengths);
      if (random.chance(0.4)) c.prefix_lens = random_values(random, c.batch(), longest);
    }
    c.mask = mask;
  }
  c.heads_kv = between(random, 1, 3);
  c.heads_q = c.heads_kv * random.pick({1, 1, 2, 3, 4, 7});
  c.head_dim = 8 * between(random, 1, random.chance(0.8) ? 12 : 32);
  c.head_dim_v = random.chance(0.6) ? c.head_dim : 8 * between(random, 1, 20);
  c.dtype = random.pick({DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  c.memory = random.pick({Memory::kContiguous, Memory::kFusedQkv, Memory::kPaddedHeads,
                          Memory::kHeadsFirst, Memory::kUnaligned, Memory::kOddStrides});
  c.expanded_dout = random.chance(0.1);
  c.with_dlse = random.chance(0.6);
  if (random.chance(0.2)) c.softcap = 0.5 + 20.0 * random.uniform();
  if (random.chance(0.2)) c.softmax_scale = random.uniform();
  if (random.chance(0.2)) {
    c.dropout_p = random.uniform() * 0.9;
    c.dropout_seed = random.between(0, 1ll << 62);
    c.dropout_tensor = random.chance(0.3);
  }
  c.deterministic = random.chance(0.2);
  return c;
}

}  // namespace stepwell::testing
