#include "cuda/forward_sm90.hpp"

#include <algorithm>

#include "cuda/parameters.hpp"

namespace stepwell::cuda {
namespace {

using geometry::CleanRule;
using geometry::Half;
using geometry::Packing;

using u64 = unsigned long long;  // as TiledTensor has it

constexpr u64 kElementBytes = 2;
constexpr u64 kLargestStride = u64{1} << 40;  // of a tensor map, in bytes; not included

// One CTA on each SM; where their number is not known, any will do.
constexpr int kUnknownSms = 132;

bool has_stride(std::int64_t stride, std::int64_t extent) {
  if (extent <= 1) return true;  // never used
  const u64 bytes = static_cast<u64>(stride) * kElementBytes;
  return stride > 0 && bytes % 16 == 0 && bytes < kLargestStride;
}

bool has_map(const AttentionProblem& problem, const Rows& rows, int heads) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 &&
         has_stride(rows.row_stride, problem.layout.joint_rows) &&
         has_stride(rows.head_stride, heads) && has_stride(rows.batch_stride, problem.layout.batch);
}

/// The first row of a half in the joint tensors.
std::int64_t first_row(const geometry::Layout& layout, Half half) {
  return (half == Half::kClean) == layout.clean_first ? 0 : layout.part_rows();
}

/// What the strides of a map are where they never count.
constexpr std::int64_t kUnusedStride = 64;

TiledTensor tiled(const AttentionProblem& problem, const Rows& rows, Half half, int heads, int dim,
                  unsigned box_rows, unsigned box_slabs) {
  const geometry::Layout& layout = problem.layout;
  const auto bytes = [](std::int64_t stride, std::int64_t extent) {
    return static_cast<u64>(extent > 1 ? stride : kUnusedStride) * kElementBytes;
  };
  TiledTensor t;
  t.data =
      static_cast<const unsigned short*>(rows.data) + first_row(layout, half) * rows.row_stride;
  t.rank = 5;
  t.swizzle = Swizzle::k128;
  const int slabs = (dim + 63) / 64;
  const u64 dims[] = {static_cast<u64>(std::min(dim, 64)), static_cast<u64>(layout.part_rows()),
                      static_cast<u64>(slabs), static_cast<u64>(heads),
                      static_cast<u64>(layout.batch)};
  const u64 strides[] = {bytes(rows.row_stride, layout.joint_rows), 64 * kElementBytes,
                         bytes(rows.head_stride, heads), bytes(rows.batch_stride, layout.batch)};
  const unsigned box[] = {64, box_rows, box_slabs, 1, 1};
  std::copy(std::begin(dims), std::end(dims), t.dims);
  std::copy(std::begin(strides), std::end(strides), t.strides);
  std::copy(std::begin(box), std::end(box), t.box);
  return t;
}

}  // namespace

bool forward_sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits) {
  const geometry::Layout& layout = problem.layout;
  const geometry::SampleMask& mask = layout.mask;
  const bool dims = problem.head_dim == 128 ? problem.head_dim_v == 128
                                            : problem.head_dim <= 64 && problem.head_dim_v <= 64;
  const bool plain_mask = mask.num_views == 1 && mask.clean_window == 0 && mask.origin == 0 &&
                          mask.block_ranges == nullptr && layout.origins == nullptr &&
                          (mask.clean == CleanRule::kBlock || mask.clean == CleanRule::kCausal);
  const HalfTensors& tensors = problem.halves[0];  // joint: those of both halves
  return limits.warpgroups && problem.dtype != DType::kFloat32 && problem.softmax_scale >= 0.0 &&
         layout.packing == Packing::kJoint && !layout.packed() && plain_mask && dims &&
         problem.softcap == 0.0 && problem.dropout_p == 0.0 &&
         has_map(problem, tensors.q, problem.heads_q) &&
         has_map(problem, tensors.k, problem.heads_kv) &&
         has_map(problem, tensors.v, problem.heads_kv) &&
         has_map(problem, tensors.out, problem.heads_q);
}

ForwardSm90Config forward_sm90_config(const AttentionProblem& problem) {
  return {.head_dim = problem.head_dim == 128 ? 128 : 64,
          .element = problem.dtype == DType::kBFloat16 ? Element::kBFloat16 : Element::kFloat16,
          .small_blocks = 64 % problem.layout.mask.block_size == 0};
}

ForwardSm90Params forward_sm90_params(const AttentionProblem& problem,
                                      const ForwardSm90Config& config, const Launcher& launcher) {
  const geometry::Layout& layout = problem.layout;
  ForwardSm90Params p;
  p.grid = strip_grid(problem, kStripRows);
  if (p.grid.ctas() == 0) return p;
  const int sms = launcher.limits().sms;
  p.ctas = static_cast<i32>(std::min<i64>(p.grid.ctas(), sms > 0 ? sms : kUnknownSms));
  const auto slabs = static_cast<unsigned>(config.slabs());
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    const int h = static_cast<int>(half);
    const HalfTensors& tensors = problem.halves[0];
    const auto map = [&](const Rows& rows, int heads, int dim, unsigned box_rows,
                         unsigned box_slabs) {
      return launcher.tensor_map(tiled(problem, rows, half, heads, dim, box_rows, box_slabs));
    };
    p.q[h] = map(tensors.q, problem.heads_q, problem.head_dim, kStripRows, slabs);
    p.out[h] = map(tensors.out, problem.heads_q, problem.head_dim_v, kStripRows, slabs);
    p.k[h] = map(tensors.k, problem.heads_kv, problem.head_dim, kSm90TileKeys, slabs);
    p.v[h] = map(tensors.v, problem.heads_kv, problem.head_dim_v, kSm90TileKeys, slabs);
    p.k_part[h] = map(tensors.k, problem.heads_kv, problem.head_dim, 64, 1);
    p.v_part[h] = map(tensors.v, problem.heads_kv, problem.head_dim_v, 64, 1);
    p.lse[h] = float_rows(tensors.lse);
    set_rows(tensors.out, p.out_rows[h]);
    p.first_row[h] = first_row(layout, half);
  }
  p.lengths = layout.seqused_noisy;  // joint layouts: of both halves
  p.by_block = geometry::make_divisor(layout.mask.block_size);
  p.rows = static_cast<i32>(layout.part_rows());
  p.block_size = layout.mask.block_size;
  p.clean_causal = layout.mask.clean == CleanRule::kCausal;
  p.noisy_causal = layout.mask.noisy == geometry::NoisyRule::kCausal;
  p.heads_kv = problem.heads_kv;
  p.head_dim_v = problem.head_dim_v;
  p.scale_log2 = positive_magnitude(scales_of(problem));
  return p;
}

}  // namespace stepwell::cuda
