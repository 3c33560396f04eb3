#include "cuda/joint_tensors.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace stepwell::cuda {
namespace {

using geometry::CleanRule;
using geometry::Half;
using geometry::Packing;

constexpr int kSlabDims = 64;  // of a slab in shared memory

/// Of the mask and the layout.
Refusal not_joint_of_one_view(const AttentionProblem& problem) {
  const geometry::Layout& layout = problem.layout;
  const geometry::SampleMask& mask = layout.mask;
  if (layout.packing == Packing::kSplit || mask.num_views == 0 ||
      (mask.clean != CleanRule::kBlock && mask.clean != CleanRule::kCausal)) {
    return "not a joint [noisy | clean] layout with block diffusion's mask";
  }
  if (mask.num_views > 1) return "more than one view";
  if (mask.clean_window > 0) return "a window";
  if (mask.origin != 0 || layout.origins != nullptr) return "blocks that do not start at 0";
  if (mask.block_ranges != nullptr) return "a table of blocks";
  return nullptr;
}

}  // namespace

Refusal refusal_of_sm90(const AttentionProblem& problem, const DeviceLimits& limits) {
  const HalfTensors& tensors = problem.halves[0];  // joint: those of both halves
  if (problem.dtype == DType::kFloat32) return "float32";
  if (!limits.warpgroups) return kNoWarpgroups;
  if (const Refusal refusal = not_joint_of_one_view(problem)) return refusal;
  if (problem.softcap != 0.0) return "softcap";
  if (problem.dropout_p != 0.0) return "dropout";
  if (std::max(problem.head_dim, problem.head_dim_v) > 128) return "a head dim past 128";
  if (problem.layout.joint_rows > std::numeric_limits<std::int32_t>::max() ||
      !has_map(problem, tensors.q, problem.heads_q) ||
      !has_map(problem, tensors.k, problem.heads_kv) ||
      !has_map(problem, tensors.v, problem.heads_kv)) {
    return kNoTensorMap;
  }
  return nullptr;
}

int sm90_head_dim(const AttentionProblem& problem) {
  return std::max(problem.head_dim, problem.head_dim_v) > kSlabDims ? 128 : 64;
}

bool has_map(const AttentionProblem& problem, const Rows& rows, int heads) {
  return has_map(rows, problem.layout.joint_rows, heads, map_batch(problem.layout));
}

std::int64_t first_row(const geometry::Layout& layout, Half half) {
  if (layout.packed()) return 0;
  return (half == Half::kClean) == layout.clean_first ? 0 : layout.part_rows();
}

TiledTensor tiled_half(const AttentionProblem& problem, const Rows& rows, Half half, int heads,
                       int dim, unsigned box_rows, unsigned box_slabs) {
  const geometry::Layout& layout = problem.layout;
  const std::int64_t count = layout.packed() ? layout.joint_rows : layout.part_rows();
  return tiled_rows(rows, first_row(layout, half), count, heads, map_batch(layout), dim, box_rows,
                    box_slabs);
}

}  // namespace stepwell::cuda
