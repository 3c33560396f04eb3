// STEPWELL_DEBUG_SYNC: values in device memory are checked, and errors of kernels show at the call.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "cuda/stand_ins.hpp"

namespace stepwell::testing {
namespace {

const bool kReady = (use_stand_ins(), setenv("STEPWELL_DEBUG_SYNC", "1", 1), true);

template <typename Run>
std::string message_of(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(DebugSync, AcceptsWhatIsRight) {
  for (const Call& made : {batched_call(), interleaved_call(), halves_call(), split_call(),
                           split_packed_call(), sequence_packed_call(SequenceMask::Kind::kFull)}) {
    const Call call = on_cuda(made);
    EXPECT_EQ(message_of([&] { attention_forward(call.args, call.outputs); }), "");
    EXPECT_EQ(message_of([&] { attention_backward(call.args, call.gradients); }), "");
  }
}

TEST(DebugSync, NamesValuesThatAreWrong) {
  Call call = interleaved_call();
  static_cast<std::int32_t*>(call.args.cu_seqlens.data)[1] = 9999;
  call = on_cuda(std::move(call));
  const int before = driver().launches;
  EXPECT_NE(
      message_of([&] { attention_forward(call.args, call.outputs); }).find("cu_seqlens[1] is 9999"),
      std::string::npos);
  EXPECT_NE(message_of([&] {
              attention_backward(call.args, call.gradients);
            }).find("cu_seqlens[1] is 9999"),
            std::string::npos);
  EXPECT_EQ(driver().launches, before);
}

TEST(DebugSync, WaitsForTheKernels) {
  const Call call = on_cuda(batched_call());
  driver().failing = "cuStreamSynchronize";
  EXPECT_NE(message_of([&] {
              attention_forward(call.args, call.outputs);
            }).find("CUDA_ERROR_INVALID_VALUE"),
            std::string::npos);
  driver().failing = "";
}

}  // namespace
}  // namespace stepwell::testing
