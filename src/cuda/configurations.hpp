// Which configuration a problem gets, and all that problems can get.
#pragma once

#include <vector>

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/backward_dq_config.hpp"
#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/forward_config.hpp"
#include "cuda/kernels.hpp"
#include "cuda/limits.hpp"

namespace stepwell::cuda {

/// What a configuration depends on besides the GPU.
struct KernelTraits {
  int head_dim = 0;  // of q and k, in [8, 256]
  int head_dim_v = 0;
  Element element = Element::kBFloat16;
  bool softcap = false;
  bool dropout = false;
  bool deterministic = false;  // of the backward pass alone: dQ by query rows
};

inline constexpr int kNativeHeadDims[] = {64, 96, 128, 192, 256};

/// The smallest native head dim that holds `dim`.
constexpr int native_head_dim(int dim) {
  for (const int native : kNativeHeadDims) {
    if (dim <= native) return native;
  }
  return 0;
}

/// Of the float32 kernels, which skip the columns that a head dim leaves.
inline constexpr int kNativeHeadDimsF32[] = {64, 128, 256};

constexpr int native_head_dim_f32(int dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

ForwardConfig forward_config(const KernelTraits& traits, const DeviceLimits& limits);
BackwardConfig backward_config(const KernelTraits& traits, const DeviceLimits& limits);
BackwardDqConfig backward_dq_config(const KernelTraits& traits, const DeviceLimits& limits);
RowsConfig prepare_config(const KernelTraits& traits);
RowsConfig finish_config(const KernelTraits& traits);

// For traits with Element::kFloat32.
F32Config forward_f32_config(const KernelTraits& traits, const DeviceLimits& limits);
F32Config backward_dq_f32_config(const KernelTraits& traits, const DeviceLimits& limits);
F32Config backward_dkv_f32_config(const KernelTraits& traits, const DeviceLimits& limits);

/// Every kernel for sm_90a.
std::vector<AttentionKernel> sm90_kernels();

/// Every kernel that a GPU of these limits can be asked for.
std::vector<AttentionKernel> all_kernels(const DeviceLimits& limits);

/// The fewest of them (nearly) in which every two factors, such as head dim and dropout, take all
/// pairs of values.
std::vector<AttentionKernel> pairwise_kernels(const DeviceLimits& limits);

}  // namespace stepwell::cuda
