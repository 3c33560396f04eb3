// The CUDA backend's kernels on the host model.
#pragma once

#include <string>
#include <unordered_map>

#include "cuda/launcher.hpp"
#include "host_model/compiled_kernels.hpp"
#include "host_model/host_model.hpp"

namespace stepwell::testing {

class ModelLauncher final : public cuda::Launcher {
 public:
  explicit ModelLauncher(const cuda::DeviceLimits& limits);

  /// How the next launches run; regions are filled in.
  void set_options(const host_model::Options& options) { options_ = options; }

  cuda::DeviceLimits limits() const override { return limits_; }
  void launch(const cuda::AttentionKernel& kernel, std::int64_t ctas, const void* params,
              std::size_t params_bytes) override;

  /// Of all launches.
  const host_model::Statistics& statistics() const { return statistics_; }

 private:
  cuda::DeviceLimits limits_;
  host_model::Options options_;
  host_model::Statistics statistics_;
  std::unordered_map<cuda::KernelKey, void (*)(const void*), cuda::KernelKeyHash> kernels_;
};

}  // namespace stepwell::testing
