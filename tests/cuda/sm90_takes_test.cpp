// Which problems the kernels for sm_90a take.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "cuda/backend.hpp"
#include "cuda/backward_sm90.hpp"
#include "cuda/forward_sm90.hpp"
#include "cuda/problems.hpp"
#include "cuda/recorder.hpp"

namespace stepwell::cuda {
namespace {

constexpr Heads kHeads{8, 2, 128, 128};
const DeviceLimits kHopper = limits_of(9, 0);

using Change = std::function<void(AttentionProblem&)>;

struct Pass {
  const char* name;
  bool (*takes)(const AttentionProblem&, const DeviceLimits&);
  Rows HalfTensors::*result;  // the tensor, beside q, k and v, that needs a map
};

void PrintTo(const Pass& pass, std::ostream* out) { *out << pass.name; }

class Sm90Takes : public ::testing::TestWithParam<Pass> {
 protected:
  static bool takes(const AttentionProblem& problem, const DeviceLimits& limits = kHopper) {
    return GetParam().takes(problem, limits);
  }
  static bool takes(const Change& change, Heads heads = kHeads) {
    AttentionProblem problem = batched_problem(3, 300, 1, heads);
    change(problem);
    return takes(problem);
  }
};

INSTANTIATE_TEST_SUITE_P(Passes, Sm90Takes,
                         ::testing::Values(Pass{"forward", forward_sm90_takes, &HalfTensors::out},
                                           Pass{"backward", backward_sm90_takes,
                                                &HalfTensors::dout}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Sm90Takes, JointLayoutsOfOneView) {
  EXPECT_TRUE(takes([](AttentionProblem&) {}));
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.dtype = DType::kFloat16; }));
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.layout.clean_first = true; }));
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.layout.mask.block_size = 37; }));
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.layout.mask.block_size = 128; }));
  // Past a tile of keys strips of the two halves are not alike.
  EXPECT_EQ(takes([](AttentionProblem& p) { p.layout.mask.block_size = 129; }),
            GetParam().takes == backward_sm90_takes);
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.layout.seqused_noisy = array(4096); }));
  EXPECT_TRUE(
      takes([](AttentionProblem& p) { p.layout.mask.clean = geometry::CleanRule::kCausal; }));
  EXPECT_TRUE(
      takes([](AttentionProblem& p) { p.layout.mask.noisy = geometry::NoisyRule::kCausal; }));
  EXPECT_TRUE(takes([](AttentionProblem&) {}, {7, 1, 128, 128}));
  for (const int dim : {8, 40, 64, 72, 96, 120, 128}) {
    EXPECT_TRUE(takes([](AttentionProblem&) {}, {8, 2, dim, 64})) << dim;
    EXPECT_TRUE(takes([](AttentionProblem&) {}, {8, 2, 128, dim})) << dim;
  }
}

TEST_P(Sm90Takes, NoOtherProblems) {
  EXPECT_FALSE(takes(batched_problem(3, 300, 1, kHeads), limits_of(8, 0)));
  EXPECT_FALSE(takes(batched_problem(3, 300, 1, kHeads), limits_of(10, 0)));
  EXPECT_FALSE(takes(batched_problem(3, 300, 2, kHeads)));
  EXPECT_FALSE(takes(sequence_problem(3, 300, 300, kHeads)));
  EXPECT_FALSE(takes(split_problem(3, 300, 300, 300, kHeads)));
  for (const Heads heads : {Heads{8, 2, 136, 128}, {8, 2, 64, 192}, {8, 2, 256, 256}}) {
    EXPECT_FALSE(takes([](AttentionProblem&) {}, heads)) << heads.dim;
  }
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.dtype = DType::kFloat32; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.softcap = 1.0; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.dropout_p = 0.1; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.layout.mask.origin = 1; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.layout.origins = array(4096); }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.layout.mask.clean_window = 5; }));
}

TEST_P(Sm90Takes, NoTensorsThatNoMapDescribes) {
  const auto result = GetParam().result;
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[0].q.head_stride = 0; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[0].k.row_stride *= -1; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[0].k.head_stride *= -1; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[0].v.row_stride += 4; }));
  EXPECT_FALSE(takes([](AttentionProblem& p) { p.halves[0].k.data = address(4098); }));
  EXPECT_FALSE(takes([=](AttentionProblem& p) { (p.halves[0].*result).row_stride = 0; }));
  EXPECT_FALSE(takes(
      [=](AttentionProblem& p) { (p.halves[0].*result).batch_stride = std::int64_t{1} << 40; }));
  // What a dimension of one has for a stride does not matter.
  EXPECT_TRUE(takes([](AttentionProblem& p) { p.halves[0].k.head_stride = 3; }, {8, 1, 128, 128}));
}

TEST(Sm90, NegativeScalesAreOfTheBackwardPassAlone) {
  AttentionProblem problem = batched_problem(3, 300, 1, kHeads);
  problem.softmax_scale = -1.0;
  EXPECT_FALSE(forward_sm90_takes(problem, kHopper));
  EXPECT_TRUE(backward_sm90_takes(problem, kHopper));
}

TEST(Sm90, PackedSamplesAreOfTheForwardPassAlone) {
  AttentionProblem problem = interleaved_problem(3, 300, kHeads);
  EXPECT_TRUE(forward_sm90_takes(problem, kHopper));
  EXPECT_FALSE(backward_sm90_takes(problem, kHopper));
  problem.layout.packing = geometry::Packing::kJointHalves;
  EXPECT_TRUE(forward_sm90_takes(problem, kHopper));
  // Rows are coordinates of a map; strips are counted in 31 bits.
  problem.layout.joint_rows = std::int64_t{1} << 31;
  EXPECT_FALSE(forward_sm90_takes(problem, kHopper));
  problem.layout.joint_rows = std::int64_t{1} << 30;
  EXPECT_TRUE(forward_sm90_takes(problem, kHopper));
  problem.heads_q = 300;
  EXPECT_FALSE(forward_sm90_takes(problem, kHopper));
}

TEST(Sm90, DeterministicIsOfTheForwardPassAlone) {
  AttentionProblem problem = batched_problem(3, 300, 1, kHeads);
  problem.deterministic = true;
  EXPECT_TRUE(forward_sm90_takes(problem, kHopper));
  EXPECT_FALSE(backward_sm90_takes(problem, kHopper));
}

// Plans say why a kernel that would have come first does not take them.
TEST(Refusals, AreInDescriptions) {
  const auto forward_of = [](const Change& change, Heads heads = kHeads) {
    AttentionProblem problem = batched_problem(3, 300, 1, heads);
    change(problem);
    return describe_forward(problem, kHopper);
  };
  const auto says = [](const std::string& text, const std::string& what) {
    const std::size_t at = text.find("; not ");
    EXPECT_EQ(at == std::string::npos ? "" : text.substr(at), what) << text;
  };
  says(forward_of([](AttentionProblem&) {}), "");
  const std::string strips = "; not attention_forward_sm90: ";
  says(forward_of([](AttentionProblem& p) { p.layout.mask.block_size = 129; }),
       strips + "blocks of more than 128 tokens");
  says(forward_of([](AttentionProblem& p) { p.layout.mask.num_views = 2; }),
       strips + "more than one view");
  says(forward_of([](AttentionProblem& p) { p.layout.mask.clean_window = 8; }),
       strips + "a window");
  says(forward_of([](AttentionProblem& p) { p.layout.origins = array(4096); }),
       strips + "blocks that do not start at 0");
  says(forward_of([](AttentionProblem& p) { p.softcap = 20.0; }), strips + "softcap");
  says(forward_of([](AttentionProblem& p) { p.dropout_p = 0.1; }), strips + "dropout");
  says(forward_of([](AttentionProblem&) {}, {8, 2, 128, 136}), strips + "a head dim past 128");
  const std::string walk = "; not attention_forward_walk_sm90: ";
  says(forward_of([](AttentionProblem& p) { p.softmax_scale = -1.0; }),
       walk + "a negative softmax_scale without softcap");
  says(forward_of([](AttentionProblem& p) { p.dropout_p = 0.1; }, {8, 2, 256, 256}),
       walk + "dropout with a head dim past 192");
  says(forward_of([](AttentionProblem& p) { p.halves[0].q.row_stride += 4; }),
       walk +
           "tensors that TMA cannot copy (strides not of 16 bytes, 0 or negative, or too many "
           "rows)");
  const auto backward_of = [](const Change& change) {
    AttentionProblem problem = batched_problem(3, 300, 1, kHeads);
    change(problem);
    return describe_backward(problem, kHopper);
  };
  says(backward_of([](AttentionProblem&) {}), "");
  says(backward_of([](AttentionProblem& p) { p.dropout_p = 0.1; }),
       "; not attention_backward_sm90: dropout");
  says(describe_backward(interleaved_problem(2, 300, kHeads), kHopper),
       "; not attention_backward_sm90: packed samples");
  // Where no such kernel can run, and in float32, there is nothing to say.
  says(describe_forward(batched_problem(3, 300, 1, kHeads), limits_of(8, 0)), "");
  AttentionProblem exact = batched_problem(3, 300, 1, kHeads);
  exact.dtype = DType::kFloat32;
  says(describe_forward(exact, kHopper), "");
}

}  // namespace
}  // namespace stepwell::cuda
