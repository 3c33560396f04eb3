#include "operators/oracle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/philox.hpp"
#include "operators/plain.hpp"
#include "reference/head.hpp"

namespace stepwell::testing {

using reference::HeadGradients;
using reference::HeadProblem;
using reference::HeadResults;

namespace {

std::vector<double> gather(const Array* arrays, const std::vector<Place>& places,
                           std::int64_t head) {
  std::vector<double> values;
  for (const Place& place : places) {
    const double* row = arrays[place.set].at(place.batch, place.row, head);
    values.insert(values.end(), row, row + arrays[place.set].dim);
  }
  return values;
}

void scatter(Array* arrays, const std::vector<Place>& places, std::int64_t head,
             const std::vector<double>& values, DType dtype) {
  const double* next = values.data();
  for (const Place& place : places) {
    Array& array = arrays[place.set];
    double* row = array.at(place.batch, place.row, head);
    for (std::int64_t d = 0; d < array.dim; ++d) {
      row[d] = dtype == DType::kOther ? next[d] : rounded(dtype, next[d]);
    }
    next += array.dim;
  }
}

Results empty_results(const Case& c) {
  const Extents e = extents_of(c);
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  Results r;
  for (const int set : {kFirst, kClean}) {
    r.out[set] = Array(e.batch, e.rows_q[set], c.heads_q, c.head_dim_v);
    r.lse[set] = Array(e.batch, e.rows_q[set], c.heads_q, 1, kNothing);
    r.dq[set] = Array(e.batch, e.rows_q[set], c.heads_q, c.head_dim);
    r.dk[set] = Array(e.batch, e.rows_kv[set], c.heads_kv, c.head_dim);
    r.dv[set] = Array(e.batch, e.rows_kv[set], c.heads_kv, c.head_dim_v);
  }
  return r;
}

/// Runs `attend(head problem, dout, dlse) -> {HeadResults, HeadGradients}` on every sample and head
/// and sums key gradients over the heads of a group. `dtype`: what results are rounded to; kOther:
/// nothing.
template <typename Attend>
Results for_each_head(const Case& c, const Inputs& inputs, DType dtype, Attend&& attend) {
  Results r = empty_results(c);
  const std::vector<SampleModel> samples = samples_of(c);
  const int group = c.heads_q / c.heads_kv;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const SampleModel& sample = samples[s];
    HeadProblem problem;
    problem.mask = sample.mask;
    for (const Place& place : sample.queries) problem.queries.push_back(place.token);
    for (const Place& place : sample.keys) problem.keys.push_back(place.token);
    problem.dim = c.head_dim;
    problem.dim_v = c.head_dim_v;
    problem.scale = c.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
    problem.softcap = c.softcap;
    problem.dropout_p = c.dropout_p;
    problem.dropout_key = dropout_key(c.dropout_seed, c.dropout_offset);
    for (int head_kv = 0; head_kv < c.heads_kv; ++head_kv) {
      problem.k = gather(inputs.k, sample.keys, head_kv);
      problem.v = gather(inputs.v, sample.keys, head_kv);
      std::vector<double> dk(problem.k.size(), 0.0);
      std::vector<double> dv(problem.v.size(), 0.0);
      for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        problem.q = gather(inputs.q, sample.queries, head);
        problem.sample_head = static_cast<std::uint32_t>(s) * c.heads_q + head;
        std::vector<double> dlse(sample.queries.size(), 0.0);
        if (c.with_dlse) dlse = gather(inputs.dlse, sample.queries, head);
        const auto [results, grads] =
            attend(problem, gather(inputs.dout, sample.queries, head), dlse);
        scatter(r.out, sample.queries, head, results.out, dtype);
        scatter(r.lse, sample.queries, head, results.lse, DType::kOther);
        scatter(r.dq, sample.queries, head, grads.dq, dtype);
        for (std::size_t i = 0; i < dk.size(); ++i) dk[i] += grads.dk[i];
        for (std::size_t i = 0; i < dv.size(); ++i) dv[i] += grads.dv[i];
      }
      scatter(r.dk, sample.keys, head_kv, dk, dtype);
      scatter(r.dv, sample.keys, head_kv, dv, dtype);
    }
  }
  return r;
}

}  // namespace

Results expected_results(const Case& c, const Inputs& inputs) {
  return for_each_head(
      c, inputs, DType::kOther,
      [](const HeadProblem& problem, const std::vector<double>& dout,
         const std::vector<double>& dlse) {
        return std::pair{reference::forward(problem), reference::backward(problem, dout, dlse)};
      });
}

Results plain_results(const Case& c, const Inputs& inputs) {
  return for_each_head(
      c, inputs, c.dtype,
      [&c](const HeadProblem& problem, const std::vector<double>& dout,
           const std::vector<double>& dlse) { return plain_head(c.dtype, problem, dout, dlse); });
}

double ulp(DType dtype, double x) {
  struct Format {
    int mantissa_bits;
    int min_exponent;
  };
  const Format format = dtype == DType::kFloat16    ? Format{10, -14}
                        : dtype == DType::kBFloat16 ? Format{7, -126}
                                                    : Format{23, -126};
  int exponent = 0;
  std::frexp(x, &exponent);
  exponent = x == 0.0 ? format.min_exponent : std::max(exponent - 1, format.min_exponent);
  return std::ldexp(1.0, exponent - format.mantissa_bits);
}

std::string first_error(const std::string& name, DType dtype, const Array& got,
                        const Array& expected, const Array& plain) {
  if (got.values.size() != expected.values.size()) return name + " has another size";
  double plain_error = 0.0;
  double magnitude = 0.0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    if (!std::isfinite(expected.values[i])) continue;
    plain_error = std::max(plain_error, std::fabs(plain.values[i] - expected.values[i]));
    magnitude = std::max(magnitude, std::fabs(expected.values[i]));
  }
  const double allowed = 2.0 * plain_error + ulp(dtype, magnitude);
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double want = expected.values[i];
    const double have = got.values[i];
    const bool good = std::isfinite(want) ? std::fabs(have - want) <= allowed : have == want;
    if (good) continue;
    const auto index = static_cast<std::int64_t>(i);
    const std::int64_t d = index % got.dim;
    const std::int64_t h = index / got.dim % got.heads;
    const std::int64_t r = index / got.dim / got.heads % got.rows;
    return fmt::format(
        "{}[batch {}, row {}, head {}, {}] is {}, expected {}, plain {} (error {:.3g}, allowed "
        "{:.3g})",
        name, index / got.dim / got.heads / got.rows, r, h, d, have, want, plain.values[i],
        std::fabs(have - want), allowed);
  }
  return "";
}

std::string first_error(const Case& c, const Results& got, const Results& expected,
                        const Results& plain) {
  const auto compare = [&](const char* name, const Array* a, const Array* b, const Array* p,
                           DType dtype) -> std::string {
    for (const int set : {kFirst, kClean}) {
      const std::string which = set == kClean ? std::string(name) + "_clean" : name;
      const std::string error = first_error(which, dtype, a[set], b[set], p[set]);
      if (!error.empty()) return error;
    }
    return "";
  };
  for (const std::string& error :
       {compare("out", got.out, expected.out, plain.out, c.dtype),
        compare("lse", got.lse, expected.lse, plain.lse, DType::kFloat32),
        compare("dq", got.dq, expected.dq, plain.dq, c.dtype),
        compare("dk", got.dk, expected.dk, plain.dk, c.dtype),
        compare("dv", got.dv, expected.dv, plain.dv, c.dtype)}) {
    if (!error.empty()) return error;
  }
  return "";
}

}  // namespace stepwell::testing
