// Which kernels of the CUDA backend the tests compile for the host model.
#pragma once

#include <string>
#include <vector>

#include "cuda/configurations.hpp"

namespace stepwell::testing {

/// Of compute capability 9.0, 227 KiB of shared memory; and of 8.6, 99 KiB.
std::vector<cuda::DeviceLimits> modelled_limits();

/// Whether there are kernels for these traits on a GPU of these limits.
bool is_modelled(const cuda::KernelTraits& traits, const cuda::DeviceLimits& limits);

/// Each once.
std::vector<cuda::AttentionKernel> modelled_kernels();

/// Those of one family ("forward", "forward_sm90", "backward", "backward_sm90", "deterministic" or
/// "f32") that planted bugs are looked for in.
std::vector<cuda::AttentionKernel> probed_kernels(const std::string& family);

}  // namespace stepwell::testing
