// What the CUDA backend does not take is refused by name, before a GPU is needed.
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "api/call.hpp"
#include "cuda/calls.hpp"
#include "runtime/library.hpp"

namespace stepwell::testing {
namespace {

struct Refusal {
  std::function<void(Call&)> spoil;
  ErrorKind kind;
  std::vector<std::string> words;
};

void expect_refusal(const Refusal& refusal, const std::function<void()>& run) {
  try {
    run();
    ADD_FAILURE() << "accepted; expected: " << refusal.words[0];
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), refusal.kind) << error.what();
    for (const std::string& word : refusal.words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << error.what() << "\nlacks: " << word;
    }
  }
}

void check_forward(const Refusal& refusal, bool planned = true) {
  Call call = on_cuda(batched_call());
  refusal.spoil(call);
  expect_refusal(refusal, [&] { attention_forward(call.args, call.outputs); });
  if (planned) expect_refusal(refusal, [&] { plan_attention_forward(call.args, call.outputs); });
}

void check_backward(const Refusal& refusal, bool planned = true) {
  Call call = on_cuda(batched_call());
  refusal.spoil(call);
  expect_refusal(refusal, [&] { attention_backward(call.args, call.gradients); });
  if (planned) {
    expect_refusal(refusal, [&] { plan_attention_backward(call.args, call.gradients); });
  }
}

void widen_rows(Tensor& tensor, std::int64_t stride) {
  tensor.stride[0] = tensor.shape[1] * stride;
  tensor.stride[1] = stride;
}

void move_start(Tensor& tensor, int bytes = 2) {
  tensor.data = static_cast<char*>(tensor.data) + bytes;
}

/// All tensors float32; their memory is as large as before, and is not read.
void make_float32(Call& call) {
  AttentionArgs& args = call.args;
  AttentionGradients& g = call.gradients;
  for (Tensor* tensor :
       {&args.q, &args.k, &args.v, &call.outputs.out, &g.out, &g.dout, &g.dq, &g.dk, &g.dv}) {
    tensor->dtype = DType::kFloat32;
  }
}

TEST(CudaRefusals, Float32Rows) {
  check_forward({[](Call& call) {
                   make_float32(call);
                   widen_rows(call.args.k, 34);
                 },
                 ErrorKind::kValue,
                 {"k has stride 34 in dimension 1", "multiples of 4"}});
  check_backward({[](Call& call) {
                    make_float32(call);
                    widen_rows(call.gradients.dv, 34);
                  },
                  ErrorKind::kValue,
                  {"dv has stride 34 in dimension 1", "multiples of 4"}});
  check_forward({[](Call& call) {
                   make_float32(call);
                   move_start(call.args.v, 4);
                 },
                 ErrorKind::kValue,
                 {"v starts at an address", "multiple of 16 bytes"}},
                /*planned=*/false);
}

// What the kernels of float32 take: any sign of the scale, a backward pass that is the same each
// time, strides of 4 elements, any strides of lse.
TEST(CudaRefusals, NoneOfFloat32) {
  if (runtime::report_driver().found) GTEST_SKIP() << "would run on the GPU";
  const Refusal no_driver{[](Call& call) {
                            make_float32(call);
                            call.args.softmax_scale = -0.5;
                            call.args.deterministic = true;
                            widen_rows(call.args.k, 36);
                            call.outputs.lse.stride[0] = 1000;
                            call.gradients.lse.stride[0] = 1001;
                          },
                          ErrorKind::kRuntime,
                          {"CUDA driver"}};
  check_forward(no_driver);
  check_backward(no_driver);
}

TEST(CudaRefusals, Strides) {
  check_forward({[](Call& call) { widen_rows(call.args.k, 36); },
                 ErrorKind::kValue,
                 {"k has stride 36 in dimension 1", "multiples of 8"}});
  check_forward({[](Call& call) { widen_rows(call.outputs.out, 68); },
                 ErrorKind::kValue,
                 {"out has stride 68 in dimension 1"}});
  check_backward({[](Call& call) { widen_rows(call.gradients.dout, 68); },
                  ErrorKind::kValue,
                  {"dout has stride 68 in dimension 1"}});
  check_backward({[](Call& call) { widen_rows(call.gradients.dv, 36); },
                  ErrorKind::kValue,
                  {"dv has stride 36 in dimension 1"}});
}

TEST(CudaRefusals, Addresses) {
  check_forward({[](Call& call) { move_start(call.args.v); },
                 ErrorKind::kValue,
                 {"v starts at an address", "multiple of 16 bytes"}},
                /*planned=*/false);
  check_forward({[](Call& call) { move_start(call.outputs.out); },
                 ErrorKind::kValue,
                 {"out starts at an address"}},
                /*planned=*/false);
  check_backward({[](Call& call) { move_start(call.gradients.dq); },
                  ErrorKind::kValue,
                  {"dq starts at an address"}},
                 /*planned=*/false);
}

TEST(CudaRefusals, MixedDevices) {
  check_forward({[](Call& call) { call.args.k.device = {}; },
                 ErrorKind::kType,
                 {"k is on cpu; q is on cuda:0"}});
  check_forward({[](Call& call) {
                   call.args.seqused = call.ints({16, 3});
                 },
                 ErrorKind::kType,
                 {"seqused is on cpu; q is on cuda:0"}});
  check_forward({[](Call& call) {
                   for (Tensor* tensor : {&call.args.k, &call.args.v}) tensor->device.index = 1;
                 },
                 ErrorKind::kType,
                 {"k is on cuda:1; q is on cuda:0"}});
}

// Dimensions of one element may have any stride.
TEST(CudaRefusals, NoneOfStridesThatDoNotMatter) {
  if (runtime::report_driver().found) GTEST_SKIP() << "would run on the GPU";
  const Refusal refusal{
      [](Call& call) {
        for (Tensor* tensor : {&call.args.q, &call.args.k, &call.args.v, &call.outputs.out}) {
          tensor->shape[0] = 1;
          tensor->stride[0] = 3;
        }
        call.outputs.lse = {};
      },
      ErrorKind::kRuntime,
      {"CUDA"}};
  check_forward(refusal);
}

TEST(CudaRefusals, NoDriver) {
  if (runtime::report_driver().found) GTEST_SKIP() << "there is a driver here";
  check_forward({[](Call&) {}, ErrorKind::kRuntime, {"CUDA driver"}});
  check_backward({[](Call&) {}, ErrorKind::kRuntime, {"CUDA driver"}});
}

}  // namespace
}  // namespace stepwell::testing
