// What kernels get: grids, strides, numbers, workspace.
#include "cuda/parameters.hpp"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

#include "core/philox.hpp"
#include "cuda/problems.hpp"
#include "stepwell/error.hpp"

namespace stepwell::cuda {
namespace {

const ForwardConfig kForward{.head_dim = 128,
                             .head_dim_v = 64,
                             .element = Element::kBFloat16,
                             .warps = 4,
                             .rows_per_warp = 32,
                             .tile_kv = 64,
                             .ctas_per_sm = 2,
                             .softcap = false,
                             .dropout = false};

BackwardConfig backward_of(int head_dim) {
  BackwardConfig config{};
  config.head_dim = head_dim;
  config.head_dim_v = 64;
  config.warps = 4;
  config.tile_q = 64;
  config.tile_kv = 64;
  config.dq = true;
  return config;
}

void expect_grid(const TileGrid& grid, int pairs, int group, int tiles, int segments,
                 int query_heads) {
  EXPECT_EQ(grid.pairs, pairs);
  EXPECT_EQ(grid.group, group);
  EXPECT_EQ(grid.tiles, tiles);
  EXPECT_EQ(grid.segments, segments);
  EXPECT_EQ(grid.query_heads, query_heads);
}

TEST(Grid, Batched) {
  const AttentionProblem problem = batched_problem(3, 300);
  expect_grid(query_grid(problem, 128), 3 * 2, 6, 3, 2, 4);
  expect_grid(key_grid(problem, 64), 3 * 2, 6, 5, 2, 1);
  EXPECT_EQ(query_grid(problem, 128).ctas(), 3 * 300 / 300 * 2 * 3 * 2 * 4);
}

TEST(Grid, Views) {
  const AttentionProblem problem = batched_problem(1, 128, 3);
  expect_grid(query_grid(problem, 128), 2, 2, 1, 4, 4);
  expect_grid(key_grid(problem, 64), 2, 2, 2, 4, 1);
}

// K and V of a pair: 2 x 16384 rows of 192 elements, 12 MiB. Q and dO of a head: as much.
TEST(Grid, GroupsFitTheCache) {
  expect_grid(query_grid(batched_problem(4, 16384), 128), 8, 2, 128, 2, 4);
  expect_grid(key_grid(batched_problem(4, 16384), 64), 8, 1, 256, 2, 1);
  expect_grid(query_grid(batched_problem(4, 8192), 128), 8, 5, 64, 2, 4);
  expect_grid(key_grid(batched_problem(4, 4096), 64), 8, 5, 64, 2, 1);
  // Packed: of the average sample.
  expect_grid(query_grid(interleaved_problem(4, 4 * 2 * 8192), 128), 10, 5, 256, 2, 4);
}

TEST(Grid, PackedHasOnePairMoreOfEveryHead) {
  AttentionProblem problem = interleaved_problem(3, 1000);
  expect_grid(query_grid(problem, 128), 4 * 2, 8, 4, 2, 4);  // a sample may have all 500
  problem.max_seqlen = 129;
  expect_grid(query_grid(problem, 128), 4 * 2, 8, 2, 2, 4);
  expect_grid(key_grid(problem, 64), 4 * 2, 8, 3, 2, 1);
  problem.max_seqlen = 0;  // rows behind the last sample are left to write
  expect_grid(query_grid(problem, 128), 4 * 2, 8, 1, 2, 4);
  problem.max_seqlen = 1 << 20;
  expect_grid(query_grid(problem, 128), 4 * 2, 8, 4, 2, 4);
}

TEST(Grid, Split) {
  AttentionProblem problem = split_problem(2, 300, 200, 700);
  expect_grid(query_grid(problem, 128), 2 * 2, 4, 3, 3, 4);
  expect_grid(key_grid(problem, 64), 2 * 2, 4, 11, 3, 1);
  problem.layout.clean_q_rows = 0;
  expect_grid(query_grid(problem, 128), 2 * 2, 4, 3, 2, 4);
  expect_grid(key_grid(problem, 64), 2 * 2, 4, 11, 3, 1);
}

TEST(Grid, Sequence) {
  const AttentionProblem problem = sequence_problem(2, 100, 700);
  expect_grid(query_grid(problem, 128), 2 * 2, 4, 1, 1, 4);
  expect_grid(key_grid(problem, 64), 2 * 2, 4, 11, 1, 1);
}

TEST(Grid, NothingToWrite) {
  EXPECT_EQ(query_grid(batched_problem(0, 300), 128).ctas(), 0);
  EXPECT_EQ(query_grid(batched_problem(3, 0), 128).ctas(), 0);
  EXPECT_EQ(query_grid(sequence_problem(3, 0, 64), 128).ctas(), 0);
  EXPECT_GT(key_grid(sequence_problem(3, 0, 64), 64).ctas(), 0);  // gradients that are 0
  EXPECT_GT(query_grid(interleaved_problem(0, 64), 128).ctas(), 0);
}

TEST(Grid, ReachesTheLimit) {
  // 2^20 samples of 1024 rows a half, 8 tiles; 2 segments, 127 heads: 2^31 less 1/128 of it.
  const AttentionProblem most = batched_problem(1 << 20, 1024, 1, {127, 127, 64, 64});
  EXPECT_EQ(query_grid(most, 128).ctas(), std::int64_t{127} << 24);
  const auto error_of = [](const AttentionProblem& problem) -> std::string {
    try {
      query_grid(problem, 128);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kValue);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of(batched_problem(1 << 20, 1024, 1, {128, 128, 64, 64})), "");
  AttentionProblem packed = interleaved_problem(1 << 16, std::int64_t{1} << 24);
  EXPECT_NE(error_of(packed).find("max_seqlen is not given"), std::string::npos);
  packed.max_seqlen = 1 << 7;
  EXPECT_EQ(error_of(packed), "");
  packed.max_seqlen = 1 << 23;
  EXPECT_NE(error_of(packed), "");
  EXPECT_EQ(error_of(packed).find("max_seqlen"), std::string::npos);
}

TEST(Divisors, OfTheGrid) {
  const TileGrid grid = query_grid(batched_problem(4, 16384), 128);
  for (const int ctas : {0, 1, 7, 8, 2047, 2048, 16383}) {
    EXPECT_EQ(geometry::divide(ctas, grid.by_group), ctas / (2 * 128 * 2 * 4));
    EXPECT_EQ(geometry::divide(ctas, grid.by_tile), ctas / (2 * 2 * 4));
    EXPECT_EQ(geometry::divide(ctas, grid.by_pair), ctas / (2 * 4));
    EXPECT_EQ(geometry::divide(ctas, grid.by_query_head), ctas / 4);
    EXPECT_EQ(geometry::divide(ctas, grid.by_head_kv), ctas / 2);
  }
}

TEST(Forward, Tensors) {
  AttentionProblem problem = batched_problem(3, 300);
  problem.halves[0].q = {address(160), 7, 11, 13};
  problem.halves[0].lse = {static_cast<float*>(address(320)), 17, 19, 23};
  problem.halves[1] = problem.halves[0];
  const ForwardParams p = forward_params(problem, kForward.tile_q());
  for (int h = 0; h < 2; ++h) {
    EXPECT_EQ(p.q[h].data, address(160));
    EXPECT_EQ(p.q[h].batch_stride, 7);
    EXPECT_EQ(p.q[h].row_stride, 11);
    EXPECT_EQ(p.q[h].head_stride, 13);
    EXPECT_EQ(p.lse[h].data, address(320));
    EXPECT_EQ(p.lse[h].batch_stride, 17);
    EXPECT_EQ(p.lse[h].head_stride, 19);
    EXPECT_EQ(p.lse[h].row_stride, 23);
    EXPECT_EQ(p.k[h].data, problem.halves[0].k.data);
    EXPECT_EQ(p.v[h].data, problem.halves[0].v.data);
    EXPECT_EQ(p.out[h].data, problem.halves[0].out.data);
  }
  EXPECT_EQ(p.heads_q, 8);
  EXPECT_EQ(p.heads_kv, 2);
  EXPECT_EQ(p.head_dim, 128);
  EXPECT_EQ(p.head_dim_v, 64);
  EXPECT_EQ(p.layout.joint_part_rows, 300);
  for (const int x : {0, 15, 16, 1000}) {
    EXPECT_EQ(geometry::divide(x, p.layout.mask.block_divisor), x / 16);
  }
}

TEST(Forward, Numbers) {
  AttentionProblem problem = batched_problem(1, 64);
  ForwardParams p = forward_params(problem, kForward.tile_q());
  EXPECT_FLOAT_EQ(p.scale_log2, 0.125f * std::log2(std::exp(1.0f)));
  EXPECT_EQ(p.dropout.threshold, 0u);
  problem.softmax_scale = 0.0;  // masked scores stay -inf
  EXPECT_EQ(forward_params(problem, kForward.tile_q()).scale_log2, FLT_MIN);
  EXPECT_EQ(forward_params(problem, kForward.tile_q()).negate_q, 0);
  problem.softmax_scale = -0.5;
  p = forward_params(problem, kForward.tile_q());
  EXPECT_FLOAT_EQ(p.scale_log2, 0.5f * std::log2(std::exp(1.0f)));
  EXPECT_EQ(p.negate_q, 1);
  problem.softcap = 20.0;
  problem.dropout_p = 0.25;
  problem.dropout_seed = 5;
  problem.dropout_offset = 6;
  p = forward_params(problem, kForward.tile_q());
  EXPECT_FLOAT_EQ(p.scale_log2, 20.0f * std::log2(std::exp(1.0f)));
  EXPECT_FLOAT_EQ(p.softcap_scale, -0.025f);
  EXPECT_EQ(p.negate_q, 0);
  EXPECT_EQ(p.dropout.threshold, dropout_threshold(0.25));
  EXPECT_FLOAT_EQ(p.dropout.keep_scale, 1.0f / 0.75f);
  EXPECT_EQ(p.dropout.seed, 5u);
  EXPECT_EQ(p.dropout.offset, 6u);
  EXPECT_EQ(p.dropout.state, nullptr);
  const std::int64_t state[2] = {};
  problem.dropout_state = state;
  EXPECT_EQ(static_cast<const void*>(forward_params(problem, kForward.tile_q()).dropout.state),
            state);
  for (const double softcap : {0.0, 100.0}) {
    problem.softcap = softcap;
    problem.softmax_scale = 1e39;
    EXPECT_THROW(forward_params(problem, kForward.tile_q()), Error);
  }
  problem.softcap = 0.0;
  for (const double scale : {1e39, -1e39}) {
    problem.softmax_scale = scale;
    EXPECT_THROW(forward_params(problem, kForward.tile_q()), Error);
  }
}

// The kernels of float32 take any sign of the scale: the forward pass by the sign of scores, the
// backward pass in the factor.
TEST(Float32, Numbers) {
  AttentionProblem problem = batched_problem(1, 64);
  problem.dtype = DType::kFloat32;
  const F32Config config{128, 64, 4, 8, 2, false, false};
  const float log2_e = std::log2(std::exp(1.0f));
  alignas(64) static std::byte workspace[64];  // an address only
  struct Expected {
    double scale;
    float forward;
    float sign;
    float backward;
  };
  for (const Expected& e : {Expected{0.5, 0.5f * log2_e, 1.0f, 0.5f * log2_e},
                            {-0.5, 0.5f * log2_e, -1.0f, -0.5f * log2_e},
                            {0.0, 1.0f, 0.0f, 0.0f},
                            {-1e-60, FLT_MIN, -1.0f, -0.0f}}) {
    problem.softmax_scale = e.scale;
    const ForwardParamsF32 forward = forward_params_f32(problem, config);
    EXPECT_FLOAT_EQ(forward.scale_log2, e.forward) << e.scale;
    EXPECT_EQ(forward.score_sign, e.sign) << e.scale;
    const BackwardParamsF32 backward = backward_params_f32(problem, workspace);
    EXPECT_FLOAT_EQ(backward.scale_log2, e.backward) << e.scale;
    EXPECT_FLOAT_EQ(backward.softmax_scale, static_cast<float>(e.scale)) << e.scale;
  }
  problem.softmax_scale = -1e39;
  EXPECT_THROW(forward_params_f32(problem, config), Error);
  EXPECT_THROW(backward_params_f32(problem, workspace), Error);
  problem.softmax_scale = -0.5;
  problem.softcap = 20.0;
  const ForwardParamsF32 forward = forward_params_f32(problem, config);
  EXPECT_FLOAT_EQ(forward.scale_log2, 20.0f * log2_e);
  EXPECT_FLOAT_EQ(forward.softcap_scale, -0.025f);
}

TEST(Float32, Workspace) {
  alignas(64) static std::byte workspace[64];  // addresses only
  const AttentionProblem split = split_problem(3, 50, 30, 70);
  const BackwardParamsF32 p = backward_params_f32(split, workspace);
  const auto padded = [&](geometry::Half half, std::int64_t count) {
    return padded_rows(split.layout, half, count);
  };
  const std::int64_t noisy = padded(geometry::Half::kNoisy, 100);
  const std::int64_t clean = padded(geometry::Half::kClean, 30);
  EXPECT_EQ(p.row_values[0].head_stride, noisy * 4);
  EXPECT_EQ(p.row_values[0].batch_stride, 8 * noisy * 4);
  EXPECT_EQ(p.row_values[1].head_stride, clean * 4);
  EXPECT_EQ(p.row_values[1].data - p.row_values[0].data, 3 * 8 * noisy * 4);
  EXPECT_EQ(workspace_bytes_f32(split), std::size_t(3 * 8 * (noisy + clean) * 16));

  const AttentionProblem joint = batched_problem(3, 50);
  const BackwardParamsF32 q = backward_params_f32(joint, workspace);
  EXPECT_EQ(q.row_values[1].data, q.row_values[0].data);
  EXPECT_EQ(workspace_bytes_f32(joint),
            std::size_t(3 * 8 * padded_rows(joint.layout, geometry::Half::kNoisy, 100) * 16));
}

/// The workspace's arrays as (first, past the last) bytes.
struct Span {
  std::size_t begin;
  std::size_t end;
};

std::vector<Span> workspace_spans(const BackwardParams& p, const std::byte* workspace, int half,
                                  std::int64_t batch, std::int64_t rows, int heads, int width) {
  const auto span = [&](const QuerySums& array, std::int64_t row_width) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data) % 64, 0u);
    const std::size_t begin = reinterpret_cast<const std::byte*>(array.data) - workspace;
    const float* last = array.at(batch - 1, heads - 1) + rows * row_width;
    return Span{begin,
                static_cast<std::size_t>(reinterpret_cast<const std::byte*>(last) - workspace)};
  };
  return {span(p.row_values[half], 2), span(p.dq_sum[half], width)};
}

TEST(Backward, Workspace) {
  alignas(64) static std::byte workspace[64];  // addresses only
  const AttentionProblem joint = batched_problem(3, 50);
  const std::int64_t rows = padded_rows(joint.layout, geometry::Half::kNoisy, 100);
  EXPECT_EQ(rows, 144);
  EXPECT_EQ(workspace_bytes(joint, 128), static_cast<std::size_t>(3 * rows * 8 * (128 + 2) * 4));
  BackwardParams p = backward_params(joint, backward_of(128), workspace);
  EXPECT_EQ(p.dq_width, 128);
  EXPECT_EQ(p.row_values[1].data, p.row_values[0].data);
  EXPECT_EQ(p.dq_sum[1].data, p.dq_sum[0].data);
  EXPECT_EQ(p.dq_sum[0].head_stride, rows * 128);
  EXPECT_EQ(p.dq_sum[0].batch_stride, 8 * rows * 128);
  EXPECT_EQ(p.row_values[0].head_stride, rows * 2);

  const AttentionProblem split = split_problem(3, 50, 30, 70);
  p = backward_params(split, backward_of(128), workspace);
  const auto padded = [&](geometry::Half half, std::int64_t count) {
    return padded_rows(split.layout, half, count);
  };
  std::vector<Span> spans =
      workspace_spans(p, workspace, 0, 3, padded(geometry::Half::kNoisy, 100), 8, 128);
  const std::vector<Span> clean =
      workspace_spans(p, workspace, 1, 3, padded(geometry::Half::kClean, 30), 8, 128);
  spans.insert(spans.end(), clean.begin(), clean.end());
  std::size_t end = 0;
  for (const Span& span : spans) {
    EXPECT_GE(span.begin, end);
    end = span.end;
  }
  EXPECT_LE(end, workspace_bytes(split, 128));
  EXPECT_LT(workspace_bytes(split, 128), end + 64);

  // Where dQ is not summed.
  BackwardConfig without = backward_of(128);
  without.dq = false;
  p = backward_params(split, without, workspace);
  EXPECT_EQ(p.dq_width, 0);
  for (const int half : {0, 1}) EXPECT_EQ(p.dq_sum[half].data, nullptr);
  const auto values = [&](int half, std::int64_t rows) {
    const auto* begin = reinterpret_cast<const std::byte*>(p.row_values[half].data);
    return Span{static_cast<std::size_t>(begin - workspace),
                static_cast<std::size_t>(begin - workspace) +
                    static_cast<std::size_t>(3 * 8 * rows * 2) * sizeof(float)};
  };
  const Span noisy_values = values(0, padded(geometry::Half::kNoisy, 100));
  const Span clean_values = values(1, padded(geometry::Half::kClean, 30));
  EXPECT_EQ(noisy_values.begin, 0u);
  EXPECT_EQ(clean_values.begin, noisy_values.end);
  EXPECT_EQ(clean_values.end, workspace_bytes(split, 0));

  // Packed tensors have one batch entry.
  const AttentionProblem packed = interleaved_problem(3, 100);
  EXPECT_EQ(workspace_bytes(packed, 64),
            static_cast<std::size_t>(padded_rows(packed.layout, geometry::Half::kNoisy, 100)) * 8 *
                (64 + 2) * 4);
}

TEST(Backward, Tensors) {
  AttentionProblem problem = split_problem(2, 50, 30, 70);
  problem.halves[1].dlse = {static_cast<float*>(address(640)), 3, 5, 7};
  alignas(64) static std::byte workspace[64];
  const BackwardParams p = backward_params(problem, backward_of(128), workspace);
  for (int h = 0; h < 2; ++h) {
    const HalfTensors& tensors = problem.halves[h];
    EXPECT_EQ(p.dout[h].data, tensors.dout.data);
    EXPECT_EQ(p.dq[h].data, tensors.dq.data);
    EXPECT_EQ(p.dk[h].data, tensors.dk.data);
    EXPECT_EQ(p.dv[h].data, tensors.dv.data);
    EXPECT_EQ(p.dv[h].row_stride, 2 * 64);
    EXPECT_EQ(p.out[h].data, tensors.out.data);
    EXPECT_EQ(p.lse[h].data, tensors.lse.data);
  }
  EXPECT_EQ(p.dlse[0].data, nullptr);
  EXPECT_EQ(p.dlse[1].data, address(640));
  EXPECT_EQ(p.dlse[1].head_stride, 5);
  EXPECT_EQ(p.group(), 4);
  EXPECT_FLOAT_EQ(p.softmax_scale, 0.125f);
  EXPECT_FLOAT_EQ(p.scale_log2, 0.125f * std::log2(std::exp(1.0f)));
  problem.softmax_scale = -0.125;  // P comes from the log-sum-exp, whatever the sign
  EXPECT_FLOAT_EQ(backward_params(problem, backward_of(128), workspace).scale_log2, -p.scale_log2);
}

}  // namespace
}  // namespace stepwell::cuda
