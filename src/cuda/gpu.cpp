#include "cuda/gpu.hpp"

#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "core/check.hpp"
#include "runtime/device.hpp"
#include "runtime/driver.hpp"
#include "runtime/module.hpp"

namespace stepwell::cuda {
namespace {

struct LoadedKey {
  int device;
  KernelKey kernel;

  friend bool operator==(const LoadedKey&, const LoadedKey&) = default;
};

struct LoadedKeyHash {
  std::size_t operator()(const LoadedKey& key) const {
    return KernelKeyHash{}(key.kernel) + static_cast<std::size_t>(key.device);
  }
};

/// The runtime's handles by configuration: its own look-up reads the kernel's whole text.
struct Loaded {
  std::shared_mutex mutex;
  std::unordered_map<LoadedKey, runtime::Kernel, LoadedKeyHash> kernels;
};

runtime::Kernel loaded(const AttentionKernel& kernel, int device) {
  static Loaded* all = new Loaded;  // never destroyed: threads may outlive main()
  const LoadedKey key{device, key_of(kernel)};
  {
    const std::shared_lock lock(all->mutex);
    const auto found = all->kernels.find(key);
    if (found != all->kernels.end()) return found->second;
  }
  // Compiling takes seconds, and other kernels need not wait for it.
  const runtime::Kernel handle = runtime::get_kernel(spec_of(kernel), device);
  const std::unique_lock lock(all->mutex);
  return all->kernels.emplace(key, handle).first->second;
}

/// Kernels for sm_90a are right on the host model and have not met a GPU: they are taken on demand.
bool sm90_kernels_wanted() {
  static constexpr const char* kName = "STEPWELL_SM90_KERNELS";
  const char* const value = std::getenv(kName);
  const std::string_view text = value == nullptr ? "" : value;
  STEPWELL_CHECK(text.empty() || text == "0" || text == "1", kValue, "{} is \"{}\"; accepted: 0, 1",
                 kName, text);
  return text == "1";
}

}  // namespace

DeviceLimits GpuLauncher::limits() const {
  static const bool sm90_kernels = sm90_kernels_wanted();
  const runtime::DeviceProperties& properties = runtime::device_properties(device_);
  DeviceLimits limits = limits_of(properties.major, properties.minor);
  limits.warpgroups = limits.warpgroups && sm90_kernels;
  limits.sms = properties.sm_count;
  return limits;
}

TensorMap GpuLauncher::tensor_map(const TiledTensor& tensor) const {
  const runtime::Driver& api = runtime::driver();
  STEPWELL_CHECK(api.tensor_map_encode_tiled != nullptr, kRuntime,
                 "the CUDA driver {} has no cuTensorMapEncodeTiled: it is older than CUDA 12",
                 api.path);
  constexpr unsigned kNoElementSkipped[5] = {1, 1, 1, 1, 1};
  TensorMap map;
  runtime::check_driver(api.tensor_map_encode_tiled(
                            &map, runtime::kTensorMapUint16, static_cast<unsigned>(tensor.rank),
                            const_cast<void*>(tensor.data), tensor.dims, tensor.strides, tensor.box,
                            kNoElementSkipped, /*interleave=*/0, static_cast<int>(tensor.swizzle),
                            runtime::kTensorMapPromote256Bytes, /*out_of_bounds_nan=*/0),
                        "making a tensor map");
  return map;
}

void GpuLauncher::load(const AttentionKernel& kernel) const { loaded(kernel, device_); }

void GpuLauncher::launch(const AttentionKernel& kernel, std::int64_t ctas, const void* params,
                         std::size_t) {
  runtime::launch(loaded(kernel, device_), {.x = static_cast<unsigned>(ctas)}, stream_, params);
}

}  // namespace stepwell::cuda
