#include "cuda/backend.hpp"

#include "core/check.hpp"
#include "cuda/backward_sm90.hpp"
#include "cuda/configurations.hpp"
#include "cuda/forward_sm90.hpp"
#include "cuda/forward_walk_sm90.hpp"
#include "cuda/parameters.hpp"

namespace stepwell::cuda {
namespace {

std::string describe(const AttentionKernel& kernel, int warps, int ctas_per_sm) {
  return fmt::format("{}, {} warps, {} CTAs an SM", spec_of(kernel).name, warps, ctas_per_sm);
}

std::string describe_persistent(const AttentionKernel& kernel, int threads) {
  return fmt::format("{}, {} warps, persistent CTAs", spec_of(kernel).name, threads / 32);
}

/// Of a kernel that would have come first on this GPU.
std::string because(const char* kernel, Refusal refusal, const DeviceLimits& limits) {
  return limits.warpgroups ? fmt::format("; not {}: {}", kernel, refusal) : "";
}

bool is_f32(const AttentionProblem& problem) { return problem.dtype == DType::kFloat32; }

template <typename Params>
void launch(const AttentionKernel& kernel, const Params& params, Launcher& launcher) {
  const std::int64_t ctas = params.grid.ctas();
  if (ctas > 0) launcher.launch(kernel, ctas, &params, sizeof(params));
}

/// Of kernels for sm_90a, whose parameters say how many CTAs there are.
template <typename Params>
void launch_ctas(const AttentionKernel& kernel, const Params& params, Launcher& launcher) {
  if (params.ctas > 0) launcher.launch(kernel, params.ctas, &params, sizeof(params));
}

void backward_f32(const AttentionProblem& problem, std::byte* workspace, Launcher& launcher) {
  const KernelTraits traits = traits_of(problem);
  BackwardParamsF32 params = backward_params_f32(problem, workspace);

  const F32Config dq = backward_dq_f32_config(traits, launcher.limits());
  params.grid = query_grid(problem, dq.tile_rows());
  launch(BackwardDqF32Kernel{dq}, params, launcher);

  const F32Config dkv = backward_dkv_f32_config(traits, launcher.limits());
  params.grid = key_grid(problem, dkv.tile_rows());
  launch(BackwardDkvF32Kernel{dkv}, params, launcher);
}

void backward_sm90(const AttentionProblem& problem, std::byte* workspace, Launcher& launcher) {
  const BackwardSm90Config config = backward_sm90_config(problem);
  BackwardSm90Launches launches = backward_sm90_params(problem, config, workspace, launcher);
  launch_ctas(BackwardRowsSm90Kernel{backward_rows_sm90_config(problem)}, launches.rows, launcher);
  launch_ctas(BackwardSm90Kernel{config}, launches.main, launcher);
  const RowsConfig finish = finish_sm90_config(problem);
  launches.finish.grid = query_grid(problem, finish.tile_rows());
  launch(FinishKernel{finish}, launches.finish, launcher);
}

}  // namespace

std::size_t forward_workspace_bytes(const AttentionProblem&) { return 0; }

std::size_t backward_workspace_bytes(const AttentionProblem& problem, const DeviceLimits& limits) {
  if (is_f32(problem)) return workspace_bytes_f32(problem);
  if (backward_sm90_takes(problem, limits)) return backward_sm90_workspace_bytes(problem);
  return workspace_bytes(problem, problem.deterministic ? 0 : native_head_dim(problem.head_dim));
}

void forward(const AttentionProblem& problem, Launcher& launcher) {
  if (is_f32(problem)) {
    const F32Config config = forward_f32_config(traits_of(problem), launcher.limits());
    launch(ForwardF32Kernel{config}, forward_params_f32(problem, config), launcher);
    return;
  }
  const DeviceLimits limits = launcher.limits();
  if (forward_sm90_takes(problem, limits)) {
    const ForwardSm90Config config = forward_sm90_config(problem);
    launch_ctas(ForwardSm90Kernel{config}, forward_sm90_params(problem, config, launcher),
                launcher);
    return;
  }
  if (forward_walk_sm90_takes(problem, limits)) {
    const ForwardWalkSm90Config config = forward_walk_sm90_config(traits_of(problem));
    launch_ctas(ForwardWalkSm90Kernel{config}, forward_walk_sm90_params(problem, config, launcher),
                launcher);
    return;
  }
  const ForwardConfig config = forward_config(traits_of(problem), limits);
  launch(ForwardKernel{config}, forward_params(problem, config.tile_q()), launcher);
}

void backward(const AttentionProblem& problem, std::byte* workspace, Launcher& launcher) {
  if (is_f32(problem)) {
    backward_f32(problem, workspace, launcher);
    return;
  }
  const DeviceLimits limits = launcher.limits();
  if (backward_sm90_takes(problem, limits)) {
    backward_sm90(problem, workspace, launcher);
    return;
  }
  const KernelTraits traits = traits_of(problem);
  const BackwardConfig config = backward_config(traits, limits);
  BackwardParams params = backward_params(problem, config, workspace);

  const RowsConfig prepare = prepare_config(traits);
  params.grid = query_grid(problem, prepare.tile_rows());
  launch(PrepareKernel{prepare}, params, launcher);

  params.grid = key_grid(problem, config.tile_kv);
  launch(BackwardKernel{config}, params, launcher);

  if (traits.deterministic) {
    const BackwardDqConfig dq = backward_dq_config(traits, limits);
    params.grid = query_grid(problem, dq.tile_q());
    launch(BackwardDqKernel{dq}, params, launcher);
    return;
  }
  const RowsConfig finish = finish_config(traits);
  params.grid = query_grid(problem, finish.tile_rows());
  launch(FinishKernel{finish}, params, launcher);
}

std::vector<AttentionKernel> forward_kernels(const AttentionProblem& problem,
                                             const DeviceLimits& limits) {
  if (is_f32(problem)) return {ForwardF32Kernel{forward_f32_config(traits_of(problem), limits)}};
  if (forward_sm90_takes(problem, limits)) return {ForwardSm90Kernel{forward_sm90_config(problem)}};
  if (forward_walk_sm90_takes(problem, limits)) {
    return {ForwardWalkSm90Kernel{forward_walk_sm90_config(traits_of(problem))}};
  }
  return {ForwardKernel{forward_config(traits_of(problem), limits)}};
}

std::vector<AttentionKernel> backward_kernels(const AttentionProblem& problem,
                                              const DeviceLimits& limits) {
  const KernelTraits traits = traits_of(problem);
  if (is_f32(problem)) {
    return {BackwardDqF32Kernel{backward_dq_f32_config(traits, limits)},
            BackwardDkvF32Kernel{backward_dkv_f32_config(traits, limits)}};
  }
  if (backward_sm90_takes(problem, limits)) {
    return {BackwardRowsSm90Kernel{backward_rows_sm90_config(problem)},
            BackwardSm90Kernel{backward_sm90_config(problem)},
            FinishKernel{finish_sm90_config(problem)}};
  }
  std::vector<AttentionKernel> kernels{PrepareKernel{prepare_config(traits)},
                                       BackwardKernel{backward_config(traits, limits)}};
  if (traits.deterministic) {
    kernels.emplace_back(BackwardDqKernel{backward_dq_config(traits, limits)});
  } else {
    kernels.emplace_back(FinishKernel{finish_config(traits)});
  }
  return kernels;
}

std::string describe_forward(const AttentionProblem& problem, const DeviceLimits& limits) {
  if (is_f32(problem)) {
    const F32Config config = forward_f32_config(traits_of(problem), limits);
    return "cuda " + describe(ForwardF32Kernel{config}, F32Config::kWarps, config.ctas_per_sm);
  }
  if (forward_sm90_takes(problem, limits)) {
    const ForwardSm90Config config = forward_sm90_config(problem);
    return "cuda " + describe_persistent(ForwardSm90Kernel{config}, config.threads());
  }
  if (forward_walk_sm90_takes(problem, limits)) {
    const ForwardWalkSm90Config config = forward_walk_sm90_config(traits_of(problem));
    return "cuda " + describe_persistent(ForwardWalkSm90Kernel{config}, config.threads()) +
           because("attention_forward_sm90", refusal_of_forward_sm90(problem, limits), limits);
  }
  const ForwardConfig config = forward_config(traits_of(problem), limits);
  return "cuda " + describe(ForwardKernel{config}, config.warps, config.ctas_per_sm) +
         because("attention_forward_walk_sm90", refusal_of_forward_walk_sm90(problem, limits),
                 limits);
}

std::string describe_backward(const AttentionProblem& problem, const DeviceLimits& limits) {
  const KernelTraits traits = traits_of(problem);
  if (is_f32(problem)) {
    const F32Config config = backward_dkv_f32_config(traits, limits);
    return "cuda " + describe(BackwardDkvF32Kernel{config}, F32Config::kWarps, config.ctas_per_sm);
  }
  if (backward_sm90_takes(problem, limits)) {
    const BackwardSm90Config config = backward_sm90_config(problem);
    return "cuda " + describe_persistent(BackwardSm90Kernel{config}, config.threads());
  }
  const BackwardConfig config = backward_config(traits, limits);
  std::string text = "cuda " + describe(BackwardKernel{config}, config.warps, config.ctas_per_sm);
  if (traits.deterministic) {
    const BackwardDqConfig dq = backward_dq_config(traits, limits);
    text += "; " + describe(BackwardDqKernel{dq}, dq.warps, dq.ctas_per_sm);
  }
  return text +
         because("attention_backward_sm90", refusal_of_backward_sm90(problem, limits), limits);
}

}  // namespace stepwell::cuda
