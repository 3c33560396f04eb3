// What attention_backward_sm90 needs of query rows: one CTA for each tile of 64 rows, of all query
// heads of a KV head.
#pragma once

#include "cuda/attention/backward_sm90_items.cuh"
#include "cuda/ptx/sm90.cuh"

namespace stepwell::cuda {

/// delta = sum of dout * out - dlse; log-sum-exp in units of log 2; zeros where dQ is summed.
template <BackwardRowsSm90Config C>
__device__ __forceinline__ void attention_backward_rows_sm90(const BackwardSm90Params& p) {
  constexpr i32 kRows = kSm90BackwardRows;
  constexpr u32 kLanes = C.head_dim / 8;  // of a row, 8 columns each
  const u32 thread = ptx::thread_index();
  const u32 lane = thread % kLanes;
  if (ptx::cta_index<0>() == 0 && thread == 0) *p.next_item = 0;
  // Backwards: what the main kernel begins with is written last.
  const i32 index = p.ctas - 1 - static_cast<i32>(ptx::cta_index<0>());
  const TileItem item = tile_item(p.grid, p.heads_kv, index);
  const i32 half = item.segment;
  const i32 tile = p.row_tiles - 1 - item.tile;
  const i32 len = valid_tokens(p, item.sample);
  const i32 first = tile * kRows;
  if (first >= len) return;
  for (i32 head = item.head_kv * p.group(); head < (item.head_kv + 1) * p.group(); ++head) {
    const i64 number = ((i64{item.sample} * p.heads_q + head) * 2 + half) * p.row_tiles + tile;
    float* const values = p.row_values + number * (2 * kRows);
    for (i32 base = 0; base < kRows; base += C.threads() / kLanes) {
      const i32 row = base + static_cast<i32>(thread / kLanes);
      const bool inside = first + row < len;
      const i64 at = p.first_row[half] + first + row;
      float sum = 0.0f;
      if (inside && static_cast<i32>(lane) * 8 < p.head_dim_v) {
        const U32x4 a = ptx::ld_global_v4(p.out.at(item.sample, at, head) + lane * 8);
        const U32x4 b = ptx::ld_global_v4(p.dout_rows.at(item.sample, at, head) + lane * 8);
        sum = ptx::dot_x2<C.element>(a.x, b.x) + ptx::dot_x2<C.element>(a.y, b.y) +
              ptx::dot_x2<C.element>(a.z, b.z) + ptx::dot_x2<C.element>(a.w, b.w);
      }
#pragma unroll
      for (u32 step = 1; step < kLanes; step *= 2) sum += ptx::shfl_xor_f32(sum, step);
      if (lane != 0) continue;
      float lse = ptx::float_of(0x7f800000u);
      if (inside) {
        if (p.dlse.data != nullptr) sum -= *p.dlse.at(item.sample, head, at);
        lse = *p.lse.at(item.sample, head, at) * 1.4426950408889634f;
      }
      values[row] = lse;
      values[kRows + row] = sum;
    }
    float* const sums = p.dq_sum + number * (kRows * C.head_dim);
#pragma unroll
    for (int i = 0; i < kRows * C.head_dim / 4; i += C.threads()) {
      ptx::st_global_v4(sums + (i + static_cast<int>(thread)) * 4, {0, 0, 0, 0});
    }
  }
}

}  // namespace stepwell::cuda
