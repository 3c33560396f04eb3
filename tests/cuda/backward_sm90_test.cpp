// What the launches of attention_backward_sm90 get for a problem.
#include "cuda/backward_sm90.hpp"

#include <gtest/gtest.h>

#include "cuda/backend.hpp"
#include "cuda/configurations.hpp"
#include "cuda/parameters.hpp"
#include "cuda/problems.hpp"
#include "cuda/recorder.hpp"

namespace stepwell::cuda {
namespace {

constexpr Heads kHeads{8, 2, 128, 128};
const DeviceLimits kHopper = limits_of(9, 0);

/// Addresses of the workspace of a recorded call.
std::byte* workspace() { return static_cast<std::byte*>(address(1 << 16)); }

TEST(BackwardSm90, Launches) {
  AttentionProblem problem = batched_problem(3, 300, 1, kHeads);
  DeviceLimits limits = kHopper;
  limits.sms = 5;
  Recorder recorder(limits);
  backward(problem, workspace(), recorder);
  ASSERT_EQ(recorder.launches.size(), 3u);
  const AttentionKernel expected[] = {
      BackwardRowsSm90Kernel{{128, Element::kBFloat16, /*diagonal=*/true, /*grouped=*/true}},
      BackwardSm90Kernel{{128, Element::kBFloat16}}, FinishKernel{{128, Element::kBFloat16}}};
  const std::vector<AttentionKernel> announced = backward_kernels(problem, limits);
  ASSERT_EQ(announced.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(key_of(recorder.launches[i].kernel) == key_of(expected[i])) << i;
    EXPECT_TRUE(key_of(announced[i]) == key_of(expected[i])) << i;
  }
  // Tiles of 64 rows of both halves; five persistent CTAs; tiles of 128 query rows.
  EXPECT_EQ(recorder.launches[0].ctas, 3 * 2 * 2 * 5);
  EXPECT_EQ(recorder.launches[1].ctas, 5);
  EXPECT_EQ(recorder.launches[2].ctas, 3 * 8 * 2 * 3);
  const auto p = recorder.launches[1].as<BackwardSm90Params>();
  EXPECT_EQ(p.items, 3 * 2 * 3);  // clean keys alone
  EXPECT_EQ(p.grid.ctas(), p.items);
  EXPECT_EQ(p.rows, 300);
  EXPECT_EQ(p.row_tiles, 5);
  EXPECT_EQ(p.first_row[0], 0);
  EXPECT_EQ(p.first_row[1], 300);
  EXPECT_EQ(p.lengths, nullptr);
  EXPECT_EQ(p.dlse.data, nullptr);
  EXPECT_EQ(p.dk.data, problem.halves[0].dk.data);
}

TEST(BackwardSm90, LaunchesWithOtherBlocks) {
  AttentionProblem problem = batched_problem(3, 300, 1, {8, 8, 128, 128});
  problem.layout.mask.block_size = 48;
  problem.layout.clean_first = true;
  problem.layout.seqused_noisy = array(4096);
  problem.dtype = DType::kFloat16;
  Recorder recorder(kHopper);
  backward(problem, workspace(), recorder);
  EXPECT_TRUE(key_of(recorder.launches[0].kernel) ==
              key_of(BackwardRowsSm90Kernel{{128, Element::kFloat16, false, false}}));
  const auto p = recorder.launches[1].as<BackwardSm90Params>();
  EXPECT_EQ(p.items, 2 * 3 * 8 * 3);  // noisy keys too
  EXPECT_EQ(recorder.launches[1].ctas, 132);
  EXPECT_EQ(p.first_row[0], 300);
  EXPECT_EQ(p.first_row[1], 0);
  EXPECT_EQ(p.block_size, 48);
  EXPECT_EQ(p.lengths, array(4096));

  problem.layout.mask.block_size = 32;
  Recorder other(kHopper);
  backward(problem, workspace(), other);
  EXPECT_TRUE(key_of(other.launches[0].kernel) ==
              key_of(BackwardRowsSm90Kernel{{128, Element::kFloat16, true, false}}));
}

TEST(BackwardSm90, NoneWhereNothingIsWritten) {
  Recorder recorder(kHopper);
  backward(batched_problem(0, 300, 1, kHeads), workspace(), recorder);
  backward(batched_problem(3, 0, 1, kHeads), workspace(), recorder);
  EXPECT_TRUE(recorder.launches.empty());
}

// The counter, row values and sums of dQ, one after the other; the finishing kernel finds the sums
// of each half where the main kernel puts them.
TEST(BackwardSm90, Workspace) {
  for (const bool clean_first : {false, true}) {
    for (const std::int64_t n : {1, 50, 64, 300}) {
      AttentionProblem problem = batched_problem(3, n, 1, kHeads);
      problem.layout.clean_first = clean_first;
      Recorder recorder(kHopper);
      backward(problem, workspace(), recorder);
      const auto p = recorder.launches[1].as<BackwardSm90Params>();
      const std::int64_t tiles = 3 * 8 * 2 * ((n + 63) / 64);
      EXPECT_EQ(static_cast<void*>(p.next_item), workspace());
      EXPECT_EQ(static_cast<void*>(p.row_values), workspace() + 64);
      EXPECT_EQ(static_cast<void*>(p.dq_sum), workspace() + 64 + tiles * 512);
      const auto bytes = static_cast<std::size_t>(64 + tiles * (512 + 64 * 128 * 4));
      EXPECT_EQ(backward_sm90_workspace_bytes(problem), bytes);
      EXPECT_EQ(backward_workspace_bytes(problem, kHopper), bytes);
      EXPECT_EQ(backward_workspace_bytes(problem, limits_of(8, 0)), workspace_bytes(problem, 128));

      const auto finish = recorder.launches[2].as<BackwardParams>();
      EXPECT_EQ(finish.dq_width, 128);
      for (const int half : {0, 1}) {
        const geometry::Half h = half == 0 ? geometry::Half::kNoisy : geometry::Half::kClean;
        const std::int64_t padded =
            padded_row(finish.layout, 2, half, p.first_row[static_cast<int>(h)]);
        const float* rows = finish.dq_sum[half].at(2, 5) + padded * 128;
        EXPECT_EQ(rows, p.dq_sum + ((2 * 8 + 5) * 2 + half) * ((n + 63) / 64) * 64 * 128);
      }
    }
  }
}

TEST(BackwardSm90, TensorMaps) {
  const AttentionProblem problem = batched_problem(3, 300, 1, kHeads);
  Recorder recorder(kHopper);
  backward(problem, workspace(), recorder);
  // q, dout, k and v of the noisy half, its k and v in tiles of rows; then of the clean half.
  ASSERT_EQ(recorder.tensors.size(), 10u);
  const TiledTensor& k = recorder.tensors[2];
  EXPECT_EQ(k.data, problem.halves[0].k.data);
  EXPECT_EQ(k.box[0], 64u);
  EXPECT_EQ(k.box[1], 128u);
  EXPECT_EQ(k.box[2], 2u);
  EXPECT_EQ(k.swizzle, Swizzle::k128);
  EXPECT_EQ(recorder.tensors[5].box[1], 64u);
  EXPECT_EQ(recorder.tensors[5].data, problem.halves[0].v.data);
  const TiledTensor& clean_dout = recorder.tensors[7];
  EXPECT_EQ(clean_dout.data,
            static_cast<const unsigned short*>(problem.halves[0].dout.data) + 300 * 8 * 128);
  EXPECT_EQ(clean_dout.box[1], 64u);
  EXPECT_EQ(clean_dout.dims[1], 300u);
}

TEST(BackwardSm90, Description) {
  EXPECT_EQ(describe_backward(batched_problem(1, 64, 1, kHeads), kHopper),
            "cuda attention_backward_sm90 dim=128 bf16 64x128, 12 warps, persistent CTAs");
}

}  // namespace
}  // namespace stepwell::cuda
