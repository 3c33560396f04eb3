#include "cuda/forward_sm90.hpp"

#include "cuda/joint_tensors.hpp"
#include "cuda/parameters.hpp"

namespace stepwell::cuda {

using geometry::Half;

bool forward_sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits) {
  return sm90_takes(problem, limits) && problem.softmax_scale >= 0.0 &&
         has_map(problem, problem.halves[0].out, problem.heads_q);
}

ForwardSm90Config forward_sm90_config(const AttentionProblem& problem) {
  return {.head_dim = sm90_head_dim(problem),
          .element = element_of(problem),
          .small_blocks = 64 % problem.layout.mask.block_size == 0};
}

ForwardSm90Params forward_sm90_params(const AttentionProblem& problem,
                                      const ForwardSm90Config& config, const Launcher& launcher) {
  const geometry::Layout& layout = problem.layout;
  ForwardSm90Params p;
  p.grid = strip_grid(problem, kStripRows);
  if (p.grid.ctas() == 0) return p;
  p.ctas = persistent_ctas(p.grid.ctas(), launcher.limits());
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
  p.heads_kv = problem.heads_kv;
  p.head_dim_v = problem.head_dim_v;
  p.scale_log2 = positive_magnitude(scales_of(problem));
  return p;
}

}  // namespace stepwell::cuda
