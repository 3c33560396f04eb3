// The operator table: every case, in every dtype, against float64. An error is at most twice that
// of a plain computation in the same dtype, plus one
// ulp.
//
// Rows without a valid token hold NaN in every input, outputs start as NaN, and memory between rows
// and heads must stay as it was.
#include <gtest/gtest.h>

#include "operators/cases.hpp"
#include "operators/operands.hpp"
#include "operators/oracle.hpp"

namespace stepwell::testing {

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

const char* name_of(DType dtype) {
  return dtype == DType::kFloat16 ? "f16" : dtype == DType::kBFloat16 ? "bf16" : "f32";
}

std::vector<Case> cases_in_every_dtype() {
  std::vector<Case> cases;
  for (const Case& c : operator_cases()) {
    for (const DType dtype : kDTypes) {
      cases.push_back(c);
      cases.back().name += std::string("_") + name_of(dtype);
      cases.back().dtype = dtype;
    }
  }
  return cases;
}

class OperatorTable : public ::testing::TestWithParam<Case> {};

TEST_P(OperatorTable, ErrorIsAtMostTwiceThatOfPlainCode) {
  const Case& c = GetParam();
  const Inputs inputs = random_inputs(c, 1);
  Call call(c, inputs);
  call.forward();
  call.backward();
  EXPECT_EQ(first_error(c, call.results(), expected_results(c, inputs), plain_results(c, inputs)),
            "");
  EXPECT_TRUE(call.gaps_intact());
}

INSTANTIATE_TEST_SUITE_P(Cases, OperatorTable, ::testing::ValuesIn(cases_in_every_dtype()),
                         [](const auto& info) { return info.param.name; });

// A few in a thousand random cases have a plain result that is exact by luck.
constexpr double kTermUlps = 1.0;

TEST(Fuzz, RandomCases) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Case c = random_case(seed);
    SCOPED_TRACE(c.name);
    const Inputs inputs = random_inputs(c, seed);
    Call call(c, inputs);
    call.forward();
    call.backward();
    ASSERT_EQ(first_error(c, call.results(), expected_results(c, inputs), plain_results(c, inputs),
                          kTermUlps),
              "");
    ASSERT_TRUE(call.gaps_intact());
  }
}

}  // namespace
}  // namespace stepwell::testing
