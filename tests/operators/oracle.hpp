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
Results plain_results(const Case& c, const Inputs& inputs);

/// The gap between x and the next larger magnitude of the dtype.
double ulp(DType dtype, double x);

/// The first element of `got` whose error exceeds twice the largest error of `plain` by more than
/// one ulp of what was expected, in words; "" if there is none. `got` must be finite where
/// expected.
std::string first_error(const std::string& name, DType dtype, const Array& got,
                        const Array& expected, const Array& plain);

/// first_error over all results; lse and its plain counterpart are float32 in every dtype.
std::string first_error(const Case& c, const Results& got, const Results& expected,
                        const Results& plain);

}  // namespace stepwell::testing
