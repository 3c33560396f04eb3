// Backward pass of one KV head: key tiles outside, the query tiles that see them inside.
//
// Scores are recomputed as S [queries][keys], keys along the vectors, so that K^T and V^T are
// transposed once a key tile and Q and dO are used as they lie in memory:
//
//   S = Q K^T          P = exp(S - lse)            dV += P^T dO
//   dP = dO V^T        dS = P (dP - delta + dlse)  dK += dS^T Q        dQ += dS K
//
// dK and dV of a key tile stay in the scratch, dQ is summed in memory. Every sum has one owner and
// a fixed order, whatever the number of threads.

#if defined(STEPWELL_CPU_BACKWARD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_CPU_BACKWARD_INL_HPP
#undef STEPWELL_CPU_BACKWARD_INL_HPP
#else
#define STEPWELL_CPU_BACKWARD_INL_HPP
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/dropout-inl.hpp"
#include "cpu/forward-inl.hpp"
#include "cpu/gemm-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/math-inl.hpp"
#include "cpu/rows-inl.hpp"
#include "geometry/tiles.hpp"

HWY_BEFORE_NAMESPACE();
namespace stepwell::cpu::HWY_NAMESPACE {

static_assert(kBackwardTileKv % kPanel == 0);
static_assert(kColumnPadding % kPanel == 0 || kPanel % kColumnPadding == 0);

/// One thread's memory for the backward pass. Rows of dim columns are padded with zeros.
struct BackwardScratch {
  std::size_t dim;         // padded
  std::size_t dim_v;       // padded
  float* k;                // [kBackwardTileKv][dim]
  float* v;                // [kBackwardTileKv][dim_v]
  float* k_transposed;     // [dim][kBackwardTileKv]
  float* v_transposed;     // [dim_v][kBackwardTileKv]
  float* dk;               // [kBackwardTileKv][dim]
  float* dv;               // [kBackwardTileKv][dim_v]
  float* q;                // [kBackwardTileQ][dim]
  float* dout;             // [kBackwardTileQ][dim_v]
  float* p;                // [kBackwardTileQ][kBackwardTileKv]: S, then P
  float* ds;               // [kBackwardTileQ][kBackwardTileKv]: dP, then dS
  std::uint32_t* dropped;  // [kBackwardTileQ][kBackwardTileKv]

  BackwardScratch(float* base, int head_dim, int head_dim_v)
      : dim(static_cast<std::size_t>(padded_columns(head_dim))),
        dim_v(static_cast<std::size_t>(padded_columns(head_dim_v))) {
    k = base;
    v = k + kBackwardTileKv * dim;
    k_transposed = v + kBackwardTileKv * dim_v;
    v_transposed = k_transposed + kBackwardTileKv * dim;
    dk = v_transposed + kBackwardTileKv * dim_v;
    dv = dk + kBackwardTileKv * dim;
    q = dv + kBackwardTileKv * dim_v;
    dout = q + kBackwardTileQ * dim;
    p = dout + kBackwardTileQ * dim_v;
    ds = p + kBackwardTileQ * kBackwardTileKv;
    dropped = reinterpret_cast<std::uint32_t*>(ds + kBackwardTileQ * kBackwardTileKv);
  }

  const float* end() const {
    return reinterpret_cast<const float*>(dropped + kBackwardTileQ * kBackwardTileKv);
  }
};

inline std::size_t backward_scratch_floats(int head_dim, int head_dim_v) {
  float* const base = nullptr;
  return static_cast<std::size_t>(BackwardScratch(base, head_dim, head_dim_v).end() - base);
}

/// The query rows of one head and segment, as the inner loop needs them.
struct QuerySegment {
  geometry::IntervalRule rule;  // to the keys at hand
  std::int32_t position;
  std::int32_t len;
  std::int64_t batch;
  std::int64_t first;
  std::int64_t head;
  RowSpan q;
  RowSpan dout;
  RowValues lse_log2;
  RowValues lse_factor;
  RowValues delta;
  RowValues dlse;  // null: zeros
  Rows dq;
  DropoutStream dropout;
};

/// How scores are recomputed: P = exp2(scale_log2 * S - lse), or of tanh(softcap_scale * S).
struct BackwardScale {
  bool capped;
  float scale_log2;
  float softcap_scale;  // softmax_scale / softcap
};

inline BackwardScale backward_scale(const AttentionProblem& problem) {
  const bool capped = problem.softcap != 0.0;
  return {capped, static_cast<float>((capped ? problem.softcap : problem.softmax_scale) / kLn2),
          capped ? static_cast<float>(problem.softmax_scale / problem.softcap) : 0.0f};
}

/// What all tiles of one call share.
struct BackwardContext {
  const BackwardPart& part;
  const AttentionProblem& problem;
  BackwardScratch scratch;
  BackwardScale scale;
};

/// P and dS of rows [begin, end) of the query tile `rows` and one panel of keys; zeros in other
/// rows.
inline void scores_of_panel(const BackwardContext& context, const QuerySegment& segment,
                            geometry::Interval rows, geometry::Interval seen,
                            geometry::Interval keys, std::size_t column, bool masked) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const std::size_t lanes = hn::Lanes(d);
  const BackwardScratch& scratch = context.scratch;
  const std::size_t stride = kBackwardTileKv;
  const std::size_t first = static_cast<std::size_t>(seen.begin - rows.begin);
  const std::size_t last = static_cast<std::size_t>(seen.end - rows.begin);

  multiply_long(last - first, kPanel, static_cast<std::size_t>(context.problem.head_dim),
                scratch.q + first * scratch.dim, scratch.dim, scratch.k_transposed + column, stride,
                scratch.p + first * stride + column, stride);
  multiply_long(last - first, kPanel, static_cast<std::size_t>(context.problem.head_dim_v),
                scratch.dout + first * scratch.dim_v, scratch.dim_v, scratch.v_transposed + column,
                stride, scratch.ds + first * stride + column, stride);

  const auto zero_rows = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      for (std::size_t n = column; n < column + kPanel; n += lanes) {
        hn::StoreU(hn::Zero(d), d, scratch.ds + i * stride + n);
      }
    }
  };
  zero_rows(0, first);
  zero_rows(last, static_cast<std::size_t>(rows.size()));

  const Dropout& dropout = context.part.dropout;
  const FloatVec scale = hn::Set(d, context.scale.scale_log2);
  for (std::size_t i = first; i < last; ++i) {
    const std::int32_t row = rows.begin + static_cast<std::int32_t>(i);
    const FloatVec lse =
        hn::Set(d, *segment.lse_log2.at(segment.batch, segment.head, segment.first + row));
    const FloatVec factor =
        hn::Set(d, *segment.lse_factor.at(segment.batch, segment.head, segment.first + row));
    const FloatVec delta =
        hn::Set(d, *segment.delta.at(segment.batch, segment.head, segment.first + row));
    // Apart from delta, which may be so large that its sum with this loses bits of it.
    const FloatVec dlse =
        segment.dlse.data == nullptr
            ? hn::Zero(d)
            : hn::Set(d, *segment.dlse.at(segment.batch, segment.head, segment.first + row));
    geometry::Interval visible{keys.begin, keys.begin + kPanel};
    if (masked) visible = geometry::row_interval(segment.rule, segment.position + row);
    for (std::size_t n = 0; n < static_cast<std::size_t>(kPanel); n += lanes) {
      float* p_at = scratch.p + i * stride + column + n;
      float* ds_at = scratch.ds + i * stride + column + n;
      FloatVec s = hn::LoadU(d, p_at);
      FloatVec dp = hn::LoadU(d, ds_at);
      FloatVec slope = hn::Set(d, 1.0f);
      if (context.scale.capped) {
        s = tanh(hn::Mul(s, hn::Set(d, context.scale.softcap_scale)));
        slope = hn::NegMulAdd(s, s, slope);
      }
      // P is at most 1. Scores past 2^24 leave more than that between them and their rounded
      // log-sum-exp.
      const FloatVec p = hn::Mul(exp2_of_score(s, scale, lse), factor);
      FloatVec kept = p;
      if (dropout.active) {
        const auto dropped = dropped_lanes(scratch.dropped + i * stride + column + n);
        const FloatVec keep_scale = hn::IfThenZeroElse(dropped, hn::Set(d, dropout.keep_scale));
        kept = hn::Mul(p, keep_scale);
        dp = hn::Mul(dp, keep_scale);
      }
      FloatVec ds = hn::Mul(hn::Mul(p, hn::Add(hn::Sub(dp, delta), dlse)), slope);
      if (masked) {
        const auto key = hn::Iota(di, keys.begin + static_cast<std::int32_t>(n));
        const auto mask = key_seen(key, hn::Set(di, visible.begin), hn::Set(di, visible.end));
        kept = hn::IfThenElseZero(mask, kept);
        ds = hn::IfThenElseZero(mask, ds);
      }
      hn::StoreU(kept, d, p_at);
      hn::StoreU(ds, d, ds_at);
    }
  }
}

/// One query tile against the key tile in the scratch.
inline void backward_tile(const BackwardContext& context, const QuerySegment& segment,
                          geometry::Interval rows, geometry::Interval keys) {
  const BackwardScratch& scratch = context.scratch;
  const AttentionProblem& problem = context.problem;
  const std::size_t stride = kBackwardTileKv;
  const std::size_t row_count = static_cast<std::size_t>(rows.size());
  load_tile(segment.q, rows.begin, row_count, static_cast<std::size_t>(problem.head_dim), scratch.q,
            scratch.dim);
  load_tile(segment.dout, rows.begin, row_count, static_cast<std::size_t>(problem.head_dim_v),
            scratch.dout, scratch.dim_v);
  if (context.part.dropout.active) {
    dropout_by_query(segment.dropout, context.part.dropout.threshold, keys.begin, kBackwardTileKv,
                     rows.begin, rows.size(), scratch.dropped, stride);
  }

  geometry::Interval columns{0, 0};  // keys of the tile that any panel has seen
  geometry::Interval all_seen{0, 0};
  for (std::int32_t column = 0; column < keys.size(); column += kPanel) {
    const geometry::Interval panel{keys.begin + column,
                                   geometry::min_of(keys.begin + column + kPanel, keys.end)};
    const geometry::Interval hull =
        geometry::query_hull(segment.rule, segment.position, segment.len, panel);
    const geometry::Interval seen{geometry::max_of(hull.begin, rows.begin),
                                  geometry::min_of(hull.end, rows.end)};
    const geometry::TileClass tile_class =
        geometry::classify(segment.rule, segment.position, seen, panel);
    if (tile_class == geometry::TileClass::kEmpty) {
      // A panel between two seen ones takes part in dQ below: its dS must be zero.
      const FloatTag d;
      for (std::size_t i = 0; i < row_count; ++i) {
        for (std::size_t n = 0; n < static_cast<std::size_t>(kPanel); n += hn::Lanes(d)) {
          hn::StoreU(hn::Zero(d), d,
                     scratch.ds + i * stride + static_cast<std::size_t>(column) + n);
        }
      }
      continue;
    }
    const bool masked = tile_class != geometry::TileClass::kFull || panel.size() < kPanel;
    scores_of_panel(context, segment, rows, seen, panel, static_cast<std::size_t>(column), masked);
    columns = geometry::hull(columns, {column, column + panel.size()});
    all_seen = geometry::hull(all_seen, seen);
    if (context.part.want_dkv) {
      const std::size_t first = static_cast<std::size_t>(seen.begin - rows.begin);
      const std::size_t count = static_cast<std::size_t>(seen.size());
      const std::size_t column_at = static_cast<std::size_t>(column);
      const std::size_t panel_size = static_cast<std::size_t>(panel.size());
      multiply<StoredBy::kColumns, Update::kAdd>(
          panel_size, scratch.dim_v, count, scratch.p + first * stride + column_at, stride,
          scratch.dout + first * scratch.dim_v, scratch.dim_v,
          scratch.dv + column_at * scratch.dim_v, scratch.dim_v);
      multiply<StoredBy::kColumns, Update::kAdd>(panel_size, scratch.dim, count,
                                                 scratch.ds + first * stride + column_at, stride,
                                                 scratch.q + first * scratch.dim, scratch.dim,
                                                 scratch.dk + column_at * scratch.dim, scratch.dim);
    }
  }
  if (context.part.want_dq && !columns.empty()) {
    const std::size_t first = static_cast<std::size_t>(all_seen.begin - rows.begin);
    const std::size_t column = static_cast<std::size_t>(columns.begin);
    float* dq = static_cast<float*>(segment.dq.data) +
                segment.dq.offset(segment.batch, segment.first + all_seen.begin, segment.head);
    multiply<StoredBy::kRows, Update::kAdd>(static_cast<std::size_t>(all_seen.size()), scratch.dim,
                                            static_cast<std::size_t>(columns.size()),
                                            scratch.ds + first * stride + column, stride,
                                            scratch.k + column * scratch.dim, scratch.dim, dq,
                                            static_cast<std::size_t>(segment.dq.row_stride));
  }
}

/// Query rows [within] of one segment against the key tile in the scratch.
inline void backward_segment(const BackwardContext& context, geometry::Half query_half,
                             std::int32_t query_view, geometry::Interval within,
                             geometry::Half key_half, geometry::Interval keys) {
  const BackwardPart& part = context.part;
  const AttentionProblem& problem = context.problem;
  const geometry::Sample& sample = *part.sample;
  const geometry::IntervalRule rule = geometry::rule_between(sample.mask, query_half, key_half);
  const std::int32_t position = geometry::query_position(sample.mask, query_half);
  const std::int32_t len = geometry::query_len(sample.mask, query_half);
  const geometry::Interval hull = geometry::query_hull(rule, position, len, keys);
  const geometry::Interval rows{geometry::max_of(hull.begin, within.begin),
                                geometry::min_of(hull.end, within.end)};
  if (rows.empty()) return;

  const HalfTensors& tensors = problem.half(query_half);
  const BackwardRowValues& values = part.buffers->row_values[static_cast<int>(query_half)];
  const std::int64_t first = first_query_row(sample, query_half, query_view);
  const std::int32_t segment_index =
      query_half == geometry::Half::kNoisy ? query_view : sample.mask.num_views;
  for (std::int32_t head = part.first_head; head < part.last_head; ++head) {
    const QuerySegment segment{
        rule,
        position,
        len,
        sample.batch_index,
        first,
        head,
        {tensors.q, problem.dtype, sample.batch_index, first, head},
        {tensors.dout, problem.dtype, sample.batch_index, first, head},
        values.lse_log2,
        values.lse_factor,
        values.delta,
        tensors.dlse,
        part.buffers->dq[static_cast<int>(query_half)],
        dropout_stream(part.dropout.key, part.sample_index, problem.heads_q, head, segment_index,
                       key_half == geometry::Half::kClean)};
    // Query tiles lie on a fixed grid, so that splitting the rows among threads changes no sum.
    for (std::int32_t t = rows.begin / kBackwardTileQ; t * kBackwardTileQ < rows.end; ++t) {
      const geometry::Interval tile{geometry::max_of(t * kBackwardTileQ, rows.begin),
                                    geometry::min_of((t + 1) * kBackwardTileQ, rows.end)};
      if (geometry::classify(rule, position, tile, keys) != geometry::TileClass::kEmpty) {
        backward_tile(context, segment, tile, keys);
      }
    }
  }
}

/// One tile of keys of one segment against every query row that the part asks for.
inline void backward_key_tile(const BackwardContext& context, geometry::Half key_half,
                              std::int32_t key_view, geometry::Interval keys) {
  const BackwardPart& part = context.part;
  const AttentionProblem& problem = context.problem;
  const BackwardScratch& scratch = context.scratch;
  const geometry::Sample& sample = *part.sample;
  const HalfTensors& tensors = problem.half(key_half);
  const std::int64_t first = first_key_row(sample, key_half, key_view);
  const std::size_t dim = static_cast<std::size_t>(problem.head_dim);
  const std::size_t dim_v = static_cast<std::size_t>(problem.head_dim_v);
  const std::size_t count = static_cast<std::size_t>(keys.size());

  load_tile({tensors.k, problem.dtype, sample.batch_index, first, part.head_kv}, keys.begin, count,
            dim, scratch.k, scratch.dim);
  load_tile({tensors.v, problem.dtype, sample.batch_index, first, part.head_kv}, keys.begin, count,
            dim_v, scratch.v, scratch.dim_v);
  // Keys past the end of a partial panel are multiplied too, and masked: they must be finite.
  for (std::size_t i = count; i < kBackwardTileKv; ++i) {
    for (std::size_t c = 0; c < scratch.dim; ++c) scratch.k[i * scratch.dim + c] = 0.0f;
    for (std::size_t c = 0; c < scratch.dim_v; ++c) scratch.v[i * scratch.dim_v + c] = 0.0f;
  }
  transpose(scratch.k, scratch.dim, kBackwardTileKv, dim, scratch.k_transposed, kBackwardTileKv);
  transpose(scratch.v, scratch.dim_v, kBackwardTileKv, dim_v, scratch.v_transposed,
            kBackwardTileKv);
  if (part.want_dkv) {
    for (std::size_t i = 0; i < count * scratch.dim; ++i) scratch.dk[i] = 0.0f;
    for (std::size_t i = 0; i < count * scratch.dim_v; ++i) scratch.dv[i] = 0.0f;
  }

  const std::int32_t views = sample.mask.num_views;
  if (part.query_view >= 0) {
    const bool own = part.query_half == key_half && part.query_view == key_view;
    if (key_half == geometry::Half::kClean || own) {
      backward_segment(context, part.query_half, part.query_view, part.query_rows, key_half, keys);
    }
  } else {
    const geometry::Interval noisy{0, sample.mask.noisy_len};
    const geometry::Interval clean{0, sample.mask.clean_q_len};
    if (key_half == geometry::Half::kNoisy) {
      backward_segment(context, key_half, key_view, noisy, key_half, keys);
    } else {
      for (std::int32_t view = 0; view < views; ++view) {
        backward_segment(context, geometry::Half::kNoisy, view, noisy, key_half, keys);
      }
      backward_segment(context, geometry::Half::kClean, 0, clean, key_half, keys);
    }
  }

  if (part.want_dkv) {
    const float scale = static_cast<float>(problem.softmax_scale);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t row = first + keys.begin + static_cast<std::int64_t>(i);
      store_row(scratch.dk + i * scratch.dim, dim, scale, problem.dtype,
                mutable_row_at(tensors.dk, problem.dtype, sample.batch_index, row, part.head_kv));
      store_row(scratch.dv + i * scratch.dim_v, dim_v, 1.0f, problem.dtype,
                mutable_row_at(tensors.dv, problem.dtype, sample.batch_index, row, part.head_kv));
    }
  }
}

inline void zero_dq(const BackwardPart& part, geometry::Half half, std::int32_t view,
                    geometry::Interval rows) {
  const geometry::Sample& sample = *part.sample;
  const Rows& dq = part.buffers->dq[static_cast<int>(half)];
  const std::int64_t first = first_query_row(sample, half, view);
  const int columns = padded_columns(part.problem->head_dim);
  for (std::int32_t head = part.first_head; head < part.last_head; ++head) {
    for (std::int32_t i = rows.begin; i < rows.end; ++i) {
      float* row = static_cast<float*>(dq.data) + dq.offset(sample.batch_index, first + i, head);
      for (int c = 0; c < columns; ++c) row[c] = 0.0f;
    }
  }
}

inline void backward_part(const BackwardPart& part, float* scratch_memory) {
  const AttentionProblem& problem = *part.problem;
  const geometry::Sample& sample = *part.sample;
  const BackwardContext context{
      part, problem, BackwardScratch(scratch_memory, problem.head_dim, problem.head_dim_v),
      backward_scale(problem)};

  const std::int32_t views = sample.mask.num_views;
  if (part.want_dq) {
    if (part.query_view >= 0) {
      zero_dq(part, part.query_half, part.query_view, part.query_rows);
    } else {
      for (std::int32_t view = 0; view < views; ++view) {
        zero_dq(part, geometry::Half::kNoisy, view, {0, sample.mask.noisy_len});
      }
      zero_dq(part, geometry::Half::kClean, 0, {0, sample.mask.clean_q_len});
    }
  }

  const auto visit_keys = [&](geometry::Half half, std::int32_t view, geometry::Interval keys) {
    for (std::int32_t k = keys.begin; k < keys.end; k += kBackwardTileKv) {
      backward_key_tile(context, half, view, {k, geometry::min_of(k + kBackwardTileKv, keys.end)});
    }
  };
  if (part.key_view >= 0) {
    visit_keys(part.key_half, part.key_view, part.key_rows);
    return;
  }
  for (std::int32_t view = 0; view < views; ++view) {
    visit_keys(geometry::Half::kNoisy, view, {0, sample.mask.noisy_len});
  }
  visit_keys(geometry::Half::kClean, 0, {0, sample.mask.clean_kv_len});
}

inline void store_dq(const ForwardTile& tile, const BackwardBuffers& buffers) {
  const AttentionProblem& problem = *tile.problem;
  const geometry::Sample& sample = *tile.sample;
  const Rows& sums = buffers.dq[static_cast<int>(tile.half)];
  const Rows& dq = problem.half(tile.half).dq;
  const std::int64_t first = first_query_row(sample, tile.half, tile.view);
  for (std::int64_t i = first + tile.rows.begin; i < first + tile.rows.end; ++i) {
    const float* from =
        static_cast<const float*>(sums.data) + sums.offset(sample.batch_index, i, tile.head);
    store_row(from, static_cast<std::size_t>(problem.head_dim),
              static_cast<float>(problem.softmax_scale), problem.dtype,
              mutable_row_at(dq, problem.dtype, sample.batch_index, i, tile.head));
  }
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
