// One head the plain way, in one dtype.
#pragma once

#include <utility>
#include <vector>

#include "reference/head.hpp"
#include "stepwell/tensor.hpp"

namespace stepwell::testing {

/// Forward and backward of one head as eager code computes them: see plain_results. Gradients of
/// keys are the head's own, rounded.
std::pair<reference::HeadResults, reference::HeadGradients> plain_head(
    DType dtype, const reference::HeadProblem& problem, const std::vector<double>& dout,
    const std::vector<double>& dlse);

}  // namespace stepwell::testing
