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

bool is_joint_of_one_view(const AttentionProblem& problem) {
  const geometry::Layout& layout = problem.layout;
  const geometry::SampleMask& mask = layout.mask;
  return problem.dtype != DType::kFloat32 && layout.packing != Packing::kSplit &&
         layout.joint_rows <= std::numeric_limits<std::int32_t>::max() && mask.num_views == 1 &&
         mask.clean_window == 0 && mask.origin == 0 && mask.block_ranges == nullptr &&
         layout.origins == nullptr &&
         (mask.clean == CleanRule::kBlock || mask.clean == CleanRule::kCausal);
}

}  // namespace

bool sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits) {
  const bool dims = problem.head_dim <= 128 && problem.head_dim_v <= 128;
  const HalfTensors& tensors = problem.halves[0];  // joint: those of both halves
  return limits.warpgroups && is_joint_of_one_view(problem) && dims && problem.softcap == 0.0 &&
         problem.dropout_p == 0.0 && has_map(problem, tensors.q, problem.heads_q) &&
         has_map(problem, tensors.k, problem.heads_kv) &&
         has_map(problem, tensors.v, problem.heads_kv);
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
