// GPUs through the CUDA driver. A device is used through its primary context, the one that torch
// and the CUDA runtime use. Functions are thread-safe and leave the thread's current context as it
// was; every driver call is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace stepwell::runtime {

struct DeviceProperties {
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int sm_count = 0;
  int max_shared_bytes = 0;     ///< of one CTA, when it asks for more than 48 KiB
  int shared_bytes_per_sm = 0;  ///< of all CTAs on an SM
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;

  /// What kernels are compiled for: "sm_90a" for 9.0, else "sm_<major><minor>".
  std::string arch() const;
};

/// Visible devices; throws where there is no driver.
int device_count();

/// Of device `device`, read once.
const DeviceProperties& device_properties(int device);

/// The device of the thread's current context, or 0 where there is none.
int current_device();

/// The device whose memory `pointer` points to; throws for memory that no device owns.
int device_of(const void* pointer);

// Memory, for callers without an allocator of their own (tests, the program). `stream` is a
// CUstream; nullptr is the default stream.

void* allocate_device(int device, std::size_t bytes);
void free_device(int device, void* pointer) noexcept;

/// In stream order; allowed while a graph is captured.
void* allocate_async(int device, std::size_t bytes, void* stream);
void free_async(int device, void* pointer, void* stream) noexcept;

void copy_to_device(int device, void* to, const void* from, std::size_t bytes, void* stream);
void copy_to_host(int device, void* to, const void* from, std::size_t bytes, void* stream);

/// Fills with zero bytes, in stream order.
void clear_async(int device, void* pointer, std::size_t bytes, void* stream);

void synchronize(int device, void* stream);

/// Streams of one's own; nullptr is the default stream everywhere above.
void* create_stream(int device);
void destroy_stream(int device, void* stream) noexcept;

}  // namespace stepwell::runtime
