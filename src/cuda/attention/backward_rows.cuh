// The two kernels around the backward pass that work on query rows: what it needs before, and
// rounding dQ's sums after. Both move bytes only, 16 at a time.
#pragma once

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/grid.cuh"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/transpose.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// The rows of a CTA: [begin, end) of a segment, of which `len` are valid.
struct QueryRows {
  i32 head;
  int half;
  i64 batch;
  i64 first;   // row 0 of the segment
  i64 padded;  // the same in the workspace
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
  rows.padded = padded_row(p.layout, item.sample, item.segment, rows.first);
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
    if (lane == 0) {
      if (p.dlse[h].data != nullptr) sum -= *p.dlse[h].at(rows.batch, rows.head, at);
      const float lse = *p.lse[h].at(rows.batch, rows.head, at) * 1.4426950408889634f;
      ptx::st_global_v2(p.row_values[h].at(rows.batch, rows.head) + (rows.padded + row) * 2, lse,
                        sum);
    }
  }
  float* sums = p.dq_sum[h].at(rows.batch, rows.head);
  const i64 end = (rows.padded + geometry::ceil_div(rows.valid.end, kSumRows) * kSumRows) *
                  static_cast<i64>(p.dq_width);
  for (i64 i = (rows.padded + rows.valid.begin) * p.dq_width + thread * 4; i < end;
       i += C.threads() * 4) {
    ptx::st_global_v4(sums + i, {0, 0, 0, 0});
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
  // A warp takes 16 rows and 32 columns at a time: four accumulators.
  constexpr int kPieces = C.dim / 32;
  const int warp = static_cast<int>(ptx::thread_index()) / 32;
  const int lane = static_cast<int>(ptx::thread_index()) % 32;
  const HalfRows& dq = p.dq[h];
  u16* const to = dq.data + rows.batch * dq.batch_stride + rows.head * dq.head_stride;
  const float* const sums =
      p.dq_sum[h].at(rows.batch, rows.head) + rows.padded * static_cast<i64>(C.dim);
  const int groups = geometry::ceil_div(rows.valid.size(), kSumRows);
  for (int i = warp; i < groups * kPieces; i += C.threads() / 32) {
    const i32 row = rows.valid.begin + i / kPieces * kSumRows;
    const i32 column = i % kPieces * 32;
    const float* from = sums + sum_index(row, column, C.dim) + lane * 4;
    u32 low[4];   // of row lane / 4: columns 2 (lane % 4) + {0, 1} of each accumulator
    u32 high[4];  // of row lane / 4 + 8
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const U32x4 sum = ptx::ld_global_v4(from + j * (kSumRows * 8));
      const auto pack = [&](u32 x, u32 y) {
        return ptx::cvt_x2_f32<C.element>(ptx::float_of(x) * p.softmax_scale,
                                          ptx::float_of(y) * p.softmax_scale);
      };
      low[j] = pack(sum.x, sum.y);
      high[j] = pack(sum.z, sum.w);
    }
    transpose_quad<1>(low);
    transpose_quad<1>(high);
    const i32 chunk = column + lane % 4 * 8;
    if (chunk >= p.head_dim) continue;
    const i32 first = row + lane / 4;
    const auto store = [&](i32 at, const u32(&words)[4]) {
      if (at >= rows.valid.end) return;
      ptx::st_global_v4(to + (rows.first + at) * dq.row_stride + chunk,
                        {words[0], words[1], words[2], words[3]});
    };
    store(first, low);
    store(first + 8, high);
  }
}

}  // namespace stepwell::cuda
