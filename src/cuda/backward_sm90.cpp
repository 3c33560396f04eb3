#include "cuda/backward_sm90.hpp"

#include <cmath>

#include "cuda/joint_tensors.hpp"
#include "cuda/parameters.hpp"

namespace stepwell::cuda {
namespace {

using geometry::Half;

constexpr std::size_t kAlignment = 64;

i64 row_tiles(const AttentionProblem& problem) {
  return geometry::ceil_div<i64>(problem.layout.part_rows(), kSm90BackwardRows);
}

/// Tiles of query rows of all samples, heads and halves.
i64 all_row_tiles(const AttentionProblem& problem) {
  return 2 * row_tiles(problem) * problem.heads_q * problem.layout.batch;
}

/// Arrays of the workspace, in bytes from its start.
struct Workspace {
  std::size_t next_item = 0;
  std::size_t row_values = kAlignment;
  std::size_t dq_sum;
  std::size_t bytes;
};

Workspace workspace_of(const AttentionProblem& problem, const BackwardSm90Config& config) {
  const auto tiles = static_cast<std::size_t>(all_row_tiles(problem));
  Workspace w;
  w.dq_sum = w.row_values + tiles * kRowValuesBytes;
  w.bytes = w.dq_sum +
            tiles * static_cast<std::size_t>(kSm90BackwardRows * config.head_dim) * sizeof(float);
  return w;
}

/// attention_backward_finish looks for the rows of a half where padded_row() has them, from here.
QuerySums finish_sums(const AttentionProblem& problem, const BackwardSm90Config& config,
                      const geometry::Layout& layout, float* dq_sum, Half half) {
  const i64 rows = row_tiles(problem) * kSm90BackwardRows;
  const i32 segment = half == Half::kNoisy ? 0 : 1;
  const i64 first =
      static_cast<int>(half) * rows - padded_row(layout, 0, segment, first_row(layout, half));
  QuerySums sums;
  sums.data = dq_sum + first * config.head_dim;
  sums.head_stride = 2 * rows * config.head_dim;
  sums.batch_stride = problem.heads_q * sums.head_stride;
  return sums;
}

}  // namespace

Refusal refusal_of_backward_sm90(const AttentionProblem& problem, const DeviceLimits& limits) {
  if (const Refusal refusal = refusal_of_sm90(problem, limits)) return refusal;
  if (problem.layout.packed()) return "packed samples";
  if (problem.deterministic) return "deterministic";
  return has_map(problem, problem.halves[0].dout, problem.heads_q) ? nullptr : kNoTensorMap;
}

BackwardSm90Config backward_sm90_config(const AttentionProblem& problem) {
  return {.head_dim = sm90_head_dim(problem), .element = element_of(problem)};
}

BackwardRowsSm90Config backward_rows_sm90_config(const AttentionProblem& problem) {
  const BackwardSm90Config config = backward_sm90_config(problem);
  const bool diagonal = kSm90BackwardRows % problem.layout.mask.block_size == 0;
  return {.head_dim = config.head_dim,
          .element = config.element,
          .diagonal = diagonal,
          .grouped = diagonal && problem.group() > 1};
}

RowsConfig finish_sm90_config(const AttentionProblem& problem) {
  return {.dim = sm90_head_dim(problem), .element = element_of(problem)};
}

std::size_t backward_sm90_workspace_bytes(const AttentionProblem& problem) {
  return workspace_of(problem, backward_sm90_config(problem)).bytes;
}

BackwardSm90Launches backward_sm90_params(const AttentionProblem& problem,
                                          const BackwardSm90Config& config, std::byte* workspace,
                                          const Launcher& launcher) {
  const geometry::Layout& layout = problem.layout;
  BackwardSm90Launches launches;
  BackwardSm90Params& p = launches.main;
  p.grid = half_key_grid(problem, kSm90BackwardKeys, 1, config.head_dim);
  if (p.grid.ctas() == 0) return launches;
  const bool diagonal = backward_rows_sm90_config(problem).diagonal;
  p.items = static_cast<i32>((diagonal ? 1 : 2) * p.grid.ctas());
  p.ctas = persistent_ctas(p.items, launcher.limits());
  const auto slabs = static_cast<unsigned>(config.slabs());
  const HalfTensors& tensors = problem.halves[0];
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    const int h = static_cast<int>(half);
    const auto map = [&](const Rows& rows, int heads, int dim, unsigned box_rows) {
      return launcher.tensor_map(tiled_half(problem, rows, half, heads, dim, box_rows, slabs));
    };
    p.q[h] = map(tensors.q, problem.heads_q, problem.head_dim, kSm90BackwardRows);
    p.dout[h] = map(tensors.dout, problem.heads_q, problem.head_dim_v, kSm90BackwardRows);
    p.k[h] = map(tensors.k, problem.heads_kv, problem.head_dim, kSm90BackwardKeys);
    p.v[h] = map(tensors.v, problem.heads_kv, problem.head_dim_v, kSm90BackwardKeys);
    p.first_row[h] = first_row(layout, half);
    if (config.splits_slab()) {
      TiledTensor columns = tiled_half(problem, tensors.k, half, problem.heads_kv, problem.head_dim,
                                       kSm90BackwardKeys, slabs);
      columns.box[0] = 32;
      columns.swizzle = Swizzle::k64;
      p.k_columns[h] = launcher.tensor_map(columns);
    }
    if (half == Half::kClean || !diagonal) continue;
    p.noisy_k = map(tensors.k, problem.heads_kv, problem.head_dim, kSm90BackwardRows);
    p.noisy_v = map(tensors.v, problem.heads_kv, problem.head_dim_v, kSm90BackwardRows);
  }
  set_rows(tensors.out, p.out);
  set_rows(tensors.dout, p.dout_rows);
  set_rows(tensors.dk, p.dk);
  set_rows(tensors.dv, p.dv);
  p.lse = float_rows(tensors.lse);
  p.dlse = float_rows(tensors.dlse);
  const Workspace arrays = workspace_of(problem, config);
  p.next_item = reinterpret_cast<unsigned*>(workspace + arrays.next_item);
  p.row_values = reinterpret_cast<float*>(workspace + arrays.row_values);
  p.dq_sum = reinterpret_cast<float*>(workspace + arrays.dq_sum);
  set_joint_layout(problem, p);
  p.row_tiles = static_cast<i32>(row_tiles(problem));
  p.heads_q = problem.heads_q;
  p.heads_kv = problem.heads_kv;
  p.head_dim = problem.head_dim;
  p.head_dim_v = problem.head_dim_v;
  const Scales scales = scales_of(problem);
  p.softmax_scale = static_cast<float>(problem.softmax_scale);
  p.scale_log2 = std::copysign(positive_magnitude(scales), scales.sign);

  launches.rows = p;
  launches.rows.grid = half_key_grid(problem, kSm90BackwardRows, 2, config.head_dim);
  launches.rows.ctas = static_cast<i32>(launches.rows.grid.ctas());

  launches.finish = backward_finish_params(problem, config.head_dim);
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    launches.finish.dq_sum[static_cast<int>(half)] =
        finish_sums(problem, config, layout, p.dq_sum, half);
  }
  return launches;
}

}  // namespace stepwell::cuda
