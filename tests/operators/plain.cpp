#include "operators/plain.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/half.hpp"
#include "core/philox.hpp"
#include "reference/attention.hpp"

namespace stepwell::testing {

using geometry::Half;
using reference::HeadGradients;
using reference::HeadProblem;
using reference::HeadResults;

namespace {

template <DType kType>
float r(float x) {
  if constexpr (kType == DType::kFloat16) return float_from_f16(f16_from_float(x));
  if constexpr (kType == DType::kBFloat16) return float_from_bf16(bf16_from_float(x));
  return x;
}

std::vector<float> floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// Eight partial sums, as vector code has them.
float dot(const float* a, const float* b, int n) {
  float sums[8] = {};
  for (int i = 0; i < n; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void add_scaled(float* to, float factor, const float* row, int n) {
  for (int i = 0; i < n; ++i) to[i] += factor * row[i];
}

template <DType kType>
void round_all(const std::vector<float>& from, std::vector<double>& to) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = r<kType>(from[i]);
}

bool kept(const HeadProblem& problem, const reference::Token& query, const reference::Token& key) {
  const int segment = query.half == Half::kNoisy ? query.view : problem.mask.num_views;
  return dropout_number(problem.dropout_key, key.index, query.index, problem.sample_head,
                        2 * segment + (key.half == Half::kClean ? 1 : 0)) >=
         dropout_threshold(problem.dropout_p);
}

template <DType kType>
std::pair<HeadResults, HeadGradients> attend(const HeadProblem& problem,
                                             const std::vector<double>& dout64,
                                             const std::vector<double>& dlse) {
  const int dim = problem.dim;
  const int dim_v = problem.dim_v;
  const std::vector<float> q = floats(problem.q);
  const std::vector<float> k = floats(problem.k);
  const std::vector<float> v = floats(problem.v);
  const std::vector<float> dout = floats(dout64);
  const auto scale = static_cast<float>(problem.scale);
  const auto cap = static_cast<float>(problem.softcap);
  const float keep_factor = r<kType>(static_cast<float>(1.0 / (1.0 - problem.dropout_p)));

  std::vector<float> out(problem.queries.size() * dim_v);
  std::vector<float> dq(q.size());
  std::vector<float> dk(k.size());
  std::vector<float> dv(v.size());
  std::vector<double> lse_of_rows;
  std::vector<int> keys;
  std::vector<float> scores, tanhs, p, factor, dp;
  for (std::size_t i = 0; i < problem.queries.size(); ++i) {
    const reference::Token& query = problem.queries[i];
    const float* q_row = q.data() + i * dim;
    const float* dout_row = dout.data() + i * dim_v;
    keys.clear(), scores.clear(), tanhs.clear(), p.clear(), factor.clear(), dp.clear();
    for (std::size_t j = 0; j < problem.keys.size(); ++j) {
      const reference::Token& key = problem.keys[j];
      if (!reference::visible(problem.mask, query.half, query.view, query.index, key.half, key.view,
                              key.index))
        continue;
      float s = r<kType>(r<kType>(dot(q_row, k.data() + j * dim, dim)) * scale);
      if (cap > 0.0f) {
        tanhs.push_back(r<kType>(std::tanh(r<kType>(s / cap))));
        s = r<kType>(tanhs.back() * cap);
      }
      keys.push_back(static_cast<int>(j));
      scores.push_back(s);
      factor.push_back(problem.dropout_p == 0.0    ? 1.0f
                       : kept(problem, query, key) ? keep_factor
                                                   : 0.0f);
    }
    if (keys.empty()) {
      lse_of_rows.push_back(-std::numeric_limits<double>::infinity());
      continue;
    }
    const float top = *std::max_element(scores.begin(), scores.end());
    float sum = 0.0f;
    for (const float s : scores) {
      p.push_back(std::exp(s - top));
      sum += p.back();
    }
    const float lse = top + std::log(sum);
    lse_of_rows.push_back(lse);
    float delta = 0.0f;
    for (std::size_t s = 0; s < keys.size(); ++s) {
      p[s] = r<kType>(p[s] / sum);
      const float* v_row = v.data() + std::size_t(keys[s]) * dim_v;
      const float dropped = r<kType>(p[s] * factor[s]);
      add_scaled(out.data() + i * dim_v, dropped, v_row, dim_v);
      add_scaled(dv.data() + std::size_t(keys[s]) * dim_v, dropped, dout_row, dim_v);
      dp.push_back(r<kType>(r<kType>(dot(dout_row, v_row, dim_v)) * factor[s]));
      delta += p[s] * dp[s];
    }
    for (std::size_t s = 0; s < keys.size(); ++s) {
      float ds = r<kType>(p[s] * (dp[s] - delta));
      ds = r<kType>(ds + r<kType>(std::exp(scores[s] - lse) * static_cast<float>(dlse[i])));
      if (cap > 0.0f) {
        ds = r<kType>(ds * cap);
        ds = r<kType>(ds * (1.0f - tanhs[s] * tanhs[s]));
        ds = r<kType>(ds / cap);
      }
      ds = r<kType>(ds * scale);
      add_scaled(dq.data() + i * dim, ds, k.data() + std::size_t(keys[s]) * dim, dim);
      add_scaled(dk.data() + std::size_t(keys[s]) * dim, ds, q_row, dim);
    }
  }
  std::pair<HeadResults, HeadGradients> result;
  round_all<kType>(out, result.first.out);
  result.first.lse = lse_of_rows;
  round_all<kType>(dq, result.second.dq);
  round_all<kType>(dk, result.second.dk);
  round_all<kType>(dv, result.second.dv);
  return result;
}

}  // namespace

std::pair<HeadResults, HeadGradients> plain_head(DType dtype, const HeadProblem& problem,
                                                 const std::vector<double>& dout,
                                                 const std::vector<double>& dlse) {
  switch (dtype) {
    case DType::kFloat16:
      return attend<DType::kFloat16>(problem, dout, dlse);
    case DType::kBFloat16:
      return attend<DType::kBFloat16>(problem, dout, dlse);
    default:
      return attend<DType::kFloat32>(problem, dout, dlse);
  }
}

}  // namespace stepwell::testing
