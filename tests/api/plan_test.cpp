// Plans need no memory, run as often as wanted, and refuse what was not planned.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "api/call.hpp"
#include "api/names.hpp"

namespace stepwell::testing {
namespace {

using Kind = SequenceMask::Kind;

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};

std::unique_ptr<std::byte, AlignedDelete> workspace_of(const AttentionPlan& plan) {
  const std::size_t bytes = plan.workspace_bytes() + 64;
  return std::unique_ptr<std::byte, AlignedDelete>(
      static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
}

std::vector<float> values_of(const Tensor& tensor) {
  const auto* begin = static_cast<const float*>(tensor.data);
  return {begin, begin + tensor.size()};
}

std::vector<Call> calls() {
  std::vector<Call> calls;
  calls.push_back(batched_call());
  calls.push_back(interleaved_call());
  calls.push_back(halves_call());
  calls.push_back(split_call());
  calls.push_back(split_packed_call());
  for (const Kind kind : {Kind::kFull, Kind::kCausal, Kind::kWindow, Kind::kBlockCausal}) {
    calls.push_back(sequence_call(kind));
    calls.push_back(sequence_packed_call(kind));
  }
  return calls;
}

template <typename Struct, std::size_t N>
void forget_data(Struct& tensors, const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) (tensors.*field.tensor).data = nullptr;
}

TEST(Plan, NeedsNoMemoryAndAgreesWithOneCall) {
  for (Call& call : calls()) {
    Call shapes = call;
    forget_data(shapes.args, kTensorFields);
    forget_data(shapes.args, kArrayFields);
    forget_data(shapes.outputs, kOutputFields);
    forget_data(shapes.gradients, kGradientFields);
    const AttentionPlan forward = plan_attention_forward(shapes.args, shapes.outputs);
    const AttentionPlan backward = plan_attention_backward(shapes.args, shapes.gradients);
    EXPECT_FALSE(forward.describe().empty());
    call.backward();
    const std::vector<float> out = values_of(call.outputs.out);
    const std::vector<float> lse = values_of(call.outputs.lse);
    const std::vector<float> dk = values_of(call.gradients.dk);
    const auto forward_workspace = workspace_of(forward);
    const auto backward_workspace = workspace_of(backward);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::memset(call.outputs.out.data, 0xFF, out.size() * sizeof(float));
      std::memset(call.outputs.lse.data, 0xFF, lse.size() * sizeof(float));
      std::memset(call.gradients.dk.data, 0xFF, dk.size() * sizeof(float));
      run(forward, call.args, call.outputs, forward_workspace.get());
      run(backward, call.args, call.gradients, backward_workspace.get());
      EXPECT_EQ(values_of(call.outputs.out), out);
      EXPECT_EQ(values_of(call.outputs.lse), lse);
      EXPECT_EQ(values_of(call.gradients.dk), dk);
    }
  }
}

TEST(Plan, TakesOtherMemoryValuesAndNumbers) {
  Call call = interleaved_call();
  const AttentionPlan plan = plan_attention_forward(call.args, call.outputs);
  const auto workspace = workspace_of(plan);
  call.args.cu_seqlens = call.ints({0, 4, 12, 26});
  call.args.softmax_scale = 0.5;
  call.outputs.out = call.written({26, 4, 16});
  run(plan, call.args, call.outputs, workspace.get());
  const std::vector<float> out = values_of(call.outputs.out);
  call.forward();
  EXPECT_EQ(values_of(call.outputs.out), out);
}

void expect_refused(const std::function<void()>& run, const char* word) {
  try {
    run();
    ADD_FAILURE() << "no error that says " << word;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(Plan, RefusesWhatWasNotPlanned) {
  const Call planned = batched_call();
  const AttentionPlan plan = plan_attention_forward(planned.args, planned.outputs);
  const auto workspace = workspace_of(plan);
  const auto refused = [&](const std::function<void(Call&)>& change, const char* word) {
    Call call = planned;
    change(call);
    expect_refused([&] { run(plan, call.args, call.outputs, workspace.get()); }, word);
  };
  refused([](Call& c) { c.args.q = c.floats({2, 16, 4, 16}); }, "q is float32 [2, 16, 4, 16]");
  refused([](Call& c) { c.args.k.stride[0] += 64; }, "k is");
  refused([](Call& c) { c.args.v.dtype = DType::kFloat16; }, "v is float16");
  refused([](Call& c) { c.args.seqused = c.ints({3, 3}); }, "seqused is");
  refused([](Call& c) { c.outputs.lse = {}; }, "lse is missing");
  refused([](Call& c) { std::get<DiffusionMask>(c.args.mask).block_size = 8; }, "mask");
  refused([](Call& c) { c.args.layout = TokenLayout::kSplit; }, "layout is split");
  refused([](Call& c) { c.args.num_threads = 8; }, "num_threads is 8 now and was 0");
  refused([](Call& c) { c.args.deterministic = true; }, "deterministic is true now");
  refused([](Call& c) { c.args.layout = static_cast<TokenLayout>(9); }, "layout is");
  refused([](Call& c) { c.args.softcap = -1; }, "softcap is -1");
  refused([](Call& c) { c.args.max_seqlen = 16; }, "max_seqlen is 16");
  refused([](Call& c) { c.args.q.data = nullptr; }, "q has shape");
  Call call = planned;
  expect_refused([&] { run(plan, call.args, call.gradients, workspace.get()); }, "plan is for");
  expect_refused([&] { run(plan, call.args, call.outputs, workspace.get() + 8); }, "workspace");
  if (plan.workspace_bytes() > 0) {
    expect_refused([&] { run(plan, call.args, call.outputs, nullptr); }, "workspace is null");
  }
}

/// OpenMP's default number of threads, as it was when the test is over.
class DefaultThreads {
 public:
  DefaultThreads() : before_(omp_get_max_threads()) {}
  ~DefaultThreads() { omp_set_num_threads(before_); }
  DefaultThreads(const DefaultThreads&) = delete;
  DefaultThreads& operator=(const DefaultThreads&) = delete;

 private:
  int before_;
};

/// Work for eight threads, so that a run with more of them than planned would show.
Call busy_call() {
  Call call;
  call.args.mask = DiffusionMask{.block_size = 4};
  for (Tensor* tensor : {&call.args.q, &call.args.k, &call.args.v}) {
    *tensor = call.floats({1, 1024, 4, 16});
  }
  call.make_outputs();
  return call;
}

TEST(Plan, RunsWithThePlannedThreads) {
  const DefaultThreads restored;
  Call call = busy_call();
  omp_set_num_threads(1);
  const AttentionPlan forward = plan_attention_forward(call.args, call.outputs);
  const AttentionPlan backward = plan_attention_backward(call.args, call.gradients);
  EXPECT_NE(forward.describe().find(" 1 threads"), std::string::npos) << forward.describe();
  omp_set_num_threads(8);
  const auto check = [](const AttentionPlan& plan, const auto& run_with) {
    constexpr std::size_t kGuard = std::size_t{8} << 20;  // seven threads' memory and more
    constexpr auto kUntouched = std::byte{0xAB};
    const std::size_t bytes = plan.workspace_bytes();
    const std::unique_ptr<std::byte, AlignedDelete> workspace(
        static_cast<std::byte*>(::operator new (bytes + kGuard, std::align_val_t{64})));
    std::fill_n(workspace.get(), bytes + kGuard, kUntouched);
    run_with(workspace.get());
    EXPECT_EQ(std::count(workspace.get() + bytes, workspace.get() + bytes + kGuard, kUntouched),
              static_cast<std::ptrdiff_t>(kGuard));
  };
  check(forward, [&](std::byte* memory) { run(forward, call.args, call.outputs, memory); });
  call.gradients.out = call.outputs.out;
  call.gradients.lse = call.outputs.lse;
  check(backward, [&](std::byte* memory) { run(backward, call.args, call.gradients, memory); });
}

TEST(Plan, StridesOfSingleElementsMayBeAnything) {
  Call call = sequence_call(Kind::kCausal);
  call.args.q = call.floats({1, 1, 4, 16});
  call.args.k = call.floats({1, 10, 1, 16});
  call.args.v = call.floats({1, 10, 1, 16});
  call.args.q_offset = 9;
  call.make_outputs();
  call.backward();
  const std::vector<float> out = values_of(call.outputs.out);
  const std::vector<float> dk = values_of(call.gradients.dk);
  constexpr std::int64_t kWild = std::int64_t{1} << 60;
  for (Tensor* tensor : {&call.args.q, &call.outputs.out, &call.gradients.out, &call.gradients.dout,
                         &call.gradients.dq}) {
    tensor->stride[0] = kWild;
    tensor->stride[1] = -kWild;
  }
  for (Tensor* tensor : {&call.args.k, &call.args.v, &call.gradients.dk, &call.gradients.dv}) {
    tensor->stride[0] = -kWild;
    tensor->stride[2] = kWild;
  }
  call.outputs.lse.stride[0] = kWild;
  call.outputs.lse.stride[2] = kWild;
  call.gradients.lse = call.outputs.lse;
  call.backward();
  EXPECT_EQ(values_of(call.outputs.out), out);
  EXPECT_EQ(values_of(call.gradients.dk), dk);
}

}  // namespace
}  // namespace stepwell::testing
