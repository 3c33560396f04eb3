#include "cuda/gpu.hpp"

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "runtime/device.hpp"
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

}  // namespace

DeviceLimits GpuLauncher::limits() const {
  const runtime::DeviceProperties& properties = runtime::device_properties(device_);
  return limits_of(properties.major, properties.minor);
}

void GpuLauncher::load(const AttentionKernel& kernel) const { loaded(kernel, device_); }

void GpuLauncher::launch(const AttentionKernel& kernel, std::int64_t ctas, const void* params,
                         std::size_t) {
  runtime::launch(loaded(kernel, device_), {.x = static_cast<unsigned>(ctas)}, stream_, params);
}

}  // namespace stepwell::cuda
