// Kernels on a device: found or compiled, loaded once, launched.
#pragma once

#include "runtime/spec.hpp"

namespace stepwell::runtime {

/// A loaded kernel: a handle that is copied freely and stays valid until the process ends.
struct Kernel {
  void* function = nullptr;  ///< CUfunction
  int device = 0;
  int threads = 0;
  int shared_bytes = 0;
  int registers = 0;
  int local_bytes = 0;      ///< local memory of a thread
  int max_ctas_per_sm = 0;  ///< that fit an SM together
};

/// The kernel on `device`, from the process, the caches or the compiler. Finding a loaded kernel
/// again costs a hash of its source: keep the handle where every microsecond counts. Allowed while
/// a graph is captured. Thread-safe.
Kernel get_kernel(const KernelSpec& spec, int device);

struct GridSize {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// Launches on `stream` (a CUstream of the kernel's device, or nullptr for its default stream).
/// `params` is the kernel's one parameter, copied before this returns.
void launch(const Kernel& kernel, GridSize grid, void* stream, const void* params);

}  // namespace stepwell::runtime
