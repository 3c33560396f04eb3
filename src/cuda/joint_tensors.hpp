// Joint layouts as the kernels for sm_90a take them, and the tensor maps of their halves.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/limits.hpp"
#include "cuda/maps.hpp"
#include "cuda/refusal.hpp"
#include "cuda/tensor_map.hpp"

namespace stepwell::cuda {

/// Why kernels of joint layouts do not take a problem. They need a GPU with warpgroups, a joint
/// layout of one view, blocks from position 0, clean rows that see blocks or their past, 16 bits,
/// head dims up to 128, q, k and v that tensor maps can describe, no softcap and no dropout.
Refusal refusal_of_sm90(const AttentionProblem& problem, const DeviceLimits& limits);

/// Of those kernels: 64 or 128, at least those of q, k and v.
int sm90_head_dim(const AttentionProblem& problem);

/// What the parameters of those kernels say of the layout and its mask, but for each half.
template <typename Params>
void set_joint_layout(const AttentionProblem& problem, Params& p) {
  const geometry::Layout& layout = problem.layout;
  p.lengths = layout.seqused_noisy;  // joint layouts: of both halves
  p.by_block = geometry::make_divisor(layout.mask.block_size);
  p.block_size = layout.mask.block_size;
  p.clean_causal = layout.mask.clean == geometry::CleanRule::kCausal;
  p.noisy_causal = layout.mask.noisy == geometry::NoisyRule::kCausal;
  p.qk_by_slab = is_by_slab(problem.head_dim);
  p.v_by_slab = is_by_slab(problem.head_dim_v);
  p.rows = static_cast<std::int32_t>(layout.part_rows());
}

/// Whether tensor maps can describe the halves of `rows`.
bool has_map(const AttentionProblem& problem, const Rows& rows, int heads);

/// The first row of a half in the joint tensors; 0 where samples are packed, each with halves of
/// its own.
std::int64_t first_row(const geometry::Layout& layout, geometry::Half half);

/// What the map of a half is made from (tiled_rows). Of packed samples it has all rows of the
/// tensor, and one sample.
TiledTensor tiled_half(const AttentionProblem& problem, const Rows& rows, geometry::Half half,
                       int heads, int dim, unsigned box_rows, unsigned box_slabs);

}  // namespace stepwell::cuda
