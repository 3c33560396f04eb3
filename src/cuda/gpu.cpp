#include "cuda/gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/check.hpp"
#include "runtime/device.hpp"
#include "runtime/driver.hpp"
#include "runtime/log.hpp"
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

Loaded& all_loaded() {
  static Loaded* all = new Loaded;  // never destroyed: threads may outlive main()
  return *all;
}

std::optional<runtime::Kernel> find_loaded(const AttentionKernel& kernel, int device) {
  Loaded& all = all_loaded();
  const std::shared_lock lock(all.mutex);
  const auto found = all.kernels.find({device, key_of(kernel)});
  if (found == all.kernels.end()) return std::nullopt;
  return found->second;
}

runtime::Kernel loaded(const AttentionKernel& kernel, int device) {
  if (const auto found = find_loaded(kernel, device)) return *found;
  // Compiling takes seconds, and other kernels need not wait for it.
  const runtime::Kernel handle = runtime::get_kernel(spec_of(kernel), device);
  Loaded& all = all_loaded();
  const std::unique_lock lock(all.mutex);
  return all.kernels.emplace(LoadedKey{device, key_of(kernel)}, handle).first->second;
}

/// Loads a kernel on a thread of its own.
class Loading {
 public:
  Loading(const AttentionKernel& kernel, int device)
      : done_(std::async(std::launch::async, [this, &kernel, device] {
          const runtime::KeptLog log;
          try {
            loaded(kernel, device);
          } catch (...) {
            error_ = std::current_exception();
          }
          lines_ = log.lines;
        })) {}

  /// Waits, logs what there is to log, and throws what the thread threw.
  void finish() {
    done_.get();
    for (const runtime::LogLine& line : lines_) runtime::log(line.level, line.line);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::vector<runtime::LogLine> lines_;
  std::exception_ptr error_;
  std::future<void> done_;  // the last member: the others are there before its thread starts
};

/// With "0" GPUs of compute capability 9.0 run the mma.sync kernels, to compare or to check these.
bool sm90_kernels_wanted() {
  static constexpr const char* kName = "STEPWELL_SM90_KERNELS";
  const char* const value = std::getenv(kName);
  const std::string_view text = value == nullptr ? "" : value;
  STEPWELL_CHECK(text.empty() || text == "0" || text == "1", kValue, "{} is \"{}\"; accepted: 0, 1",
                 kName, text);
  return text != "0";
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
  const runtime::DeviceScope scope(device_);  // the driver wants a context
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

void GpuLauncher::load(std::span<const AttentionKernel> kernels) const {
  std::vector<const AttentionKernel*> missing;
  for (const AttentionKernel& kernel : kernels) {
    if (!find_loaded(kernel, device_)) missing.push_back(&kernel);
  }
  if (missing.empty()) return;
  // Compiled one after the other, the three of a backward pass take up to 5 seconds.
  std::deque<Loading> others;
  for (std::size_t i = 1; i < missing.size(); ++i) others.emplace_back(*missing[i], device_);
  loaded(*missing[0], device_);
  for (Loading& other : others) other.finish();
}

void GpuLauncher::launch(const AttentionKernel& kernel, std::int64_t ctas, const void* params,
                         std::size_t) {
  std::optional<runtime::Kernel> found = find_loaded(kernel, device_);
  if (!found) {
    if (expected_ != nullptr) load(expected_(*problem_, limits()));
    found = loaded(kernel, device_);
  }
  runtime::launch(*found, {.x = static_cast<unsigned>(ctas)}, stream_, params);
}

}  // namespace stepwell::cuda
