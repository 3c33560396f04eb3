// The kernels of the CUDA backend as data: a family and its configuration. What compiles, launches
// and lists them builds on this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/backward_dq_config.hpp"
#include "cuda/attention/backward_sm90_config.hpp"
#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/forward_config.hpp"
#include "cuda/attention/forward_sm90_config.hpp"
#include "cuda/attention/forward_walk_sm90_config.hpp"
#include "runtime/spec.hpp"

namespace stepwell::cuda {

/// attention_forward_sm80 (forward_sm80.cuh); takes ForwardParams.
struct ForwardKernel {
  ForwardConfig config;
};

/// attention_backward_sm80 (backward_sm80.cuh); takes BackwardParams, as do the next three.
struct BackwardKernel {
  BackwardConfig config;
};

/// attention_backward_prepare (backward_rows.cuh).
struct PrepareKernel {
  RowsConfig config;
};

/// attention_backward_finish (backward_rows.cuh).
struct FinishKernel {
  RowsConfig config;
};

/// attention_backward_dq_sm80 (backward_dq_sm80.cuh).
struct BackwardDqKernel {
  BackwardDqConfig config;
};

/// attention_forward_f32 (forward_f32.cuh); takes ForwardParamsF32.
struct ForwardF32Kernel {
  F32Config config;
};

/// attention_backward_dq_f32 (backward_dq_f32.cuh); takes BackwardParamsF32, as does the next.
struct BackwardDqF32Kernel {
  F32Config config;
};

/// attention_backward_dkv_f32 (backward_dkv_f32.cuh).
struct BackwardDkvF32Kernel {
  F32Config config;
};

/// attention_forward_sm90 (forward_sm90.cuh); takes ForwardSm90Params.
struct ForwardSm90Kernel {
  ForwardSm90Config config;
};

/// attention_forward_walk_sm90 (forward_walk_sm90.cuh); takes ForwardWalkSm90Params.
struct ForwardWalkSm90Kernel {
  ForwardWalkSm90Config config;
};

/// attention_backward_sm90 (backward_sm90.cuh); takes BackwardSm90Params, as does the next.
struct BackwardSm90Kernel {
  BackwardSm90Config config;
};

/// attention_backward_rows_sm90 (backward_rows_sm90.cuh).
struct BackwardRowsSm90Kernel {
  BackwardRowsSm90Config config;
};

using AttentionKernel =
    std::variant<ForwardKernel, BackwardKernel, PrepareKernel, FinishKernel, BackwardDqKernel,
                 ForwardF32Kernel, BackwardDqF32Kernel, BackwardDkvF32Kernel, ForwardSm90Kernel,
                 ForwardWalkSm90Kernel, BackwardSm90Kernel, BackwardRowsSm90Kernel>;

/// Whether it is one of the float32 kernels.
bool is_f32(const AttentionKernel& kernel);

int threads_of(const AttentionKernel& kernel);

/// Dynamic shared memory of a CTA.
int shared_bytes_of(const AttentionKernel& kernel);

/// Equal for equal kernels only: the family and every field of the configuration.
struct KernelKey {
  std::array<std::int16_t, 16> values{};

  friend bool operator==(const KernelKey&, const KernelKey&) = default;
};

struct KernelKeyHash {
  std::size_t operator()(const KernelKey& key) const;
};

KernelKey key_of(const AttentionKernel& kernel);

/// What the runtime compiles.
runtime::KernelSpec spec_of(const AttentionKernel& kernel);

}  // namespace stepwell::cuda
