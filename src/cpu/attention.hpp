// The CPU backend's entry points.
#pragma once

#include <cstddef>
#include <string>

#include "core/problem.hpp"

namespace stepwell::cpu {

/// Bytes of workspace (aligned to 64); reads shapes only, no tensor and no integer array.
std::size_t forward_workspace_bytes(const AttentionProblem& problem);
std::size_t backward_workspace_bytes(const AttentionProblem& problem);

/// out, and lse where its data is given; every element is written.
void forward(const AttentionProblem& problem, std::byte* workspace);
/// dq, dk, dv from q, k, v, out, lse, dout and dlse (where given); every element is written.
void backward(const AttentionProblem& problem, std::byte* workspace);

/// One line: instruction set, tiles, threads.
std::string describe(const AttentionProblem& problem);

}  // namespace stepwell::cpu
