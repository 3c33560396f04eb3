// attention_forward_sm90 on the host: which problems it takes, and what it gets for them.
#pragma once

#include "core/problem.hpp"
#include "cuda/attention/forward_sm90_config.hpp"
#include "cuda/launcher.hpp"

namespace stepwell::cuda {

/// Whether the kernel does this problem on a GPU of these limits: sm90_takes(), with a
/// softmax_scale that is not negative. Other problems are attention_forward_sm80's.
bool forward_sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits);

/// Of a problem that it takes.
ForwardSm90Config forward_sm90_config(const AttentionProblem& problem);

/// Everything but the tensor maps' addresses comes from shapes. No strips where there is nothing to
/// write.
ForwardSm90Params forward_sm90_params(const AttentionProblem& problem,
                                      const ForwardSm90Config& config, const Launcher& launcher);

}  // namespace stepwell::cuda
