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
  std::uint32_t* dropped;  // [kForwardTileKv][kPanel]

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
    dropped = reinterpret_cast<std::uint32_t*>(key_end + kForwardTileQ);
  }

  const float* end() const {
    return reinterpret_cast<const float*>(dropped + kForwardTileKv * kPanel);
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

/// Which lanes have begin <= key < end.
HWY_INLINE auto key_seen(hn::Vec<hn::RebindToSigned<FloatTag>> key,
                         hn::Vec<hn::RebindToSigned<FloatTag>> begin,
                         hn::Vec<hn::RebindToSigned<FloatTag>> end) {
  const hn::RebindToSigned<FloatTag> di;
  return hn::RebindMask(FloatTag(),
                        hn::MaskFromVec(hn::AndNot(hn::VecFromMask(di, hn::Lt(key, begin)),
                                                   hn::VecFromMask(di, hn::Lt(key, end)))));
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
        const auto seen = key_seen(hn::Set(di, key_first + k), begin, end);
        s = hn::IfThenElse(seen, s, hn::Set(d, kMinusInfinity));
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
                         const float* rescale, float* row_sum, const std::uint32_t* dropped) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const FloatVec scale = hn::Set(d, scale_log2);
  for (std::size_t n = 0; n < static_cast<std::size_t>(kPanel); n += lanes) {
    const FloatVec reference = reference_of(hn::LoadU(d, row_max + n));
    FloatVec sum = hn::Zero(d);  // of these keys alone: many small terms keep their last bits
    for (std::int32_t k = 0; k < keys; ++k) {
      const std::size_t at = static_cast<std::size_t>(k) * kPanel + n;
      FloatVec p = exp2(hn::Mul(hn::Sub(hn::LoadU(d, scores + at), reference), scale));
      sum = hn::Add(sum, p);
      if (dropped != nullptr) p = hn::IfThenZeroElse(dropped_lanes(dropped + at), p);
      hn::StoreU(p, d, scores + at);
    }
    hn::StoreU(hn::MulAdd(hn::LoadU(d, row_sum + n), hn::LoadU(d, rescale + n), sum), d,
               row_sum + n);
  }
}

inline std::int64_t first_query_row(const geometry::Sample& sample, geometry::Half half,
                                    std::int32_t view) {
  return half == geometry::Half::kNoisy ? sample.noisy.first + view * sample.view_stride
                                        : sample.clean_q.first;
}

inline std::int64_t first_key_row(const geometry::Sample& sample, geometry::Half half,
                                  std::int32_t view) {
  return half == geometry::Half::kNoisy ? sample.noisy.first + view * sample.view_stride
                                        : sample.clean_kv.first;
}

/// Keys that a panel of a query tile meets: their K and V lie in the scratch, from row `first` on.
struct PanelKeys {
  std::size_t column;  // of the panel's first row
  geometry::Interval keys;
  std::size_t first;
  bool masked;  // some row does not see some key
};

/// Loads the keys of one segment that the tile's rows see, a chunk at a time, and calls
/// visit(PanelKeys) for each panel of rows that meets some of them; the rows' intervals and, with
/// dropout, which pairs are dropped is in the scratch by then.
template <typename Visit>
inline void for_each_panel(const ForwardTile& tile, const ForwardScratch& scratch,
                           geometry::Half key_half, Visit&& visit) {
  const AttentionProblem& problem = *tile.problem;
  const geometry::Sample& sample = *tile.sample;
  const geometry::IntervalRule rule = geometry::rule_between(sample.mask, tile.half, key_half);
  const std::int32_t position = geometry::query_position(sample.mask, tile.half);
  const geometry::Interval hull = geometry::key_hull(rule, position, tile.rows);
  if (hull.empty()) return;

  for (std::int32_t i = 0; i < kForwardTileQ; ++i) {
    const geometry::Interval seen =
        i < tile.rows.size() ? geometry::row_interval(rule, position + tile.rows.begin + i)
                             : geometry::Interval{0, 0};
    scratch.key_begin[i] = seen.begin;
    scratch.key_end[i] = seen.end;
  }
  const auto panel_rows = [&](std::int32_t panel) -> geometry::Interval {
    const std::int32_t begin = tile.rows.begin + panel * kPanel;
    return {begin, geometry::min_of(begin + kPanel, tile.rows.end)};
  };
  geometry::Interval panel_hulls[kForwardTileQ / kPanel];
  const std::int32_t panels =
      geometry::ceil_div(tile.rows.size(), static_cast<std::int32_t>(kPanel));
  for (std::int32_t p = 0; p < panels; ++p) {
    panel_hulls[p] = geometry::key_hull(rule, position, panel_rows(p));
  }

  const HalfTensors& tensors = problem.half(key_half);
  const std::int64_t first_row = first_key_row(sample, key_half, tile.view);
  const std::int64_t head_kv = tile.head / problem.group();
  const RowSpan k_rows{tensors.k, problem.dtype, sample.batch_index, first_row, head_kv};
  const RowSpan v_rows{tensors.v, problem.dtype, sample.batch_index, first_row, head_kv};
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);
  const std::int32_t segment =
      tile.half == geometry::Half::kNoisy ? tile.view : sample.mask.num_views;

  for (std::int32_t k = hull.begin; k < hull.end; k += kForwardTileKv) {
    const geometry::Interval chunk{k, geometry::min_of(k + kForwardTileKv, hull.end)};
    if (rule.table != nullptr &&
        geometry::classify(rule, position, tile.rows, chunk) == geometry::TileClass::kEmpty) {
      continue;
    }
    const std::size_t count = static_cast<std::size_t>(chunk.size());
    load_tile(k_rows, k, count, dim, scratch.k, dim);
    load_tile(v_rows, k, count, dim_v, scratch.v, dim_v);
    for (std::int32_t p = 0; p < panels; ++p) {
      const geometry::Interval keys{geometry::max_of(chunk.begin, panel_hulls[p].begin),
                                    geometry::min_of(chunk.end, panel_hulls[p].end)};
      const geometry::Interval rows = panel_rows(p);
      const geometry::TileClass tile_class = geometry::classify(rule, position, rows, keys);
      if (tile_class == geometry::TileClass::kEmpty) continue;
      if (tile.dropout.active) {
        dropout_by_key(dropout_stream(tile.dropout.key, tile.sample_index, problem.heads_q,
                                      tile.head, segment, key_half == geometry::Half::kClean),
                       tile.dropout.threshold, keys.begin, keys.end, rows.begin, kPanel,
                       scratch.dropped);
      }
      visit(PanelKeys{static_cast<std::size_t>(p) * kPanel, keys,
                      static_cast<std::size_t>(keys.begin - k),
                      tile_class != geometry::TileClass::kFull});
    }
  }
}

/// Rows of a query tile times `factor`, transposed, zeros past the last; `staging` holds them
/// first.
inline void load_transposed(const RowSpan& span, geometry::Interval rows, std::size_t columns,
                            float factor, float* staging, float* to) {
  for (std::int32_t i = 0; i < kForwardTileQ; ++i) {
    float* const row = staging + static_cast<std::size_t>(i) * columns;
    if (i < rows.size()) {
      load_row(span.at(rows.begin + i), span.dtype, columns, factor, row);
    } else {
      for (std::size_t c = 0; c < columns; ++c) row[c] = 0.0f;
    }
  }
  transpose(staging, columns, kForwardTileQ, columns, to, kForwardTileQ);
}

/// Adds all keys that the tile's rows see in one segment.
inline void add_segment(const ForwardTile& tile, const ForwardScratch& scratch,
                        const ScoreScale& scale, geometry::Half key_half) {
  const std::size_t dim = static_cast<std::size_t>(tile.problem->head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(tile.problem->head_dim_v);
  for_each_panel(tile, scratch, key_half, [&](const PanelKeys& at) {
    const std::size_t count = static_cast<std::size_t>(at.keys.size());
    multiply_long(count, kPanel, dim, scratch.k + at.first * dim, dim,
                  scratch.q_transposed + at.column, kForwardTileQ, scratch.scores, kPanel);
    (at.masked ? finish_scores<true>
               : finish_scores<false>)(scratch.scores, at.keys.begin, at.keys.size(),
                                       scratch.key_begin + at.column, scratch.key_end + at.column,
                                       scale, scratch.row_max + at.column, scratch.rescale);
    exponentiate(scratch.scores, at.keys.size(), scale.scale_log2, scratch.row_max + at.column,
                 scratch.rescale, scratch.row_sum + at.column,
                 tile.dropout.active ? scratch.dropped : nullptr);
    multiply<StoredBy::kColumns, Update::kScaleAdd>(
        dim_v, kPanel, count, scratch.v + at.first * dim_v, dim_v, scratch.scores, kPanel,
        scratch.out_transposed + at.column, kForwardTileQ, scratch.rescale);
  });
}

inline void forward_tile(const ForwardTile& tile, float* scratch_memory) {
  const AttentionProblem& problem = *tile.problem;
  const geometry::Sample& sample = *tile.sample;
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);
  const ForwardScratch scratch(scratch_memory, problem.head_dim, problem.head_dim_v);
  const ScoreScale scale = score_scale(problem);
  const HalfTensors& tensors = problem.half(tile.half);
  const std::int64_t first_row = first_query_row(sample, tile.half, tile.view);
  const std::size_t rows = static_cast<std::size_t>(tile.rows.size());

  load_transposed({tensors.q, problem.dtype, sample.batch_index, first_row, tile.head}, tile.rows,
                  dim, scale.q_factor, scratch.k, scratch.q_transposed);
  for (std::size_t i = 0; i < dim_v * kForwardTileQ; ++i) scratch.out_transposed[i] = 0.0f;
  for (int i = 0; i < kForwardTileQ; ++i) {
    scratch.row_max[i] = kMinusInfinity;
    scratch.row_sum[i] = 0.0f;
  }

  add_segment(tile, scratch, scale, geometry::Half::kClean);
  if (tile.half == geometry::Half::kNoisy) {
    add_segment(tile, scratch, scale, geometry::Half::kNoisy);
  }

  transpose(scratch.out_transposed, kForwardTileQ, dim_v, kForwardTileQ, scratch.k, dim_v);
  const RowSpan out_rows{tensors.out, problem.dtype, sample.batch_index, first_row, tile.head};
  for (std::size_t i = 0; i < rows; ++i) {
    const std::int64_t row = tile.rows.begin + static_cast<std::int64_t>(i);
    const float sum = scratch.row_sum[i];
    const bool sees_nothing = scratch.row_max[i] == kMinusInfinity && sum == 0.0f;
    const float factor = sees_nothing ? 0.0f : tile.dropout.keep_scale / sum;
    store_row(scratch.k + i * dim_v, dim_v, factor, problem.dtype, out_rows.mutable_at(row));
    if (tensors.lse.data != nullptr) {
      const double maximum = double{scratch.row_max[i]} * scale.scale_log2;
      *tensors.lse.at(sample.batch_index, tile.head, first_row + row) =
          sees_nothing ? kMinusInfinity
                       : static_cast<float>(maximum * kLn2 + std::log(double{sum}));
    }
  }
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
