// Why a kernel does not take a problem, for those who ask what runs.
#pragma once

namespace stepwell::cuda {

/// What the problem has that the kernel does not do, in a few words; nullptr where it does.
using Refusal = const char*;

inline constexpr Refusal kNoWarpgroups = "no compute capability 9.0, or STEPWELL_SM90_KERNELS is 0";
inline constexpr Refusal kNoTensorMap =
    "tensors that TMA cannot copy (strides not of 16 bytes, 0 or negative, or too many rows)";

}  // namespace stepwell::cuda
