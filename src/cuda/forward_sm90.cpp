#include "cuda/forward_sm90.hpp"

#include <limits>

#include "cuda/joint_tensors.hpp"
#include "cuda/parameters.hpp"

namespace stepwell::cuda {

using geometry::Half;

namespace {

/// Strips that packed samples can have at most, whatever their lengths are; one or more where there
/// are rows.
std::int64_t packed_strips(const AttentionProblem& problem) {
  const std::int64_t rows = problem.layout.joint_rows;
  if (rows == 0) return 0;
  return (rows / 2 / kStripRows + problem.layout.batch + 1) * problem.heads_q;
}

}  // namespace

Refusal refusal_of_forward_sm90(const AttentionProblem& problem, const DeviceLimits& limits) {
  if (const Refusal refusal = refusal_of_sm90(problem, limits)) return refusal;
  // The clean strip waits while the noisy one is at keys of its own half: two tiles at most.
  if (problem.layout.mask.block_size > kSm90TileKeys) return "blocks of more than 128 tokens";
  if (problem.softmax_scale < 0.0) return "a negative softmax_scale";
  if ((problem.layout.packed() &&
       packed_strips(problem) > std::numeric_limits<std::int32_t>::max()) ||
      !has_map(problem, problem.halves[0].out, problem.heads_q)) {
    return kNoTensorMap;
  }
  return nullptr;
}

ForwardSm90Config forward_sm90_config(const AttentionProblem& problem) {
  return {.head_dim = sm90_head_dim(problem),
          .element = element_of(problem),
          .small_blocks = 64 % problem.layout.mask.block_size == 0,
          .packed = problem.layout.packed()};
}

ForwardSm90Params forward_sm90_params(const AttentionProblem& problem,
                                      const ForwardSm90Config& config, const Launcher& launcher) {
  const geometry::Layout& layout = problem.layout;
  ForwardSm90Params p;
  if (config.packed) {
    p.layout = kernel_layout(problem);
    p.cached_rows = cached_key_rows(problem);
    p.ctas = persistent_ctas(packed_strips(problem), launcher.limits());
  } else {
    p.grid = strip_grid(problem, kStripRows);
    p.ctas = persistent_ctas(p.grid.ctas(), launcher.limits());
  }
  if (p.ctas == 0) return p;
  const auto slabs = static_cast<unsigned>(config.slabs());
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    const int h = static_cast<int>(half);
    const HalfTensors& tensors = problem.halves[0];
    const auto map = [&](const Rows& rows, int heads, int dim, unsigned box_rows,
                         unsigned box_slabs) {
      return launcher.tensor_map(tiled_half(problem, rows, half, heads, dim, box_rows, box_slabs));
    };
    p.q[h] = map(tensors.q, problem.heads_q, problem.head_dim, kStripRows, slabs);
    p.out[h] = map(tensors.out, problem.heads_q, problem.head_dim_v, kStripRows, slabs);
    p.k[h] = map(tensors.k, problem.heads_kv, problem.head_dim, kSm90TileKeys, slabs);
    p.v[h] = map(tensors.v, problem.heads_kv, problem.head_dim_v, kSm90TileKeys, slabs);
    if (config.small_blocks) {
      p.k_part[h] = map(tensors.k, problem.heads_kv, problem.head_dim, 64, 1);
      p.v_part[h] = map(tensors.v, problem.heads_kv, problem.head_dim_v, 64, 1);
    }
    p.lse[h] = float_rows(tensors.lse);
    set_rows(tensors.out, p.out_rows[h]);
    p.first_row[h] = first_row(layout, half);
  }
  set_joint_layout(problem, p);
  p.heads_q = problem.heads_q;
  p.heads_kv = problem.heads_kv;
  p.head_dim_v = problem.head_dim_v;
  p.scale_log2 = positive_magnitude(scales_of(problem));
  return p;
}

}  // namespace stepwell::cuda
