#include "runtime/device.hpp"

#include <array>
#include <map>
#include <mutex>

#include "runtime/driver.hpp"

namespace stepwell::runtime {
namespace {

struct Device {
  DeviceProperties properties;
  CuContext context = nullptr;
};

int attribute(const Driver& api, int which, int device) {
  int value = 0;
  check_driver(api.device_get_attribute(&value, which, device), "reading attribute {} of GPU {}",
               which, device);
  return value;
}

Device open_device(int device) {
  const Driver& api = driver();
  const int count = device_count();
  STEPWELL_CHECK(device >= 0 && device < count, kRuntime,
                 "GPU {} does not exist: the CUDA driver shows {}", device, count);
  Device opened;
  DeviceProperties& properties = opened.properties;
  std::array<char, 256> name{};
  check_driver(api.device_get_name(name.data(), static_cast<int>(name.size()), device),
               "reading the name of GPU {}", device);
  properties.name = name.data();
  properties.major = attribute(api, kComputeCapabilityMajor, device);
  properties.minor = attribute(api, kComputeCapabilityMinor, device);
  properties.sm_count = attribute(api, kMultiprocessorCount, device);
  properties.max_shared_bytes = attribute(api, kMaxSharedMemoryPerBlockOptin, device);
  properties.shared_bytes_per_sm = attribute(api, kMaxSharedMemoryPerMultiprocessor, device);
  properties.l2_bytes = attribute(api, kL2CacheSize, device);
  std::size_t memory = 0;
  check_driver(api.device_total_mem(&memory, device), "reading the memory size of GPU {}", device);
  properties.memory_bytes = static_cast<std::int64_t>(memory);
  return opened;
}

struct Devices {
  std::mutex mutex;
  std::map<int, Device> opened;  // whose elements stay where they are
};

Devices& devices() {
  static auto* const created = new Devices;
  return *created;
}

Device& device_locked(int device) {
  auto& opened = devices().opened;
  auto found = opened.find(device);
  if (found == opened.end()) found = opened.emplace(device, open_device(device)).first;
  return found->second;
}

CuContext primary_context(int device) {
  const std::lock_guard lock(devices().mutex);
  Device& opened = device_locked(device);
  if (opened.context == nullptr) {
    check_driver(driver().device_primary_ctx_retain(&opened.context, device),
                 "using the primary context of GPU {}", device);
  }
  return opened.context;
}

CuPointer to_driver(const void* pointer) { return reinterpret_cast<CuPointer>(pointer); }
// NOLINTNEXTLINE(performance-no-int-to-ptr)
void* from_driver(CuPointer pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

std::string DeviceProperties::arch() const {
  return fmt::format("sm_{}{}{}", major, minor, major == 9 && minor == 0 ? "a" : "");
}

int device_count() {
  int count = 0;
  check_driver(driver().device_get_count(&count), "counting GPUs");
  return count;
}

const DeviceProperties& device_properties(int device) {
  const std::lock_guard lock(devices().mutex);
  return device_locked(device).properties;
}

DeviceScope::DeviceScope(int device) {
  const CuContext context = primary_context(device);
  CuContext current = nullptr;
  check_driver(driver().ctx_get_current(&current), "reading the current context");
  if (current == context) return;
  check_driver(driver().ctx_push_current(context), "making GPU {} current", device);
  pushed_ = true;
}

DeviceScope::~DeviceScope() {
  CuContext popped = nullptr;
  if (pushed_) driver().ctx_pop_current(&popped);
}

int current_device() {
  CuContext current = nullptr;
  check_driver(driver().ctx_get_current(&current), "reading the current context");
  if (current == nullptr) return 0;
  int device = 0;
  check_driver(driver().ctx_get_device(&device), "reading the current context's GPU");
  return device;
}

int device_of(const void* pointer) {
  int device = 0;
  check_driver(driver().pointer_get_attribute(&device, kPointerDeviceOrdinal, to_driver(pointer)),
               "asking which GPU owns the memory at {}", pointer);
  return device;
}

void* allocate_device(int device, std::size_t bytes) {
  const DeviceScope scope(device);
  CuPointer pointer = 0;
  check_driver(driver().mem_alloc(&pointer, bytes), "allocating {} bytes on GPU {}", bytes, device);
  return from_driver(pointer);
}

void free_device(int device, void* pointer) noexcept {
  try {
    const DeviceScope scope(device);
    driver().mem_free(to_driver(pointer));
  } catch (const std::exception&) {
    return;  // the context is broken, its memory with it
  }
}

void* allocate_async(int device, std::size_t bytes, void* stream) {
  const DeviceScope scope(device);
  CuPointer pointer = 0;
  check_driver(driver().mem_alloc_async(&pointer, bytes, stream), "allocating {} bytes on GPU {}",
               bytes, device);
  return from_driver(pointer);
}

void free_async(int device, void* pointer, void* stream) noexcept {
  try {
    const DeviceScope scope(device);
    driver().mem_free_async(to_driver(pointer), stream);
  } catch (const std::exception&) {
    return;  // the context is broken, its memory with it
  }
}

void copy_to_device(int device, void* to, const void* from, std::size_t bytes, void* stream) {
  const DeviceScope scope(device);
  check_driver(driver().memcpy_htod_async(to_driver(to), from, bytes, stream),
               "copying {} bytes to GPU {}", bytes, device);
}

void copy_to_host(int device, void* to, const void* from, std::size_t bytes, void* stream) {
  const DeviceScope scope(device);
  check_driver(driver().memcpy_dtoh_async(to, to_driver(from), bytes, stream),
               "copying {} bytes from GPU {}", bytes, device);
}

void clear_async(int device, void* pointer, std::size_t bytes, void* stream) {
  const DeviceScope scope(device);
  check_driver(driver().memset_d8_async(to_driver(pointer), 0, bytes, stream),
               "clearing {} bytes on GPU {}", bytes, device);
}

void synchronize(int device, void* stream) {
  const DeviceScope scope(device);
  check_driver(driver().stream_synchronize(stream), "waiting for GPU {}", device);
}

void* create_stream(int device) {
  const DeviceScope scope(device);
  CuStream stream = nullptr;
  check_driver(driver().stream_create(&stream, kStreamNonBlocking), "creating a stream on GPU {}",
               device);
  return stream;
}

void destroy_stream(int device, void* stream) noexcept {
  try {
    const DeviceScope scope(device);
    driver().stream_destroy(stream);
  } catch (const std::exception&) {
    return;  // the context is broken, its streams with it
  }
}

}  // namespace stepwell::runtime
