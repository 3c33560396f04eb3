#include "cuda/backend.hpp"

#include "core/check.hpp"
#include "cuda/configurations.hpp"
#include "cuda/forward_sm90.hpp"
#include "cuda/parameters.hpp"

namespace stepwell::cuda {
namespace {

KernelTraits traits_of(const AttentionProblem& problem) {
  STEPWELL_CHECK(problem.dtype != DType::kFloat32, kNotImplemented,
                 "float32 on CUDA; accepted: bfloat16, float16");
  return {.head_dim = problem.head_dim,
          .head_dim_v = problem.head_dim_v,
          .element = problem.dtype == DType::kBFloat16 ? Element::kBFloat16 : Element::kFloat16,
          .softcap = problem.softcap > 0.0,
          .dropout = problem.dropout_p > 0.0};
}

template <typename Params>
void launch(const AttentionKernel& kernel, const Params& params, Launcher& launcher) {
  const std::int64_t ctas = params.grid.ctas();
  if (ctas > 0) launcher.launch(kernel, ctas, &params, sizeof(params));
}

}  // namespace

std::size_t forward_workspace_bytes(const AttentionProblem&) { return 0; }

std::size_t backward_workspace_bytes(const AttentionProblem& problem) {
  return workspace_bytes(problem, native_head_dim(problem.head_dim));
}

void forward(const AttentionProblem& problem, Launcher& launcher) {
  const KernelTraits traits = traits_of(problem);
  if (forward_sm90_takes(problem, launcher.limits())) {
    const ForwardSm90Config config = forward_sm90_config(problem);
    const ForwardSm90Params params = forward_sm90_params(problem, config, launcher);
    if (params.grid.ctas() > 0) {
      launcher.launch(ForwardSm90Kernel{config}, params.ctas, &params, sizeof(params));
    }
    return;
  }
  const ForwardConfig config = forward_config(traits, launcher.limits());
  launch(ForwardKernel{config}, forward_params(problem, config), launcher);
}

void backward(const AttentionProblem& problem, std::byte* workspace, Launcher& launcher) {
  const KernelTraits traits = traits_of(problem);
  const BackwardConfig config = backward_config(traits, launcher.limits());
  BackwardParams params = backward_params(problem, config, workspace);

  const RowsConfig prepare = prepare_config(traits);
  params.grid = query_grid(problem, prepare.tile_rows());
  launch(PrepareKernel{prepare}, params, launcher);

  params.grid = key_grid(problem, config.tile_kv);
  launch(BackwardKernel{config}, params, launcher);

  const RowsConfig finish = finish_config(traits);
  params.grid = query_grid(problem, finish.tile_rows());
  launch(FinishKernel{finish}, params, launcher);
}

std::vector<AttentionKernel> forward_kernels(const AttentionProblem& problem,
                                             const DeviceLimits& limits) {
  const KernelTraits traits = traits_of(problem);
  if (forward_sm90_takes(problem, limits)) return {ForwardSm90Kernel{forward_sm90_config(problem)}};
  return {ForwardKernel{forward_config(traits, limits)}};
}

std::vector<AttentionKernel> backward_kernels(const AttentionProblem& problem,
                                              const DeviceLimits& limits) {
  const KernelTraits traits = traits_of(problem);
  return {PrepareKernel{prepare_config(traits)}, BackwardKernel{backward_config(traits, limits)},
          FinishKernel{finish_config(traits)}};
}

std::string describe_forward(const AttentionProblem& problem, const DeviceLimits& limits) {
  const KernelTraits traits = traits_of(problem);
  if (forward_sm90_takes(problem, limits)) {
    return fmt::format("cuda {}, 12 warps, persistent CTAs",
                       spec_of(ForwardSm90Kernel{forward_sm90_config(problem)}).name);
  }
  const ForwardConfig config = forward_config(traits, limits);
  return fmt::format("cuda {}, {} warps, {} CTAs an SM", spec_of(ForwardKernel{config}).name,
                     config.warps, config.ctas_per_sm);
}

std::string describe_backward(const AttentionProblem& problem, const DeviceLimits& limits) {
  const BackwardConfig config = backward_config(traits_of(problem), limits);
  return fmt::format("cuda {}, {} warps, {} CTAs an SM", spec_of(BackwardKernel{config}).name,
                     config.warps, config.ctas_per_sm);
}

}  // namespace stepwell::cuda
