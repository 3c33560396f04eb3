// The CUDA backend's entry points. Nothing here reads device memory, waits for the device or
// allocates.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/launcher.hpp"

namespace stepwell::cuda {

/// Bytes of workspace in device memory, aligned to 64; of shapes and strides only.
std::size_t forward_workspace_bytes(const AttentionProblem& problem);
std::size_t backward_workspace_bytes(const AttentionProblem& problem, const DeviceLimits& limits);

/// Queues what writes out, and lse where its data is given; every element is written.
void forward(const AttentionProblem& problem, Launcher& launcher);
/// Queues what writes dq, dk and dv from q, k, v, out, lse, dout and dlse (where given); every
/// element is written.
void backward(const AttentionProblem& problem, std::byte* workspace, Launcher& launcher);

/// The kernels that they launch on a GPU of these limits.
std::vector<AttentionKernel> forward_kernels(const AttentionProblem& problem,
                                             const DeviceLimits& limits);
std::vector<AttentionKernel> backward_kernels(const AttentionProblem& problem,
                                              const DeviceLimits& limits);

/// One line: kernel and tiles.
std::string describe_forward(const AttentionProblem& problem, const DeviceLimits& limits);
std::string describe_backward(const AttentionProblem& problem, const DeviceLimits& limits);

}  // namespace stepwell::cuda
