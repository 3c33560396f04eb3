// Masks: which keys each query row sees. docs/masks.md gives the formulas.
#pragma once

#include <cstdint>
#include <limits>
#include <variant>

namespace stepwell {

/// Which half comes first in a joint `[noisy | clean]` tensor.
enum class Order { kNoisyClean, kCleanNoisy };
/// Clean rows see the clean tokens up to the end of their block, or up to themselves.
enum class CleanAttention { kBlock, kCausal };
/// Noisy rows see all noisy tokens of their block, or those up to themselves.
enum class NoisyAttention { kBidirectional, kCausal };

/// Block diffusion training on noisy and clean copies of the same tokens (BD3-LM,
/// arXiv:2503.09573). A noisy row sees its own block among the noisy tokens and the clean tokens
/// before its block; a clean row sees clean tokens only.
struct DiffusionMask {
  std::int64_t block_size = 0;  ///< tokens of a diffusion block, >= 1
  Order order = Order::kNoisyClean;
  CleanAttention clean = CleanAttention::kBlock;
  NoisyAttention noisy = NoisyAttention::kBidirectional;
  /// Noisy rows see only the clean tokens `[start - clean_window + 1, start)` before their block's
  /// start; 0: all of them. Clean rows have no window.
  std::int64_t clean_window = 0;
  std::int64_t num_views = 1;  ///< noisy copies that share one clean half
  friend bool operator==(const DiffusionMask&, const DiffusionMask&) = default;
};

/// Masks of one sequence of keys. A query row of index i has position `q_offset + i`.
struct SequenceMask {
  enum class Kind {
    kFull,         ///< every key
    kCausal,       ///< keys up to the row's position
    kWindow,       ///< keys in [position - window_left, position + window_right]
    kBlockCausal,  ///< keys up to the end of the row's block
  };
  Kind kind = Kind::kFull;
  std::int64_t block_size = 1;                                           ///< kBlockCausal
  std::int64_t window_left = std::numeric_limits<std::int64_t>::max();   ///< kWindow; max: no bound
  std::int64_t window_right = std::numeric_limits<std::int64_t>::max();  ///< kWindow; max: no bound
  friend bool operator==(const SequenceMask&, const SequenceMask&) = default;
};

using Mask = std::variant<DiffusionMask, SequenceMask>;

}  // namespace stepwell
