// Names that device and host builds share: integer types, call sites, launch attributes.
// Includes nothing but headers of ours, so NVRTC needs no include path.
#pragma once

#include "cuda/element.hpp"
#include "cuda/tensor_map.hpp"

#if defined(STEPWELL_HOST_MODEL)
// The attributes mean nothing to a host compiler. (Never define __noinline__ here: libstdc++ uses
// that spelling inside __attribute__.)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#endif

namespace stepwell::cuda {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(16) U32x4 {
  u32 x, y, z, w;
};

// A number as a type.
template <auto kNumber>
struct Constant {
  static constexpr auto kValue = kNumber;
};

// Where a wrapper was called from. Empty on the device. On the host every wrapper has a last
// parameter `Loc loc = Loc::current()`, so errors can name the kernel's line.
#if defined(STEPWELL_HOST_MODEL)
struct Loc {
  const char* file;
  int line;
  static constexpr Loc current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};
#else
struct Loc {
  __device__ static constexpr Loc current() { return {}; }
};
#endif

}  // namespace stepwell::cuda

#if defined(STEPWELL_HOST_MODEL)
#include "host_model/host_model.hpp"
#endif
