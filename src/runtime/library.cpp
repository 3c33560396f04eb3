#include "runtime/library.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "runtime/driver.hpp"
#include "runtime/dynamic_library.hpp"
#include "runtime/nvrtc.hpp"

namespace stepwell::runtime {
namespace {

// C++20 is the language of device sources.
constexpr int kOldestNvrtcMajor = 12;

constexpr const char* kGetNvrtc =
    "Install it with `pip install nvidia-cuda-nvrtc` (CUDA 13 drivers) or `pip install "
    "nvidia-cuda-nvrtc-cu12` (CUDA 12 drivers), or name the folder that holds libnvrtc.so in the "
    "environment variable STEPWELL_LIBRARY_DIRS";

constexpr const char* kGetDriver =
    "It comes with NVIDIA's GPU driver; a container needs access to it, such as `docker run --gpus "
    "all`";

std::vector<std::filesystem::path> toolkit_dirs() {
  std::vector<std::filesystem::path> dirs;
  if (const char* const home = std::getenv("CUDA_HOME")) {
    dirs.push_back(std::filesystem::path(home) / "lib64");
  }
  dirs.emplace_back("/usr/local/cuda/lib64");
  return dirs;
}

Driver load_driver() {
  const DynamicLibrary library =
      open_library({"libcuda.so.1"}, {"/usr/lib/wsl/lib", "/usr/local/nvidia/lib64"});
  STEPWELL_CHECK(library.handle != nullptr, kRuntime,
                 "no CUDA driver: libcuda.so.1 was not found{}. {}", library.problems, kGetDriver);
  Driver api{};
  api.path = library.path.string();
  resolve(library, "cuInit", api.init);
  resolve(library, "cuDriverGetVersion", api.driver_get_version);
  resolve(library, "cuGetErrorName", api.get_error_name);
  resolve(library, "cuGetErrorString", api.get_error_string);
  resolve(library, "cuDeviceGetCount", api.device_get_count);
  resolve(library, "cuDeviceGetName", api.device_get_name);
  resolve(library, "cuDeviceGetAttribute", api.device_get_attribute);
  resolve(library, "cuDeviceTotalMem_v2", api.device_total_mem);
  resolve(library, "cuDevicePrimaryCtxRetain", api.device_primary_ctx_retain);
  resolve(library, "cuCtxGetCurrent", api.ctx_get_current);
  resolve(library, "cuCtxGetDevice", api.ctx_get_device);
  resolve(library, "cuCtxPushCurrent_v2", api.ctx_push_current);
  resolve(library, "cuCtxPopCurrent_v2", api.ctx_pop_current);
  resolve(library, "cuThreadExchangeStreamCaptureMode", api.thread_exchange_stream_capture_mode);
  resolve(library, "cuModuleLoadData", api.module_load_data);
  resolve(library, "cuModuleGetFunction", api.module_get_function);
  resolve(library, "cuFuncGetAttribute", api.func_get_attribute);
  resolve(library, "cuFuncSetAttribute", api.func_set_attribute);
  resolve(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor",
          api.occupancy_max_active_blocks_per_multiprocessor);
  resolve(library, "cuLaunchKernel", api.launch_kernel);
  resolve(library, "cuPointerGetAttribute", api.pointer_get_attribute);
  resolve(library, "cuMemAlloc_v2", api.mem_alloc);
  resolve(library, "cuMemFree_v2", api.mem_free);
  resolve(library, "cuMemAllocAsync", api.mem_alloc_async);
  resolve(library, "cuMemFreeAsync", api.mem_free_async);
  resolve(library, "cuMemcpyHtoDAsync_v2", api.memcpy_htod_async);
  resolve(library, "cuMemcpyDtoHAsync_v2", api.memcpy_dtoh_async);
  resolve(library, "cuMemsetD8Async", api.memset_d8_async);
  api.tensor_map_encode_tiled = reinterpret_cast<decltype(api.tensor_map_encode_tiled)>(
      library.symbol("cuTensorMapEncodeTiled"));
  resolve(library, "cuStreamCreate", api.stream_create);
  resolve(library, "cuStreamDestroy_v2", api.stream_destroy);
  resolve(library, "cuStreamSynchronize", api.stream_synchronize);
  const CuResult result = api.driver_get_version(&api.version);
  STEPWELL_CHECK(result == 0, kRuntime, "{}: asking for its version failed: {}", api.path,
                 driver_error_text(api, result));
  return api;
}

// Loaded, not initialised. Failures are tried again, since the folders to search may change.
const Driver& loaded_driver() {
  static std::mutex mutex;
  static const Driver* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded == nullptr) loaded = new Driver(load_driver());
  return *loaded;
}

Nvrtc load_nvrtc() {
  // Drivers refuse kernels of a later major version's compiler.
  std::vector<std::string> names = {"libnvrtc.so.13", "libnvrtc.so.12"};
  if (driver_version() / 1000 == 12) std::swap(names[0], names[1]);
  names.emplace_back("libnvrtc.so");
  const DynamicLibrary library = open_library(names, toolkit_dirs());
  STEPWELL_CHECK(library.handle != nullptr, kRuntime,
                 "no NVRTC, CUDA's run-time compiler: none of {} was found{}. {}",
                 fmt::join(names, ", "), library.problems, kGetNvrtc);
  Nvrtc api{};
  api.path = library.path.string();
  resolve(library, "nvrtcVersion", api.version);
  resolve(library, "nvrtcGetNumSupportedArchs", api.get_num_supported_archs);
  resolve(library, "nvrtcGetSupportedArchs", api.get_supported_archs);
  resolve(library, "nvrtcCreateProgram", api.create_program);
  resolve(library, "nvrtcDestroyProgram", api.destroy_program);
  resolve(library, "nvrtcCompileProgram", api.compile_program);
  resolve(library, "nvrtcGetCUBINSize", api.get_cubin_size);
  resolve(library, "nvrtcGetCUBIN", api.get_cubin);
  resolve(library, "nvrtcGetProgramLogSize", api.get_program_log_size);
  resolve(library, "nvrtcGetProgramLog", api.get_program_log);
  resolve(library, "nvrtcGetErrorString", api.get_error_string);
  const NvrtcResult result = api.version(&api.major, &api.minor);
  STEPWELL_CHECK(result == kNvrtcSuccess, kRuntime, "{}: asking for its version failed: {}",
                 api.path, api.get_error_string(result));
  STEPWELL_CHECK(api.major >= kOldestNvrtcMajor, kRuntime,
                 "{} is NVRTC {}.{}; {}.0 or later is needed. {}", api.path, api.major, api.minor,
                 kOldestNvrtcMajor, kGetNvrtc);
  // NVRTC opens its builtins by name, which finds them in folders that the loader does not search
  // only when they are loaded already. Where they are elsewhere, NVRTC is left to look for them.
  const auto builtins = std::filesystem::canonical(library.path).parent_path() /
                        fmt::format("libnvrtc-builtins.so.{}.{}", api.major, api.minor);
  dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
  return api;
}

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

const Driver& driver() {
  static std::atomic<const Driver*> started{nullptr};
  if (const Driver* const api = started.load(std::memory_order_acquire)) return *api;
  const Driver& api = loaded_driver();
  const CuResult result = api.init(0);
  STEPWELL_CHECK(result == 0, kRuntime, "the CUDA driver {} (CUDA {}) does not start: {}", api.path,
                 cuda_version_text(api.version), driver_error_text(api, result));
  started.store(&api, std::memory_order_release);
  return api;
}

int driver_version() noexcept {
  try {
    return loaded_driver().version;
  } catch (const std::exception&) {
    return 0;
  }
}

std::string driver_error_text(const Driver& api, CuResult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.get_error_name(result, &name) != 0 || name == nullptr) {
    return fmt::format("error {}", result);
  }
  if (api.get_error_string(result, &text) != 0 || text == nullptr) return name;
  return fmt::format("{}: {}", name, text);
}

const Nvrtc& nvrtc() {
  static std::mutex mutex;
  static const Nvrtc* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded == nullptr) loaded = new Nvrtc(load_nvrtc());
  return *loaded;
}

LibraryReport report_driver() {
  LibraryReport report;
  try {
    const Driver& api = loaded_driver();
    report.path = api.path;
    report.version = cuda_version_text(api.version);
    driver();
    report.found = true;
  } catch (const Error& error) {
    report.problem = error.what();
  }
  return report;
}

LibraryReport report_nvrtc() {
  LibraryReport report;
  try {
    const Nvrtc& api = nvrtc();
    report.found = true;
    report.path = api.path;
    report.version = fmt::format("{}.{}", api.major, api.minor);
  } catch (const Error& error) {
    report.problem = error.what();
  }
  return report;
}

}  // namespace stepwell::runtime
