// Which kernels a call launches.
#include <gtest/gtest.h>

#include "cuda/backend.hpp"
#include "cuda/configurations.hpp"
#include "cuda/problems.hpp"
#include "cuda/recorder.hpp"

namespace stepwell::cuda {
namespace {

/// The kernels that a backward pass launched, and announces, with their grids and its workspace.
template <typename Params, std::size_t N>
void expect_backward(const Recorder& recorder, const AttentionProblem& problem,
                     const AttentionKernel (&expected)[N], const std::int64_t (&ctas)[N],
                     const void* workspace) {
  const std::vector<AttentionKernel> announced = backward_kernels(problem, recorder.limits());
  ASSERT_EQ(recorder.launches.size(), N);
  ASSERT_EQ(announced.size(), N);
  for (std::size_t i = 0; i < N; ++i) {
    EXPECT_TRUE(key_of(recorder.launches[i].kernel) == key_of(expected[i])) << i;
    EXPECT_TRUE(key_of(announced[i]) == key_of(expected[i])) << i;
    EXPECT_EQ(recorder.launches[i].ctas, ctas[i]) << i;
    const auto p = recorder.launches[i].as<Params>();
    EXPECT_EQ(p.grid.ctas(), ctas[i]) << i;
    EXPECT_EQ(static_cast<const void*>(p.row_values[0].data), workspace);
  }
}

TEST(Launches, Forward) {
  const AttentionProblem problem = batched_problem(3, 300, 1, {8, 2, 120, 64});
  Recorder recorder(limits_of(8, 0));
  forward(problem, recorder);
  ASSERT_EQ(recorder.launches.size(), 1u);
  const Launch& launch = recorder.launches[0];
  const ForwardConfig config = forward_config({120, 64}, limits_of(8, 0));
  EXPECT_TRUE(key_of(launch.kernel) == key_of(ForwardKernel{config}));
  EXPECT_EQ(launch.ctas, 6 * ((300 + config.tile_q() - 1) / config.tile_q()) * 2 * 4);
  const auto p = launch.as<ForwardParams>();
  EXPECT_EQ(p.head_dim, 120);
  EXPECT_EQ(p.grid.ctas(), launch.ctas);
  EXPECT_EQ(forward_workspace_bytes(problem), 0u);
}

TEST(Launches, Backward) {
  AttentionProblem problem = batched_problem(3, 300, 1, {8, 2, 120, 72});
  problem.dtype = DType::kFloat16;
  problem.dropout_p = 0.5;
  const DeviceLimits limits = limits_of(8, 6);
  Recorder recorder(limits);
  alignas(64) static std::byte workspace[64];  // an address only
  backward(problem, workspace, recorder);
  const KernelTraits traits{120, 72, Element::kFloat16, false, true};
  const BackwardConfig config = backward_config(traits, limits);
  EXPECT_TRUE(config.dropout);
  const AttentionKernel expected[] = {PrepareKernel{{96, Element::kFloat16}},
                                      BackwardKernel{config},
                                      FinishKernel{{128, Element::kFloat16}}};
  const std::int64_t ctas[] = {6 * 3 * 2 * 4, 6 * (299 / config.tile_kv + 1) * 2, 6 * 3 * 2 * 4};
  expect_backward<BackwardParams>(recorder, problem, expected, ctas, workspace);
  for (const Launch& launch : recorder.launches) {
    const auto p = launch.as<BackwardParams>();
    EXPECT_EQ(p.dq_width, 128);
  }
  // Two segments of 300 rows, each padded to 16 rows and one of them by up to 15 more.
  EXPECT_EQ(backward_workspace_bytes(problem, limits), std::size_t{3 * 640 * 8 * (128 + 2) * 4});
}

TEST(Launches, Float32) {
  AttentionProblem problem = batched_problem(3, 300, 1, {8, 2, 120, 72});
  problem.dtype = DType::kFloat32;
  problem.softcap = 2.0;
  const DeviceLimits limits = limits_of(9, 0);
  const KernelTraits traits{120, 72, Element::kFloat32, true, false};
  Recorder recorder(limits);
  forward(problem, recorder);
  const F32Config config = forward_f32_config(traits, limits);
  ASSERT_EQ(recorder.launches.size(), 1u);
  EXPECT_TRUE(key_of(recorder.launches[0].kernel) == key_of(ForwardF32Kernel{config}));
  EXPECT_EQ(recorder.launches[0].ctas, 6 * (299 / config.tile_rows() + 1) * 2 * 4);
  EXPECT_EQ(recorder.launches[0].as<ForwardParamsF32>().q[0].row_stride, 8 * 120);
  EXPECT_TRUE(key_of(forward_kernels(problem, limits)[0]) == key_of(ForwardF32Kernel{config}));

  recorder.launches.clear();
  alignas(64) static std::byte workspace[64];  // an address only
  backward(problem, workspace, recorder);
  const F32Config dq = backward_dq_f32_config(traits, limits);
  const F32Config dkv = backward_dkv_f32_config(traits, limits);
  // Row values first: dK and dV need them.
  const AttentionKernel expected[] = {BackwardDqF32Kernel{dq}, BackwardDkvF32Kernel{dkv}};
  const std::int64_t ctas[] = {6 * (299 / dq.tile_rows() + 1) * 2 * 4,
                               6 * (299 / dkv.tile_rows() + 1) * 2};
  expect_backward<BackwardParamsF32>(recorder, problem, expected, ctas, workspace);
  EXPECT_EQ(backward_workspace_bytes(problem, limits), std::size_t{3 * 640 * 8 * 4 * 4});
  EXPECT_NE(describe_forward(problem, limits).find("attention_forward_f32"), std::string::npos);
  EXPECT_NE(describe_backward(problem, limits).find("attention_backward_dkv_f32"),
            std::string::npos);
}

// No sums in memory, and a kernel of query rows for dQ in place of the one that rounds them.
TEST(Launches, DeterministicBackward) {
  AttentionProblem problem = batched_problem(3, 300, 1, {8, 2, 120, 72});
  problem.deterministic = true;
  const DeviceLimits limits = limits_of(8, 0);
  Recorder recorder(limits);
  alignas(64) static std::byte workspace[64];  // an address only
  backward(problem, workspace, recorder);
  KernelTraits traits{120, 72, Element::kBFloat16, false, false, /*deterministic=*/true};
  const BackwardConfig config = backward_config(traits, limits);
  EXPECT_FALSE(config.dq);
  const BackwardDqConfig dq = backward_dq_config(traits, limits);
  const AttentionKernel expected[] = {PrepareKernel{{96, Element::kBFloat16}},
                                      BackwardKernel{config}, BackwardDqKernel{dq}};
  const std::int64_t ctas[] = {6 * 3 * 2 * 4, 6 * (299 / config.tile_kv + 1) * 2,
                               6 * (299 / dq.tile_q() + 1) * 2 * 4};
  expect_backward<BackwardParams>(recorder, problem, expected, ctas, workspace);
  for (const Launch& launch : recorder.launches) {
    const auto p = launch.as<BackwardParams>();
    EXPECT_EQ(p.dq_sum[0].data, nullptr);
    EXPECT_EQ(p.dq_sum[1].data, nullptr);
  }
  EXPECT_EQ(backward_workspace_bytes(problem, limits), std::size_t{3 * 640 * 8 * 2 * 4});
  EXPECT_NE(describe_backward(problem, limits).find("; attention_backward_dq_sm80 dim=128"),
            std::string::npos);

  // The forward pass has kernels of one kind.
  traits.deterministic = false;
  EXPECT_TRUE(key_of(forward_kernels(problem, limits)[0]) ==
              key_of(ForwardKernel{forward_config(traits, limits)}));
}

TEST(Launches, NoneWhereNothingIsWritten) {
  Recorder recorder(limits_of(9, 0));
  forward(batched_problem(0, 300), recorder);
  forward(batched_problem(3, 0), recorder);
  EXPECT_TRUE(recorder.launches.empty());
  backward(batched_problem(0, 300), nullptr, recorder);
  EXPECT_TRUE(recorder.launches.empty());
  // Keys without queries have gradients.
  backward(sequence_problem(3, 0, 64), nullptr, recorder);
  ASSERT_EQ(recorder.launches.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<BackwardKernel>(recorder.launches[0].kernel));
}

TEST(Launches, Descriptions) {
  const AttentionProblem problem = batched_problem(1, 64);
  EXPECT_EQ(describe_forward(problem, limits_of(8, 0)),
            "cuda attention_forward_sm80 dim=128 dim_v=64 bf16 128x32, 4 warps, 2 CTAs an SM");
  EXPECT_NE(describe_backward(problem, limits_of(8, 6)).find("attention_backward_sm80"),
            std::string::npos);
  EXPECT_EQ(describe_backward(problem, limits_of(8, 6)).find("attention_backward_dq"),
            std::string::npos);
}

}  // namespace
}  // namespace stepwell::cuda
