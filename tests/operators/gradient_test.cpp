// The float64 reference: finite differences of its gradients, and its whole-problem form.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "api/arguments.hpp"
#include "core/half.hpp"
#include "core/philox.hpp"
#include "operators/cases.hpp"
#include "operators/operands.hpp"
#include "operators/oracle.hpp"
#include "reference/attention.hpp"
#include "reference/dtype.hpp"
#include "reference/head.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

using geometry::CleanRule;
using geometry::Half;
using geometry::NoisyRule;
using reference::HeadGradients;
using reference::HeadProblem;
using reference::HeadResults;

std::vector<double> normal_values(Random& random, std::size_t count) {
  std::vector<double> values(count);
  for (double& x : values) x = random.normal();
  return values;
}

HeadProblem tiny_problem(Random& random, geometry::SampleMask mask) {
  HeadProblem problem;
  problem.mask = mask;
  for (int view = 0; view < mask.num_views; ++view) {
    for (int i = 0; i < mask.noisy_len; ++i) {
      problem.queries.push_back({Half::kNoisy, view, i});
      problem.keys.push_back({Half::kNoisy, view, i});
    }
  }
  for (int i = 0; i < mask.clean_q_len; ++i) problem.queries.push_back({Half::kClean, 0, i});
  for (int i = 0; i < mask.clean_kv_len; ++i) problem.keys.push_back({Half::kClean, 0, i});
  problem.dim = 3;
  problem.dim_v = 2;
  problem.scale = 0.6;
  problem.q = normal_values(random, problem.queries.size() * problem.dim);
  problem.k = normal_values(random, problem.keys.size() * problem.dim);
  problem.v = normal_values(random, problem.keys.size() * problem.dim_v);
  return problem;
}

/// sum(out * dout) + sum(lse * dlse), whose gradients backward gives.
double loss(const HeadProblem& problem, const std::vector<double>& dout,
            const std::vector<double>& dlse) {
  const HeadResults results = reference::forward(problem);
  double sum = 0.0;
  for (std::size_t i = 0; i < dout.size(); ++i) sum += results.out[i] * dout[i];
  for (std::size_t i = 0; i < dlse.size(); ++i) {
    if (std::isfinite(results.lse[i])) sum += results.lse[i] * dlse[i];
  }
  return sum;
}

void expect_gradients(HeadProblem problem, Random& random) {
  const std::vector<double> dout = normal_values(random, problem.queries.size() * problem.dim_v);
  const std::vector<double> dlse = normal_values(random, problem.queries.size());
  const HeadGradients grads = reference::backward(problem, dout, dlse);
  constexpr double kStep = 1e-5;
  const auto check = [&](std::vector<double>& inputs, const std::vector<double>& grad,
                         const char* name) {
    ASSERT_EQ(inputs.size(), grad.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const double x = inputs[i];
      inputs[i] = x + kStep;
      const double above = loss(problem, dout, dlse);
      inputs[i] = x - kStep;
      const double below = loss(problem, dout, dlse);
      inputs[i] = x;
      // The difference's own error is of order step^2 and epsilon / step.
      ASSERT_NEAR(grad[i], (above - below) / (2.0 * kStep), 1e-8) << name << "[" << i << "]";
    }
  };
  check(problem.q, grads.dq, "dq");
  check(problem.k, grads.dk, "dk");
  check(problem.v, grads.dv, "dv");
}

geometry::SampleMask halves_mask(CleanRule clean, NoisyRule noisy, int views) {
  geometry::SampleMask mask;
  mask.block_size = 3;
  mask.clean = clean;
  mask.noisy = noisy;
  mask.num_views = views;
  mask.noisy_len = 7;
  mask.clean_q_len = mask.clean_kv_len = 7;
  return mask;
}

TEST(Reference, GradientsAreFiniteDifferences) {
  Random random(1);
  for (const CleanRule clean : {CleanRule::kBlock, CleanRule::kCausal}) {
    for (const NoisyRule noisy : {NoisyRule::kBidirectional, NoisyRule::kCausal})
      expect_gradients(tiny_problem(random, halves_mask(clean, noisy, 1)), random);
  }
}

TEST(Reference, GradientsWithViewsSoftcapAndDropout) {
  Random random(2);
  const auto mask = halves_mask(CleanRule::kBlock, NoisyRule::kBidirectional, 2);
  HeadProblem problem = tiny_problem(random, mask);
  problem.softcap = 1.3;
  expect_gradients(problem, random);
  problem.dropout_p = 0.4;
  problem.dropout_key = dropout_key(3, 1);
  expect_gradients(problem, random);
  problem.softcap = 0.0;
  problem.sample_head = 5;
  expect_gradients(problem, random);
}

TEST(Reference, GradientsOfSequences) {
  Random random(3);
  for (const CleanRule rule :
       {CleanRule::kFull, CleanRule::kCausal, CleanRule::kWindow, CleanRule::kBlock}) {
    geometry::SampleMask mask;
    mask.clean = rule;
    mask.block_size = 2;
    mask.window_left = 2;
    mask.window_right = 1;
    mask.clean_q_len = 9;  // the last rows of a window see no key
    mask.clean_kv_len = 6;
    expect_gradients(tiny_problem(random, mask), random);
  }
}

// The forms the library offers against the oracle of the tests, which finds rows by itself.
TEST(Reference, WholeProblemsAgreeWithTheOracle) {
  for (const Case& c : operator_cases()) {
    if (extents_of(c).rows_kv[kFirst] > 150) continue;
    SCOPED_TRACE(c.name);
    const Inputs inputs = random_inputs(c, 4);
    Call call(c, inputs);
    AttentionProblem problem =
        build_problem(call.args, check_arguments(call.args), Addresses::kReal);
    set_outputs(call.args, call.outputs, Addresses::kReal, problem);
    reference::forward(problem);
    set_gradients(call.args, call.gradients, Addresses::kReal, problem);
    reference::backward(problem);
    const Results got = call.results();
    const Results expected = expected_results(c, inputs);
    for (const int set : {kFirst, kClean}) {
      for (const auto array :
           {&Results::out, &Results::lse, &Results::dq, &Results::dk, &Results::dv}) {
        const Array& a = (got.*array)[set];
        const Array& b = (expected.*array)[set];
        ASSERT_EQ(a.values.size(), b.values.size());
        for (std::size_t i = 0; i < a.values.size(); ++i) {
          if (std::isfinite(b.values[i])) {
            // Sums may run in another order before they are rounded.
            ASSERT_NEAR(a.values[i], b.values[i], ulp(DType::kFloat32, b.values[i]) + 1e-12);
          } else {
            ASSERT_EQ(a.values[i], b.values[i]);
          }
        }
      }
    }
    ASSERT_TRUE(call.gaps_intact());
  }
}

// The reference's 16-bit formats against the library's, of which it uses nothing.
TEST(Reference, SixteenBitFormats) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const double f16 = reference::Half16::decode(b);
    const double bf16 = reference::BFloat16::decode(b);
    if (std::isnan(f16)) {
      EXPECT_TRUE(std::isnan(float_from_f16(b)));
    } else {
      EXPECT_EQ(f16, float_from_f16(b)) << bits;
      EXPECT_EQ(reference::Half16::encode(f16), b);
    }
    if (std::isnan(bf16)) {
      EXPECT_TRUE(std::isnan(float_from_bf16(b)));
    } else {
      EXPECT_EQ(bf16, float_from_bf16(b)) << bits;
      EXPECT_EQ(reference::BFloat16::encode(bf16), b);
    }
  }
  Random random(5);
  for (int round = 0; round < 200000; ++round) {
    const auto pattern = static_cast<std::uint32_t>(random.between(0, 0xFFFFFFFFll));
    const float x = std::bit_cast<float>(pattern);
    if (std::isnan(x)) continue;
    ASSERT_EQ(reference::Half16::encode(x), f16_from_float(x)) << x;
    ASSERT_EQ(reference::BFloat16::encode(x), bf16_from_float(x)) << x;
    // Halfway between two values of the format, and just beside.
    const float near = std::ldexp(static_cast<float>(random.between(-4096, 4096)) / 2048.0f +
                                      static_cast<float>(random.between(-1, 1)) * 0x1p-20f,
                                  static_cast<int>(random.between(-26, 16)));
    ASSERT_EQ(reference::Half16::encode(near), f16_from_float(near)) << near;
    ASSERT_EQ(reference::BFloat16::encode(near), bf16_from_float(near)) << near;
  }
}

}  // namespace
}  // namespace stepwell::testing
