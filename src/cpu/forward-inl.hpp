// Forward pass of one query tile: online softmax over the key tiles that the tile sees.
//
// Everything is kept transposed, with queries along the vectors: scores S^T [keys][queries], output
// O^T [value dim][queries]. Row maxima and sums are then plain vertical operations, K and V are
// used as they lie in memory (one broadcast an element), and only Q is transposed, once a tile. The
// tile is cut into panels as wide as the register block; each panel visits just the keys that its
// own rows see.

#if defined(STEPWELL_CPU_FORWARD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_CPU_FORWARD_INL_HPP
#undef STEPWELL_CPU_FORWARD_INL_HPP
#else
#define STEPWELL_CPU_FORWARD_INL_HPP
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/dropout-inl.hpp"
#include "cpu/gemm-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/math-inl.hpp"
#include "cpu/rows-inl.hpp"
#include "geometry/tiles.hpp"

HWY_BEFORE_NAMESPACE();
namespace stepwell::cpu::HWY_NAMESPACE {

static_assert(kForwardTileQ % kPanel == 0);

inline constexpr double kLn2 = 0.69314718055994530942;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// One thread's memory for a forward tile.
struct ForwardScratch {
  float* q_transposed;      // [head_dim][kForwardTileQ]
  float* out_transposed;    // [head_dim_v][kForwardTileQ]
  float* k;                 // [kForwardTileKv][head_dim]; also Q and O by rows, before and after
  float* v;                 // [kForwardTileKv][head_dim_v]
  float* scores;            // [kForwardTileKv][kPanel]: S^T, then P^T
  float* row_max;           // [kForwardTileQ], in units of log 2
  float* row_sum;           // [kForwardTileQ]
  float* rescale;           // [kPanel]
  std::int32_t* key_begin;  // [kForwardTileQ] keys that each row sees
  std::int32_t* key_end;
  std::uint32_t* dropout;  // [kForwardTileKv][kPanel]

  ForwardScratch(float* base, int head_dim, int head_dim_v) {
    q_transposed = base;
    out_transposed = q_transposed + head_dim * kForwardTileQ;
    k = out_transposed + head_dim_v * kForwardTileQ;
    v = k + kForwardTileKv * (head_dim > head_dim_v ? head_dim : head_dim_v);
    scores = v + kForwardTileKv * head_dim_v;
    row_max = scores + kForwardTileKv * kPanel;
    row_sum = row_max + kForwardTileQ;
    rescale = row_sum + kForwardTileQ;
    key_begin = reinterpret_cast<std::int32_t*>(rescale + kPanel);
    key_end = key_begin + kForwardTileQ;
    dropout = reinterpret_cast<std::uint32_t*>(key_end + kForwardTileQ);
  }

  const float* end() const {
    return reinterpret_cast<const float*>(dropout + kForwardTileKv * kPanel);
  }
};

inline std::size_t forward_scratch_floats(int head_dim, int head_dim_v) {
  float* const base = nullptr;
  return static_cast<std::size_t>(ForwardScratch(base, head_dim, head_dim_v).end() - base);
}

/// How stored scores become exponents of 2: exp2(scale_log2 * (s - row maximum)). The difference is
/// taken first: it is exact where scores are close, and so are the exponents that matter. Capped
/// scores are stored in units of log 2.
struct ScoreScale {
  float q_factor;       // Q is multiplied with it: the sign of the softmax scale, or 0
  float softcap_scale;  // softmax scale / softcap
  float softcap_log2;   // softcap in units of log 2; 0: none
  float scale_log2;     // positive
};

inline ScoreScale score_scale(const AttentionProblem& problem) {
  const double scale = problem.softmax_scale;
  constexpr double kLog2 = 1.44269504088896340736;
  if (problem.softcap != 0.0) {
    return {1.0f, static_cast<float>(scale / problem.softcap),
            static_cast<float>(problem.softcap * kLog2), 1.0f};
  }
  if (scale == 0.0) return {0.0f, 0.0f, 0.0f, 1.0f};
  return {scale < 0.0 ? -1.0f : 1.0f, 0.0f, 0.0f, static_cast<float>(std::abs(scale) * kLog2)};
}

/// The row maximum; 0 for a row that has seen no key, where -inf + inf would be NaN.
HWY_INLINE FloatVec reference_of(FloatVec row_max) {
  const FloatTag d;
  return hn::IfThenZeroElse(hn::Eq(row_max, hn::Set(d, kMinusInfinity)), row_max);
}

/// S^T of a panel: cap, mask, and the new row maxima.
template <bool kMasked>
HWY_INLINE void finish_scores(float* scores, std::int32_t key_first, std::int32_t keys,
                              const std::int32_t* key_begin, const std::int32_t* key_end,
                              const ScoreScale& scale, float* row_max, float* rescale) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const std::size_t lanes = hn::Lanes(d);
  const bool capped = scale.softcap_log2 != 0.0f;
  for (std::size_t n = 0; n < static_cast<std::size_t>(kPanel); n += lanes) {
    FloatVec maximum = hn::Set(d, kMinusInfinity);
    const auto begin = kMasked ? hn::LoadU(di, key_begin + n) : hn::Zero(di);
    const auto end = kMasked ? hn::LoadU(di, key_end + n) : hn::Zero(di);
    for (std::int32_t k = 0; k < keys; ++k) {
      float* at = scores + static_cast<std::size_t>(k) * kPanel + n;
      FloatVec s = hn::LoadU(d, at);
      if (capped) {
        s = hn::Mul(hn::Set(d, scale.softcap_log2),
                    tanh(hn::Mul(s, hn::Set(d, scale.softcap_scale))));
      }
      if (kMasked) {
        const auto key = hn::Set(di, key_first + k);
        const auto seen = hn::AndNot(hn::VecFromMask(di, hn::Lt(key, begin)),
                                     hn::VecFromMask(di, hn::Lt(key, end)));
        s = hn::IfThenElse(hn::RebindMask(d, hn::MaskFromVec(seen)), s, hn::Set(d, kMinusInfinity));
      }
      if (kMasked || capped) hn::StoreU(s, d, at);
      maximum = hn::Max(maximum, s);
    }
    const FloatVec old_max = hn::LoadU(d, row_max + n);
    const FloatVec new_max = hn::Max(old_max, maximum);
    hn::StoreU(new_max, d, row_max + n);
    hn::StoreU(exp2(hn::Mul(hn::Sub(old_max, reference_of(new_max)), hn::Set(d, scale.scale_log2))),
               d, rescale + n);
  }
}

/// P^T of a panel in place of S^T, and the row sums (of all pairs: dropout acts on P alone).
inline void exponentiate(float* scores, std::int32_t keys, float scale_log2, const float* row_max,
                         const float* rescale, float* row_sum, const std::uint32_t* dropout,
                         std::uint32_t threshold) {
  const FloatTag d;
  const WordTag dw;
  const std::size_t lanes = hn::Lanes(d);
  const FloatVec scale = hn::Set(d, scale_log2);
  for (std::size_t n = 0; n < static_cast<std::size_t>(kPanel); n += lanes) {
    const FloatVec reference = reference_of(hn::LoadU(d, row_max + n));
    FloatVec sum = hn::Zero(d);  // of these keys alone: many small terms keep their last bits
    for (std::int32_t k = 0; k < keys; ++k) {
      const std::size_t at = static_cast<std::size_t>(k) * kPanel + n;
      FloatVec p = exp2(hn::Mul(hn::Sub(hn::LoadU(d, scores + at), reference), scale));
      sum = hn::Add(sum, p);
      if (dropout != nullptr) {
        const auto dropped = hn::Lt(hn::LoadU(dw, dropout + at), hn::Set(dw, threshold));
        p = hn::IfThenZeroElse(hn::RebindMask(d, dropped), p);
      }
      hn::StoreU(p, d, scores + at);
    }
    hn::StoreU(hn::MulAdd(hn::LoadU(d, row_sum + n), hn::LoadU(d, rescale + n), sum), d,
               row_sum + n);
  }
}

/// Everything of a forward tile that does not change from key tile to key tile.
struct ForwardContext {
  const ForwardTile& tile;
  const AttentionProblem& problem;
  ForwardScratch scratch;
  std::int32_t query_position;
  ScoreScale scale;

  std::int32_t rows() const { return tile.rows.size(); }

  geometry::Interval panel_rows(std::int32_t panel) const {
    const std::int32_t begin = tile.rows.begin + panel * kPanel;
    return {begin, geometry::min_of(begin + kPanel, tile.rows.end)};
  }
};

/// Adds the keys `keys` (their K and V already in the scratch, from key `loaded` on) to one panel.
inline void add_keys_to_panel(const ForwardContext& context, const geometry::IntervalRule& rule,
                              bool clean_keys, std::int32_t panel, geometry::Interval keys,
                              std::int32_t loaded) {
  const AttentionProblem& problem = context.problem;
  const ForwardScratch& scratch = context.scratch;
  const geometry::Interval rows = context.panel_rows(panel);
  const geometry::TileClass tile_class =
      geometry::classify(rule, context.query_position, rows, keys);
  if (tile_class == geometry::TileClass::kEmpty) return;

  const std::size_t column = static_cast<std::size_t>(panel) * kPanel;
  const std::size_t count = static_cast<std::size_t>(keys.size());
  const std::size_t first = static_cast<std::size_t>(keys.begin - loaded);
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);
  multiply_long(count, kPanel, dim, scratch.k + first * dim, dim, scratch.q_transposed + column,
                kForwardTileQ, scratch.scores, kPanel);
  if (tile_class == geometry::TileClass::kFull) {
    finish_scores<false>(scratch.scores, keys.begin, keys.size(), nullptr, nullptr, context.scale,
                         scratch.row_max + column, scratch.rescale);
  } else {
    finish_scores<true>(scratch.scores, keys.begin, keys.size(), scratch.key_begin + column,
                        scratch.key_end + column, context.scale, scratch.row_max + column,
                        scratch.rescale);
  }
  const Dropout& dropout = context.tile.dropout;
  if (dropout.active) {
    const std::int32_t segment = context.tile.half == geometry::Half::kNoisy
                                     ? context.tile.view
                                     : context.tile.sample->mask.num_views;
    dropout_by_key(dropout_stream(dropout.key, context.tile.sample_index, problem.heads_q,
                                  context.tile.head, segment, clean_keys),
                   keys.begin, keys.end, rows.begin, kPanel, scratch.dropout);
  }
  exponentiate(scratch.scores, keys.size(), context.scale.scale_log2, scratch.row_max + column,
               scratch.rescale, scratch.row_sum + column,
               dropout.active ? scratch.dropout : nullptr, dropout.threshold);
  multiply<StoredBy::kColumns, Update::kScaleAdd>(
      dim_v, kPanel, count, scratch.v + first * dim_v, dim_v, scratch.scores, kPanel,
      scratch.out_transposed + column, kForwardTileQ, scratch.rescale);
}

/// Adds all keys that the tile's rows see in one segment.
inline void add_segment(const ForwardContext& context, geometry::Half key_half) {
  const ForwardTile& tile = context.tile;
  const AttentionProblem& problem = context.problem;
  const geometry::Sample& sample = *tile.sample;
  const ForwardScratch& scratch = context.scratch;
  const geometry::IntervalRule rule = geometry::rule_between(sample.mask, tile.half, key_half);
  const geometry::Interval hull = geometry::key_hull(rule, context.query_position, tile.rows);
  if (hull.empty()) return;

  for (std::int32_t i = 0; i < kForwardTileQ; ++i) {
    const geometry::Interval seen =
        i < context.rows()
            ? geometry::row_interval(rule, context.query_position + tile.rows.begin + i)
            : geometry::Interval{0, 0};
    scratch.key_begin[i] = seen.begin;
    scratch.key_end[i] = seen.end;
  }
  geometry::Interval panel_hulls[kForwardTileQ / kPanel];
  const std::int32_t panels = geometry::ceil_div(context.rows(), static_cast<std::int32_t>(kPanel));
  for (std::int32_t p = 0; p < panels; ++p) {
    panel_hulls[p] = geometry::key_hull(rule, context.query_position, context.panel_rows(p));
  }

  const bool clean_keys = key_half == geometry::Half::kClean;
  const std::int64_t first_row =
      clean_keys ? sample.clean_kv.first : sample.noisy.first + tile.view * sample.view_stride;
  const std::int64_t head_kv = tile.head / problem.group();
  const HalfTensors& tensors = problem.half(key_half);
  const RowSpan k_rows{tensors.k, problem.dtype, sample.batch_index, first_row, head_kv};
  const RowSpan v_rows{tensors.v, problem.dtype, sample.batch_index, first_row, head_kv};
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);

  for (std::int32_t k = hull.begin; k < hull.end; k += kForwardTileKv) {
    const geometry::Interval chunk{k, geometry::min_of(k + kForwardTileKv, hull.end)};
    if (rule.table != nullptr && geometry::classify(rule, context.query_position, tile.rows,
                                                    chunk) == geometry::TileClass::kEmpty) {
      continue;
    }
    const std::size_t count = static_cast<std::size_t>(chunk.size());
    load_tile(k_rows, k, count, dim, scratch.k, dim);
    load_tile(v_rows, k, count, dim_v, scratch.v, dim_v);
    for (std::int32_t p = 0; p < panels; ++p) {
      const geometry::Interval keys{geometry::max_of(chunk.begin, panel_hulls[p].begin),
                                    geometry::min_of(chunk.end, panel_hulls[p].end)};
      if (!keys.empty()) add_keys_to_panel(context, rule, clean_keys, p, keys, k);
    }
  }
}

inline void forward_tile(const ForwardTile& tile, float* scratch_memory) {
  const AttentionProblem& problem = *tile.problem;
  const geometry::Sample& sample = *tile.sample;
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);
  const ForwardContext context{
      tile, problem, ForwardScratch(scratch_memory, problem.head_dim, problem.head_dim_v),
      geometry::query_position(sample.mask, tile.half), score_scale(problem)};
  const ForwardScratch& scratch = context.scratch;
  const HalfTensors& tensors = problem.half(tile.half);
  const std::int64_t first_row = tile.half == geometry::Half::kNoisy
                                     ? sample.noisy.first + tile.view * sample.view_stride
                                     : sample.clean_q.first;
  const std::size_t rows = static_cast<std::size_t>(context.rows());

  const RowSpan q_rows{tensors.q, problem.dtype, sample.batch_index, first_row, tile.head};
  for (std::size_t i = 0; i < static_cast<std::size_t>(kForwardTileQ); ++i) {
    float* row = scratch.k + i * dim;
    if (i < rows) {
      load_row(q_rows.at(tile.rows.begin + static_cast<std::int64_t>(i)), problem.dtype, dim,
               context.scale.q_factor, row);
    } else {
      for (std::size_t c = 0; c < dim; ++c) row[c] = 0.0f;
    }
  }
  transpose(scratch.k, dim, kForwardTileQ, dim, scratch.q_transposed, kForwardTileQ);
  for (std::size_t i = 0; i < dim_v * kForwardTileQ; ++i) scratch.out_transposed[i] = 0.0f;
  for (int i = 0; i < kForwardTileQ; ++i) {
    scratch.row_max[i] = kMinusInfinity;
    scratch.row_sum[i] = 0.0f;
  }

  add_segment(context, geometry::Half::kClean);
  if (tile.half == geometry::Half::kNoisy) add_segment(context, geometry::Half::kNoisy);

  transpose(scratch.out_transposed, kForwardTileQ, dim_v, kForwardTileQ, scratch.k, dim_v);
  const RowSpan out_rows{tensors.out, problem.dtype, sample.batch_index, first_row, tile.head};
  for (std::size_t i = 0; i < rows; ++i) {
    const std::int64_t row = tile.rows.begin + static_cast<std::int64_t>(i);
    const float sum = scratch.row_sum[i];
    const bool sees_nothing = scratch.row_max[i] == kMinusInfinity && sum == 0.0f;
    const float factor = sees_nothing ? 0.0f : tile.dropout.keep_scale / sum;
    store_row(scratch.k + i * dim_v, dim_v, factor, problem.dtype, out_rows.mutable_at(row));
    if (tensors.lse.data != nullptr) {
      const double maximum = double{scratch.row_max[i]} * context.scale.scale_log2;
      *tensors.lse.at(sample.batch_index, tile.head, first_row + row) =
          sees_nothing ? kMinusInfinity
                       : static_cast<float>(maximum * kLn2 + std::log(double{sum}));
    }
  }
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
