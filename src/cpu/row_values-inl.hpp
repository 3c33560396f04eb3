// What the backward pass needs of each query row: log-sum-exp and delta, mended from the scores.
//
// The backward pass starts from a log-sum-exp rounded to float32, so that P is exact to about
// |lse| 2^-24, and from a rounded out. Plain code, which keeps P, is limited by neither. One more
// look at the scores of a query tile mends both: the sum of P over a row says how far its
// log-sum-exp is off, and the mean of dP - delta under P how far delta = sum of dout * out is.

#if defined(STEPWELL_CPU_ROW_VALUES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_CPU_ROW_VALUES_INL_HPP
#undef STEPWELL_CPU_ROW_VALUES_INL_HPP
#else
#define STEPWELL_CPU_ROW_VALUES_INL_HPP
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/backward-inl.hpp"
#include "cpu/forward-inl.hpp"
#include "geometry/tiles.hpp"

HWY_BEFORE_NAMESPACE();
namespace stepwell::cpu::HWY_NAMESPACE {

/// A forward tile's memory, its out being dO, and the tile of dP^T beside S^T.
struct RowValuesScratch : ForwardScratch {
  float* dp;         // [kForwardTileKv][kPanel]
  float* lse;        // [kForwardTileQ], in units of log 2
  float* delta;      // [kForwardTileQ]: sum of dout * out
  float* sum;        // [kForwardTileQ]: of P
  float* rest;       // [kForwardTileQ]: sum of P (dP - delta)
  float* size;       // [kForwardTileQ]: sums of P |dP - delta| and of |dout * out|
  float* sum_error;  // [kForwardTileQ]: what rounding took from sum

  RowValuesScratch(float* base, int head_dim, int head_dim_v)
      : ForwardScratch(base, head_dim, head_dim_v) {
    dp = base + (ForwardScratch::end() - base);
    lse = dp + kForwardTileKv * kPanel;
    delta = lse + kForwardTileQ;
    sum = delta + kForwardTileQ;
    rest = sum + kForwardTileQ;
    size = rest + kForwardTileQ;
    sum_error = size + kForwardTileQ;
  }

  const float* end() const { return sum_error + kForwardTileQ; }
};

inline std::size_t row_values_scratch_floats(int head_dim, int head_dim_v) {
  float* const base = nullptr;
  return static_cast<std::size_t>(RowValuesScratch(base, head_dim, head_dim_v).end() - base);
}

/// sum += x, and what its rounding took away to `error` (Knuth's TwoSum): equal terms, all rounded
/// in one direction, would leave a plain sum of many keys less exact than what it is to mend.
inline void add_exactly(FloatVec& sum, FloatVec& error, FloatVec x) {
  const FloatVec total = hn::Add(sum, x);
  const FloatVec of_x = hn::Sub(total, sum);
  const FloatVec lost = hn::Add(hn::Sub(sum, hn::Sub(total, of_x)), hn::Sub(x, of_x));
  error = hn::Add(error, lost);
  sum = total;
}

/// Adds one panel's P and P (dP - delta) over `keys` keys, from key `key_first` on.
template <bool kMasked>
inline void add_panel_sums(const RowValuesScratch& scratch, const BackwardScale& scale,
                           std::size_t column, std::int32_t key_first, std::int32_t keys,
                           const Dropout& dropout) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t n = 0; n < static_cast<std::size_t>(kPanel); n += lanes) {
    const FloatVec lse = hn::LoadU(d, scratch.lse + column + n);
    const auto begin = hn::LoadU(di, scratch.key_begin + column + n);
    const auto end = hn::LoadU(di, scratch.key_end + column + n);
    const FloatVec delta = hn::LoadU(d, scratch.delta + column + n);
    FloatVec sum = hn::LoadU(d, scratch.sum + column + n);
    FloatVec sum_error = hn::LoadU(d, scratch.sum_error + column + n);
    FloatVec rest = hn::LoadU(d, scratch.rest + column + n);
    FloatVec size = hn::LoadU(d, scratch.size + column + n);
    constexpr std::int32_t kBlock = 16;  // keys whose own sums are short enough to be exact
    for (std::int32_t block = 0; block < keys; block += kBlock) {
      FloatVec block_sum = hn::Zero(d);
      FloatVec block_rest = hn::Zero(d);
      for (std::int32_t k = block; k < geometry::min_of(block + kBlock, keys); ++k) {
        const std::size_t at = static_cast<std::size_t>(k) * kPanel + n;
        FloatVec s = hn::LoadU(d, scratch.scores + at);
        FloatVec dp = hn::LoadU(d, scratch.dp + at);
        if (scale.capped) {
          s = tanh(hn::Mul(s, hn::Set(d, scale.softcap_scale)));
        }
        if (dropout.active) {
          const auto dropped = dropped_lanes(scratch.dropped + at);
          dp = hn::IfThenZeroElse(dropped, hn::Mul(dp, hn::Set(d, dropout.keep_scale)));
        }
        FloatVec p = exp2_of_score(s, hn::Set(d, scale.scale_log2), lse);
        FloatVec term = hn::Mul(p, hn::Sub(dp, delta));
        if (kMasked) {
          const auto seen = key_seen(hn::Set(di, key_first + k), begin, end);
          p = hn::IfThenElseZero(seen, p);
          term = hn::IfThenElseZero(seen, term);
        }
        block_sum = hn::Add(block_sum, p);
        block_rest = hn::Add(block_rest, term);
        size = hn::Add(size, hn::Abs(term));
      }
      add_exactly(sum, sum_error, block_sum);
      rest = hn::Add(rest, block_rest);
    }
    hn::StoreU(sum, d, scratch.sum + column + n);
    hn::StoreU(sum_error, d, scratch.sum_error + column + n);
    hn::StoreU(rest, d, scratch.rest + column + n);
    hn::StoreU(size, d, scratch.size + column + n);
  }
}

/// The keys of one segment.
inline void add_segment_sums(const ForwardTile& tile, const RowValuesScratch& scratch,
                             const BackwardScale& scale, geometry::Half key_half) {
  const std::size_t dim = static_cast<std::size_t>(tile.problem->head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(tile.problem->head_dim_v);
  for_each_panel(tile, scratch, key_half, [&](const PanelKeys& at) {
    const std::size_t count = static_cast<std::size_t>(at.keys.size());
    multiply_long(count, kPanel, dim, scratch.k + at.first * dim, dim,
                  scratch.q_transposed + at.column, kForwardTileQ, scratch.scores, kPanel);
    multiply_long(count, kPanel, dim_v, scratch.v + at.first * dim_v, dim_v,
                  scratch.out_transposed + at.column, kForwardTileQ, scratch.dp, kPanel);
    (at.masked ? add_panel_sums<true> : add_panel_sums<false>)(scratch, scale, at.column,
                                                               at.keys.begin, at.keys.size(),
                                                               tile.dropout);
  });
}

/// How far rounding may take the sum of dout * out from that of P dP, in units of the sizes of
/// their terms: a few roundings.
inline float rounding_of_delta(DType dtype) {
  return dtype == DType::kBFloat16 ? 0x1p-6f : dtype == DType::kFloat16 ? 0x1p-9f : 0x1p-20f;
}

/// The row values of a query tile.
inline void row_values(const ForwardTile& tile, const BackwardBuffers& buffers,
                       float* scratch_memory) {
  const AttentionProblem& problem = *tile.problem;
  const geometry::Sample& sample = *tile.sample;
  const HalfTensors& tensors = problem.half(tile.half);
  const BackwardRowValues& values = buffers.row_values[static_cast<int>(tile.half)];
  const RowValuesScratch scratch(scratch_memory, problem.head_dim, problem.head_dim_v);
  const BackwardScale scale = backward_scale(problem);
  const std::int64_t first = first_query_row(sample, tile.half, tile.view);
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);
  const auto span = [&](const Rows& rows) {
    return RowSpan{rows, problem.dtype, sample.batch_index, first, tile.head};
  };
  // Of the tile's row i in a row value.
  const auto at = [&](const RowValues& value, std::int32_t i) {
    return value.at(sample.batch_index, tile.head, first + tile.rows.begin + i);
  };

  load_transposed(span(tensors.q), tile.rows, dim, 1.0f, scratch.k, scratch.q_transposed);
  load_transposed(span(tensors.dout), tile.rows, dim_v, 1.0f, scratch.k, scratch.out_transposed);
  for (std::int32_t i = 0; i < kForwardTileQ; ++i) {
    scratch.lse[i] = scratch.delta[i] = scratch.size[i] = 0.0f;
    scratch.sum[i] = scratch.sum_error[i] = scratch.rest[i] = 0.0f;
  }
  float* const out_row = scratch.v;
  for (std::int32_t i = 0; i < tile.rows.size(); ++i) {
    load_row(span(tensors.out).at(tile.rows.begin + i), problem.dtype, dim_v, 1.0f, out_row);
    const float* const dout_row = scratch.k + static_cast<std::size_t>(i) * dim_v;
    const OctetTag d;
    auto delta = hn::Zero(d);
    auto size = hn::Zero(d);
    for (std::size_t c = 0; c < dim_v; c += hn::Lanes(d)) {
      const auto x = hn::LoadU(d, out_row + c);
      const auto y = hn::LoadU(d, dout_row + c);
      delta = hn::MulAdd(x, y, delta);
      size = hn::Add(size, hn::Abs(hn::Mul(x, y)));
    }
    scratch.delta[i] = hn::GetLane(hn::SumOfLanes(d, delta));
    scratch.size[i] = hn::GetLane(hn::SumOfLanes(d, size));
    // In units of log 2 as a float, and the factor exp2(-rest) that makes up for its rounding.
    // Beyond 2^23 a float has no fraction left and the factor could be anything: such a row is as
    // it is.
    const double lse = *at(tensors.lse, i) / kLn2;
    scratch.lse[i] = static_cast<float>(lse);
    const double rest = scratch.lse[i] - lse;
    *at(values.delta, i) = scratch.delta[i];
    *at(values.lse_log2, i) = scratch.lse[i];
    *at(values.lse_factor, i) = std::abs(rest) <= 1.0 ? static_cast<float>(std::exp2(rest)) : 1.0f;
  }

  add_segment_sums(tile, scratch, scale, geometry::Half::kClean);
  if (tile.half == geometry::Half::kNoisy) {
    add_segment_sums(tile, scratch, scale, geometry::Half::kNoisy);
  }
  for (std::int32_t i = 0; i < tile.rows.size(); ++i) {
    const float excess = (scratch.sum[i] - 1.0f) + scratch.sum_error[i];
    const float correction = scratch.rest[i] / (1.0f + excess);
    // Only what rounding can have done: out and lse may be those of more keys than these (a
    // sequence's shard), or of scores past the precision of a float.
    const float lse_rounding = 0x1p-21f + 0x1p-23f * std::fabs(scratch.lse[i]);
    const float out_rounding = rounding_of_delta(problem.dtype) * scratch.size[i];
    if (!(std::fabs(excess) <= std::min(lse_rounding, 0x1p-6f))) continue;
    if (!(std::fabs(correction) <= out_rounding)) continue;
    *at(values.delta, i) = scratch.delta[i] + correction;
    *at(values.lse_factor, i) = 1.0f / (1.0f + excess);
  }
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
