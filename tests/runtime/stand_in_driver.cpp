// Stands in for libcuda; device memory is the host's. With the environment variable
// STAND_IN_DRIVER_INCREMENTS a launch does what the kernel of `stepwell doctor` does.
#include "runtime/stand_in_driver.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace {

using stepwell::testing::StandInDriver;

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;

StandInDriver state;
std::mutex state_mutex;

int contexts[StandInDriver::kDevices] = {0, 1};  // a context points to its device
thread_local std::vector<void*> current;
thread_local int capture_mode = 0;

int result_of(const char* call) { return state.failing == call ? kInvalidValue : kSuccess; }

bool no_context() { return current.empty() || current.back() == nullptr; }

}  // namespace

// The driver's names.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

StandInDriver* stand_in_driver() { return &state; }

int cuInit(unsigned) { return kSuccess; }

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cuGetErrorName(int result, const char** name) {
  *name = result == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OF_THE_STAND_IN";
  return kSuccess;
}

int cuGetErrorString(int, const char** text) {
  *text = "text of the stand-in";
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = StandInDriver::kDevices;
  return kSuccess;
}

int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Stand-in", size);
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 75:
      *value = device == 0 ? 8 : 9;
      return kSuccess;
    case 76:
      *value = device == 0 ? 9 : 0;
      return kSuccess;
    case 16:
      *value = 10 + device;
      return kSuccess;
    case 97:
      *value = StandInDriver::kMaxSharedBytes;
      return kSuccess;
    case 81:
      *value = 100 * 1024;
      return kSuccess;
    case 38:
      *value = 4 << 20;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{8} << 30;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  ++state.contexts_retained;
  *context = &contexts[device];
  return kSuccess;
}

int cuCtxGetCurrent(void** context) {
  *context = current.empty() ? nullptr : current.back();
  return kSuccess;
}

int cuCtxGetDevice(int* device) {
  if (no_context()) return kInvalidContext;
  *device = *static_cast<int*>(current.back());
  return kSuccess;
}

int cuCtxPushCurrent_v2(void* context) {
  current.push_back(context);
  return kSuccess;
}

int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(capture_mode, *mode);
  return kSuccess;
}

int cuModuleLoadData(void** module, const void* image) {
  if (no_context()) return kInvalidContext;
  // A thread that captures a graph globally may load nothing.
  if (capture_mode != 2) return 900;
  const std::lock_guard lock(state_mutex);
  const char* const text = static_cast<const char*>(image);
  state.last_image_options.assign(text, std::strcspn(text, "\n"));
  ++state.modules_loaded;
  *module = current.back();
  return result_of("cuModuleLoadData");
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const std::lock_guard lock(state_mutex);
  state.last_function = name;
  ++state.functions_found;
  *function = module;
  return result_of("cuModuleGetFunction");
}

int cuFuncGetAttribute(int* value, int attribute, void*) {
  *value = attribute == 3 ? state.local_bytes : 40;
  return kSuccess;
}

int cuFuncSetAttribute(void*, int attribute, int value) {
  if (attribute != 8) return kInvalidValue;
  state.shared_attribute = value;
  return kSuccess;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, std::size_t) {
  *blocks = threads > 1024 ? 0 : 2;
  return kSuccess;
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** params, void**) {
  if (no_context()) return kInvalidContext;
  if (function != current.back()) return kInvalidValue;  // a function belongs to its context
  const std::lock_guard lock(state_mutex);
  state.last_launch = {{grid_x, grid_y, grid_z},
                       {block_x, block_y, block_z},
                       shared_bytes,
                       stream,
                       *static_cast<int*>(current.back()),
                       {}};
  // The program's own kernel adds 1 to the number that its only parameter points to.
  if (std::getenv("STAND_IN_DRIVER_INCREMENTS") != nullptr) {
    ++**static_cast<int**>(params[0]);
  } else {
    std::memcpy(state.last_launch.params, params[0], sizeof(state.last_launch.params));
  }
  ++state.launches;
  return result_of("cuLaunchKernel");
}

int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* data,
                           const unsigned long long* dims, const unsigned long long* strides,
                           const unsigned* box, const unsigned* element_strides, int interleave,
                           int swizzle, int, int fill) {
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || rank < 3 || rank > 5) return kInvalidValue;
  if (interleave != 0 || fill != 0) return kInvalidValue;
  const std::lock_guard lock(state_mutex);
  ++state.tensor_maps;
  StandInDriver::TensorMap& last = state.last_tensor_map;
  last = {type, swizzle, rank, data, {}, {}, {}, {}};
  std::copy(dims, dims + rank, last.dims);
  std::copy(strides, strides + rank - 1, last.strides);
  std::copy(box, box + rank, last.box);
  std::copy(element_strides, element_strides + rank, last.element_strides);
  std::memset(map, 0x5a, 128);
  return result_of("cuTensorMapEncodeTiled");
}

int cuPointerGetAttribute(void* value, int, unsigned long long pointer) {
  if (pointer == 0) return kInvalidValue;
  *static_cast<int*>(value) = 1;
  return kSuccess;
}

int cuMemAlloc_v2(unsigned long long* pointer, std::size_t bytes) {
  if (no_context()) return kInvalidContext;
  if (result_of("cuMemAlloc_v2") != kSuccess) return kInvalidValue;
  *pointer = reinterpret_cast<unsigned long long>(std::malloc(bytes));
  return kSuccess;
}

int cuMemFree_v2(unsigned long long pointer) {
  std::free(reinterpret_cast<void*>(pointer));
  return kSuccess;
}

int cuMemAllocAsync(unsigned long long* pointer, std::size_t bytes, void*) {
  return cuMemAlloc_v2(pointer, bytes);
}

int cuMemFreeAsync(unsigned long long pointer, void*) { return cuMemFree_v2(pointer); }

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return kSuccess;
}

int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void*) {
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return kSuccess;
}

int cuMemsetD8Async(unsigned long long to, unsigned char value, std::size_t count, void*) {
  std::memset(reinterpret_cast<void*>(to), value, count);
  return kSuccess;
}

int cuStreamCreate(void** stream, unsigned) {
  *stream = &state;
  return kSuccess;
}

int cuStreamDestroy_v2(void*) { return kSuccess; }

int cuStreamSynchronize(void*) { return result_of("cuStreamSynchronize"); }

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
