// The backend's kernels on a GPU.
#pragma once

#include "cuda/launcher.hpp"

namespace stepwell::cuda {

/// Launches on one stream of a device; kernels are found or compiled at their first use and kept
/// for the life of the process. Costs nothing to make.
class GpuLauncher final : public Launcher {
 public:
  /// `stream` is a CUstream of the device; nullptr is its default stream.
  GpuLauncher(int device, void* stream) : device_(device), stream_(stream) {}

  DeviceLimits limits() const override;
  TensorMap tensor_map(const TiledTensor& tensor) const override;
  void launch(const AttentionKernel& kernel, std::int64_t ctas, const void* params,
              std::size_t params_bytes) override;

  /// Makes the next launch of the kernel a cheap one.
  void load(const AttentionKernel& kernel) const;

 private:
  int device_;
  void* stream_;
};

}  // namespace stepwell::cuda
