// The two kernels around the backward pass that work on query rows: what it needs before, and
// rounding dQ's sums after. Both move bytes only: 16-byte accesses, a few lanes a row.
#pragma once

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// The rows of a CTA: [begin, end) of a segment, of which `len` are valid.
struct QueryRows {
  i32 head;
  int half;
  i64 batch;
  i64 first;  // row 0 of the segment
  geometry::Interval valid;
  geometry::Interval padding;
};

/// False for CTAs that own a share of the tail of a packed tensor; then visit_tail(half, head,
/// first, count) has been called for it.
template <RowsConfig C, class VisitTail>
__device__ __forceinline__ bool find_query_rows(const BackwardParams& p, QueryRows& rows,
                                                VisitTail&& visit_tail) {
  using geometry::Half;
  const TileItem item = tile_item(p.grid, p.heads_kv, static_cast<i32>(ptx::cta_index<0>()));
  const i32 views = p.layout.mask.num_views;
  const Half half = item.segment < views ? Half::kNoisy : Half::kClean;
  rows.half = static_cast<int>(half);
  rows.head = item.head_kv * p.group() + item.query_head;
  if (item.sample == p.layout.batch) {
    const geometry::RowRun tail = geometry::packed_query_tail(p.layout, item.segment);
    const i64 step = static_cast<i64>(p.grid.tiles) * C.tile_rows();
    for (i64 row = static_cast<i64>(item.tile) * C.tile_rows(); row < tail.count; row += step) {
      visit_tail(rows.half, rows.head, tail.first + row,
                 geometry::min_of<i64>(C.tile_rows(), tail.count - row));
    }
    return false;
  }
  const geometry::Sample sample = geometry::sample_at(p.layout, item.sample);
  const geometry::SegmentRows segment = half == Half::kNoisy ? sample.noisy : sample.clean_q;
  const i32 len = geometry::query_len(sample.mask, half);
  rows.batch = sample.batch_index;
  rows.first = segment.first + (half == Half::kNoisy ? item.segment * sample.view_stride : 0);
  rows.valid = geometry::tile_interval(item.tile, C.tile_rows(), len);
  rows.padding = {geometry::max_of(item.tile * C.tile_rows(), len),
                  geometry::min_of((item.tile + 1) * C.tile_rows(), segment.count)};
  return true;
}

/// delta = sum of dout * out - dlse; log-sum-exp in units of log 2; zeros where dQ is summed.
template <RowsConfig C>
__device__ __forceinline__ void attention_backward_prepare(const BackwardParams& p) {
  QueryRows rows;
  if (!find_query_rows<C>(p, rows, [](int, i32, i64, i64) {})) return;
  constexpr int kLanes = C.lanes();
  const int thread = static_cast<int>(ptx::thread_index());
  const int lane = thread % kLanes;
  const int h = rows.half;
  const HalfRows& out = p.out[h];
  const HalfRows& dout = p.dout[h];
  for (i32 base = rows.valid.begin; base < rows.valid.end; base += C.threads() / kLanes) {
    const i32 row = base + thread / kLanes;
    const bool inside = row < rows.valid.end;
    const i64 at = rows.first + (inside ? row : rows.valid.begin);
    float sum = 0.0f;
    if (inside && lane * 8 < p.head_dim_v) {
      const U32x4 a =
          ptx::ld_global_v4(out.data + rows.batch * out.batch_stride + at * out.row_stride +
                            rows.head * out.head_stride + lane * 8);
      const U32x4 b =
          ptx::ld_global_v4(dout.data + rows.batch * dout.batch_stride + at * dout.row_stride +
                            rows.head * dout.head_stride + lane * 8);
      sum = ptx::dot_x2<C.element>(a.x, b.x) + ptx::dot_x2<C.element>(a.y, b.y) +
            ptx::dot_x2<C.element>(a.z, b.z) + ptx::dot_x2<C.element>(a.w, b.w);
    }
#pragma unroll
    for (u32 step = 1; step < kLanes; step *= 2) sum += ptx::shfl_xor_f32(sum, step);
    if (!inside) continue;
    float* sums = p.dq_sum[h].at(rows.batch, rows.head, at);
    for (int c = lane * 4; c < p.dq_width; c += kLanes * 4)
      ptx::st_global_v4(sums + c, {0, 0, 0, 0});
    if (lane == 0) {
      if (p.dlse[h].data != nullptr) sum -= *p.dlse[h].at(rows.batch, rows.head, at);
      *p.delta[h].at(rows.batch, rows.head, at) = sum;
      *p.lse_log2[h].at(rows.batch, rows.head, at) =
          *p.lse[h].at(rows.batch, rows.head, at) * 1.4426950408889634f;
    }
  }
}

/// dq = softmax_scale * sums; zeros in rows that belong to no valid token.
template <RowsConfig C>
__device__ __forceinline__ void attention_backward_finish(const BackwardParams& p) {
  QueryRows rows;
  const bool mine = find_query_rows<C>(p, rows, [&](int half, i32 head, i64 first, i64 count) {
    write_zero_rows<C.threads()>(p.dq[half], 0, head, first, count, p.head_dim);
  });
  if (!mine) return;
  const int h = rows.half;
  write_zero_rows<C.threads()>(p.dq[h], rows.batch, rows.head, rows.first + rows.padding.begin,
                               rows.padding.size(), p.head_dim);
  constexpr int kLanes = C.lanes();
  const int thread = static_cast<int>(ptx::thread_index());
  const int lane = thread % kLanes;
  const HalfRows& dq = p.dq[h];
  for (i32 row = rows.valid.begin + thread / kLanes; row < rows.valid.end;
       row += C.threads() / kLanes) {
    if (lane * 8 >= p.head_dim) continue;
    const i64 at = rows.first + row;
    const float* from = p.dq_sum[h].at(rows.batch, rows.head, at) + lane * 8;
    const U32x4 a = ptx::ld_global_v4(from);
    const U32x4 b = ptx::ld_global_v4(from + 4);
    const auto pack = [&](u32 x, u32 y) {
      return ptx::cvt_x2_f32<C.element>(ptx::float_of(x) * p.softmax_scale,
                                        ptx::float_of(y) * p.softmax_scale);
    };
    ptx::st_global_v4(dq.data + rows.batch * dq.batch_stride + at * dq.row_stride +
                          rows.head * dq.head_stride + lane * 8,
                      {pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w)});
  }
}

}  // namespace stepwell::cuda
