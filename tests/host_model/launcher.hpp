// The CUDA backend's kernels on the host model. What breaks a rule of the machine is an Error, and
// so are bank conflicts of ldmatrix, which these kernels avoid by padding.
#pragma once

#include <string>
#include <unordered_map>

#include "cuda/launcher.hpp"
#include "host_model/compiled_kernels.hpp"
#include "host_model/host_model.hpp"

namespace stepwell::testing {

class ModelLauncher final : public cuda::Launcher {
 public:
  /// `library`: a shared library whose kernels replace those that it has too; "": none.
  explicit ModelLauncher(const cuda::DeviceLimits& limits, const std::string& library = "");

  /// How the next launches run; regions are filled in.
  void set_options(const host_model::Options& options) { options_ = options; }

  cuda::DeviceLimits limits() const override { return limits_; }
  cuda::TensorMap tensor_map(const cuda::TiledTensor& tensor) const override {
    return host_model::encode_tensor_map(tensor);
  }
  void launch(const cuda::AttentionKernel& kernel, std::int64_t ctas, const void* params,
              std::size_t params_bytes) override;

 private:
  cuda::DeviceLimits limits_;
  host_model::Options options_;
  std::unordered_map<cuda::KernelKey, void (*)(const void*), cuda::KernelKeyHash> kernels_;
};

}  // namespace stepwell::testing
