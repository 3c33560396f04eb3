// attention_forward_sm90 on the host: which problems it takes, and what it gets for them.
#pragma once

#include "core/problem.hpp"
#include "cuda/attention/forward_sm90_config.hpp"
#include "cuda/launcher.hpp"
#include "cuda/refusal.hpp"

namespace stepwell::cuda {

/// Why the kernel does not do this problem on a GPU of these limits: refusal_of_sm90(), blocks past
/// a tile of keys, a negative softmax_scale. Other problems are attention_forward_walk_sm90's.
Refusal refusal_of_forward_sm90(const AttentionProblem& problem, const DeviceLimits& limits);
inline bool forward_sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits) {
  return refusal_of_forward_sm90(problem, limits) == nullptr;
}

/// Of a problem that it takes.
ForwardSm90Config forward_sm90_config(const AttentionProblem& problem);

/// Everything but the tensor maps' addresses comes from shapes. No strips where there is nothing to
/// write.
ForwardSm90Params forward_sm90_params(const AttentionProblem& problem,
                                      const ForwardSm90Config& config, const Launcher& launcher);

}  // namespace stepwell::cuda
