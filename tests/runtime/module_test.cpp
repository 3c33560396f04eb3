// Loading and launching, through a stand-in for the driver.
#include "runtime/module.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <thread>

#include "runtime/device.hpp"
#include "runtime/driver.hpp"
#include "runtime/environment.hpp"
#include "runtime/stand_in_driver.hpp"

namespace stepwell::testing {
namespace {

using runtime::get_kernel;
using runtime::Kernel;
using runtime::LogLevel;

StandInDriver& stand_in() {
  runtime::driver();
  void* const handle = dlopen(STAND_INS "/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* const function =
      reinterpret_cast<decltype(&stand_in_driver)>(dlsym(handle, "stand_in_driver"));
  dlclose(handle);
  return *function();
}

/// A call of the stand-in that fails for a scope.
class Failing {
 public:
  explicit Failing(const char* call) { stand_in().failing = call; }
  ~Failing() { stand_in().failing.clear(); }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
};

void* current_context() {
  void* context = nullptr;
  EXPECT_EQ(runtime::driver().ctx_get_current(&context), 0);
  return context;
}

TEST(Module, LoadedOncePerDevice) {
  StandInDriver& driver = stand_in();
  const auto spec = unique_spec();
  const int before = driver.modules_loaded;
  const Kernel first = get_kernel(spec, 0);
  EXPECT_EQ(driver.last_image_options, "--gpu-architecture=sm_89");
  EXPECT_EQ(driver.last_function, "kernel");
  EXPECT_EQ(driver.shared_attribute, spec.shared_bytes);
  EXPECT_EQ(get_kernel(spec, 0).function, first.function);
  EXPECT_EQ(driver.modules_loaded, before + 1);
  const Kernel second = get_kernel(spec, 1);
  EXPECT_EQ(driver.last_image_options, "--gpu-architecture=sm_90a");
  EXPECT_NE(second.function, first.function);
  EXPECT_EQ(driver.modules_loaded, before + 2);
  EXPECT_EQ(first.device, 0);
  EXPECT_EQ(second.device, 1);
  EXPECT_EQ(first.threads, spec.threads);
  EXPECT_EQ(first.registers, 40);
  EXPECT_EQ(first.max_ctas_per_sm, 2);
}

TEST(Module, LoadedOnceByManyThreads) {
  StandInDriver& driver = stand_in();
  const ScopedVariable slow("STAND_IN_NVRTC_MILLIS", "50");
  const auto spec = unique_spec();
  const int before = driver.modules_loaded;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { get_kernel(spec, 0); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(driver.modules_loaded, before + 1);
}

TEST(Module, OneContextPerDeviceThatIsLeftAsItWas) {
  StandInDriver& driver = stand_in();
  const auto spec = unique_spec();
  get_kernel(spec, 0);
  const Kernel kernel = get_kernel(spec, 1);
  EXPECT_EQ(driver.contexts_retained, StandInDriver::kDevices);
  EXPECT_EQ(current_context(), nullptr);
  EXPECT_EQ(runtime::current_device(), 0);
  const runtime::DeviceScope other(0);
  void* const before = current_context();
  ASSERT_NE(before, nullptr);
  const long long params[2] = {};
  launch(kernel, {}, nullptr, params);
  EXPECT_EQ(driver.last_launch.device, 1);
  EXPECT_EQ(current_context(), before);
  {
    const runtime::DeviceScope scope(1);
    EXPECT_EQ(runtime::current_device(), 1);
    const runtime::DeviceScope again(1);
    EXPECT_EQ(runtime::current_device(), 1);
  }
  EXPECT_EQ(current_context(), before);
}

TEST(Module, LaunchPassesEverything) {
  StandInDriver& driver = stand_in();
  const Kernel kernel = get_kernel(unique_spec(), 1);
  const int before = driver.launches;
  const long long params[2] = {11, 22};
  int stream = 0;
  launch(kernel, {2147483647, 3, 4}, &stream, params);
  EXPECT_EQ(driver.launches, before + 1);
  const auto& last = driver.last_launch;
  EXPECT_EQ(last.grid[0], 2147483647u);
  EXPECT_EQ(last.grid[1], 3u);
  EXPECT_EQ(last.grid[2], 4u);
  EXPECT_EQ(last.block[0], 128u);
  EXPECT_EQ(last.block[1], 1u);
  EXPECT_EQ(last.block[2], 1u);
  EXPECT_EQ(last.shared_bytes, 50u * 1024);
  EXPECT_EQ(last.stream, &stream);
  EXPECT_EQ(last.params[0], 11);
  EXPECT_EQ(last.params[1], 22);
}

TEST(Module, LocalMemoryIsReported) {
  StandInDriver& driver = stand_in();
  LogLines log;
  auto spec = unique_spec();
  driver.local_bytes = 16;
  EXPECT_EQ(get_kernel(spec, 0).local_bytes, 16);
  const auto warnings = log.lines(LogLevel::kWarning);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find(spec.name + " uses 16 bytes of local memory"), std::string::npos)
      << warnings[0];
  spec = unique_spec();
  spec.accepted_spill_bytes = 16;
  get_kernel(spec, 0);
  EXPECT_EQ(log.lines(LogLevel::kWarning).size(), 1u);
  driver.local_bytes = 0;
}

TEST(Module, FailuresNameTheKernel) {
  const auto spec = unique_spec();
  {
    const Failing failing("cuModuleLoadData");
    expect_error(ErrorKind::kRuntime,
                 {"loading " + spec.name, "GPU 0 (Stand-in)", "CUDA_ERROR_INVALID_VALUE",
                  "text of the stand-in", "NVRTC 13.0", "CUDA 13.0"},
                 [&] { get_kernel(spec, 0); });
  }
  {
    const Failing failing("cuModuleGetFunction");
    expect_error(ErrorKind::kRuntime, {spec.name, "CUDA_ERROR_INVALID_VALUE"},
                 [&] { get_kernel(spec, 0); });
  }
  const Kernel kernel = get_kernel(spec, 0);  // a failure is not remembered
  const Failing failing("cuLaunchKernel");
  const long long params[2] = {};
  expect_error(ErrorKind::kRuntime, {"launching 5 x 1 x 1 CTAs of 128 threads", "51200", "GPU 0"},
               [&] { launch(kernel, {5}, nullptr, params); });
}

TEST(Module, WhatDoesNotFitIsRefused) {
  auto spec = unique_spec();
  spec.shared_bytes = StandInDriver::kMaxSharedBytes + 1;
  expect_error(ErrorKind::kRuntime, {spec.name, "101377", "101376"}, [&] { get_kernel(spec, 0); });
  spec = unique_spec();
  spec.threads = 2048;
  expect_error(ErrorKind::kRuntime, {spec.name, "2048 threads", "does not fit"},
               [&] { get_kernel(spec, 0); });
}

TEST(Device, Properties) {
  EXPECT_EQ(runtime::device_count(), 2);
  const auto& first = runtime::device_properties(0);
  EXPECT_EQ(first.name, "Stand-in");
  EXPECT_EQ(first.arch(), "sm_89");
  EXPECT_EQ(first.sm_count, 10);
  EXPECT_EQ(first.max_shared_bytes, StandInDriver::kMaxSharedBytes);
  EXPECT_EQ(first.shared_bytes_per_sm, 100 * 1024);
  EXPECT_EQ(first.l2_bytes, 4 << 20);
  EXPECT_EQ(first.memory_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(runtime::device_properties(1).arch(), "sm_90a");
  expect_error(ErrorKind::kRuntime, {"GPU 2", "shows 2"}, [] { runtime::device_properties(2); });
}

TEST(Device, MemoryAndStreams) {
  void* const stream = runtime::create_stream(1);
  void* const memory = runtime::allocate_device(1, 16);
  EXPECT_EQ(runtime::device_of(memory), 1);
  const std::string text = "fifteen letters";
  std::string back(16, 'x');
  runtime::copy_to_device(1, memory, text.c_str(), 16, stream);
  runtime::copy_to_host(1, back.data(), memory, 16, stream);
  runtime::synchronize(1, stream);
  EXPECT_EQ(back, text + '\0');
  runtime::clear_async(1, memory, 4, stream);
  runtime::copy_to_host(1, back.data(), memory, 16, stream);
  EXPECT_EQ(back.substr(0, 5), std::string("\0\0\0\0e", 5));
  runtime::free_device(1, memory);
  void* const other = runtime::allocate_async(1, 8, stream);
  runtime::free_async(1, other, stream);
  runtime::destroy_stream(1, stream);
  const Failing failing("cuMemAlloc_v2");
  expect_error(ErrorKind::kRuntime, {"allocating 77 bytes on GPU 1", "CUDA_ERROR_INVALID_VALUE"},
               [] { runtime::allocate_device(1, 77); });
}

}  // namespace
}  // namespace stepwell::testing
