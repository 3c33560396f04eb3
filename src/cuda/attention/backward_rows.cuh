// The two kernels around the backward pass that work on query rows: what it needs before, and
// rounding dQ's sums after. Both move bytes only, 16 at a time.
#pragma once

#include "cuda/attention/backward_config.hpp"
#include "cuda/attention/params.hpp"
#include "cuda/attention/query_rows.cuh"
#include "cuda/attention/row_values.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/transpose.cuh"
#include "geometry/tiles.hpp"

namespace stepwell::cuda {

/// The rows' place among padded rows.
__device__ __forceinline__ i64 padded_first(const BackwardParams& p, const QueryRows& rows) {
  return padded_row(p.layout, rows.sample_index, rows.segment, rows.first);
}

/// delta = sum of dout * out - dlse; log-sum-exp in units of log 2; zeros where dQ is summed.
template <RowsConfig C>
__device__ __forceinline__ void attention_backward_prepare(const BackwardParams& p) {
  QueryRows rows;
  if (!find_query_rows<C.tile_rows()>(p, rows, [](int, i64, i32, i64, i64) {})) return;
  constexpr int kLanes = C.lanes();
  const int thread = static_cast<int>(ptx::thread_index());
  const int lane = thread % kLanes;
  const int h = static_cast<int>(rows.half);
  const i64 batch = rows.sample.batch_index;
  const i64 padded = padded_first(p, rows);
  const HalfRows& out = p.out[h];
  const HalfRows& dout = p.dout[h];
  for (i32 base = rows.valid.begin; base < rows.valid.end; base += C.threads() / kLanes) {
    const i32 row = base + thread / kLanes;
    const bool inside = row < rows.valid.end;
    const i64 at = rows.first + (inside ? row : rows.valid.begin);
    float sum[1];
    row_products<C.element, kLanes, 1>(sum, out, dout, batch, at, rows.head, lane, inside ? 1 : 0,
                                       p.head_dim_v);
    if (!inside) continue;
    if (lane == 0) {
      if (p.dlse[h].data != nullptr) sum[0] -= *p.dlse[h].at(batch, rows.head, at);
      const float lse = *p.lse[h].at(batch, rows.head, at) * kLog2OfE;
      ptx::st_global_v2(p.row_values[h].at(batch, rows.head) + (padded + row) * 2, lse, sum[0]);
    }
  }
  if (p.dq_sum[h].data == nullptr) return;
  float* sums = p.dq_sum[h].at(batch, rows.head);
  const i64 end = (padded + geometry::ceil_div(rows.valid.end, kSumRows) * kSumRows) *
                  static_cast<i64>(p.dq_width);
  for (i64 i = (padded + rows.valid.begin) * p.dq_width + thread * 4; i < end;
       i += C.threads() * 4) {
    ptx::st_global_v4(sums + i, {0, 0, 0, 0});
  }
}

/// dq = softmax_scale * sums; zeros in rows that belong to no valid token.
template <RowsConfig C>
__device__ __forceinline__ void attention_backward_finish(const BackwardParams& p) {
  QueryRows rows;
  const bool any = find_query_rows<C.tile_rows()>(
      p, rows, [&](int h, i64 batch, i32 head, i64 first, i64 count) {
        write_zero_rows<C.threads()>(p.dq[h], batch, head, first, count, p.head_dim);
      });
  if (!any) return;
  const int h = static_cast<int>(rows.half);
  const i64 batch = rows.sample.batch_index;
  // A warp takes 16 rows and 32 columns at a time: four accumulators.
  constexpr int kPieces = C.dim / 32;
  const int warp = static_cast<int>(ptx::thread_index()) / 32;
  const int lane = static_cast<int>(ptx::thread_index()) % 32;
  const HalfRows& dq = p.dq[h];
  u16* const to = dq.at(batch, 0, rows.head);
  const float* const sums =
      p.dq_sum[h].at(batch, rows.head) + padded_first(p, rows) * static_cast<i64>(C.dim);
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
