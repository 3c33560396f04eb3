#include "reference/head.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/philox.hpp"
#include "reference/attention.hpp"

namespace stepwell::reference {
namespace {

using geometry::Half;

double dot(const double* a, const double* b, int n) {
  double sum = 0.0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// One query row against the keys it sees.
struct Row {
  std::vector<int> keys;
  std::vector<double> probability;
  std::vector<double> dropout_factor;
  std::vector<double> score_slope;  // d capped score / d (q.k)
  double lse = -std::numeric_limits<double>::infinity();
};

double dropout_factor(const HeadProblem& problem, const Token& query, const Token& key) {
  if (problem.dropout_p == 0.0) return 1.0;
  const int segment = query.half == Half::kNoisy ? query.view : problem.mask.num_views;
  const int key_half = key.half == Half::kNoisy ? 0 : 1;
  const unsigned number = dropout_number(problem.dropout_key, static_cast<unsigned>(key.index),
                                         static_cast<unsigned>(query.index), problem.sample_head,
                                         static_cast<unsigned>(2 * segment + key_half));
  return number < dropout_threshold(problem.dropout_p) ? 0.0
                                                       : dropout_keep_scale(problem.dropout_p);
}

Row make_row(const HeadProblem& problem, int i) {
  Row row;
  const Token& query = problem.queries[i];
  std::vector<double> scores;
  for (int j = 0; j < static_cast<int>(problem.keys.size()); ++j) {
    const Token& key = problem.keys[j];
    if (!visible(problem.mask, query.half, query.view, query.index, key.half, key.view, key.index))
      continue;
    const double* q = problem.q.data() + std::int64_t{i} * problem.dim;
    const double* k = problem.k.data() + std::int64_t{j} * problem.dim;
    double score = problem.scale * dot(q, k, problem.dim);
    double slope = problem.scale;
    if (problem.softcap > 0.0) {
      const double t = std::tanh(score / problem.softcap);
      score = problem.softcap * t;
      slope *= 1.0 - t * t;
    }
    row.keys.push_back(j);
    scores.push_back(score);
    row.score_slope.push_back(slope);
    row.dropout_factor.push_back(dropout_factor(problem, query, key));
  }
  if (row.keys.empty()) return row;
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - top);
  row.lse = top + std::log(sum);
  for (const double score : scores) row.probability.push_back(std::exp(score - top) / sum);
  return row;
}

}  // namespace

HeadResults forward(const HeadProblem& problem) {
  const auto rows = static_cast<int>(problem.queries.size());
  HeadResults results;
  results.out.assign(std::size_t(rows) * problem.dim_v, 0.0);
  results.lse.resize(rows);
  for (int i = 0; i < rows; ++i) {
    const Row row = make_row(problem, i);
    results.lse[i] = row.lse;
    double* out = results.out.data() + std::int64_t{i} * problem.dim_v;
    for (std::size_t s = 0; s < row.keys.size(); ++s) {
      const double weight = row.probability[s] * row.dropout_factor[s];
      const double* v = problem.v.data() + std::int64_t{row.keys[s]} * problem.dim_v;
      for (int d = 0; d < problem.dim_v; ++d) out[d] += weight * v[d];
    }
  }
  return results;
}

HeadGradients backward(const HeadProblem& problem, const std::vector<double>& dout,
                       const std::vector<double>& dlse) {
  HeadGradients grads;
  grads.dq.assign(problem.q.size(), 0.0);
  grads.dk.assign(problem.k.size(), 0.0);
  grads.dv.assign(problem.v.size(), 0.0);
  const int dim = problem.dim;
  const int dim_v = problem.dim_v;
  for (int i = 0; i < static_cast<int>(problem.queries.size()); ++i) {
    const Row row = make_row(problem, i);
    const double* dout_row = dout.data() + std::int64_t{i} * dim_v;
    std::vector<double> dp;  // gradient of each probability, and its mean under them
    double delta = 0.0;
    for (std::size_t s = 0; s < row.keys.size(); ++s) {
      const double* v = problem.v.data() + std::int64_t{row.keys[s]} * dim_v;
      dp.push_back(row.dropout_factor[s] * dot(dout_row, v, dim_v));
      delta += row.probability[s] * dp.back();
    }
    const double* q = problem.q.data() + std::int64_t{i} * dim;
    double* dq = grads.dq.data() + std::int64_t{i} * dim;
    for (std::size_t s = 0; s < row.keys.size(); ++s) {
      const std::int64_t j = row.keys[s];
      const double weight = row.probability[s] * row.dropout_factor[s];
      for (int d = 0; d < dim_v; ++d) grads.dv[j * dim_v + d] += weight * dout_row[d];
      const double ds = row.probability[s] * (dp[s] - delta + dlse[i]) * row.score_slope[s];
      for (int d = 0; d < dim; ++d) {
        dq[d] += ds * problem.k[j * dim + d];
        grads.dk[j * dim + d] += ds * q[d];
      }
    }
  }
  return grads;
}

}  // namespace stepwell::reference
