// Probes that random data does not replace: which keys a row sees, what may influence what, and
// which gradients are exactly zero.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "operators/cases.hpp"
#include "operators/operands.hpp"
#include "operators/oracle.hpp"
#include "operators/runner.hpp"
#include "operators/samples.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

using geometry::Half;

/// The masks, layouts and lengths of the operator table with small heads and no options; every
/// `step`th of them, and of these every other one with `deterministic` where that takes other
/// kernels.
std::vector<Case> probe_cases(std::int64_t most_rows, std::size_t step = test_runner().probe_step(),
                              const std::vector<DType>& dtypes = test_runner().probed_dtypes()) {
  std::vector<Case> cases;
  std::size_t count = 0;
  for (const DType dtype : dtypes) {
    for (Case c : operator_cases()) {
      const Extents e = extents_of(c);
      if (e.batch * (e.rows_q[kFirst] + e.rows_q[kClean]) > most_rows) continue;
      if (e.batch * (e.rows_kv[kFirst] + e.rows_kv[kClean]) > most_rows) continue;
      c.dtype = dtype;
      c.heads_q = 2;
      c.heads_kv = 1;
      c.head_dim = c.head_dim_v = 16;
      c.softcap = c.dropout_p = 0.0;
      c.dropout_tensor = false;
      c.dropout_seed = c.dropout_offset = 0;
      c.softmax_scale.reset();
      c.input_scale = 1.0;
      c.deterministic = test_runner().has_deterministic_kernels() && cases.size() % 2 == 1;
      if (count++ % step == 0) cases.push_back(test_runner().nearest(c));
    }
  }
  return cases;
}

Results run(const Case& c, const Inputs& inputs) {
  Call call(c, inputs);
  test_runner().forward(c, call);
  test_runner().backward(c, call);
  return call.results();
}

bool same_row(const Array* a, const Array* b, const Place& place) {
  for (std::int64_t h = 0; h < a[place.set].heads; ++h) {
    const double* x = a[place.set].at(place.batch, place.row, h);
    const double* y = b[place.set].at(place.batch, place.row, h);
    for (std::int64_t d = 0; d < a[place.set].dim; ++d) {
      if (x[d] != y[d]) return false;  // NaN differs from itself, too
    }
  }
  return true;
}

/// Of dq: up to the last bit where the backend adds its terms in any order.
bool same_dq_row(const Case& c, const Array* a, const Array* b, const Place& place) {
  if (test_runner().same_dq_bits(c)) return same_row(a, b, place);
  for (std::int64_t h = 0; h < a[place.set].heads; ++h) {
    const double* x = a[place.set].at(place.batch, place.row, h);
    const double* y = b[place.set].at(place.batch, place.row, h);
    double largest = 0.0;
    for (std::int64_t d = 0; d < a[place.set].dim; ++d) {
      largest = std::max(largest, std::fabs(x[d]));
    }
    for (std::int64_t d = 0; d < a[place.set].dim; ++d) {
      if (!(std::fabs(x[d] - y[d]) <= ulp(c.dtype, largest))) return false;  // NaN neither
    }
  }
  return true;
}

bool same_query_row(const Case& c, const Results& a, const Results& b, const Place& place) {
  return same_row(a.out, b.out, place) && same_row(a.lse, b.lse, place) &&
         same_dq_row(c, a.dq, b.dq, place);
}

void set_row(Array* arrays, const Place& place, double value) {
  Array& array = arrays[place.set];
  for (std::int64_t h = 0; h < array.heads; ++h)
    std::fill_n(array.at(place.batch, place.row, h), array.dim, value);
}

// ---------------------------------------------------------------------------------------- one-hot

// V holds one unit vector per key: row i of out is then row i of P, which is positive where the row
// sees the key. dout one-hot per query does the same for dV = P^T dout.
TEST(OneHotProbe, RowsSeeExactlyTheMask) {
  constexpr int kColumns = 128;
  for (Case c : probe_cases(280, /*step=*/1)) {
    SCOPED_TRACE(c.name);
    c.head_dim = 8;
    c.head_dim_v = kColumns;
    c.expanded_dout = false;
    c.with_dlse = false;
    c = test_runner().nearest(c);
    const std::vector<SampleModel> samples = samples_of(c);
    std::size_t keys = 0;
    std::size_t queries = 0;
    for (const SampleModel& sample : samples) {
      keys += sample.keys.size();
      queries += sample.queries.size();
    }
    for (std::size_t base = 0; base < std::max(keys, queries); base += kColumns) {
      Inputs inputs = random_inputs(c, 1);
      const auto make_one_hot = [&](Array* arrays, const Place& place, std::size_t id) {
        set_row(arrays, place, 0.0);
        if (id < base || id >= base + kColumns) return;
        for (std::int64_t h = 0; h < arrays[place.set].heads; ++h)
          arrays[place.set].at(place.batch, place.row, h)[id - base] = 1.0;
      };
      std::size_t key_id = 0;
      std::size_t query_id = 0;
      for (const SampleModel& sample : samples) {
        for (const Place& key : sample.keys) make_one_hot(inputs.v, key, key_id++);
        for (const Place& query : sample.queries) make_one_hot(inputs.dout, query, query_id++);
      }
      const Results r = run(c, inputs);

      std::size_t first_key = 0;
      std::size_t first_query = 0;
      for (const SampleModel& sample : samples) {
        // Columns of other samples must be zero as well.
        for (std::size_t i = 0; i < sample.queries.size(); ++i) {
          const Place& query = sample.queries[i];
          for (int h = 0; h < c.heads_q; ++h) {
            const double* p = r.out[query.set].at(query.batch, query.row, h);
            for (std::size_t column = 0; column < kColumns; ++column) {
              const std::size_t id = base + column;
              const bool own = id >= first_key && id < first_key + sample.keys.size();
              const bool visible = own && sample.visible(query, sample.keys[id - first_key]);
              ASSERT_EQ(p[column] > 0.0, visible) << to_string(query) << ", key " << id;
              ASSERT_TRUE(visible || p[column] == 0.0) << to_string(query) << ", key " << id;
            }
          }
        }
        for (std::size_t j = 0; j < sample.keys.size(); ++j) {
          const Place& key = sample.keys[j];
          const double* p = r.dv[key.set].at(key.batch, key.row, 0);
          for (std::size_t column = 0; column < kColumns; ++column) {
            const std::size_t id = base + column;
            const bool own = id >= first_query && id < first_query + sample.queries.size();
            const bool visible = own && sample.visible(sample.queries[id - first_query], key);
            ASSERT_EQ(p[column] > 0.0, visible) << to_string(key) << ", query " << id;
            ASSERT_TRUE(visible || p[column] == 0.0) << to_string(key) << ", query " << id;
          }
        }
        first_key += sample.keys.size();
        first_query += sample.queries.size();
      }
    }
  }
}

// ------------------------------------------------------------------------------- leaks and poison

/// Rows whose out, lse and dq must not depend on `key`, and do. Empty if there are none.
std::string rows_that_changed(const Case& c, const std::vector<SampleModel>& samples,
                              std::size_t sample, const Place& key, const Results& before,
                              const Results& after) {
  for (std::size_t s = 0; s < samples.size(); ++s) {
    for (const Place& query : samples[s].queries) {
      if (s == sample && samples[s].visible(query, key)) continue;
      if (!same_query_row(c, before, after, query)) {
        return to_string(query) + " of sample " + std::to_string(s) + " changed with key " +
               to_string(key) + " of sample " + std::to_string(sample);
      }
    }
  }
  return "";
}

template <typename Change>
void expect_unseen_keys_have_no_influence(const Case& c, int most_keys, Change&& change) {
  const std::vector<SampleModel> samples = samples_of(c);
  const Inputs inputs = random_inputs(c, 2);
  const Results before = run(c, inputs);
  Random random(3);
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const auto keys = static_cast<int>(samples[s].keys.size());
    for (int round = 0; round < std::min(keys, most_keys); ++round) {
      const int j = keys <= most_keys ? round : static_cast<int>(random.between(0, keys - 1));
      Inputs changed = inputs;
      change(changed, samples[s].keys[j], random);
      ASSERT_EQ(rows_that_changed(c, samples, s, samples[s].keys[j], before, run(c, changed)), "");
    }
  }
}

TEST(LeakProbe, KeysInfluenceOnlyRowsThatSeeThem) {
  for (const Case& c : probe_cases(120)) {
    SCOPED_TRACE(c.name);
    expect_unseen_keys_have_no_influence(c, 12, [](Inputs& inputs, const Place& key, Random& r) {
      set_row(inputs.k, key, r.normal());
      set_row(inputs.v, key, r.normal());
    });
  }
}

// However a cap is computed, it may depend on the size of scores that the row sees only.
TEST(LeakProbe, LargeKeysUnderASoftCap) {
  int probed = 0;
  for (Case c : operator_cases()) {
    if (c.name != "walk_softcap_window" && c.name != "walk_softcap_blocks") continue;
    c.dtype = DType::kBFloat16;
    c = test_runner().nearest(c);
    SCOPED_TRACE(c.name);
    expect_unseen_keys_have_no_influence(c, 10, [](Inputs& inputs, const Place& key, Random& r) {
      set_row(inputs.k, key, 20.0 * r.normal());
    });
    ++probed;
  }
  EXPECT_EQ(probed, 2);
}

// A row's own query and gradient touch nothing but itself and the keys it sees.
TEST(LeakProbe, QueriesInfluenceOnlyKeysTheySee) {
  Random random(4);
  for (Case c : probe_cases(120)) {
    SCOPED_TRACE(c.name);
    c.expanded_dout = false;
    const std::vector<SampleModel> samples = samples_of(c);
    const Inputs inputs = random_inputs(c, 5);
    const Results before = run(c, inputs);
    for (std::size_t s = 0; s < samples.size(); ++s) {
      if (samples[s].queries.empty()) continue;
      for (int round = 0; round < 4; ++round) {
        const auto last = static_cast<std::int64_t>(samples[s].queries.size()) - 1;
        const Place changed_query = samples[s].queries[random.between(0, last)];
        Inputs changed = inputs;
        set_row(changed.q, changed_query, random.normal());
        set_row(changed.dout, changed_query, random.normal());
        const Results after = run(c, changed);
        for (std::size_t t = 0; t < samples.size(); ++t) {
          for (const Place& query : samples[t].queries) {
            const bool same_place = query.set == changed_query.set &&
                                    query.batch == changed_query.batch &&
                                    query.row == changed_query.row;
            if (same_place) continue;
            ASSERT_TRUE(same_query_row(c, before, after, query)) << to_string(query);
          }
          for (const Place& key : samples[t].keys) {
            if (t == s && samples[s].visible(changed_query, key)) continue;
            for (const auto array : {&Results::dk, &Results::dv})
              ASSERT_TRUE(same_row(before.*array, after.*array, key)) << to_string(key);
          }
        }
      }
    }
  }
}

// Masks of blocks and equal halves: noisy block j does not see clean block j, and no other row sees
// noisy block j.
void expect_no_leaks_between_blocks(DType dtype) {
  constexpr int kLen = 26;
  constexpr int kBlock = 4;
  for (const CleanAttention clean : {CleanAttention::kBlock, CleanAttention::kCausal}) {
    for (const NoisyAttention noisy : {NoisyAttention::kBidirectional, NoisyAttention::kCausal}) {
      Case c;
      c.dtype = dtype;
      DiffusionMask mask;
      mask.block_size = kBlock;
      mask.clean = clean;
      mask.noisy = noisy;
      c.mask = mask;
      c.lengths = {kLen};
      c = test_runner().nearest(c);
      const Inputs inputs = random_inputs(c, 6);
      const Results before = run(c, inputs);
      for (int block = 0; block * kBlock < kLen; ++block) {
        const int begin = block * kBlock;
        const int end = std::min(begin + kBlock, kLen);
        Inputs changed = inputs;
        for (int i = begin; i < end; ++i) {
          const Place place{{Half::kClean, 0, i}, kFirst, 0, kLen + i};
          for (Array* arrays : {changed.q, changed.k, changed.v}) set_row(arrays, place, 0.5 + i);
        }
        const Results clean_changed = run(c, changed);
        for (int i = begin; i < end; ++i) {
          const Place place{{Half::kNoisy, 0, i}, kFirst, 0, i};
          EXPECT_TRUE(same_row(before.out, clean_changed.out, place)) << block << " " << i;
        }
        changed = inputs;
        for (int i = begin; i < end; ++i) {
          const Place place{{Half::kNoisy, 0, i}, kFirst, 0, i};
          for (Array* arrays : {changed.q, changed.k, changed.v}) set_row(arrays, place, 0.5 + i);
        }
        const Results noisy_changed = run(c, changed);
        for (int row = 0; row < 2 * kLen; ++row) {
          const Place place{{Half::kNoisy, 0, row}, kFirst, 0, row};
          EXPECT_EQ(same_row(before.out, noisy_changed.out, place), row < begin || row >= end)
              << block << " " << row;
        }
      }
    }
  }
}

// Padding, tails and gaps hold NaN in every test of the table; here every kind of junk.
TEST(PoisonProbe, PaddingNeverInfluencesAResult) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Case& c : probe_cases(250)) {
    SCOPED_TRACE(c.name);
    const Inputs inputs = random_inputs(c, 7);
    const Results before = run(c, inputs);
    for (const double junk : {kInfinity, -kInfinity, 0.0}) {
      Inputs changed = inputs;
      for (const int set : {kFirst, kClean}) {
        for (Array* array : {&changed.q[set], &changed.k[set], &changed.v[set], &changed.dout[set],
                             &changed.dlse[set]}) {
          for (double& x : array->values) {
            if (std::isnan(x)) x = junk;
          }
        }
      }
      const Results after = run(c, changed);
      for (const int set : {kFirst, kClean}) {
        for (const auto array : {&Results::out, &Results::lse, &Results::dk, &Results::dv})
          ASSERT_TRUE(same_bits((before.*array)[set], (after.*array)[set]));
        const Array& dq = before.dq[set];
        for (std::int64_t b = 0; b < dq.batch; ++b) {
          for (std::int64_t row = 0; row < dq.rows; ++row)
            ASSERT_TRUE(same_dq_row(c, before.dq, after.dq, Place{{}, set, b, row}));
        }
      }
    }
  }
}

TEST(LeakProbe, Blocks) {
  for (const DType dtype : test_runner().probed_dtypes()) expect_no_leaks_between_blocks(dtype);
}

// A valid key that a row does not see never influences the row, however large it is.
TEST(PoisonProbe, HugeKeysStayUnseen) {
  for (const Case& c : probe_cases(120, test_runner().probe_step(),
                                   {DType::kFloat32, DType::kBFloat16, DType::kFloat16})) {
    SCOPED_TRACE(c.name);
    const double huge = c.dtype == DType::kFloat16 ? 6e4 : 1e30;
    expect_unseen_keys_have_no_influence(
        c, 5, [huge, &c](Inputs& inputs, const Place& key, Random& random) {
          const double sign = random.chance(0.5) ? 1.0 : -1.0;
          set_row(inputs.k, key, sign * rounded(c.dtype, huge));
          set_row(inputs.v, key, rounded(c.dtype, huge));
        });
    if (HasFatalFailure()) return;
  }
}

// ----------------------------------------------------------------------------------- large scores

/// Calls visit(case, number) for some masks in every dtype and two head dims.
template <typename Visit>
void for_each_score_case(Visit&& visit) {
  std::size_t count = 0;
  for (Case c : probe_cases(280, std::max<std::size_t>(8, 2 * test_runner().probe_step()),
                            {DType::kFloat32, DType::kBFloat16, DType::kFloat16})) {
    for (const int head_dim : {64, 128}) {
      c.head_dim = c.head_dim_v = head_dim;
      if (!test_runner().takes(c) || !test_runner().refusal(c).empty()) continue;
      SCOPED_TRACE(fmt::format("{} {}", c.name, head_dim));
      visit(c, ++count);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GE(count, 10u);
}

/// The forward pass of inputs whose q and k, but for NaN, are q(x) and k(x). A log-sum-exp may be
/// off by `lse_slack` of itself, or is held to the table's rule.
template <typename Q, typename K>
void expect_forward(const Case& c, std::uint64_t seed, Q&& q, K&& k, double lse_slack = 0.0) {
  Inputs inputs = random_inputs(c, seed);
  for (const int set : {kFirst, kClean}) {
    for (double& x : inputs.q[set].values) x = std::isnan(x) ? x : q(x);
    for (double& x : inputs.k[set].values) x = std::isnan(x) ? x : k(x);
  }
  Call call(c, inputs);
  test_runner().forward(c, call);
  const Results results = call.results();
  const Results expected = expected_results(c, inputs);
  Results got = expected;
  for (const int set : {kFirst, kClean}) {
    got.out[set] = results.out[set];
    if (lse_slack == 0.0) {
      got.lse[set] = results.lse[set];
      continue;
    }
    for (std::size_t i = 0; i < expected.lse[set].values.size(); ++i) {
      const double lse = expected.lse[set].values[i];
      const double off = std::isinf(lse) ? 0.0 : lse_slack * std::fabs(lse);
      ASSERT_TRUE(results.lse[set].values[i] == lse ||
                  std::fabs(results.lse[set].values[i] - lse) <= off)
          << results.lse[set].values[i] << " instead of " << lse;
    }
  }
  ASSERT_EQ(first_error(c, got, expected, plain_results(c, inputs)), "");
}

// Scores up to 2^20 and 2^28 in units of log 2, whose products with the scale a float cannot hold:
// all weight is on a row's greatest, of which there are often several. Products are sums of equal
// powers of two with either sign, and exact. The 16-bit CUDA kernels' log-sum-exp is the float of
// two rounded products, whose factors are rounded too.
TEST(ScoreProbe, PastAFloatsPrecision) {
  for_each_score_case([](const Case& c, std::uint64_t number) {
    for (const double size : {512.0, 8192.0}) {
      SCOPED_TRACE(size);
      const auto signed_size = [size](double x) { return std::copysign(size, x); };
      const double lse_slack = c.dtype == DType::kFloat32 ? 0.0 : 0x1p-22;
      expect_forward(c, number, signed_size, signed_size, lse_slack);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

// All of a row's scores are the same, far below zero: about where the reference of the 16-bit CUDA
// kernels starts, and past it by more than float16 has room for. The log-sum-exp is the float of a
// rounded sum and a rounded product.
TEST(ScoreProbe, FarBelowZero) {
  for_each_score_case([](Case c, std::uint64_t number) {
    for (const double below : {-32.0, 0.0, 24.0, 48.0, 88.0, 200.0}) {
      SCOPED_TRACE(below);
      // q k is -2^26 or -2^27.
      c.softmax_scale =
          64.0 / static_cast<double>(c.head_dim) * (1.0 + below / 67108864.0) * std::numbers::ln2;
      expect_forward(
          c, number, [](double) { return 1024.0; }, [](double) { return -1024.0; }, 0x1p-22);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// A bound of dV of a key: the sum of |dout| over the rows that see it, where P is at most 1.
std::string dv_past_bound(const Case& c, const Inputs& inputs, const Results& r) {
  const int group = c.heads_q / c.heads_kv;
  for (const SampleModel& sample : samples_of(c)) {
    for (const Place& key : sample.keys) {
      for (int head = 0; head < c.heads_kv; ++head) {
        const double* dv = r.dv[key.set].at(key.batch, key.row, head);
        for (int d = 0; d < c.head_dim_v; ++d) {
          double bound = 0.0;
          for (const Place& query : sample.queries) {
            if (!sample.visible(query, key)) continue;
            for (int h = 0; h < group; ++h) {
              bound +=
                  std::fabs(inputs.dout[query.set].at(query.batch, query.row, head * group + h)[d]);
            }
          }
          if (std::fabs(dv[d]) <= bound * 1.01) continue;  // NaN is not
          return fmt::format("dv of {} is {}, past {}", to_string(key), dv[d], bound);
        }
      }
    }
  }
  return "";
}

// The log-sum-exp of such scores is rounded by far more than 1, and P is taken from it.
TEST(ScoreProbe, ProbabilitiesAreAtMostOne) {
  for_each_score_case([](const Case& c, std::uint64_t number) {
    if (!test_runner().bounds_probabilities(c)) return;
    Inputs inputs = random_inputs(c, number);
    for (const int set : {kFirst, kClean}) {
      for (Array* array : {&inputs.q[set], &inputs.k[set]}) {
        for (double& x : array->values) x = std::isnan(x) ? x : std::copysign(8192.0, x);
      }
    }
    ASSERT_EQ(dv_past_bound(c, inputs, run(c, inputs)), "");
  });
}

// -------------------------------------------------------------------------------- gradient halves

void zero_half(Inputs& inputs, const std::vector<SampleModel>& samples, Half half) {
  for (const SampleModel& sample : samples) {
    for (const Place& query : sample.queries) {
      if (query.token.half != half) continue;
      set_row(inputs.dout, query, 0.0);
      set_row(inputs.dlse, query, 0.0);
    }
  }
}

bool row_is(const Array* arrays, const Place& place, double value) {
  const Array& array = arrays[place.set];
  for (std::int64_t h = 0; h < array.heads; ++h) {
    const double* row = array.at(place.batch, place.row, h);
    for (std::int64_t d = 0; d < array.dim; ++d) {
      if (row[d] != value) return false;
    }
  }
  return true;
}

TEST(GradientHalves, ZeroWhereNothingFlows) {
  for (Case c : probe_cases(600)) {
    if (std::holds_alternative<SequenceMask>(c.mask)) continue;
    SCOPED_TRACE(c.name);
    c.expanded_dout = false;
    const std::vector<SampleModel> samples = samples_of(c);

    Inputs inputs = random_inputs(c, 8);
    zero_half(inputs, samples, Half::kNoisy);
    Results r = run(c, inputs);
    for (const SampleModel& sample : samples) {
      for (const Place& query : sample.queries) {
        if (query.token.half != Half::kNoisy) continue;
        ASSERT_TRUE(row_is(r.dq, query, 0.0)) << to_string(query);
      }
      for (const Place& key : sample.keys) {
        if (key.token.half != Half::kNoisy) continue;
        ASSERT_TRUE(row_is(r.dk, key, 0.0)) << to_string(key);
        ASSERT_TRUE(row_is(r.dv, key, 0.0)) << to_string(key);
      }
    }

    inputs = random_inputs(c, 8);
    zero_half(inputs, samples, Half::kClean);
    r = run(c, inputs);
    for (const SampleModel& sample : samples) {
      for (const Place& query : sample.queries) {
        if (query.token.half != Half::kClean) continue;
        ASSERT_TRUE(row_is(r.dq, query, 0.0)) << to_string(query);
      }
      for (const Place& key : sample.keys) {
        if (key.token.half != Half::kClean) continue;
        bool seen_by_noisy = false;
        for (const Place& query : sample.queries) {
          seen_by_noisy =
              seen_by_noisy || (query.token.half == Half::kNoisy && sample.visible(query, key));
        }
        if (seen_by_noisy) continue;  // as the last clean block never is
        ASSERT_TRUE(row_is(r.dk, key, 0.0)) << to_string(key);
        ASSERT_TRUE(row_is(r.dv, key, 0.0)) << to_string(key);
      }
    }
  }
}

}  // namespace
}  // namespace stepwell::testing
