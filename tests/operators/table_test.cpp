// The operator table: every case, in every dtype, against float64; in bf16 with `deterministic` too
// where that takes other kernels. An error is at most twice that of a plain computation in the same
// dtype, plus one ulp.
//
// Rows without a valid token hold NaN in every input, outputs start as NaN, and memory between rows
// and heads must stay as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "operators/cases.hpp"
#include "operators/operands.hpp"
#include "operators/oracle.hpp"
#include "operators/runner.hpp"

namespace stepwell::testing {

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

const char* name_of(DType dtype) {
  return dtype == DType::kFloat16 ? "f16" : dtype == DType::kBFloat16 ? "bf16" : "f32";
}

std::vector<Case> cases_in_every_dtype() {
  std::vector<Case> cases;
  for (Case c : operator_cases()) {
    const std::string name = c.name;
    for (const DType dtype : kDTypes) {
      c.name = name + "_" + name_of(dtype);
      c.dtype = dtype;
      if (test_runner().takes(c)) cases.push_back(c);
    }
    if (c.deterministic || !test_runner().has_deterministic_kernels()) continue;
    c.name = name + "_deterministic_bf16";
    c.dtype = DType::kBFloat16;
    c.deterministic = true;
    if (test_runner().takes(c)) cases.push_back(c);
  }
  return cases;
}

/// Expects Error with `part` in its text.
template <typename Body>
void expect_refusal(const std::string& part, Body&& body) {
  try {
    body();
    ADD_FAILURE() << "no error about " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

/// `term_ulps`: more than the runner's.
void expect_right(const Case& c, std::uint64_t seed, double term_ulps = 0.0) {
  Runner& runner = test_runner();
  const Inputs inputs = random_inputs(c, seed);
  Call call(c, inputs);
  if (const std::string refusal = runner.refusal(c); !refusal.empty()) {
    expect_refusal(refusal, [&] { runner.forward(c, call); });
    expect_refusal(refusal, [&] { runner.backward(c, call); });
    return;
  }
  runner.forward(c, call);
  runner.backward(c, call);
  EXPECT_EQ(first_error(c, call.results(), expected_results(c, inputs), plain_results(c, inputs),
                        runner.term_ulps(c) + term_ulps),
            "");
  EXPECT_TRUE(call.gaps_intact());
}

class OperatorTable : public ::testing::TestWithParam<Case> {};

TEST_P(OperatorTable, ErrorIsAtMostTwiceThatOfPlainCode) { expect_right(GetParam(), 1); }

INSTANTIATE_TEST_SUITE_P(Cases, OperatorTable, ::testing::ValuesIn(cases_in_every_dtype()),
                         [](const auto& info) { return info.param.name; });

// A few in a thousand random cases have a plain result that is exact by luck.
constexpr double kTermUlps = 1.0;

// Groups of cases, so that they can be divided among processes (GTEST_TOTAL_SHARDS).
constexpr std::uint64_t kFuzzGroup = 20;

class Fuzz : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Fuzz, RandomCases) {
  const std::uint64_t end = std::min(GetParam() + kFuzzGroup, test_runner().random_cases());
  for (std::uint64_t seed = GetParam(); seed < end; ++seed) {
    const Case c = test_runner().nearest(random_case(seed));
    SCOPED_TRACE(c.name);
    expect_right(c, seed, kTermUlps);
    ASSERT_FALSE(HasFailure());
  }
}

INSTANTIATE_TEST_SUITE_P(FromSeed, Fuzz,
                         ::testing::Range(std::uint64_t{0}, test_runner().random_cases(),
                                          kFuzzGroup),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace stepwell::testing
