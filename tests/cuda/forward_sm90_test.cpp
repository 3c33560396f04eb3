// What attention_forward_sm90 gets for a problem.
#include "cuda/forward_sm90.hpp"

#include <gtest/gtest.h>

#include "cuda/backend.hpp"
#include "cuda/problems.hpp"
#include "cuda/recorder.hpp"

namespace stepwell::cuda {
namespace {

constexpr Heads kHeads{8, 2, 128, 128};
const DeviceLimits kHopper = limits_of(9, 0);

TEST(ForwardSm90, Launch) {
  AttentionProblem problem = batched_problem(3, 300, 1, kHeads);
  DeviceLimits limits = kHopper;
  limits.sms = 100;
  Recorder recorder(limits);
  forward(problem, recorder);
  ASSERT_EQ(recorder.launches.size(), 1u);
  const Launch& launch = recorder.launches[0];
  EXPECT_TRUE(key_of(launch.kernel) ==
              key_of(ForwardSm90Kernel{
                  {128, Element::kBFloat16, /*small_blocks=*/true, /*packed=*/false}}));
  EXPECT_TRUE(key_of(forward_kernels(problem, limits)[0]) == key_of(launch.kernel));
  EXPECT_EQ(launch.ctas, 100);
  const auto p = launch.as<ForwardSm90Params>();
  EXPECT_EQ(p.grid.ctas(), 3 * 8 * 5);  // strips of 64 rows
  EXPECT_EQ(p.ctas, 100);
  EXPECT_EQ(p.rows, 300);
  EXPECT_EQ(p.first_row[0], 0);
  EXPECT_EQ(p.first_row[1], 300);
  EXPECT_EQ(p.lse[0].data, problem.halves[0].lse.data);
  EXPECT_EQ(p.lengths, nullptr);

  problem.layout.mask.block_size = 48;
  problem.layout.clean_first = true;
  problem.layout.seqused_noisy = array(4096);
  limits.sms = 1000;
  Recorder other(limits);
  forward(problem, other);
  EXPECT_TRUE(key_of(other.launches[0].kernel) ==
              key_of(ForwardSm90Kernel{
                  {128, Element::kBFloat16, /*small_blocks=*/false, /*packed=*/false}}));
  EXPECT_EQ(other.launches[0].ctas, 3 * 8 * 5);
  EXPECT_EQ(other.tensors.size(), 8u);  // no parts of tiles
  const auto q = other.launches[0].as<ForwardSm90Params>();
  EXPECT_EQ(q.first_row[0], 300);
  EXPECT_EQ(q.first_row[1], 0);
  EXPECT_EQ(q.block_size, 48);
  EXPECT_EQ(q.lengths, array(4096));
}

TEST(ForwardSm90, NoneWhereNothingIsWritten) {
  Recorder recorder(kHopper);
  forward(batched_problem(0, 300, 1, kHeads), recorder);
  forward(batched_problem(3, 0, 1, kHeads), recorder);
  EXPECT_TRUE(recorder.launches.empty());
}

TEST(ForwardSm90, TensorMaps) {
  const AttentionProblem problem = batched_problem(3, 300, 1, kHeads);
  Recorder recorder(kHopper);
  forward(problem, recorder);
  // q, out, k, v, and parts of k and v; of the noisy half, then of the clean half.
  ASSERT_EQ(recorder.tensors.size(), 12u);
  const TiledTensor& k = recorder.tensors[2];
  EXPECT_EQ(k.data, problem.halves[0].k.data);
  const unsigned long long dims[] = {64, 300, 2, 2, 3};
  const unsigned long long strides[] = {2 * 2 * 128, 128, 2 * 128, 2 * 600 * 2 * 128};
  const unsigned box[] = {64, 128, 2, 1, 1};
  for (int d = 0; d < 5; ++d) {
    EXPECT_EQ(k.dims[d], dims[d]) << d;
    EXPECT_EQ(k.box[d], box[d]) << d;
    if (d > 0) {
      EXPECT_EQ(k.strides[d - 1], strides[d - 1]) << d;
    }
  }
  EXPECT_EQ(k.swizzle, Swizzle::k128);
  const TiledTensor& clean_v_part = recorder.tensors[11];
  EXPECT_EQ(clean_v_part.data,
            static_cast<const unsigned short*>(problem.halves[0].v.data) + 300 * 2 * 128);
  EXPECT_EQ(clean_v_part.box[1], 64u);
  EXPECT_EQ(clean_v_part.box[2], 1u);
}

TEST(ForwardSm90, PackedSamples) {
  AttentionProblem problem = interleaved_problem(3, 300, kHeads);
  DeviceLimits limits = kHopper;
  limits.sms = 100;
  Recorder recorder(limits);
  forward(problem, recorder);
  const Launch& launch = recorder.launches.at(0);
  EXPECT_TRUE(key_of(launch.kernel) ==
              key_of(ForwardSm90Kernel{{128, Element::kBFloat16, /*small_blocks=*/true,
                                        /*packed=*/true}}));
  EXPECT_EQ(launch.ctas, (300 / 2 / 64 + 3 + 1) * 8);  // more than there can be strips
  const auto p = launch.as<ForwardSm90Params>();
  EXPECT_EQ(p.layout.batch, 3);
  EXPECT_EQ(p.layout.cu_noisy, problem.layout.cu_noisy);
  EXPECT_EQ(p.cached_rows, (32 << 20) / (2 * 2 * 128));
  EXPECT_EQ(p.first_row[0], 0);
  EXPECT_EQ(p.first_row[1], 0);
  // Maps of both halves have all rows, and one sample.
  const std::size_t of_half = recorder.tensors.size() / 2;
  for (std::size_t i = 0; i < of_half; ++i) {
    EXPECT_TRUE(recorder.tensors[i] == recorder.tensors[of_half + i]) << i;
    EXPECT_EQ(recorder.tensors[i].dims[1],
              static_cast<unsigned long long>(problem.layout.joint_rows));
    EXPECT_EQ(recorder.tensors[i].dims[4], 1u);
  }

  problem.layout.joint_rows = 0;
  Recorder none(limits);
  forward(problem, none);
  EXPECT_TRUE(none.launches.empty());

  // No sample, but rows to be cleared.
  problem = interleaved_problem(0, 300, kHeads);
  problem.layout.joint_rows = 5;
  Recorder tail(limits);
  forward(problem, tail);
  EXPECT_EQ(tail.launches.at(0).ctas, 8);
}

TEST(ForwardSm90, SmallHeadDimsArePaddedByTheMaps) {
  Recorder recorder(kHopper);
  forward(batched_problem(3, 300, 1, {8, 2, 40, 24}), recorder);
  EXPECT_EQ(recorder.tensors[0].dims[0], 40u);  // q
  EXPECT_EQ(recorder.tensors[1].dims[0], 24u);  // out
  EXPECT_EQ(recorder.tensors[0].box[0], 64u);
  EXPECT_EQ(recorder.launches[0].as<ForwardSm90Params>().head_dim_v, 24);
}

TEST(ForwardSm90, Description) {
  EXPECT_EQ(describe_forward(batched_problem(1, 64, 1, kHeads), kHopper),
            "cuda attention_forward_sm90 dim=128 bf16 2x64x128 small blocks, 12 warps, persistent "
            "CTAs");
}

}  // namespace
}  // namespace stepwell::cuda
