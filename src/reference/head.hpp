// Attention of one head of one sample in float64, one row at a time.
//
//   s_j = scale q.k_j, capped: c tanh(s_j / c)      lse = log sum exp s_j over visible j
//   P_j = exp(s_j - lse)                            out = sum P_j m_j v_j
//
// with m_j = 0 for dropped pairs and 1 / (1 - p) for kept ones (1 without dropout).
#pragma once

#include <cstdint>
#include <vector>

#include "geometry/mask.hpp"

namespace stepwell::reference {

/// Where a token sits in its sample.
struct Token {
  geometry::Half half = geometry::Half::kClean;
  int view = 0;  // noisy tokens
  int index = 0;
};

struct HeadProblem {
  geometry::SampleMask mask;
  std::vector<Token> queries, keys;
  std::vector<double> q, k, v;  // [queries, dim], [keys, dim], [keys, dim_v]
  int dim = 0;
  int dim_v = 0;
  double scale = 1.0;
  double softcap = 0.0;  // 0: none
  double dropout_p = 0.0;
  std::uint64_t dropout_key = 0;
  std::uint32_t sample_head = 0;  // sample * heads_q + query head
};

struct HeadResults {
  std::vector<double> out, lse;  // [queries, dim_v], [queries]
};

struct HeadGradients {
  std::vector<double> dq, dk, dv;  // like q, k, v
};

HeadResults forward(const HeadProblem& problem);
/// dout `[queries, dim_v]` and dlse `[queries]` are the gradients of out and lse.
HeadGradients backward(const HeadProblem& problem, const std::vector<double>& dout,
                       const std::vector<double>& dlse);

}  // namespace stepwell::reference
