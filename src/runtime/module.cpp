#include "runtime/module.hpp"

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "runtime/cache.hpp"
#include "runtime/device.hpp"
#include "runtime/driver.hpp"
#include "runtime/log.hpp"

namespace stepwell::runtime {
namespace {

/// A kernel that is being loaded or is loaded; threads that want it wait for its mutex.
struct Entry {
  std::mutex mutex;
  Kernel kernel;
};

struct Entries {
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<Entry>> by_source;
};

Entry& entry_of(const KernelSpec& spec, int device) {
  static auto* const entries = new Entries;
  std::string key = fmt::format("{}\n{}\n", device, spec.entry);
  for (const std::string& option : spec.options) key += option + '\n';
  key += spec.source;
  const std::lock_guard lock(entries->mutex);
  auto& entry = entries->by_source[std::move(key)];
  if (entry == nullptr) entry = std::make_unique<Entry>();
  return *entry;
}

/// Loading may allocate and wait, which a capturing thread must say it knows.
class RelaxedCapture {
 public:
  RelaxedCapture() {
    check_driver(driver().thread_exchange_stream_capture_mode(&mode_), "relaxing graph capture");
  }
  ~RelaxedCapture() { driver().thread_exchange_stream_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_ = kStreamCaptureModeRelaxed;
};

Kernel load(const KernelSpec& spec, int device) {
  const DeviceProperties& properties = device_properties(device);
  STEPWELL_CHECK(spec.shared_bytes <= properties.max_shared_bytes, kRuntime,
                 "{} needs {} bytes of shared memory, GPU {} ({}) has {} for a CTA", spec.name,
                 spec.shared_bytes, device, properties.name, properties.max_shared_bytes);
  const FoundKernel found = find_or_compile(spec, properties.arch());

  const Driver& api = driver();
  const DeviceScope scope(device);
  const RelaxedCapture capture;
  CuModule module = nullptr;
  const CuResult loaded = api.module_load_data(&module, found.kernel.cubin.data());
  STEPWELL_CHECK(loaded == 0, kRuntime,
                 "loading {} on GPU {} ({}) failed: {}. It was compiled with NVRTC {}.{}, the "
                 "driver is for CUDA {}.{}",
                 spec.name, device, properties.name, driver_error_text(api, loaded),
                 found.kernel.compiler.major, found.kernel.compiler.minor, api.version / 1000,
                 api.version % 1000 / 10);
  Kernel kernel;
  check_driver(api.module_get_function(&kernel.function, module, spec.entry.c_str()),
               "finding the function {} of {}", spec.entry, spec.name);
  kernel.device = device;
  kernel.threads = spec.threads;
  kernel.shared_bytes = spec.shared_bytes;
  check_driver(api.func_get_attribute(&kernel.registers, kNumRegs, kernel.function),
               "reading the registers of {}", spec.name);
  check_driver(api.func_get_attribute(&kernel.local_bytes, kLocalSizeBytes, kernel.function),
               "reading the local memory of {}", spec.name);
  check_driver(
      api.func_set_attribute(kernel.function, kMaxDynamicSharedSizeBytes, spec.shared_bytes),
      "giving {} {} bytes of shared memory", spec.name, spec.shared_bytes);
  check_driver(api.occupancy_max_active_blocks_per_multiprocessor(
                   &kernel.max_ctas_per_sm, kernel.function, spec.threads, spec.shared_bytes),
               "reading how many CTAs of {} fit an SM", spec.name);
  STEPWELL_CHECK(kernel.max_ctas_per_sm > 0, kRuntime,
                 "{} with {} threads, {} registers and {} bytes of shared memory does not fit GPU "
                 "{} ({})",
                 spec.name, spec.threads, kernel.registers, spec.shared_bytes, device,
                 properties.name);
  if (kernel.local_bytes > spec.accepted_spill_bytes) {
    log(LogLevel::kWarning,
        fmt::format("{} uses {} bytes of local memory a thread on GPU {} ({}); {} are expected",
                    spec.name, kernel.local_bytes, device, properties.name,
                    spec.accepted_spill_bytes));
  }
  return kernel;
}

}  // namespace

Kernel get_kernel(const KernelSpec& spec, int device) {
  Entry& entry = entry_of(spec, device);
  const std::lock_guard lock(entry.mutex);
  if (entry.kernel.function == nullptr) entry.kernel = load(spec, device);
  return entry.kernel;
}

void launch(const Kernel& kernel, GridSize grid, void* stream, const void* params) {
  const DeviceScope scope(kernel.device);
  void* arguments[] = {const_cast<void*>(params)};
  check_driver(driver().launch_kernel(kernel.function, grid.x, grid.y, grid.z, kernel.threads, 1, 1,
                                      kernel.shared_bytes, stream, arguments, nullptr),
               "launching {} x {} x {} CTAs of {} threads and {} bytes of shared memory on GPU {}",
               grid.x, grid.y, grid.z, kernel.threads, kernel.shared_bytes, kernel.device);
}

}  // namespace stepwell::runtime
