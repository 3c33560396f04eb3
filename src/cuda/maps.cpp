#include "cuda/maps.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace stepwell::cuda {
namespace {

using u64 = unsigned long long;  // as TiledTensor has it

constexpr u64 kElementBytes = 2;
constexpr int kSlabDims = 64;                 // of a slab in shared memory
constexpr u64 kLargestStride = u64{1} << 40;  // of a tensor map, in bytes; not included

// Where the number of SMs is not known, any will do.
constexpr int kUnknownSms = 132;

/// What the strides of a map are where they never count.
constexpr std::int64_t kUnusedStride = 64;

bool has_stride(std::int64_t stride, std::int64_t extent) {
  if (extent <= 1) return true;  // never used
  const u64 bytes = static_cast<u64>(stride) * kElementBytes;
  return stride > 0 && bytes % 16 == 0 && bytes < kLargestStride;
}

}  // namespace

int map_batch(const geometry::Layout& layout) { return layout.packed() ? 1 : layout.batch; }

bool is_by_slab(int dim) { return dim > kSlabDims && dim % kSlabDims != 0; }

bool has_map(const Rows& rows, std::int64_t count, int heads, int batch) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 &&
         has_stride(rows.row_stride, count) && has_stride(rows.head_stride, heads) &&
         has_stride(rows.batch_stride, batch);
}

TiledTensor tiled_rows(const Rows& rows, std::int64_t first, std::int64_t count, int heads,
                       int batch, int dim, unsigned box_rows, unsigned box_slabs) {
  const auto bytes = [](std::int64_t stride, std::int64_t extent) {
    return static_cast<u64>(extent > 1 ? stride : kUnusedStride) * kElementBytes;
  };
  TiledTensor t;
  t.data = static_cast<const unsigned short*>(rows.data) + first * rows.row_stride;
  t.rank = 5;
  t.swizzle = Swizzle::k128;
  // Where the last slab is not whole, dims behind it are those of the next head, and only the first
  // dimension of a map can leave them out.
  const bool by_slab = is_by_slab(dim);
  const int slabs = by_slab ? 1 : (dim + kSlabDims - 1) / kSlabDims;
  const u64 dims[] = {static_cast<u64>(by_slab ? dim : std::min(dim, kSlabDims)),
                      static_cast<u64>(count), static_cast<u64>(slabs), static_cast<u64>(heads),
                      static_cast<u64>(batch)};
  const u64 strides[] = {bytes(rows.row_stride, first + count), kSlabDims * kElementBytes,
                         bytes(rows.head_stride, heads), bytes(rows.batch_stride, batch)};
  const unsigned box[] = {kSlabDims, box_rows, by_slab ? 1 : box_slabs, 1, 1};
  std::copy(std::begin(dims), std::end(dims), t.dims);
  std::copy(std::begin(strides), std::end(strides), t.strides);
  std::copy(std::begin(box), std::end(box), t.box);
  return t;
}

std::int32_t persistent_ctas(std::int64_t items, const DeviceLimits& limits) {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(items, limits.sms > 0 ? limits.sms : kUnknownSms));
}

}  // namespace stepwell::cuda
