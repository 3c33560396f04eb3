// attention_backward_sm90 on the host: which problems it takes, and what it gets for them.
#pragma once

#include <cstddef>

#include "core/problem.hpp"
#include "cuda/attention/backward_sm90_config.hpp"
#include "cuda/launcher.hpp"
#include "cuda/refusal.hpp"

namespace stepwell::cuda {

/// Why the kernel does not do this problem on a GPU of these limits: refusal_of_sm90(), packed
/// samples, deterministic. Other problems are attention_backward_sm80's.
Refusal refusal_of_backward_sm90(const AttentionProblem& problem, const DeviceLimits& limits);
inline bool backward_sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits) {
  return refusal_of_backward_sm90(problem, limits) == nullptr;
}

/// Of a problem that it takes.
BackwardSm90Config backward_sm90_config(const AttentionProblem& problem);
BackwardRowsSm90Config backward_rows_sm90_config(const AttentionProblem& problem);
RowsConfig finish_sm90_config(const AttentionProblem& problem);

/// Of shapes only.
std::size_t backward_sm90_workspace_bytes(const AttentionProblem& problem);

/// What the launches get, in their order. No CTAs where there is nothing to write.
struct BackwardSm90Launches {
  BackwardSm90Params rows;
  BackwardSm90Params main;
  BackwardParams finish;  // but for `grid`
};

BackwardSm90Launches backward_sm90_params(const AttentionProblem& problem,
                                          const BackwardSm90Config& config, std::byte* workspace,
                                          const Launcher& launcher);

}  // namespace stepwell::cuda
