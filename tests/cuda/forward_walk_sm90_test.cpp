// Which problems attention_forward_walk_sm90 takes, and what it gets for them.
#include "cuda/forward_walk_sm90.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "cuda/backend.hpp"
#include "cuda/problems.hpp"
#include "cuda/recorder.hpp"

namespace stepwell::cuda {
namespace {

constexpr Heads kHeads{8, 2, 128, 128};
const DeviceLimits kHopper = limits_of(9, 0);

bool takes(const AttentionProblem& problem, const DeviceLimits& limits = kHopper) {
  return forward_walk_sm90_takes(problem, limits);
}

bool takes(const std::function<void(AttentionProblem&)>& change, Heads heads = kHeads) {
  AttentionProblem problem = sequence_problem(3, 300, 500, heads);
  change(problem);
  return takes(problem);
}

TEST(ForwardWalkSm90, TakesEveryMaskAndLayout) {
  EXPECT_TRUE(takes(sequence_problem(3, 300, 500, kHeads)));
  EXPECT_TRUE(takes(batched_problem(3, 300, 2, kHeads)));
  EXPECT_TRUE(takes(interleaved_problem(3, 300, kHeads)));
  EXPECT_TRUE(takes(split_problem(3, 300, 200, 400, kHeads)));
  EXPECT_TRUE(takes(split_problem(3, 300, 0, 400, kHeads)));  // no clean queries
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.layout.mask.clean_window = 5; }));
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.layout.origins = array(4096); }));
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.softcap = 2.0; }));
  EXPECT_TRUE(takes([](AttentionProblem& p) {
    p.softcap = 2.0;
    p.softmax_scale = -1.0;
  }));
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.dtype = DType::kFloat16; }));
  for (const int dim : {8, 72, 192, 200, 256}) {
    EXPECT_TRUE(takes([](AttentionProblem&) {}, {8, 2, dim, 64})) << dim;
    EXPECT_TRUE(takes([](AttentionProblem&) {}, {8, 2, 64, dim})) << dim;
    EXPECT_EQ(takes([](AttentionProblem& p) { p.dropout_p = 0.1; }, {8, 2, 64, dim}), dim <= 192);
  }
}

TEST(ForwardWalkSm90, NoOtherProblems) {
  EXPECT_FALSE(takes(sequence_problem(3, 300, 500, kHeads), limits_of(8, 0)));
  EXPECT_FALSE(takes(sequence_problem(3, 300, 500, kHeads), limits_of(10, 0)));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.dtype = DType::kFloat32; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.softmax_scale = -1.0; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[1].q.head_stride = 0; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[1].k.row_stride *= -1; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[1].v.data = address(4098); }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[1].out.row_stride += 4; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.layout.clean_kv_rows = std::int64_t{1} << 31; }));
}

TEST(ForwardWalkSm90, Launch) {
  AttentionProblem problem = sequence_problem(3, 300, 500, kHeads);
  DeviceLimits limits = kHopper;
  limits.sms = 50;
  Recorder recorder(limits);
  forward(problem, recorder);
  const Launch& launch = recorder.launches.at(0);
  const ForwardWalkSm90Kernel kernel{{128, Element::kBFloat16, false, false}};
  EXPECT_TRUE(key_of(launch.kernel) == key_of(kernel));
  EXPECT_TRUE(key_of(forward_kernels(problem, limits)[0]) == key_of(kernel));
  EXPECT_EQ(launch.ctas, 50);
  const auto p = launch.as<ForwardWalkSm90Params>();
  EXPECT_EQ(p.call.grid.ctas(), 3 * 8 * 3);  // items of 128 rows
  EXPECT_FALSE(p.padding);
  // Of the clean half alone, for there are no noisy rows: q, k and v, all rows of a sample.
  ASSERT_EQ(recorder.tensors.size(), 3u);
  EXPECT_EQ(recorder.tensors[0].dims[1], 300u);
  EXPECT_EQ(recorder.tensors[1].dims[1], 500u);
  EXPECT_EQ(recorder.tensors[1].dims[4], 3u);
  EXPECT_EQ(recorder.tensors[0].box[1], 64u);
  EXPECT_EQ(recorder.tensors[1].box[1], 128u);
  EXPECT_EQ(
      describe_forward(problem, limits),
      "cuda attention_forward_walk_sm90 dim=128 bf16 128x128, 12 warps, persistent CTAs; not "
      "attention_forward_sm90: not a joint [noisy | clean] layout with block diffusion's mask");

  problem.dropout_p = 0.1;
  EXPECT_NE(describe_forward(problem, limits).find("128x128 dropout, 16 warps"), std::string::npos);
  problem.dropout_p = 0.0;

  problem.layout.seqused_clean_q = array(4096);
  Recorder used(limits);
  forward(problem, used);
  EXPECT_TRUE(used.launches.at(0).as<ForwardWalkSm90Params>().padding);

  Recorder none(limits);
  forward(sequence_problem(0, 300, 500, kHeads), none);
  EXPECT_TRUE(none.launches.empty());
}

TEST(ForwardWalkSm90, HeadDimsAreThoseOfWholeSlabs) {
  const auto dim_of = [](int head_dim, int head_dim_v) {
    return forward_walk_sm90_config({head_dim, head_dim_v, Element::kBFloat16, false, false})
        .head_dim;
  };
  EXPECT_EQ(dim_of(8, 8), 64);
  EXPECT_EQ(dim_of(72, 8), 128);
  EXPECT_EQ(dim_of(64, 136), 192);
  EXPECT_EQ(dim_of(200, 64), 256);
}

}  // namespace
}  // namespace stepwell::cuda
