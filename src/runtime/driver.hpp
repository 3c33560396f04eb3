// The functions of the CUDA driver that we call, types and constants included; names as in cuda.h,
// without the prefix.
#pragma once

#include <cstddef>
#include <string>

#include "core/check.hpp"

namespace stepwell::runtime {

using CuResult = int;
using CuDevice = int;
using CuContext = void*;
using CuModule = void*;
using CuFunction = void*;
using CuStream = void*;
using CuPointer = unsigned long long;

inline constexpr int kComputeCapabilityMajor = 75;  // CUdevice_attribute
inline constexpr int kComputeCapabilityMinor = 76;
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kL2CacheSize = 38;
inline constexpr int kMaxSharedMemoryPerMultiprocessor = 81;
inline constexpr int kMaxSharedMemoryPerBlockOptin = 97;
inline constexpr int kLocalSizeBytes = 3;  // CUfunction_attribute
inline constexpr int kNumRegs = 4;
inline constexpr int kMaxDynamicSharedSizeBytes = 8;
inline constexpr int kPointerDeviceOrdinal = 9;  // CUpointer_attribute
inline constexpr int kStreamCaptureModeRelaxed = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kTensorMapUint16 = 1;           // CUtensorMapDataType
inline constexpr int kTensorMapPromote256Bytes = 3;  // CUtensorMapL2promotion

struct Driver {
  CuResult (*init)(unsigned flags);
  CuResult (*driver_get_version)(int* version);
  CuResult (*get_error_name)(CuResult result, const char** name);
  CuResult (*get_error_string)(CuResult result, const char** text);
  CuResult (*device_get_count)(int* count);
  CuResult (*device_get_name)(char* name, int size, CuDevice device);
  CuResult (*device_get_attribute)(int* value, int attribute, CuDevice device);
  CuResult (*device_total_mem)(std::size_t* bytes, CuDevice device);
  CuResult (*device_primary_ctx_retain)(CuContext* context, CuDevice device);
  CuResult (*ctx_get_current)(CuContext* context);
  CuResult (*ctx_get_device)(CuDevice* device);
  CuResult (*ctx_push_current)(CuContext context);
  CuResult (*ctx_pop_current)(CuContext* context);
  CuResult (*thread_exchange_stream_capture_mode)(int* mode);
  CuResult (*module_load_data)(CuModule* module, const void* image);
  CuResult (*module_get_function)(CuFunction* function, CuModule module, const char* name);
  CuResult (*func_get_attribute)(int* value, int attribute, CuFunction function);
  CuResult (*func_set_attribute)(CuFunction function, int attribute, int value);
  CuResult (*occupancy_max_active_blocks_per_multiprocessor)(int* blocks, CuFunction function,
                                                             int threads, std::size_t shared_bytes);
  CuResult (*launch_kernel)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, CuStream stream, void** params, void** extra);
  CuResult (*pointer_get_attribute)(void* value, int attribute, CuPointer pointer);
  CuResult (*mem_alloc)(CuPointer* pointer, std::size_t bytes);
  CuResult (*mem_free)(CuPointer pointer);
  CuResult (*mem_alloc_async)(CuPointer* pointer, std::size_t bytes, CuStream stream);
  CuResult (*mem_free_async)(CuPointer pointer, CuStream stream);
  CuResult (*memcpy_htod_async)(CuPointer to, const void* from, std::size_t bytes, CuStream stream);
  CuResult (*memcpy_dtoh_async)(void* to, CuPointer from, std::size_t bytes, CuStream stream);
  CuResult (*memset_d8_async)(CuPointer to, unsigned char value, std::size_t count,
                              CuStream stream);
  /// Null in drivers before CUDA 12. `map` is aligned to 64 bytes.
  CuResult (*tensor_map_encode_tiled)(void* map, int type, unsigned rank, void* data,
                                      const unsigned long long* dims,
                                      const unsigned long long* strides, const unsigned* box,
                                      const unsigned* element_strides, int interleave, int swizzle,
                                      int l2_promotion, int out_of_bounds_fill);
  CuResult (*stream_create)(CuStream* stream, unsigned flags);
  CuResult (*stream_destroy)(CuStream stream);
  CuResult (*stream_synchronize)(CuStream stream);

  int version;  // such as 13000
  std::string path;
};

/// Loaded and initialised at the first call; throws an Error that says what is missing.
const Driver& driver();

/// The CUDA version of the driver, such as 13000, or 0 where there is none; initialises nothing.
int driver_version() noexcept;

/// "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected".
std::string driver_error_text(const Driver& api, CuResult result);

/// Throws an Error of `what`, a gerund such as "loading a kernel", unless `result` is success.
template <typename... Arguments>
void check_driver(CuResult result, fmt::format_string<Arguments...> what,
                  Arguments&&... arguments) {
  STEPWELL_CHECK(result == 0, kRuntime, "{} failed: {}",
                 fmt::format(what, std::forward<Arguments>(arguments)...),
                 driver_error_text(driver(), result));
}

/// Makes the primary context of `device` current for a scope. The context is retained at first use
/// and kept.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace stepwell::runtime
