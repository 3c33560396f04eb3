// What tensor maps of rows are made from.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/limits.hpp"
#include "cuda/tensor_map.hpp"

namespace stepwell::cuda {

/// Samples that a map counts: packed ones are rows of one.
int map_batch(const geometry::Layout& layout);

/// Whether a tensor with this head dim has slabs of 64 dims of which the last is not whole.
bool is_by_slab(int dim);

/// Whether a tensor map can describe `count` rows of each of `batch` samples.
bool has_map(const Rows& rows, std::int64_t count, int heads, int batch);

/// What the map of rows [first, first + count) of each sample is made from, with the dimensions 64
/// dims of a slab, row, slab, head and sample; where is_by_slab(dim), dim, row, 1, head and sample,
/// and boxes of one slab.
TiledTensor tiled_rows(const Rows& rows, std::int64_t first, std::int64_t count, int heads,
                       int batch, int dim, unsigned box_rows, unsigned box_slabs);

/// Persistent CTAs: one on each SM, or fewer.
std::int32_t persistent_ctas(std::int64_t items, const DeviceLimits& limits);

}  // namespace stepwell::cuda
