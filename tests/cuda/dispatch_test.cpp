// Calls with tensors on a GPU, on a stand-in for the driver: what reaches it, and with which memory
// and stream.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/gpu.hpp"
#include "cuda/stand_ins.hpp"
#include "runtime/log.hpp"

namespace stepwell::testing {
namespace {

const bool kReady = (use_stand_ins(), true);

int stream_memory;

TEST(Dispatch, ForwardLaunchesOnTheStream) {
  Call call = on_cuda(batched_call());
  call.args.stream = &stream_memory;
  const int before = driver().launches;
  attention_forward(call.args, call.outputs);
  EXPECT_EQ(driver().launches, before + 1);
  // 16 rows in a tile, 2 segments, 2 samples, 4 heads.
  EXPECT_EQ(driver().last_launch.grid[0], 2u * 2u * 4u);
  EXPECT_EQ(driver().last_launch.grid[1], 1u);
  EXPECT_EQ(driver().last_launch.grid[2], 1u);
  EXPECT_EQ(driver().last_launch.block[0], 128u);
  EXPECT_EQ(driver().last_launch.stream, &stream_memory);
  EXPECT_EQ(driver().last_launch.device, 0);
}

TEST(Dispatch, LoadedOncePerKernel) {
  Call call = on_cuda(batched_call());
  attention_forward(call.args, call.outputs);
  const int loaded = driver().modules_loaded;
  attention_forward(call.args, call.outputs);
  call.args.mask = DiffusionMask{.block_size = 7};
  call.args.softmax_scale = 0.5;
  attention_forward(call.args, call.outputs);
  EXPECT_EQ(driver().modules_loaded, loaded);
  call.args.softcap = 2.0;
  attention_forward(call.args, call.outputs);
  EXPECT_EQ(driver().modules_loaded, loaded + 1);
}

TEST(Dispatch, BackwardHasItsOwnWorkspace) {
  Call call = on_cuda(batched_call());
  const int before = driver().launches;
  attention_backward(call.args, call.gradients);
  EXPECT_EQ(driver().launches, before + 3);
  EXPECT_EQ(driver().last_launch.stream, nullptr);
}

TEST(Dispatch, KernelsOfAPassAreLoadedTogether) {
  std::vector<std::pair<std::thread::id, std::string>> lines;
  runtime::set_log_callback([&](runtime::LogLevel, const std::string& line) {
    lines.emplace_back(std::this_thread::get_id(), line);
  });
  Call call = on_cuda(batched_call());
  call.args.softcap = 5.0;  // with deterministic: kernels that no other test loads
  call.args.deterministic = true;
  const int loaded = driver().modules_loaded;
  driver().failing = "cuModuleGetFunction";
  EXPECT_THROW(attention_backward(call.args, call.gradients), Error);
  driver().failing = "";
  const int launches = driver().launches;
  attention_backward(call.args, call.gradients);
  runtime::set_log_callback({});
  EXPECT_EQ(driver().launches, launches + 3);
  EXPECT_GE(driver().modules_loaded, loaded + 2);
  // On the caller's thread, which may hold what a callback needs.
  EXPECT_GE(lines.size(), 2u);
  for (const auto& [thread, line] : lines) EXPECT_EQ(thread, std::this_thread::get_id()) << line;
}

struct Pool {
  std::vector<std::pair<std::size_t, Device>> requests;
  alignas(64) std::byte memory[1 << 18];
};

void* take(void* context, std::size_t bytes, Device device) {
  auto* pool = static_cast<Pool*>(context);
  pool->requests.emplace_back(bytes, device);
  return bytes <= sizeof(pool->memory) ? pool->memory : nullptr;
}

TEST(Dispatch, WorkspaceOfTheCallers) {
  const auto pool = std::make_unique<Pool>();
  Call call = on_cuda(batched_call());
  call.args.allocator = {&take, pool.get()};
  attention_forward(call.args, call.outputs);
  EXPECT_TRUE(pool->requests.empty());
  attention_backward(call.args, call.gradients);
  ASSERT_EQ(pool->requests.size(), 1u);
  // q [2, 32, 4, 16] in 64 padded rows: sums of native head dim 64, delta and log-sum-exp.
  EXPECT_EQ(pool->requests[0].first, std::size_t{2 * 64 * 4 * (64 + 2) * 4});
  EXPECT_EQ(pool->requests[0].second, (Device{DeviceType::kCuda, 0}));
  const AttentionPlan plan = plan_attention_backward(call.args, call.gradients);
  EXPECT_EQ(plan.workspace_bytes(), pool->requests[0].first);

  call.args.deterministic = true;  // no sums
  const int launches = driver().launches;
  attention_backward(call.args, call.gradients);
  EXPECT_EQ(driver().launches, launches + 3);
  EXPECT_EQ(pool->requests.back().first, std::size_t{2 * 64 * 4 * 2 * 4});
}

TEST(Dispatch, AllocatorOnTheCpu) {
  const auto pool = std::make_unique<Pool>();
  Call call = batched_call();
  call.args.allocator = {&take, pool.get()};
  call.backward();
  ASSERT_FALSE(pool->requests.empty());
  EXPECT_EQ(pool->requests[0].second, Device{});
}

TEST(Dispatch, PlansLoadAndRunsLaunch) {
  Call call = on_cuda(split_call());
  call.args.softcap = 3.0;  // with dropout: a kernel that no other test loads
  call.args.dropout_p = 0.5;
  const int launches = driver().launches;
  int loaded = driver().modules_loaded;
  const AttentionPlan forward = plan_attention_forward(call.args, call.outputs);
  EXPECT_EQ(driver().modules_loaded, loaded + 1);
  loaded = driver().modules_loaded;
  const AttentionPlan backward = plan_attention_backward(call.args, call.gradients);
  EXPECT_GE(driver().modules_loaded, loaded + 1);
  EXPECT_EQ(driver().launches, launches);
  EXPECT_EQ(forward.workspace_bytes(), 0u);
  EXPECT_NE(forward.describe().find("attention_forward"), std::string::npos);
  EXPECT_NE(backward.describe().find("attention_backward"), std::string::npos);

  loaded = driver().modules_loaded;
  run(forward, call.args, call.outputs, nullptr);
  EXPECT_EQ(driver().launches, launches + 1);
  void* workspace = ::operator new (backward.workspace_bytes(), std::align_val_t{64});
  run(backward, call.args, call.gradients, workspace);
  EXPECT_EQ(driver().launches, launches + 4);
  EXPECT_EQ(driver().modules_loaded, loaded);

  call.args.deterministic = true;  // other kernels and less workspace than planned
  EXPECT_THROW(run(backward, call.args, call.gradients, workspace), Error);
  ::operator delete (workspace, std::align_val_t{64});
}

TEST(Dispatch, DeviceArraysAreNotRead) {
  Call call = on_cuda(interleaved_call());
  call.args.cu_seqlens.data = reinterpret_cast<void*>(std::uintptr_t{4096});
  const int before = driver().launches;
  attention_forward(call.args, call.outputs);
  EXPECT_EQ(driver().launches, before + 1);
}

cuda::TiledTensor tensor_of(unsigned long long rows) {
  return {.data = &stream_memory,
          .rank = 5,
          .dims = {64, rows, 2, 8, 3},
          .strides = {2048, 128, 256, 614400},
          .box = {64, 128, 2, 1, 1},
          .swizzle = cuda::Swizzle::k128};
}

TEST(Dispatch, TensorMapsComeFromTheDriver) {
  const cuda::GpuLauncher launcher(1, nullptr);
  EXPECT_EQ(launcher.limits().major, 9);
  EXPECT_EQ(launcher.limits().sms, 11);
  EXPECT_TRUE(launcher.limits().warpgroups);
  cuda::TiledTensor tensor = tensor_of(300);
  const cuda::TensorMap map = launcher.tensor_map(tensor);
  EXPECT_EQ(map.opaque[15], 0x5a5a5a5a5a5a5a5aull);
  const StandInDriver::TensorMap& seen = driver().last_tensor_map;
  EXPECT_EQ(seen.type, 1);  // 16 bits
  EXPECT_EQ(seen.swizzle, 3);
  EXPECT_EQ(seen.rank, 5u);
  EXPECT_EQ(seen.data, &stream_memory);
  for (int d = 0; d < 5; ++d) {
    EXPECT_EQ(seen.dims[d], tensor.dims[d]);
    EXPECT_EQ(seen.box[d], tensor.box[d]);
    EXPECT_EQ(seen.element_strides[d], 1u);
    if (d > 0) {
      EXPECT_EQ(seen.strides[d - 1], tensor.strides[d - 1]);
    }
  }
  driver().failing = "cuTensorMapEncodeTiled";
  tensor.dims[1] = 299;
  EXPECT_THROW(launcher.tensor_map(tensor), Error);
  driver().failing = "";
}

/// Of a GPU of compute capability 9.0, in a process with this value of STEPWELL_SM90_KERNELS.
void exit_with_warpgroups(const char* value) {
  setenv("STEPWELL_SM90_KERNELS", value, 1);
  try {
    std::exit(cuda::GpuLauncher(1, nullptr).limits().warpgroups ? 1 : 0);
  } catch (const Error& error) {
    std::cerr << error.what();
    std::exit(2);
  }
}

TEST(DispatchDeathTest, KernelsForSm90CanBeTurnedOff) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the value is read once in a process
  EXPECT_EXIT(exit_with_warpgroups(""), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(exit_with_warpgroups("0"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_with_warpgroups("1"), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(exit_with_warpgroups("yes"), ::testing::ExitedWithCode(2),
              "STEPWELL_SM90_KERNELS is \"yes\"; accepted: 0, 1");
}

TEST(Dispatch, FailedLaunchesAreReported) {
  Call call = on_cuda(batched_call());
  attention_forward(call.args, call.outputs);
  driver().failing = "cuLaunchKernel";
  try {
    attention_forward(call.args, call.outputs);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_INVALID_VALUE"), std::string::npos);
  }
  driver().failing = "";
}

}  // namespace
}  // namespace stepwell::testing
