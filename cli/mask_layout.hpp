// The rows that a mask of `stepwell mask` lies over.
#pragma once

#include <memory>
#include <vector>

#include "geometry/layout.hpp"
#include "mask_options.hpp"

namespace stepwell::cli {

/// Layout with the arrays it points to.
struct OwnedLayout {
  geometry::Layout layout;
  std::vector<int> cu_noisy, cu_clean_q, cu_clean_kv;
  std::vector<int> origins, noisy_positions, clean_q_positions;
  std::vector<int> seqused_noisy, seqused_clean_q, seqused_clean_kv;
  std::vector<int> block_ranges;
};

/// The layout of the options. Throws UsageError where the library would refuse the same arguments.
std::unique_ptr<OwnedLayout> layout_of(const MaskOptions& options);

}  // namespace stepwell::cli
