// What kernels get by value, from the problem.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"
#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/forward_config.hpp"
#include "cuda/attention/params.hpp"
#include "cuda/configurations.hpp"

namespace stepwell::cuda {

template <typename T>
void set_rows(const Rows& rows, ElementRows<T>& to) {
  to = {static_cast<T*>(rows.data), rows.batch_stride, rows.row_stride, rows.head_stride};
}

FloatRows float_rows(const RowValues& values);

Element element_of(const AttentionProblem& problem);

struct Scales {
  float scale_log2;  // of scores, or of the cap: with its sign
  float softcap_scale;
  float sign;  // of the softmax scale, or of the cap; 0: it is 0
};

/// Throws Error where they do not fit float32.
Scales scales_of(const AttentionProblem& problem);

/// Masked scores are -inf, and must stay so when they are multiplied.
float positive_magnitude(const Scales& scales);

KernelTraits traits_of(const AttentionProblem& problem);

/// CTAs over the query rows of all samples and heads, in tiles of `tile_rows`; no pairs where there
/// is nothing to write.
TileGrid query_grid(const AttentionProblem& problem, int tile_rows);

/// Strips of `rows` query rows, each of both halves, of all samples and heads of a joint layout
/// that is not packed; pairs are grouped by the clean keys, which nearly all tiles hold.
TileGrid strip_grid(const AttentionProblem& problem, int rows);

/// Keys and values of one KV head, in rows, that the L2 cache holds beside others.
std::int32_t cached_key_rows(const AttentionProblem& problem);

/// Rows of a half's tensors, of one batch entry or packed.
std::int64_t tensor_rows(const geometry::Layout& layout, geometry::Half half, bool keys);

/// The layout with what kernels would else divide for.
geometry::Layout kernel_layout(const AttentionProblem& problem);

/// CTAs over the keys of all samples and KV heads: segment 0 are clean keys.
TileGrid key_grid(const AttentionProblem& problem, int tile_kv);

/// CTAs over the keys of one half (`segments` 1) or both (2) of all samples and KV heads of a joint
/// layout that is not packed, for kernels that sum dQ in rows of `dq_width`.
TileGrid half_key_grid(const AttentionProblem& problem, int tile_kv, int segments, int dq_width);

ForwardParams forward_params(const AttentionProblem& problem, int tile_q);

/// Of all backward kernels, but for `grid`. `workspace` has workspace_bytes().
BackwardParams backward_params(const AttentionProblem& problem, const BackwardConfig& config,
                               std::byte* workspace);

/// Of attention_backward_finish, but for `grid` and `dq_sum`.
BackwardParams backward_finish_params(const AttentionProblem& problem, int dq_width);

/// Of the backward pass, where dQ is summed in rows of `dq_width`; 0: it is not.
std::size_t workspace_bytes(const AttentionProblem& problem, int dq_width);

/// The same of the float32 kernels.
ForwardParamsF32 forward_params_f32(const AttentionProblem& problem, const F32Config& config);
BackwardParamsF32 backward_params_f32(const AttentionProblem& problem, std::byte* workspace);
std::size_t workspace_bytes_f32(const AttentionProblem& problem);

}  // namespace stepwell::cuda
