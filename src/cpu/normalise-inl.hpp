// Row values of the backward pass, mended from the scores themselves.
//
// The backward pass starts from a log-sum-exp rounded to float32, so that P is exact to about
// |lse| 2^-24, and from a rounded out. Plain code, which keeps P, is limited by neither. One more
// look at the scores of a query tile mends both: the sum of P over a row says how far its
// log-sum-exp is off, and the mean of dP - delta under P how far delta = sum of dout * out is.

#if defined(STEPWELL_CPU_NORMALISE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_CPU_NORMALISE_INL_HPP
#undef STEPWELL_CPU_NORMALISE_INL_HPP
#else
#define STEPWELL_CPU_NORMALISE_INL_HPP
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
struct NormaliseScratch : ForwardScratch {
  float* dp;         // [kForwardTileKv][kPanel]
  float* lse;        // [kForwardTileQ], in units of log 2
  float* delta;      // [kForwardTileQ]: sum of dout * out
  float* sum;        // [kForwardTileQ]: of P
  float* rest;       // [kForwardTileQ]: sum of P (dP - delta)
  float* size;       // [kForwardTileQ]: sums of P |dP - delta| and of |dout * out|
  float* sum_error;  // [kForwardTileQ]: what rounding took from sum

  NormaliseScratch(float* base, int head_dim, int head_dim_v)
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

inline std::size_t normalise_scratch_floats(int head_dim, int head_dim_v) {
  float* const base = nullptr;
  return static_cast<std::size_t>(NormaliseScratch(base, head_dim, head_dim_v).end() - base);
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

/// What a panel's scores and dP are to be turned into.
struct NormaliseScale {
  float scale_log2;
  float softcap_scale;  // 0: no cap
};

/// Adds one panel's P and P (dP - delta) over `keys` keys, from key `key_first` on.
template <bool kMasked>
inline void add_panel_sums(const NormaliseScratch& scratch, const NormaliseScale& scale,
                           std::size_t column, std::int32_t key_first, std::int32_t keys,
                           const Dropout& dropout) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const WordTag dw;
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
        if (scale.softcap_scale != 0.0f) {
          s = tanh(hn::Mul(s, hn::Set(d, scale.softcap_scale)));
        }
        if (dropout.active) {
          const auto number = hn::LoadU(dw, scratch.dropout + at);
          const auto dropped = hn::RebindMask(d, hn::Lt(number, hn::Set(dw, dropout.threshold)));
          dp = hn::IfThenZeroElse(dropped, hn::Mul(dp, hn::Set(d, dropout.keep_scale)));
        }
        FloatVec p = exp2_of_score(s, hn::Set(d, scale.scale_log2), lse);
        FloatVec term = hn::Mul(p, hn::Sub(dp, delta));
        if (kMasked) {
          const auto key = hn::Set(di, key_first + k);
          const auto seen =
              hn::RebindMask(d, hn::MaskFromVec(hn::AndNot(hn::VecFromMask(di, hn::Lt(key, begin)),
                                                           hn::VecFromMask(di, hn::Lt(key, end)))));
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
inline void add_segment_sums(const ForwardTile& tile, const NormaliseScratch& scratch,
                             const NormaliseScale& scale, geometry::Half key_half) {
  const AttentionProblem& problem = *tile.problem;
  const geometry::Sample& sample = *tile.sample;
  const geometry::IntervalRule rule = geometry::rule_between(sample.mask, tile.half, key_half);
  const std::int32_t position = geometry::query_position(sample.mask, tile.half);
  const geometry::Interval hull = geometry::key_hull(rule, position, tile.rows);
  for (std::int32_t i = 0; i < kForwardTileQ; ++i) {
    geometry::Interval seen{0, 0};
    if (i < tile.rows.size()) seen = geometry::row_interval(rule, position + tile.rows.begin + i);
    scratch.key_begin[i] = seen.begin;
    scratch.key_end[i] = seen.end;
  }
  const bool clean_keys = key_half == geometry::Half::kClean;
  const std::int64_t first = first_key_row(sample, key_half, tile.view);
  const std::int64_t head_kv = tile.head / problem.group();
  const HalfTensors& tensors = problem.half(key_half);
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);
  const std::int32_t segment =
      tile.half == geometry::Half::kNoisy ? tile.view : sample.mask.num_views;
  for (std::int32_t k = hull.begin; k < hull.end; k += kForwardTileKv) {
    const geometry::Interval chunk{k, geometry::min_of(k + kForwardTileKv, hull.end)};
    const std::size_t count = static_cast<std::size_t>(chunk.size());
    load_tile({tensors.k, problem.dtype, sample.batch_index, first, head_kv}, k, count, dim,
              scratch.k, dim);
    load_tile({tensors.v, problem.dtype, sample.batch_index, first, head_kv}, k, count, dim_v,
              scratch.v, dim_v);
    for (std::int32_t row = tile.rows.begin; row < tile.rows.end; row += kPanel) {
      const geometry::Interval rows{row, geometry::min_of(row + kPanel, tile.rows.end)};
      const geometry::Interval seen = geometry::key_hull(rule, position, rows);
      const geometry::Interval keys{geometry::max_of(chunk.begin, seen.begin),
                                    geometry::min_of(chunk.end, seen.end)};
      const geometry::TileClass tile_class = geometry::classify(rule, position, rows, keys);
      if (tile_class == geometry::TileClass::kEmpty) continue;
      const std::size_t column = static_cast<std::size_t>(row - tile.rows.begin);
      const std::size_t at = static_cast<std::size_t>(keys.begin - k);
      const std::size_t size = static_cast<std::size_t>(keys.size());
      multiply_long(size, kPanel, dim, scratch.k + at * dim, dim, scratch.q_transposed + column,
                    kForwardTileQ, scratch.scores, kPanel);
      multiply_long(size, kPanel, dim_v, scratch.v + at * dim_v, dim_v,
                    scratch.out_transposed + column, kForwardTileQ, scratch.dp, kPanel);
      if (tile.dropout.active) {
        dropout_by_key(dropout_stream(tile.dropout.key, tile.sample_index, problem.heads_q,
                                      tile.head, segment, clean_keys),
                       keys.begin, keys.end, row, kPanel, scratch.dropout);
      }
      const bool masked = tile_class != geometry::TileClass::kFull || rows.size() < kPanel;
      (masked ? add_panel_sums<true> : add_panel_sums<false>)(scratch, scale, column, keys.begin,
                                                              keys.size(), tile.dropout);
    }
  }
}

/// How far rounded rows of out may take delta from the sum of P dP, in units of the sum of P |dP|:
/// a few roundings.
inline float rounding_of_delta(DType dtype) {
  return dtype == DType::kBFloat16 ? 0x1p-6f : dtype == DType::kFloat16 ? 0x1p-9f : 0x1p-20f;
}

/// Replaces lse_factor and delta of a tile's rows, which row_values has filled.
inline void normalise_tile(const ForwardTile& tile, const BackwardBuffers& buffers,
                           float* scratch_memory) {
  const AttentionProblem& problem = *tile.problem;
  const geometry::Sample& sample = *tile.sample;
  const HalfTensors& tensors = problem.half(tile.half);
  const BackwardRowValues& values = buffers.row_values[static_cast<int>(tile.half)];
  const NormaliseScratch scratch(scratch_memory, problem.head_dim, problem.head_dim_v);
  const bool capped = problem.softcap != 0.0;
  const NormaliseScale scale{
      static_cast<float>((capped ? problem.softcap : problem.softmax_scale) / kLn2),
      capped ? static_cast<float>(problem.softmax_scale / problem.softcap) : 0.0f};
  const std::int64_t first = first_query_row(sample, tile.half, tile.view);
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);
  const std::size_t rows = static_cast<std::size_t>(tile.rows.size());
  const auto load_transposed = [&](const Rows& source, std::size_t columns, float* to) {
    load_tile({source, problem.dtype, sample.batch_index, first, tile.head}, tile.rows.begin, rows,
              columns, scratch.k, columns);
    for (std::size_t i = rows * columns; i < kForwardTileQ * columns; ++i) scratch.k[i] = 0.0f;
    transpose(scratch.k, columns, kForwardTileQ, columns, to, kForwardTileQ);
  };
  load_transposed(tensors.q, dim, scratch.q_transposed);
  load_transposed(tensors.dout, dim_v, scratch.out_transposed);
  const RowSpan out{tensors.out, problem.dtype, sample.batch_index, 0, tile.head};
  const RowSpan dout{tensors.dout, problem.dtype, sample.batch_index, 0, tile.head};
  const auto size_of_terms = [&](std::int64_t row) {
    const OctetTag d;
    float* const out_row = scratch.k;
    float* const dout_row = scratch.k + dim_v;
    load_row(out.at(row), problem.dtype, dim_v, 1.0f, out_row);
    load_row(dout.at(row), problem.dtype, dim_v, 1.0f, dout_row);
    auto sum = hn::Zero(d);
    for (std::size_t c = 0; c < dim_v; c += hn::Lanes(d)) {
      sum = hn::Add(sum, hn::Abs(hn::Mul(hn::LoadU(d, out_row + c), hn::LoadU(d, dout_row + c))));
    }
    return hn::GetLane(hn::SumOfLanes(d, sum));
  };
  for (std::size_t i = 0; i < static_cast<std::size_t>(kForwardTileQ); ++i) {
    const std::int64_t row = first + tile.rows.begin + static_cast<std::int64_t>(i);
    scratch.lse[i] = i < rows ? *values.lse_log2.at(sample.batch_index, tile.head, row) : 0.0f;
    scratch.delta[i] = i < rows ? *values.delta.at(sample.batch_index, tile.head, row) : 0.0f;
    scratch.sum[i] = scratch.sum_error[i] = 0.0f;
    scratch.rest[i] = 0.0f;
    scratch.size[i] = i < rows ? size_of_terms(row) : 0.0f;
  }
  add_segment_sums(tile, scratch, scale, geometry::Half::kClean);
  if (tile.half == geometry::Half::kNoisy) {
    add_segment_sums(tile, scratch, scale, geometry::Half::kNoisy);
  }
  for (std::size_t i = 0; i < rows; ++i) {
    const std::int64_t row = first + tile.rows.begin + static_cast<std::int64_t>(i);
    const float excess = (scratch.sum[i] - 1.0f) + scratch.sum_error[i];
    const float correction = scratch.rest[i] / (1.0f + excess);
    // Only what rounding can have done: out and lse may be those of more keys than these (a
    // sequence's shard), or of scores past the precision of a float.
    const float lse_rounding = 0x1p-21f + 0x1p-23f * std::fabs(scratch.lse[i]);
    const float out_rounding = rounding_of_delta(problem.dtype) * scratch.size[i];
    if (!(std::fabs(excess) <= std::min(lse_rounding, 0x1p-6f))) continue;
    if (!(std::fabs(correction) <= out_rounding)) continue;
    *values.delta.at(sample.batch_index, tile.head, row) = scratch.delta[i] + correction;
    *values.lse_factor.at(sample.batch_index, tile.head, row) = 1.0f / (1.0f + excess);
  }
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
