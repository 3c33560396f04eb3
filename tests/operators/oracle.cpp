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

/// Results of all heads, as they are computed one by one.
class Collector {
 public:
  /// `dtype`: what results are rounded to; kOther: nothing.
  Collector(const Case& c, DType dtype) : dtype_(dtype), results_(empty_results(c)) {}

  void begin_group() {
    dk_.clear();
    dv_.clear();
  }
  void add_head(const SampleModel& sample, int head, const HeadResults& results,
                const HeadGradients& grads) {
    scatter(results_.out, sample.queries, head, results.out, dtype_);
    scatter(results_.lse, sample.queries, head, results.lse, DType::kOther);
    scatter(results_.dq, sample.queries, head, grads.dq, dtype_);
    add(dk_, grads.dk);
    add(dv_, grads.dv);
  }
  void end_group(const SampleModel& sample, int head_kv) {
    scatter(results_.dk, sample.keys, head_kv, dk_, dtype_);
    scatter(results_.dv, sample.keys, head_kv, dv_, dtype_);
  }
  Results take() { return std::move(results_); }

 private:
  static void add(std::vector<double>& sum, const std::vector<double>& term) {
    sum.resize(term.size());
    for (std::size_t i = 0; i < term.size(); ++i) sum[i] += term[i];
  }

  DType dtype_;
  Results results_;
  std::vector<double> dk_, dv_;
};

/// Calls begin_group(), attend(sample, head, head problem, dout, dlse) for each head of a group,
/// and end_group(sample, head_kv), for every sample.
template <typename Begin, typename Attend, typename End>
void for_each_head(const Case& c, const Inputs& inputs, Begin&& begin_group, Attend&& attend,
                   End&& end_group) {
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
      begin_group();
      for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        problem.q = gather(inputs.q, sample.queries, head);
        problem.sample_head = static_cast<std::uint32_t>(s) * c.heads_q + head;
        std::vector<double> dlse(sample.queries.size(), 0.0);
        if (c.with_dlse) dlse = gather(inputs.dlse, sample.queries, head);
        attend(sample, head, problem, gather(inputs.dout, sample.queries, head), dlse);
      }
      end_group(sample, head_kv);
    }
  }
}

}  // namespace

Results expected_results(const Case& c, const Inputs& inputs) {
  Collector collector(c, DType::kOther);
  for_each_head(
      c, inputs, [&] { collector.begin_group(); },
      [&](const SampleModel& sample, int head, const HeadProblem& problem,
          const std::vector<double>& dout, const std::vector<double>& dlse) {
        collector.add_head(sample, head, reference::forward(problem),
                           reference::backward(problem, dout, dlse));
      },
      [&](const SampleModel& sample, int head_kv) { collector.end_group(sample, head_kv); });
  return collector.take();
}

PlainResults plain_results(const Case& c, const Inputs& inputs) {
  Collector values(c, c.dtype);
  Collector terms(c, DType::kOther);
  for_each_head(
      c, inputs,
      [&] {
        values.begin_group();
        terms.begin_group();
      },
      [&](const SampleModel& sample, int head, const HeadProblem& problem,
          const std::vector<double>& dout, const std::vector<double>& dlse) {
        const PlainHead plain = plain_head(c.dtype, problem, dout, dlse);
        values.add_head(sample, head, plain.results, plain.grads);
        terms.add_head(sample, head, plain.result_terms, plain.grad_terms);
      },
      [&](const SampleModel& sample, int head_kv) {
        values.end_group(sample, head_kv);
        terms.end_group(sample, head_kv);
      });
  return {values.take(), terms.take()};
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

namespace {

std::string first_error(const std::string& name, DType dtype, const Array& got,
                        const Array& expected, const Array& plain, const Array& terms,
                        double term_ulps) {
  if (got.values.size() != expected.values.size()) return name + " has another size";
  double plain_error = 0.0;
  double magnitude = 0.0;
  double term_magnitude = 0.0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    if (!std::isfinite(expected.values[i])) continue;
    plain_error = std::max(plain_error, std::fabs(plain.values[i] - expected.values[i]));
    magnitude = std::max(magnitude, std::fabs(expected.values[i]));
    term_magnitude = std::max(term_magnitude, terms.values[i]);
  }
  const double allowed =
      2.0 * plain_error + ulp(dtype, magnitude) + term_ulps * ulp(DType::kFloat32, term_magnitude);
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

}  // namespace

std::string first_error(const Case& c, const Results& got, const Results& expected,
                        const PlainResults& plain, double term_ulps) {
  struct Compared {
    const char* name;
    Array (Results::*array)[2];
    DType dtype;
  };
  const Compared kCompared[] = {{"out", &Results::out, c.dtype},
                                {"lse", &Results::lse, DType::kFloat32},
                                {"dq", &Results::dq, c.dtype},
                                {"dk", &Results::dk, c.dtype},
                                {"dv", &Results::dv, c.dtype}};
  for (const auto& [name, array, dtype] : kCompared) {
    for (const int set : {kFirst, kClean}) {
      std::string error = first_error(
          fmt::format("{}{}", name, set == kClean ? "_clean" : ""), dtype, (got.*array)[set],
          (expected.*array)[set], (plain.values.*array)[set], (plain.terms.*array)[set], term_ulps);
      if (!error.empty()) return error;
    }
  }
  return "";
}

}  // namespace stepwell::testing
