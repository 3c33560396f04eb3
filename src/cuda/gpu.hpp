// The backend's kernels on a GPU.
#pragma once

#include <span>
#include <vector>

#include "core/problem.hpp"
#include "cuda/launcher.hpp"

namespace stepwell::cuda {

/// Launches on one stream of a device; kernels are found or compiled at their first use and kept
/// for the life of the process. Costs nothing to make.
class GpuLauncher final : public Launcher {
 public:
  /// `stream` is a CUstream of the device; nullptr is its default stream.
  GpuLauncher(int device, void* stream) : device_(device), stream_(stream) {}

  using Kernels = std::vector<AttentionKernel> (*)(const AttentionProblem&, const DeviceLimits&);

  /// All kernels that the launches to come need: where one is missing, those that are get compiled
  /// at the same time. `problem` must outlive the launcher.
  void expect(Kernels kernels, const AttentionProblem& problem) {
    expected_ = kernels;
    problem_ = &problem;
  }

  DeviceLimits limits() const override;
  TensorMap tensor_map(const TiledTensor& tensor) const override;
  void launch(const AttentionKernel& kernel, std::int64_t ctas, const void* params,
              std::size_t params_bytes) override;

  /// Makes the next launches of the kernels cheap ones.
  void load(std::span<const AttentionKernel> kernels) const;

 private:
  int device_;
  void* stream_;
  Kernels expected_ = nullptr;
  const AttentionProblem* problem_ = nullptr;
};

}  // namespace stepwell::cuda
