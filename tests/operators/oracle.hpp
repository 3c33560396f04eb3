// What a case must give, in float64, and what a plain computation in its dtype gives.
#pragma once

#include <string>

#include "operators/operands.hpp"
#include "operators/samples.hpp"

namespace stepwell::testing {

/// In float64 from the element rule, sample by sample. Rows without a valid token hold 0 (lse:
/// -inf).
Results expected_results(const Case& c, const Inputs& inputs);

/// What eager code computes in the case's dtype: dense scores and probabilities, each operation
/// rounded to the dtype, products accumulated in float32. Masked pairs are left out.
struct PlainResults {
  Results values;
  // Sums of the absolute values of what `values` sums up; in gradients with what the rounding of
  // out and lse between the passes adds.
  Results terms;
};
PlainResults plain_results(const Case& c, const Inputs& inputs);

/// The gap between x and the next larger magnitude of the dtype.
double ulp(DType dtype, double x);

/// The first element whose error is not allowed, in words; "" if there is none. Allowed is twice
/// the largest error of the plain computation, one ulp at the largest expected magnitude, and
/// `term_ulps` float32 ulps at the largest sum of absolute terms.
std::string first_error(const Case& c, const Results& got, const Results& expected,
                        const PlainResults& plain, double term_ulps = 0.0);

}  // namespace stepwell::testing
