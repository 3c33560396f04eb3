#include "cuda/joint_tensors.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

namespace stepwell::cuda {
namespace {

using geometry::CleanRule;
using geometry::Half;
using geometry::Packing;

using u64 = unsigned long long;  // as TiledTensor has it

constexpr u64 kElementBytes = 2;
constexpr int kSlabDims = 64;                 // of a slab in shared memory
constexpr u64 kLargestStride = u64{1} << 40;  // of a tensor map, in bytes; not included

// Where the number of SMs is not known, any will do.
constexpr int kUnknownSms = 132;

/// What the strides of a map are where they never count.
constexpr std::int64_t kUnusedStride = 64;

/// Samples that a map counts: packed ones are rows of one.
int map_batch(const geometry::Layout& layout) { return layout.packed() ? 1 : layout.batch; }

bool has_stride(std::int64_t stride, std::int64_t extent) {
  if (extent <= 1) return true;  // never used
  const u64 bytes = static_cast<u64>(stride) * kElementBytes;
  return stride > 0 && bytes % 16 == 0 && bytes < kLargestStride;
}

bool is_joint_of_one_view(const AttentionProblem& problem) {
  const geometry::Layout& layout = problem.layout;
  const geometry::SampleMask& mask = layout.mask;
  return problem.dtype != DType::kFloat32 && layout.packing != Packing::kSplit &&
         layout.joint_rows <= std::numeric_limits<std::int32_t>::max() && mask.num_views == 1 &&
         mask.clean_window == 0 && mask.origin == 0 && mask.block_ranges == nullptr &&
         layout.origins == nullptr &&
         (mask.clean == CleanRule::kBlock || mask.clean == CleanRule::kCausal);
}

}  // namespace

bool sm90_takes(const AttentionProblem& problem, const DeviceLimits& limits) {
  const bool dims = problem.head_dim <= 128 && problem.head_dim_v <= 128;
  const HalfTensors& tensors = problem.halves[0];  // joint: those of both halves
  return limits.warpgroups && is_joint_of_one_view(problem) && dims && problem.softcap == 0.0 &&
         problem.dropout_p == 0.0 && has_map(problem, tensors.q, problem.heads_q) &&
         has_map(problem, tensors.k, problem.heads_kv) &&
         has_map(problem, tensors.v, problem.heads_kv);
}

int sm90_head_dim(const AttentionProblem& problem) {
  return std::max(problem.head_dim, problem.head_dim_v) > kSlabDims ? 128 : 64;
}

bool is_by_slab(int dim) { return dim > kSlabDims && dim % kSlabDims != 0; }

std::int32_t persistent_ctas(std::int64_t items, const DeviceLimits& limits) {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(items, limits.sms > 0 ? limits.sms : kUnknownSms));
}

bool has_map(const AttentionProblem& problem, const Rows& rows, int heads) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 &&
         has_stride(rows.row_stride, problem.layout.joint_rows) &&
         has_stride(rows.head_stride, heads) &&
         has_stride(rows.batch_stride, map_batch(problem.layout));
}

std::int64_t first_row(const geometry::Layout& layout, Half half) {
  if (layout.packed()) return 0;
  return (half == Half::kClean) == layout.clean_first ? 0 : layout.part_rows();
}

TiledTensor tiled_half(const AttentionProblem& problem, const Rows& rows, Half half, int heads,
                       int dim, unsigned box_rows, unsigned box_slabs) {
  const geometry::Layout& layout = problem.layout;
  const auto bytes = [](std::int64_t stride, std::int64_t extent) {
    return static_cast<u64>(extent > 1 ? stride : kUnusedStride) * kElementBytes;
  };
  TiledTensor t;
  t.data =
      static_cast<const unsigned short*>(rows.data) + first_row(layout, half) * rows.row_stride;
  t.rank = 5;
  t.swizzle = Swizzle::k128;
  // Where the last slab is not whole, dims behind it are those of the next head, and only the first
  // dimension of a map can leave them out.
  const bool by_slab = is_by_slab(dim);
  const int slabs = by_slab ? 1 : (dim + kSlabDims - 1) / kSlabDims;
  const u64 dims[] = {static_cast<u64>(by_slab ? dim : std::min(dim, kSlabDims)),
                      static_cast<u64>(layout.packed() ? layout.joint_rows : layout.part_rows()),
                      static_cast<u64>(slabs), static_cast<u64>(heads),
                      static_cast<u64>(map_batch(layout))};
  const u64 strides[] = {bytes(rows.row_stride, layout.joint_rows), kSlabDims * kElementBytes,
                         bytes(rows.head_stride, heads),
                         bytes(rows.batch_stride, map_batch(layout))};
  const unsigned box[] = {kSlabDims, box_rows, by_slab ? 1 : box_slabs, 1, 1};
  std::copy(std::begin(dims), std::end(dims), t.dims);
  std::copy(std::begin(strides), std::end(strides), t.strides);
  std::copy(std::begin(box), std::end(box), t.box);
  return t;
}

}  // namespace stepwell::cuda
