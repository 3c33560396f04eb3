// Contracts that hold for every case: reproducible bits, lse at no influence, the same numbers in
// every layout, and identities that need no oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/philox.hpp"
#include "operators/cases.hpp"
#include "operators/operands.hpp"
#include "operators/oracle.hpp"
#include "operators/samples.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

using geometry::Half;

bool same_results(const Results& a, const Results& b) {
  for (const int set : {kFirst, kClean}) {
    for (const auto array :
         {&Results::out, &Results::lse, &Results::dq, &Results::dk, &Results::dv}) {
      if (!same_bits((a.*array)[set], (b.*array)[set])) return false;
    }
  }
  return true;
}

Results run(const Case& c, const Inputs& inputs, int num_threads = 0) {
  Call call(c, inputs);
  call.args.num_threads = num_threads;
  call.forward();
  call.backward();
  return call.results();
}

TEST(Contract, BitsDependOnNeitherThreadsNorRuns) {
  for (Case c : operator_cases()) {
    SCOPED_TRACE(c.name);
    if (c.lengths.size() % 2 == 0) c.dtype = DType::kBFloat16;
    const Inputs inputs = random_inputs(c, 1);
    const Results once = run(c, inputs, 1);
    for (const int num_threads : {1, 2, 3}) {
      ASSERT_TRUE(same_results(once, run(c, inputs, num_threads))) << num_threads << " threads";
    }
  }
}

// Fewer heads than threads, and rows enough to be split among them.
TEST(Contract, BitsDependOnNeitherThreadsNorRunsWithFewHeads) {
  for (const int n : {600, 1100}) {
    for (const int group : {1, 3}) {
      Case c;
      DiffusionMask mask;
      mask.block_size = 16;
      mask.num_views = n == 600 ? 2 : 1;
      c.mask = mask;
      c.lengths = {n};
      c.heads_q = group;
      c.dropout_p = 0.1;
      const Inputs inputs = random_inputs(c, 2);
      const Results once = run(c, inputs, 1);
      for (const int num_threads : {2, 3, 8})
        EXPECT_TRUE(same_results(once, run(c, inputs, num_threads))) << num_threads;
    }
  }
}

TEST(Contract, OutIsTheSameWithAndWithoutLse) {
  for (const Case& c : operator_cases()) {
    SCOPED_TRACE(c.name);
    const Inputs inputs = random_inputs(c, 3);
    Call with(c, inputs);
    with.forward();
    Call without(c, inputs, /*with_lse=*/false);
    without.forward();
    for (const int set : {kFirst, kClean})
      ASSERT_TRUE(same_bits(with.results().out[set], without.results().out[set]));
  }
}

TEST(Contract, MaskAndPairCountFollowTheElementRule) {
  for (const Case& c : operator_cases()) {
    SCOPED_TRACE(c.name);
    const Inputs inputs = random_inputs(c, 4);
    const Call call(c, inputs);
    const Extents e = extents_of(c);
    const std::int64_t rows_q = e.rows_q[kFirst] + e.rows_q[kClean];
    const std::int64_t rows_kv = e.rows_kv[kFirst] + e.rows_kv[kClean];
    std::vector<unsigned char> expected(e.batch * rows_q * rows_kv, 0);
    std::int64_t pairs = 0;
    for (const SampleModel& sample : samples_of(c)) {
      for (const Place& query : sample.queries) {
        const std::int64_t row = query.row + (query.set == kClean ? e.rows_q[kFirst] : 0);
        for (const Place& key : sample.keys) {
          if (!sample.visible(query, key)) continue;
          const std::int64_t column = key.row + (key.set == kClean ? e.rows_kv[kFirst] : 0);
          expected[(query.batch * rows_q + row) * rows_kv + column] = 1;
          ++pairs;
        }
      }
    }
    std::vector<unsigned char> visible(expected.size() + 1, 7);
    attention_mask(call.args, visible.data(), expected.size());
    ASSERT_EQ(visible.back(), 7);
    visible.pop_back();
    ASSERT_EQ(visible, expected);
    ASSERT_EQ(visible_pairs(call.args), pairs);
  }
}

// ----------------------------------------------------------------------------------------- layouts

/// The row of every token of a case, in the order of samples and tokens.
std::vector<Place> places(const Case& c, bool keys) {
  std::vector<Place> all;
  for (const SampleModel& sample : samples_of(c)) {
    const std::vector<Place>& some = keys ? sample.keys : sample.queries;
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void move_rows(const Array* from, const std::vector<Place>& at, Array* to,
               const std::vector<Place>& there) {
  ASSERT_EQ(at.size(), there.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    for (std::int64_t h = 0; h < from[at[i].set].heads; ++h) {
      std::copy_n(from[at[i].set].at(at[i].batch, at[i].row, h), from[at[i].set].dim,
                  to[there[i].set].at(there[i].batch, there[i].row, h));
    }
  }
}

// The same tokens give the same bits in every layout and order; with dropout, this is where a mask
// that depended on anything but a pair's place in its sample would show.
TEST(Contract, SameTokensGiveTheSameBitsInEveryLayout) {
  for (const int views : {1, 2}) {
    Case packed;
    DiffusionMask mask;
    mask.block_size = 5;
    mask.num_views = views;
    packed.mask = mask;
    packed.lengths = {37, 37};
    packed.heads_q = 4;
    packed.dropout_p = 0.3;
    packed.dropout_seed = 17;
    packed.layout = TokenLayout::kInterleaved;
    packed.tail = 3;
    const Inputs inputs = random_inputs(packed, 5);
    const Results expected = run(packed, inputs);

    std::vector<Case> others;
    for (const TokenLayout layout : {TokenLayout::kBatched, TokenLayout::kInterleaved,
                                     TokenLayout::kHalves, TokenLayout::kSplit}) {
      for (const Order order : {Order::kNoisyClean, Order::kCleanNoisy}) {
        for (const bool is_packed : {false, true}) {
          if (is_packed && layout != TokenLayout::kSplit) continue;
          if (order == Order::kCleanNoisy && layout == TokenLayout::kSplit) continue;
          Case c = packed;
          c.layout = layout;
          c.packed = is_packed;
          c.tail = is_packed ? 2 : 0;
          mask.order = order;
          c.mask = mask;
          others.push_back(c);
        }
      }
    }
    for (const Case& c : others) {
      Inputs moved = random_inputs(c, 6);
      move_rows(inputs.q, places(packed, false), moved.q, places(c, false));
      move_rows(inputs.dout, places(packed, false), moved.dout, places(c, false));
      move_rows(inputs.dlse, places(packed, false), moved.dlse, places(c, false));
      move_rows(inputs.k, places(packed, true), moved.k, places(c, true));
      move_rows(inputs.v, places(packed, true), moved.v, places(c, true));
      const Results got = run(c, moved);
      Results back = expected;
      move_rows(got.out, places(c, false), back.out, places(packed, false));
      move_rows(got.lse, places(c, false), back.lse, places(packed, false));
      move_rows(got.dq, places(c, false), back.dq, places(packed, false));
      move_rows(got.dk, places(c, true), back.dk, places(packed, true));
      move_rows(got.dv, places(c, true), back.dv, places(packed, true));
      EXPECT_TRUE(same_results(back, expected))
          << "layout " << static_cast<int>(c.layout) << " packed " << c.packed;
    }
  }
}

// Which pairs dropout keeps, read off one-hot values, against the published rule.
TEST(Contract, DropoutKeepsThePairsOfItsRule) {
  Case c;
  DiffusionMask mask;
  mask.block_size = 4;
  mask.num_views = 2;
  c.mask = mask;
  c.layout = TokenLayout::kInterleaved;
  c.lengths = {21, 30};
  c.heads_q = 3;
  c.head_dim = 8;
  c.head_dim_v = 256;
  c.dropout_p = 0.35;
  c.dropout_seed = 99;
  c.dropout_offset = 4;
  Inputs inputs = random_inputs(c, 7);
  const std::vector<SampleModel> samples = samples_of(c);
  std::size_t id = 0;
  for (const SampleModel& sample : samples) {
    for (const Place& key : sample.keys) {
      double* v = inputs.v[key.set].at(key.batch, key.row, 0);
      std::fill_n(v, c.head_dim_v, 0.0);
      v[id++] = 1.0;
    }
  }
  ASSERT_LE(id, 256u);
  Call call(c, inputs);
  call.forward();
  const Results r = call.results();
  const auto key = dropout_key(c.dropout_seed, c.dropout_offset);
  std::size_t first = 0;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    for (const Place& q : samples[s].queries) {
      const int segment = q.token.half == Half::kNoisy ? q.token.view : 2;
      for (int h = 0; h < c.heads_q; ++h) {
        const double* p = r.out[kFirst].at(q.batch, q.row, h);
        for (std::size_t j = 0; j < samples[s].keys.size(); ++j) {
          const Place& k = samples[s].keys[j];
          const unsigned number = dropout_number(
              key, k.token.index, q.token.index, static_cast<unsigned>(s) * c.heads_q + h,
              2 * segment + (k.token.half == Half::kClean ? 1 : 0));
          const bool kept = samples[s].visible(q, k) && number >= dropout_threshold(c.dropout_p);
          ASSERT_EQ(p[first + j] > 0.0, kept) << to_string(q) << ", " << to_string(k);
        }
      }
    }
    first += samples[s].keys.size();
  }
}

// -------------------------------------------------------------------------------------- identities

TEST(Identity, ConstantValuesComeBack) {
  for (const Case& c : operator_cases()) {
    if (c.dropout_p > 0.0) continue;
    SCOPED_TRACE(c.name);
    constexpr double kConstant = 1.375;
    Inputs inputs = random_inputs(c, 8);
    for (Array& v : inputs.v) {
      for (double& x : v.values) x = std::isnan(x) ? x : kConstant;
    }
    Call call(c, inputs);
    call.forward();
    const Results r = call.results();
    for (const SampleModel& sample : samples_of(c)) {
      for (const Place& query : sample.queries) {
        bool sees_any = false;
        for (const Place& key : sample.keys) sees_any = sees_any || sample.visible(query, key);
        for (int h = 0; h < c.heads_q; ++h) {
          const double* out = r.out[query.set].at(query.batch, query.row, h);
          for (int d = 0; d < c.head_dim_v; ++d) {
            // A weighted mean of equal values; sums of up to a thousand weights are rounded.
            ASSERT_NEAR(out[d], sees_any ? kConstant : 0.0, 4e-6) << to_string(query);
          }
        }
      }
    }
  }
}

// With a zero query a row is the mean of its keys' values: here exactly halfway between two numbers
// of the dtype, or a subnormal, or beyond its largest number.
TEST(Identity, StoresRoundToNearestEven) {
  Random random(11);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Case c;
    c.mask = SequenceMask{};
    c.layout = TokenLayout::kSequence;
    c.dtype = dtype;
    c.heads_q = c.heads_kv = 4;
    c.head_dim_v = 256;
    c.lengths = std::vector<int>(8, 1);
    c.clean_lengths = std::vector<int>(8, 2);
    Inputs inputs = random_inputs(c, 12);
    std::fill(inputs.q[kFirst].values.begin(), inputs.q[kFirst].values.end(), 0.0);
    Array& v = inputs.v[kFirst];
    for (int b = 0; b < 8; ++b) {
      for (int h = 0; h < 4; ++h) {
        for (int d = 0; d < 256; ++d) {
          const int exponent = static_cast<int>(random.between(-26, 15));
          const double x = rounded(dtype, std::ldexp(1.0 + random.uniform(), exponent));
          const double gap = ulp(dtype, x) * static_cast<double>(random.between(-3, 3));
          v.at(b, 0, h)[d] = x;
          v.at(b, 1, h)[d] = rounded(dtype, x + gap);
        }
      }
    }
    Call call(c, inputs);
    call.forward();
    const Array out = call.results().out[kFirst];
    for (int b = 0; b < 8; ++b) {
      for (int h = 0; h < 4; ++h) {
        for (int d = 0; d < 256; ++d) {
          const double mean = 0.5 * (v.at(b, 0, h)[d] + v.at(b, 1, h)[d]);
          if (std::isinf(mean)) continue;
          ASSERT_EQ(out.at(b, 0, h)[d], rounded(dtype, mean)) << mean;
        }
      }
    }
  }
}

// With blocks of one token the clean half is causal attention, bit for bit.
TEST(Identity, BlocksOfOneAreCausal) {
  for (const int n : {1, 17, 130}) {
    Case diffusion;
    DiffusionMask mask;
    mask.block_size = 1;
    diffusion.mask = mask;
    diffusion.lengths = {n};
    diffusion.with_dlse = false;
    Inputs inputs = random_inputs(diffusion, 9);
    for (int row = 0; row < n; ++row) {  // no gradient from noisy rows
      for (int h = 0; h < diffusion.heads_q; ++h)
        std::fill_n(inputs.dout[kFirst].at(0, row, h), diffusion.head_dim_v, 0.0);
    }
    const Results both = run(diffusion, inputs);

    Case causal = diffusion;
    SequenceMask sequence;
    sequence.kind = SequenceMask::Kind::kCausal;
    causal.mask = sequence;
    causal.layout = TokenLayout::kSequence;
    Inputs clean = random_inputs(causal, 9);
    const auto clean_half = [n](const Array& joint) {
      Array half(1, n, joint.heads, joint.dim);
      std::copy(joint.values.begin() + static_cast<std::int64_t>(half.values.size()),
                joint.values.end(), half.values.begin());
      return half;
    };
    clean.q[kFirst] = clean_half(inputs.q[kFirst]);
    clean.k[kFirst] = clean_half(inputs.k[kFirst]);
    clean.v[kFirst] = clean_half(inputs.v[kFirst]);
    clean.dout[kFirst] = clean_half(inputs.dout[kFirst]);
    const Results alone = run(causal, clean);
    EXPECT_TRUE(same_bits(alone.out[kFirst], clean_half(both.out[kFirst])));
    EXPECT_TRUE(same_bits(alone.lse[kFirst], clean_half(both.lse[kFirst])));
    EXPECT_TRUE(same_bits(alone.dq[kFirst], clean_half(both.dq[kFirst])));
    for (const auto array : {&Results::dk, &Results::dv}) {
      const Array joint = clean_half((both.*array)[kFirst]);
      for (std::size_t i = 0; i < joint.values.size(); ++i)
        ASSERT_EQ((alone.*array)[kFirst].values[i], joint.values[i]);
    }
  }
}

TEST(Identity, ViewsWithEqualTokensAreEqual) {
  Case c;
  DiffusionMask mask;
  mask.block_size = 4;
  mask.num_views = 3;
  c.mask = mask;
  constexpr int kLen = 19;
  c.lengths = {kLen};
  Inputs inputs = random_inputs(c, 10);
  for (const auto array : {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::dout, &Inputs::dlse}) {
    Array& a = (inputs.*array)[kFirst];
    const std::int64_t view = kLen * a.heads * a.dim;
    for (int copy = 1; copy < 3; ++copy)
      std::copy_n(a.values.begin(), view, a.values.begin() + copy * view);
  }
  const Results r = run(c, inputs);
  for (const auto array :
       {&Results::out, &Results::lse, &Results::dq, &Results::dk, &Results::dv}) {
    const Array& a = (r.*array)[kFirst];
    const std::int64_t view = kLen * a.heads * a.dim;
    for (int copy = 1; copy < 3; ++copy) {
      EXPECT_TRUE(
          std::equal(a.values.begin(), a.values.begin() + view, a.values.begin() + copy * view));
    }
  }
}

}  // namespace
}  // namespace stepwell::testing
