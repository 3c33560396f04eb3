#include "operators/plain.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/half.hpp"
#include "core/philox.hpp"
#include "reference/attention.hpp"

namespace stepwell::testing {

using geometry::Half;
using reference::HeadProblem;

namespace {

template <DType kType>
float r(float x) {
  if constexpr (kType == DType::kFloat16) return float_from_f16(f16_from_float(x));
  if constexpr (kType == DType::kBFloat16) return float_from_bf16(bf16_from_float(x));
  return x;
}

/// An ulp of the dtype in ulps of float32.
template <DType kType>
constexpr float kUlpsOfFloat32 = kType == DType::kFloat16    ? 0x1p13f
                                 : kType == DType::kBFloat16 ? 0x1p16f
                                                             : 1.0f;

std::vector<float> floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// A fused multiply-add: float64 holds products of float32 exactly.
float multiply_add(float a, float b, float sum) {
  return static_cast<float>(static_cast<double>(a) * b + sum);
}

// Sums run in order, as each element of a product does in the inner loops of a BLAS (and, bit for
// bit, in torch 2.13 with up to 128 terms).
float dot(const float* a, const float* b, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum = multiply_add(a[i], b[i], sum);
  return sum;
}

void add_scaled(float* to, float factor, const float* row, int n) {
  for (int i = 0; i < n; ++i) to[i] = multiply_add(factor, row[i], to[i]);
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

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

void add_magnitudes(float* to, float factor, const float* row, int n) {
  for (int i = 0; i < n; ++i) to[i] += std::fabs(factor * row[i]);
}

template <DType kType>
PlainHead attend(const HeadProblem& problem, const std::vector<double>& dout64,
                 const std::vector<double>& dlse) {
  const int dim = problem.dim;
  const int dim_v = problem.dim_v;
  const std::vector<float> q = floats(problem.q);
  const std::vector<float> k = floats(problem.k);
  const std::vector<float> v = floats(problem.v);
  const std::vector<float> dout = floats(dout64);
  const auto scale = static_cast<float>(problem.scale);
  const auto cap = static_cast<float>(problem.softcap);
  const float keep_factor = r<kType>(static_cast<float>(dropout_keep_scale(problem.dropout_p)));

  std::vector<float> out(problem.queries.size() * dim_v);
  std::vector<float> dq(q.size());
  std::vector<float> dk(k.size());
  std::vector<float> dv(v.size());
  std::vector<float> out_terms(out.size());
  std::vector<float> dq_terms(dq.size());
  std::vector<float> dk_terms(dk.size());
  std::vector<float> dv_terms(dv.size());
  std::vector<double> lse_of_rows;
  std::vector<double> lse_terms;
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
      lse_terms.push_back(0.0);
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
    lse_terms.push_back(std::fabs(top) + std::fabs(lse));
    // Backward gets out and lse rounded: what it recomputes of P is off by an ulp of lse, and its
    // delta = dout . out by independent ulps of the terms, and by the sum's own rounding.
    const float recomputed = std::max(1.0f, std::fabs(lse));
    float delta = 0.0f;
    for (std::size_t s = 0; s < keys.size(); ++s) {
      p[s] = r<kType>(p[s] / sum);
      const std::size_t v_at = std::size_t(keys[s]) * dim_v;
      const float* v_row = v.data() + v_at;
      const float dropped = r<kType>(p[s] * factor[s]);
      add_scaled(out.data() + i * dim_v, dropped, v_row, dim_v);
      add_scaled(dv.data() + v_at, dropped, dout_row, dim_v);
      add_magnitudes(out_terms.data() + i * dim_v, dropped, v_row, dim_v);
      add_magnitudes(dv_terms.data() + v_at, dropped * recomputed, dout_row, dim_v);
      dp.push_back(r<kType>(r<kType>(dot(dout_row, v_row, dim_v)) * factor[s]));
      delta += p[s] * dp[s];
    }
    float absolute = 0.0f;
    float squares = 0.0f;
    for (int d = 0; d < dim_v; ++d) {
      const float product = dout_row[d] * out[i * dim_v + d];
      absolute += std::fabs(product);
      squares += product * product;
    }
    const float delta_terms = absolute + std::sqrt(squares) * kUlpsOfFloat32<kType>;
    for (std::size_t s = 0; s < keys.size(); ++s) {
      float ds = r<kType>(p[s] * (dp[s] - delta));
      ds = r<kType>(ds + r<kType>(std::exp(scores[s] - lse) * static_cast<float>(dlse[i])));
      if (cap > 0.0f) {
        ds = r<kType>(ds * cap);
        ds = r<kType>(ds * (1.0f - tanhs[s] * tanhs[s]));
        ds = r<kType>(ds / cap);
      }
      ds = r<kType>(ds * scale);
      const std::size_t k_at = std::size_t(keys[s]) * dim;
      add_scaled(dq.data() + i * dim, ds, k.data() + k_at, dim);
      add_scaled(dk.data() + k_at, ds, q_row, dim);
      const float terms =
          p[s] * scale * (std::fabs(dp[s]) + delta_terms + std::fabs(static_cast<float>(dlse[i])));
      add_magnitudes(dq_terms.data() + i * dim, terms, k.data() + k_at, dim);
      add_magnitudes(dk_terms.data() + k_at, terms, q_row, dim);
    }
  }
  PlainHead head;
  round_all<kType>(out, head.results.out);
  head.results.lse = lse_of_rows;
  round_all<kType>(dq, head.grads.dq);
  round_all<kType>(dk, head.grads.dk);
  round_all<kType>(dv, head.grads.dv);
  head.result_terms = {doubles(out_terms), lse_terms};
  head.grad_terms = {doubles(dq_terms), doubles(dk_terms), doubles(dv_terms)};
  return head;
}

}  // namespace

PlainHead plain_head(DType dtype, const HeadProblem& problem, const std::vector<double>& dout,
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
