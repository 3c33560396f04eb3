#include "cuda/forward_sm90.hpp"

#include <algorithm>

#include "cuda/joint_tensors.hpp"
#include "cuda/parameters.hpp"

namespace stepwell::cuda {
namespace {

using geometry::Half;

// One CTA on each SM; where their number is not known, any will do.
constexpr int kUnknownSms = 132;

}  // namespace

bool forward_sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits) {
  const bool dims = problem.head_dim == 128 ? problem.head_dim_v == 128
                                            : problem.head_dim <= 64 && problem.head_dim_v <= 64;
  const HalfTensors& tensors = problem.halves[0];  // joint: those of both halves
  return limits.warpgroups && problem.softmax_scale >= 0.0 && is_joint_of_one_view(problem) &&
         dims && problem.softcap == 0.0 && problem.dropout_p == 0.0 &&
         has_map(problem, tensors.q, problem.heads_q) &&
         has_map(problem, tensors.k, problem.heads_kv) &&
         has_map(problem, tensors.v, problem.heads_kv) &&
         has_map(problem, tensors.out, problem.heads_q);
}

ForwardSm90Config forward_sm90_config(const AttentionProblem& problem) {
  return {.head_dim = problem.head_dim == 128 ? 128 : 64,
          .element = problem.dtype == DType::kBFloat16 ? Element::kBFloat16 : Element::kFloat16,
          .small_blocks = 64 % problem.layout.mask.block_size == 0};
}

ForwardSm90Params forward_sm90_params(const AttentionProblem& problem,
                                      const ForwardSm90Config& config, const Launcher& launcher) {
  const geometry::Layout& layout = problem.layout;
  ForwardSm90Params p;
  p.grid = strip_grid(problem, kStripRows);
  if (p.grid.ctas() == 0) return p;
  const int sms = launcher.limits().sms;
  p.ctas = static_cast<i32>(std::min<i64>(p.grid.ctas(), sms > 0 ? sms : kUnknownSms));
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
    p.k_part[h] = map(tensors.k, problem.heads_kv, problem.head_dim, 64, 1);
    p.v_part[h] = map(tensors.v, problem.heads_kv, problem.head_dim_v, 64, 1);
    p.lse[h] = float_rows(tensors.lse);
    set_rows(tensors.out, p.out_rows[h]);
    p.first_row[h] = first_row(layout, half);
  }
  p.lengths = layout.seqused_noisy;  // joint layouts: of both halves
  p.by_block = geometry::make_divisor(layout.mask.block_size);
  p.rows = static_cast<i32>(layout.part_rows());
  p.block_size = layout.mask.block_size;
  p.clean_causal = layout.mask.clean == geometry::CleanRule::kCausal;
  p.noisy_causal = layout.mask.noisy == geometry::NoisyRule::kCausal;
  p.heads_kv = problem.heads_kv;
  p.head_dim_v = problem.head_dim_v;
  p.scale_log2 = positive_magnitude(scales_of(problem));
  return p;
}

}  // namespace stepwell::cuda
