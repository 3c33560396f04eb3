// attention_forward_sm90 on the host: which problems it takes, and what it gets for them.
#pragma once

#include "core/problem.hpp"
#include "cuda/attention/forward_sm90_config.hpp"
#include "cuda/launcher.hpp"

namespace stepwell::cuda {

/// Whether the kernel does this problem on a GPU of these limits: one with warpgroups, a joint
/// layout of one view that is not packed, blocks from position 0, clean rows that see blocks or
/// their past, tensors that tensor maps can describe, 16 bits, head dims of 128 or up to 64, a
/// softmax_scale that is not negative, no softcap and no dropout. Other problems are
/// attention_forward_sm80's.
bool forward_sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits);

/// Of a problem that it takes.
ForwardSm90Config forward_sm90_config(const AttentionProblem& problem);

/// Everything but the tensor maps' addresses comes from shapes. No strips where there is nothing to
/// write.
ForwardSm90Params forward_sm90_params(const AttentionProblem& problem,
                                      const ForwardSm90Config& config, const Launcher& launcher);

}  // namespace stepwell::cuda
