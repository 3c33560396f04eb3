#include "cuda/forward_walk_sm90.hpp"

#include <algorithm>
#include <limits>

#include "cuda/maps.hpp"
#include "cuda/parameters.hpp"

namespace stepwell::cuda {

using geometry::Half;

namespace {

/// Whether rows of a half have a map; where there are none, none is needed.
bool fits(const AttentionProblem& problem, const Rows& rows, Half half, bool keys, int heads) {
  const std::int64_t count = tensor_rows(problem.layout, half, keys);
  return count == 0 || problem.layout.batch == 0 ||
         (count <= std::numeric_limits<std::int32_t>::max() &&
          has_map(rows, count, heads, map_batch(problem.layout)));
}

}  // namespace

bool has_forward_walk_sm90(const KernelTraits& traits) {
  return traits.element != Element::kFloat32 &&
         (!traits.dropout || std::max(traits.head_dim, traits.head_dim_v) <= 192);
}

Refusal refusal_of_forward_walk_sm90(const AttentionProblem& problem, const DeviceLimits& limits) {
  if (problem.dtype == DType::kFloat32) return "float32";
  if (!limits.warpgroups) return kNoWarpgroups;
  if (!has_forward_walk_sm90(traits_of(problem))) return "dropout with a head dim past 192";
  if (problem.softmax_scale < 0.0 && problem.softcap == 0.0) {
    return "a negative softmax_scale without softcap";
  }
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    const HalfTensors& tensors = problem.half(half);
    if (!fits(problem, tensors.q, half, false, problem.heads_q) ||
        !fits(problem, tensors.out, half, false, problem.heads_q) ||
        !fits(problem, tensors.k, half, true, problem.heads_kv) ||
        !fits(problem, tensors.v, half, true, problem.heads_kv)) {
      return kNoTensorMap;
    }
  }
  return nullptr;
}

ForwardWalkSm90Config forward_walk_sm90_config(const KernelTraits& traits) {
  const int dim = std::max(traits.head_dim, traits.head_dim_v);
  return {.head_dim = (dim + 63) / 64 * 64,
          .element = traits.element,
          .softcap = traits.softcap,
          .dropout = traits.dropout};
}

ForwardWalkSm90Params forward_walk_sm90_params(const AttentionProblem& problem,
                                               const ForwardWalkSm90Config& config,
                                               const Launcher& launcher) {
  const geometry::Layout& layout = problem.layout;
  ForwardWalkSm90Params p;
  p.call = forward_params(problem, kWalkRows);
  if (p.call.grid.ctas() == 0) return p;
  p.ctas = persistent_ctas(p.call.grid.ctas(), launcher.limits());
  const auto slabs = static_cast<unsigned>(config.slabs());
  const auto keys = static_cast<unsigned>(config.tile_keys());
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    const int h = static_cast<int>(half);
    const HalfTensors& tensors = problem.half(half);
    const auto map = [&](const Rows& rows, bool of_keys, int heads, int dim, unsigned box_rows) {
      const std::int64_t count = tensor_rows(layout, half, of_keys);
      if (count == 0) return TensorMap{};
      return launcher.tensor_map(
          tiled_rows(rows, 0, count, heads, map_batch(layout), dim, box_rows, slabs));
    };
    p.q[h] = map(tensors.q, false, problem.heads_q, problem.head_dim, 64);
    p.k[h] = map(tensors.k, true, problem.heads_kv, problem.head_dim, keys);
    p.v[h] = map(tensors.v, true, problem.heads_kv, problem.head_dim_v, keys);
  }
  p.qk_by_slab = is_by_slab(problem.head_dim);
  p.v_by_slab = is_by_slab(problem.head_dim_v);
  p.padding =
      layout.packed() || layout.seqused_noisy != nullptr || layout.seqused_clean_q != nullptr;
  return p;
}

}  // namespace stepwell::cuda
