// Who runs the backend's kernels: a GPU, or in tests a model of one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels.hpp"
#include "cuda/limits.hpp"
#include "cuda/tensor_map.hpp"

namespace stepwell::cuda {

class Launcher {
 public:
  virtual ~Launcher() = default;

  /// Which configurations it takes.
  virtual DeviceLimits limits() const = 0;

  /// For a kernel's parameters.
  virtual TensorMap tensor_map(const TiledTensor& tensor) const = 0;

  /// Queues `ctas` CTAs in x (at least 1, fewer than 2^31) of threads_of(kernel) threads, with
  /// shared_bytes_of(kernel) of dynamic shared memory. `params` is the kernel's one parameter, of
  /// `params_bytes` bytes, and is copied before this returns.
  virtual void launch(const AttentionKernel& kernel, std::int64_t ctas, const void* params,
                      std::size_t params_bytes) = 0;
};

}  // namespace stepwell::cuda
