// What the stand-in for libcuda records, and what it can be told to do. Two devices: device 0 is
// compute capability 8.9, device 1 is 9.0.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace stepwell::testing {

struct StandInDriver {
  static constexpr int kDevices = 2;
  static constexpr int kMaxSharedBytes = 99 * 1024;

  std::atomic<int> modules_loaded{0};
  std::atomic<int> functions_found{0};
  std::atomic<int> launches{0};
  std::atomic<int> contexts_retained{0};
  std::string last_image_options;  // the first line of the last module's "cubin"
  std::string last_function;

  struct Launch {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void* stream;
    int device;  // of the current context
    long long params[2];
  } last_launch{};

  int tensor_maps = 0;  // encoded
  struct TensorMap {
    int type, swizzle;
    unsigned rank;
    void* data;
    unsigned long long dims[5], strides[4];
    unsigned box[5], element_strides[5];
  } last_tensor_map{};

  // A call that fails with CUDA_ERROR_INVALID_VALUE, such as "cuLaunchKernel".
  std::string failing;
  int local_bytes = 0;
  int shared_attribute = 0;  // as last set
};

}  // namespace stepwell::testing

extern "C" stepwell::testing::StandInDriver* stand_in_driver();
