// attention_forward_walk_sm90 on the host: which problems it takes, and what it gets for them.
#pragma once

#include "core/problem.hpp"
#include "cuda/attention/forward_walk_sm90_config.hpp"
#include "cuda/configurations.hpp"
#include "cuda/launcher.hpp"
#include "cuda/refusal.hpp"

namespace stepwell::cuda {

/// Whether there is a kernel: 16 bits, and no dropout past head dim 192, where registers are short.
bool has_forward_walk_sm90(const KernelTraits& traits);

/// Why the kernel does not do this problem on a GPU of these limits. It does any mask and layout,
/// of traits that there is a kernel for, with tensors that tensor maps can describe and no negative
/// softmax_scale beside no softcap. Other problems are attention_forward_sm80's.
Refusal refusal_of_forward_walk_sm90(const AttentionProblem& problem, const DeviceLimits& limits);
inline bool forward_walk_sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits) {
  return refusal_of_forward_walk_sm90(problem, limits) == nullptr;
}

ForwardWalkSm90Config forward_walk_sm90_config(const KernelTraits& traits);

/// No CTAs where there is nothing to write.
ForwardWalkSm90Params forward_walk_sm90_params(const AttentionProblem& problem,
                                               const ForwardWalkSm90Config& config,
                                               const Launcher& launcher);

}  // namespace stepwell::cuda
