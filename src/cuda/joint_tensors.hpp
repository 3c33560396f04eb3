// Joint layouts as the kernels for sm_90a take them, and the tensor maps of their halves.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/tensor_map.hpp"

namespace stepwell::cuda {

/// 16 bits, one view, not packed, blocks from position 0, clean rows that see blocks or their past.
bool is_joint_of_one_view(const AttentionProblem& problem);

/// Whether tensor maps can describe the halves of `rows`.
bool has_map(const AttentionProblem& problem, const Rows& rows, int heads);

/// The first row of a half in the joint tensors.
std::int64_t first_row(const geometry::Layout& layout, geometry::Half half);

/// What the map of a half is made from, with the dimensions 64 dims of a slab, row of the half,
/// slab, head and sample.
TiledTensor tiled_half(const AttentionProblem& problem, const Rows& rows, geometry::Half half,
                       int heads, int dim, unsigned box_rows, unsigned box_slabs);

}  // namespace stepwell::cuda
