// One head the plain way, in one dtype.
#pragma once

#include <vector>

#include "reference/head.hpp"
#include "stepwell/tensor.hpp"

namespace stepwell::testing {

struct PlainHead {
  reference::HeadResults results;
  reference::HeadGradients grads;  // of keys: the head's own, rounded
  // The same sums over absolute values: what rounding errors are relative to where terms cancel.
  reference::HeadResults result_terms;
  reference::HeadGradients grad_terms;
};

/// Forward and backward of one head as eager code computes them: see plain_results.
PlainHead plain_head(DType dtype, const reference::HeadProblem& problem,
                     const std::vector<double>& dout, const std::vector<double>& dlse);

}  // namespace stepwell::testing
