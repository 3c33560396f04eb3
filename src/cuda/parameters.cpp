#include "cuda/parameters.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/check.hpp"
#include "core/philox.hpp"

namespace stepwell::cuda {

namespace {

using geometry::Half;
using geometry::Packing;

// Pairs of (sample, KV head) that run at the same time keep what they share in the L2 cache: of the
// H200's 50 MB, what is left beside outputs on their way.
constexpr i64 kCachedBytes = 32 << 20;

constexpr i64 kMaxCtas = std::numeric_limits<i32>::max();

constexpr std::size_t kAlignment = 64;

constexpr std::size_t kRowValues = 2;  // floats of a query row in the workspace, of 16-bit kernels
constexpr std::size_t kRowValuesF32 = 4;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool shares_tensors(const geometry::Layout& layout) { return layout.packing != Packing::kSplit; }

/// Rows that one segment can have at most: of noisy views, or of the clean half's queries or keys.
i64 longest_segment(const AttentionProblem& problem, i64 clean_rows) {
  const geometry::Layout& layout = problem.layout;
  const int views = layout.mask.num_views;
  i64 rows = shares_tensors(layout) ? layout.joint_rows / (views + 1)
             : views > 0            ? std::max(layout.noisy_rows / views, clean_rows)
                                    : clean_rows;
  if (layout.packed() && problem.max_seqlen >= 0) rows = std::min<i64>(rows, problem.max_seqlen);
  return rows;
}

/// Rows of all segments of an average sample.
i64 sample_rows(const AttentionProblem& problem, bool keys) {
  const geometry::Layout& layout = problem.layout;
  i64 rows = tensor_rows(layout, Half::kNoisy, keys);
  if (!shares_tensors(layout)) rows += tensor_rows(layout, Half::kClean, keys);
  return layout.packed() ? rows / std::max(layout.batch, 1) : rows;
}

TileGrid make_grid(const AttentionProblem& problem, i64 pair_bytes, i64 longest, int tile,
                   int segments, int query_heads) {
  const geometry::Layout& layout = problem.layout;
  // Of packed tensors, one more pair of every head writes the rows behind the last sample.
  const i64 samples = i64{layout.batch} + (layout.packed() ? 1 : 0);
  const i64 tiles = std::max<i64>(geometry::ceil_div<i64>(longest, tile), layout.packed() ? 1 : 0);
  if (samples == 0 || tiles == 0) return {};
  // Each factor has at most 31 bits, the product of three of them need not fit 64.
  const i64 pairs = samples * problem.heads_kv;
  const i64 inner = i64{segments} * query_heads;
  const bool few = pairs <= kMaxCtas && inner <= kMaxCtas && pairs * inner <= kMaxCtas / tiles;
  STEPWELL_CHECK(few || !layout.packed() || problem.max_seqlen >= 0, kValue,
                 "max_seqlen is not given, and {} samples of up to {} rows and {} heads are more "
                 "than {} tiles; give max_seqlen",
                 layout.batch, longest, problem.heads_q, kMaxCtas);
  STEPWELL_CHECK(few, kValue, "{} samples of {} rows and {} heads are more than {} tiles",
                 layout.batch, longest, problem.heads_q, kMaxCtas);
  const i64 group = std::max<i64>(1, std::min(pairs, kCachedBytes / std::max<i64>(pair_bytes, 1)));
  return make_tile_grid(static_cast<i32>(samples), problem.heads_kv, static_cast<i32>(group),
                        static_cast<i32>(tiles), segments, query_heads);
}

i64 key_bytes(const AttentionProblem& problem) {
  return sample_rows(problem, /*keys=*/true) * (problem.head_dim + problem.head_dim_v) *
         size_of(problem.dtype);
}

/// Of one query head: the CTAs of a pair walk over the same head at much the same time.
i64 query_bytes(const AttentionProblem& problem) {
  return sample_rows(problem, /*keys=*/false) * (problem.head_dim + problem.head_dim_v) *
         size_of(problem.dtype);
}

DropoutParams dropout_params(const AttentionProblem& problem) {
  DropoutParams dropout;
  if (problem.dropout_p == 0.0) return dropout;
  dropout.seed = problem.dropout_seed;
  dropout.offset = problem.dropout_offset;
  static_assert(sizeof(i64) == sizeof(std::int64_t));
  dropout.state = reinterpret_cast<const i64*>(problem.dropout_state);
  dropout.threshold = dropout_threshold(problem.dropout_p);
  dropout.keep_scale = static_cast<float>(dropout_keep_scale(problem.dropout_p));
  return dropout;
}

/// What forward and backward parameters have in common, but for the scales.
template <typename Params>
void set_common(const AttentionProblem& problem, Params& p) {
  p.layout = kernel_layout(problem);
  for (int h = 0; h < 2; ++h) {
    const HalfTensors& tensors = problem.halves[h];
    set_rows(tensors.q, p.q[h]);
    set_rows(tensors.k, p.k[h]);
    set_rows(tensors.v, p.v[h]);
    set_rows(tensors.out, p.out[h]);
    p.lse[h] = float_rows(tensors.lse);
  }
  p.heads_q = problem.heads_q;
  p.heads_kv = problem.heads_kv;
  p.head_dim = problem.head_dim;
  p.head_dim_v = problem.head_dim_v;
  p.dropout = dropout_params(problem);
}

/// Extents of the workspace's arrays for the queries of one half.
struct QueryExtents {
  i64 batch;
  i64 heads;
  i64 rows;  // padded

  std::size_t values() const { return static_cast<std::size_t>(batch * heads * rows); }
};

QueryExtents query_extents(const AttentionProblem& problem, Half half) {
  const geometry::Layout& layout = problem.layout;
  const i64 rows = tensor_rows(layout, half, /*keys=*/false);
  return {layout.packed() ? 1 : layout.batch, problem.heads_q, padded_rows(layout, half, rows)};
}

/// The next array of the workspace: `width` floats for each query row.
QuerySums take(std::byte*& workspace, const QueryExtents& extents, i64 width) {
  float* piece = reinterpret_cast<float*>(workspace);
  workspace += aligned(extents.values() * static_cast<std::size_t>(width) * sizeof(float));
  const i64 head_stride = extents.rows * width;
  return {piece, extents.heads * head_stride, head_stride};
}

/// Bytes of the workspace with `row_values` floats for each query row, and `dq_width` more.
std::size_t bytes_of_rows(const AttentionProblem& problem, std::size_t row_values,
                          std::size_t dq_width) {
  std::size_t bytes = 0;
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    if (half == Half::kClean && shares_tensors(problem.layout)) continue;
    const std::size_t values = query_extents(problem, half).values();
    bytes +=
        aligned(values * row_values * sizeof(float)) + aligned(values * dq_width * sizeof(float));
  }
  return bytes;
}

/// What all backward kernels take, but for `grid` and the scales of scores.
template <typename Params>
void set_backward(const AttentionProblem& problem, std::size_t row_values, int dq_width,
                  std::byte* workspace, Params& p) {
  set_common(problem, p);
  p.softmax_scale = static_cast<float>(problem.softmax_scale);
  p.dq_width = dq_width;
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    const int h = static_cast<int>(half);
    const HalfTensors& tensors = problem.half(half);
    set_rows(tensors.dout, p.dout[h]);
    p.dlse[h] = float_rows(tensors.dlse);
    set_rows(tensors.dq, p.dq[h]);
    set_rows(tensors.dk, p.dk[h]);
    set_rows(tensors.dv, p.dv[h]);
    if (half == Half::kClean && shares_tensors(problem.layout)) {
      p.row_values[h] = p.row_values[0];
      p.dq_sum[h] = p.dq_sum[0];
      continue;
    }
    const QueryExtents extents = query_extents(problem, half);
    p.row_values[h] = take(workspace, extents, static_cast<i64>(row_values));
    if (dq_width > 0) p.dq_sum[h] = take(workspace, extents, dq_width);
  }
}

}  // namespace

std::int64_t tensor_rows(const geometry::Layout& layout, Half half, bool keys) {
  if (shares_tensors(layout)) return layout.joint_rows;
  if (half == Half::kNoisy) return layout.noisy_rows;
  return keys ? layout.clean_kv_rows : layout.clean_q_rows;
}

geometry::Layout kernel_layout(const AttentionProblem& problem) {
  geometry::Layout layout = problem.layout;
  layout.mask.block_divisor = geometry::make_divisor(layout.mask.block_size);
  if (shares_tensors(layout)) {
    layout.joint_part_rows = layout.joint_rows / (layout.mask.num_views + 1);
  }
  return layout;
}

i32 cached_key_rows(const AttentionProblem& problem) {
  const i64 row_bytes = i64{problem.head_dim + problem.head_dim_v} * size_of(problem.dtype);
  return static_cast<i32>(kCachedBytes / row_bytes);
}

Scales scales_of(const AttentionProblem& problem) {
  const bool capped = problem.softcap > 0.0;
  const double scale = problem.softmax_scale;
  const double scale_log2 = (capped ? problem.softcap : scale) * std::numbers::log2e;
  const double cap_scale = capped ? scale / problem.softcap : 0.0;
  const bool fit = std::abs(scale) <= FLT_MAX && std::abs(scale_log2) <= FLT_MAX &&
                   std::abs(cap_scale) <= FLT_MAX;
  STEPWELL_CHECK(fit, kValue, "softmax_scale is {} and softcap is {}; they must fit float32", scale,
                 problem.softcap);
  const float sign = capped || scale > 0.0 ? 1.0f : scale < 0.0 ? -1.0f : 0.0f;
  return {static_cast<float>(scale_log2), static_cast<float>(cap_scale), sign};
}

float positive_magnitude(const Scales& scales) {
  return std::max(std::abs(scales.scale_log2), FLT_MIN);
}

FloatRows float_rows(const RowValues& values) {
  return {values.data, values.batch_stride, values.head_stride, values.row_stride};
}

Element element_of(const AttentionProblem& problem) {
  return problem.dtype == DType::kBFloat16  ? Element::kBFloat16
         : problem.dtype == DType::kFloat16 ? Element::kFloat16
                                            : Element::kFloat32;
}

KernelTraits traits_of(const AttentionProblem& problem) {
  return {.head_dim = problem.head_dim,
          .head_dim_v = problem.head_dim_v,
          .element = element_of(problem),
          .softcap = problem.softcap > 0.0,
          .dropout = problem.dropout_p > 0.0,
          .deterministic = problem.deterministic};
}

TileGrid query_grid(const AttentionProblem& problem, int tile_rows) {
  const geometry::Layout& layout = problem.layout;
  const int views = layout.mask.num_views;
  // Without clean queries the last segment has nothing to do.
  const bool clean = shares_tensors(layout) || layout.clean_q_rows > 0;
  return make_grid(problem, key_bytes(problem), longest_segment(problem, layout.clean_q_rows),
                   tile_rows, std::max(views + (clean ? 1 : 0), 1), problem.group());
}

TileGrid strip_grid(const AttentionProblem& problem, int rows) {
  return make_grid(problem, key_bytes(problem) / 2, problem.layout.part_rows(), rows, 1,
                   problem.group());
}

TileGrid key_grid(const AttentionProblem& problem, int tile_kv) {
  const geometry::Layout& layout = problem.layout;
  return make_grid(problem, key_bytes(problem) + query_bytes(problem),
                   longest_segment(problem, layout.clean_kv_rows), tile_kv,
                   layout.mask.num_views + 1, 1);
}

TileGrid half_key_grid(const AttentionProblem& problem, int tile_kv, int segments, int dq_width) {
  const i64 sum_bytes = sample_rows(problem, /*keys=*/false) * dq_width * i64{sizeof(float)};
  return make_grid(problem, query_bytes(problem) + sum_bytes, problem.layout.part_rows(), tile_kv,
                   segments, 1);
}

ForwardParams forward_params(const AttentionProblem& problem, int tile_q) {
  ForwardParams p;
  set_common(problem, p);
  const Scales scales = scales_of(problem);
  p.scale_log2 = positive_magnitude(scales);
  p.softcap_scale = scales.softcap_scale;
  p.negate_q = scales.sign < 0.0f ? 1 : 0;
  p.grid = query_grid(problem, tile_q);
  return p;
}

std::size_t workspace_bytes(const AttentionProblem& problem, int dq_width) {
  return bytes_of_rows(problem, kRowValues, static_cast<std::size_t>(dq_width));
}

BackwardParams backward_params(const AttentionProblem& problem, const BackwardConfig& config,
                               std::byte* workspace) {
  BackwardParams p;
  const Scales scales = scales_of(problem);
  set_backward(problem, kRowValues, config.dq ? config.head_dim : 0, workspace, p);
  p.scale_log2 = std::copysign(positive_magnitude(scales), scales.sign);
  p.softcap_scale = scales.softcap_scale;
  return p;
}

BackwardParams backward_finish_params(const AttentionProblem& problem, int dq_width) {
  BackwardParams p;
  set_common(problem, p);
  for (int h = 0; h < 2; ++h) set_rows(problem.halves[h].dq, p.dq[h]);
  p.softmax_scale = static_cast<float>(problem.softmax_scale);
  p.dq_width = dq_width;
  return p;
}

ForwardParamsF32 forward_params_f32(const AttentionProblem& problem, const F32Config& config) {
  ForwardParamsF32 p;
  set_common(problem, p);
  const Scales scales = scales_of(problem);
  p.scale_log2 = scales.sign == 0.0f ? 1.0f : positive_magnitude(scales);
  p.softcap_scale = scales.softcap_scale;
  p.score_sign = scales.sign;
  p.grid = query_grid(problem, config.tile_rows());
  return p;
}

std::size_t workspace_bytes_f32(const AttentionProblem& problem) {
  return bytes_of_rows(problem, kRowValuesF32, 0);
}

BackwardParamsF32 backward_params_f32(const AttentionProblem& problem, std::byte* workspace) {
  BackwardParamsF32 p;
  const Scales scales = scales_of(problem);
  set_backward(problem, kRowValuesF32, 0, workspace, p);
  p.scale_log2 = scales.scale_log2;
  p.softcap_scale = scales.softcap_scale;
  return p;
}

}  // namespace stepwell::cuda
