// A launcher that only remembers.
#pragma once

#include <cstring>
#include <vector>

#include "cuda/attention/params.hpp"
#include "cuda/launcher.hpp"

namespace stepwell::cuda {

struct Launch {
  AttentionKernel kernel;
  std::int64_t ctas;
  std::vector<std::byte> params;

  template <typename Params>
  Params as() const {
    Params p;
    EXPECT_EQ(params.size(), sizeof(p));
    std::memcpy(static_cast<void*>(&p), params.data(), sizeof(p));
    return p;
  }
};

class Recorder final : public Launcher {
 public:
  explicit Recorder(DeviceLimits limits) : limits_(limits) {}

  DeviceLimits limits() const override { return limits_; }
  TensorMap tensor_map(const TiledTensor& tensor) const override {
    tensors.push_back(tensor);
    return {};
  }
  void launch(const AttentionKernel& kernel, std::int64_t ctas, const void* params,
              std::size_t params_bytes) override {
    const auto* bytes = static_cast<const std::byte*>(params);
    launches.push_back({kernel, ctas, {bytes, bytes + params_bytes}});
  }

  std::vector<Launch> launches;
  mutable std::vector<TiledTensor> tensors;  // that maps were made of

 private:
  DeviceLimits limits_;
};

}  // namespace stepwell::cuda
