// Splits a problem into tiles and heads, and hands them to threads.

#include "cpu/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/philox.hpp"
#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"
#include "geometry/pairs.hpp"
#include "geometry/tiles.hpp"

namespace stepwell::cpu {
namespace {

using geometry::Half;
using geometry::Interval;
using geometry::Sample;

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t scratch_bytes(std::size_t floats) { return aligned(floats * sizeof(float)); }

Dropout make_dropout(const AttentionProblem& problem) {
  if (problem.dropout_p == 0.0) return {};
  const std::uint64_t seed = problem.dropout_state != nullptr
                                 ? static_cast<std::uint64_t>(problem.dropout_state[0])
                                 : problem.dropout_seed;
  const std::uint64_t offset = problem.dropout_state != nullptr
                                   ? static_cast<std::uint64_t>(problem.dropout_state[1])
                                   : problem.dropout_offset;
  return {true, dropout_key(seed, offset), dropout_threshold(problem.dropout_p),
          static_cast<float>(dropout_keep_scale(problem.dropout_p))};
}

std::vector<Sample> all_samples(const AttentionProblem& problem) {
  std::vector<Sample> samples;
  samples.reserve(static_cast<std::size_t>(problem.layout.batch));
  for (int i = 0; i < problem.layout.batch; ++i) {
    samples.push_back(geometry::sample_at(problem.layout, i));
  }
  return samples;
}

/// Calls visit(half, view) for each segment with query rows.
template <typename Visit>
void for_each_query_segment(const Sample& sample, Visit&& visit) {
  for (int view = 0; view < sample.mask.num_views; ++view) visit(Half::kNoisy, view);
  visit(Half::kClean, 0);
}

void fill_rows(const Rows& rows, DType dtype, int dim, int heads, const FillPart& part) {
  if (rows.data == nullptr) return;
  const std::size_t bytes =
      static_cast<std::size_t>(dim) * static_cast<std::size_t>(size_of(dtype));
  for (std::int64_t row = part.first; row < part.first + part.count; ++row) {
    for (int head = 0; head < heads; ++head) {
      std::memset(
          static_cast<std::byte*>(rows.data) + rows.offset(part.batch, row, head) * size_of(dtype),
          0, bytes);
    }
  }
}

std::vector<FillPart> unused_runs(const geometry::Layout& layout, bool keys) {
  std::vector<FillPart> parts;
  for_each_unused_run(
      layout, keys, [&](Half half, std::int64_t batch, std::int64_t first, std::int64_t count) {
        // Long runs are cut up so that threads share them.
        for (std::int64_t done = 0; done < count; done += 1024) {
          parts.push_back({half, batch, first + done, std::min<std::int64_t>(1024, count - done)});
        }
      });
  return parts;
}

/// Threads worth waking for a number of multiply-adds: a barrier costs about what a core does of
/// them in some microseconds, and far more while other threads keep the cores busy.
int threads_for(int threads, double multiply_adds) {
  constexpr double kPerThread = 2e6;
  const double worth = multiply_adds / kPerThread;
  return worth < threads ? std::max(1, static_cast<int>(worth)) : threads;
}

/// Multiply-adds of the forward pass; the backward pass has two and a half times as many.
double forward_multiply_adds(const AttentionProblem& problem, const std::vector<Sample>& samples) {
  double pairs = 0.0;
  for (const Sample& sample : samples) {
    pairs += static_cast<double>(geometry::visible_pairs(sample.mask));
  }
  return pairs * problem.heads_q * (problem.head_dim + problem.head_dim_v);
}

}  // namespace

// ---------------------------------------------------------------------------------------- forward

namespace {

struct TileTask {
  std::int32_t sample;
  Half half;
  std::int32_t view;
  Interval rows;
  std::int64_t keys;  // that its rows may see: the work
};

/// Every query tile once, longest first.
std::vector<TileTask> query_tiles(const std::vector<Sample>& samples) {
  std::vector<TileTask> tasks;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const Sample& sample = samples[s];
    for_each_query_segment(sample, [&](Half half, int view) {
      const std::int32_t position = geometry::query_position(sample.mask, half);
      const std::int32_t len = geometry::query_len(sample.mask, half);
      for (std::int32_t row = 0; row < len; row += kForwardTileQ) {
        const Interval rows{row, std::min(row + kForwardTileQ, len)};
        std::int64_t keys =
            key_hull(rule_between(sample.mask, half, Half::kClean), position, rows).size();
        if (half == Half::kNoisy) {
          keys += key_hull(rule_between(sample.mask, half, Half::kNoisy), position, rows).size();
        }
        tasks.push_back({static_cast<std::int32_t>(s), half, view, rows, keys});
      }
    });
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const TileTask& a, const TileTask& b) { return a.keys > b.keys; });
  return tasks;
}

/// Item i of `tasks` x `heads`, heads running fastest.
ForwardTile query_tile(const AttentionProblem& problem, const std::vector<Sample>& samples,
                       const Dropout& dropout, const std::vector<TileTask>& tasks,
                       std::int64_t item, std::int64_t heads) {
  const TileTask& task = tasks[static_cast<std::size_t>(item / heads)];
  return {
      &problem,  &samples[static_cast<std::size_t>(task.sample)], dropout,  task.sample, task.half,
      task.view, static_cast<std::int32_t>(item % heads),         task.rows};
}

}  // namespace

std::size_t forward_workspace_bytes(const AttentionProblem& problem) {
  const std::size_t floats = kernels().forward_scratch_floats(problem.head_dim, problem.head_dim_v);
  return static_cast<std::size_t>(thread_count(problem.num_threads)) * scratch_bytes(floats);
}

void forward(const AttentionProblem& problem, std::byte* workspace) {
  const Kernels& code = kernels();
  const std::size_t stride =
      scratch_bytes(code.forward_scratch_floats(problem.head_dim, problem.head_dim_v));
  const std::vector<Sample> samples = all_samples(problem);
  const int threads =
      threads_for(thread_count(problem.num_threads), forward_multiply_adds(problem, samples));
  const std::vector<TileTask> tasks = query_tiles(samples);
  const Dropout dropout = make_dropout(problem);

  const std::int64_t heads = problem.heads_q;
  parallel_for(
      static_cast<std::int64_t>(tasks.size()) * heads, threads, [&](std::int64_t item, int thread) {
        const ForwardTile tile = query_tile(problem, samples, dropout, tasks, item, heads);
        code.forward_tile(
            tile, reinterpret_cast<float*>(workspace + static_cast<std::size_t>(thread) * stride));
      });

  const std::vector<FillPart> unused = unused_runs(problem.layout, /*keys=*/false);
  parallel_for(static_cast<std::int64_t>(unused.size()), threads, [&](std::int64_t item, int) {
    const FillPart& part = unused[static_cast<std::size_t>(item)];
    const HalfTensors& tensors = problem.half(part.half);
    fill_rows(tensors.out, problem.dtype, problem.head_dim_v, problem.heads_q, part);
    if (tensors.lse.data == nullptr) return;
    for (int head = 0; head < problem.heads_q; ++head) {
      for (std::int64_t row = part.first; row < part.first + part.count; ++row) {
        *tensors.lse.at(part.batch, head, row) = -std::numeric_limits<float>::infinity();
      }
    }
  });
}

// --------------------------------------------------------------------------------------- backward

namespace {

/// Rows of query tensors of one half: [batch, rows], to size and address buffers like them.
struct QueryExtent {
  std::int64_t batch;
  std::int64_t rows;
  std::int64_t values(int heads) const { return batch * rows * heads; }
};

QueryExtent query_extent(const geometry::Layout& layout, Half half) {
  const std::int64_t batch = layout.packed() ? 1 : layout.batch;
  if (layout.packing != geometry::Packing::kSplit) return {batch, layout.joint_rows};
  return {batch, half == Half::kNoisy ? layout.noisy_rows : layout.clean_q_rows};
}

bool shares_tensors(const geometry::Layout& layout) {
  return layout.packing != geometry::Packing::kSplit;
}

/// dq can be summed where it is stored: float32 rows without padding.
bool sums_in_place(const AttentionProblem& problem) {
  return problem.dtype == DType::kFloat32 && problem.head_dim % kColumnPadding == 0;
}

/// One thread's memory in the backward pass.
std::size_t backward_scratch(const AttentionProblem& problem) {
  const Kernels& code = kernels();
  return scratch_bytes(
      std::max(code.backward_scratch_floats(problem.head_dim, problem.head_dim_v),
               code.row_values_scratch_floats(problem.head_dim, problem.head_dim_v)));
}

std::size_t query_values_bytes(const AttentionProblem& problem, int width) {
  std::size_t bytes = 0;
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    if (half == Half::kClean && shares_tensors(problem.layout)) continue;
    const std::int64_t values = query_extent(problem.layout, half).values(problem.heads_q);
    bytes += aligned(static_cast<std::size_t>(values * width) * sizeof(float));
  }
  return bytes;
}

/// Hands out the workspace piece by piece.
class Arena {
 public:
  explicit Arena(std::byte* base) : next_(base) {}
  float* take(std::size_t bytes) {
    float* piece = reinterpret_cast<float*>(next_);
    next_ += aligned(bytes);
    return piece;
  }

 private:
  std::byte* next_;
};

BackwardBuffers make_buffers(const AttentionProblem& problem, Arena& arena) {
  BackwardBuffers buffers{};
  const std::int64_t width = padded_columns(problem.head_dim);
  for (const Half half : {Half::kNoisy, Half::kClean}) {
    const int h = static_cast<int>(half);
    if (half == Half::kClean && shares_tensors(problem.layout)) {
      buffers.row_values[h] = buffers.row_values[0];
      buffers.dq[h] = buffers.dq[0];
      continue;
    }
    const QueryExtent extent = query_extent(problem.layout, half);
    const std::int64_t heads = problem.heads_q;
    const std::size_t values = static_cast<std::size_t>(extent.values(problem.heads_q));
    BackwardRowValues& row_values = buffers.row_values[h];
    for (RowValues* to : {&row_values.lse_log2, &row_values.lse_factor, &row_values.delta}) {
      *to = {arena.take(values * sizeof(float)), heads * extent.rows, extent.rows, 1};
    }
    if (sums_in_place(problem)) {
      buffers.dq[h] = problem.half(half).dq;
    } else {
      float* sums = arena.take(values * static_cast<std::size_t>(width) * sizeof(float));
      buffers.dq[h] = {sums, extent.rows * heads * width, heads * width, width};
    }
  }
  return buffers;
}

/// Query rows of one part when rows are split among threads: enough that K and V are transposed
/// once for many query tiles.
constexpr int kSplitRows = 8 * kBackwardTileQ;

/// One pass over whole heads shares the scores among dq, dk and dv (5 products a pair); with fewer
/// heads than threads, one pass for dq and one for dk and dv (7 products) can use all of them.
bool splits_heads(const std::vector<std::int64_t>& pairs, int heads_kv, int threads) {
  std::int64_t total = 0;
  std::int64_t longest = 0;
  for (const std::int64_t p : pairs) {
    total += p * heads_kv;
    longest = std::max(longest, p);
  }
  const double share = static_cast<double>(total) / threads;
  // With equal heads the last round may be partly idle.
  const std::int64_t items = static_cast<std::int64_t>(pairs.size()) * heads_kv;
  const double rounds = std::ceil(static_cast<double>(items) / threads);
  const double whole =
      std::max(static_cast<double>(longest),
               items > 4 * threads ? share : rounds * static_cast<double>(longest));
  return 5.0 * whole > 7.0 * share;
}

}  // namespace

std::size_t backward_workspace_bytes(const AttentionProblem& problem) {
  std::size_t bytes =
      static_cast<std::size_t>(thread_count(problem.num_threads)) * backward_scratch(problem);
  bytes += 3 * query_values_bytes(problem, 1);
  if (!sums_in_place(problem))
    bytes += query_values_bytes(problem, padded_columns(problem.head_dim));
  return bytes;
}

void backward(const AttentionProblem& problem, std::byte* workspace) {
  const Kernels& code = kernels();
  const std::size_t stride = backward_scratch(problem);
  const std::vector<Sample> samples = all_samples(problem);
  const int threads =
      threads_for(thread_count(problem.num_threads), 2.5 * forward_multiply_adds(problem, samples));
  const Dropout dropout = make_dropout(problem);
  Arena arena(workspace + static_cast<std::size_t>(threads) * stride);
  const BackwardBuffers buffers = make_buffers(problem, arena);
  const auto scratch = [&](int thread) {
    return reinterpret_cast<float*>(workspace + static_cast<std::size_t>(thread) * stride);
  };

  const std::int64_t heads_q = problem.heads_q;
  const std::int64_t heads_kv = problem.heads_kv;
  const std::vector<TileTask> tiles = query_tiles(samples);
  const auto for_each_tile = [&](auto&& body) {
    parallel_for(static_cast<std::int64_t>(tiles.size()) * heads_q, threads,
                 [&](std::int64_t item, int thread) {
                   body(query_tile(problem, samples, dropout, tiles, item, heads_q), thread);
                 });
  };
  for_each_tile([&](const ForwardTile& tile, int thread) {
    code.row_values(tile, buffers, scratch(thread));
  });

  std::vector<std::int64_t> pairs;
  for (const Sample& sample : samples) pairs.push_back(geometry::visible_pairs(sample.mask));
  // All parts of the passes below; `work` orders them.
  struct PartTask {
    BackwardPart part;
    std::int64_t work;
  };
  std::vector<PartTask> parts;
  const auto whole_sample = [&](std::size_t s, std::int64_t head_kv) {
    BackwardPart part{};
    part.problem = &problem;
    part.sample = &samples[s];
    part.buffers = &buffers;
    part.dropout = dropout;
    part.sample_index = static_cast<std::int32_t>(s);
    part.head_kv = static_cast<std::int32_t>(head_kv);
    part.first_head = static_cast<std::int32_t>(head_kv * problem.group());
    part.last_head = part.first_head + problem.group();
    part.query_view = -1;
    part.key_view = -1;
    return part;
  };
  if (!splits_heads(pairs, problem.heads_kv, threads)) {
    for (std::size_t s = 0; s < samples.size(); ++s) {
      for (std::int64_t head = 0; head < heads_kv; ++head) {
        BackwardPart part = whole_sample(s, head);
        part.want_dq = true;
        part.want_dkv = true;
        parts.push_back({part, pairs[s]});
      }
    }
  } else {
    for (std::size_t s = 0; s < samples.size(); ++s) {
      const geometry::SampleMask& mask = samples[s].mask;
      for (std::int64_t head = 0; head < heads_kv; ++head) {
        for_each_query_segment(samples[s], [&](Half half, int view) {
          const std::int32_t len = geometry::query_len(mask, half);
          for (std::int32_t row = 0; row < len; row += kSplitRows) {
            BackwardPart part = whole_sample(s, head);
            part.want_dq = true;
            part.query_half = half;
            part.query_view = view;
            part.query_rows = {row, std::min(row + kSplitRows, len)};
            const Interval hull =
                geometry::key_hull(geometry::rule_between(mask, half, Half::kClean),
                                   geometry::query_position(mask, half), part.query_rows);
            for (std::int32_t q = part.first_head, last = part.last_head; q < last; ++q) {
              part.first_head = q;
              part.last_head = q + 1;
              parts.push_back({part, 3 * std::int64_t{part.query_rows.size()} * (hull.size() + 1)});
            }
          }
        });
        const auto add_key_tiles = [&](Half half, int view, std::int32_t len) {
          for (std::int32_t key = 0; key < len; key += kBackwardTileKv) {
            BackwardPart part = whole_sample(s, head);
            part.want_dkv = true;
            part.key_half = half;
            part.key_view = view;
            part.key_rows = {key, std::min(key + kBackwardTileKv, len)};
            parts.push_back(
                {part, 4 * std::int64_t{part.key_rows.size()} * (len - key) * problem.group()});
          }
        };
        for (int view = 0; view < mask.num_views; ++view) {
          add_key_tiles(Half::kNoisy, view, mask.noisy_len);
        }
        add_key_tiles(Half::kClean, 0, mask.clean_kv_len);
      }
    }
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const PartTask& a, const PartTask& b) { return a.work > b.work; });
  parallel_for(static_cast<std::int64_t>(parts.size()), threads,
               [&](std::int64_t item, int thread) {
                 code.backward_part(parts[static_cast<std::size_t>(item)].part, scratch(thread));
               });

  for_each_tile([&](const ForwardTile& tile, int) { code.store_dq(tile, buffers); });

  for (const bool keys : {false, true}) {
    const std::vector<FillPart> unused = unused_runs(problem.layout, keys);
    parallel_for(static_cast<std::int64_t>(unused.size()), threads, [&](std::int64_t item, int) {
      const FillPart& part = unused[static_cast<std::size_t>(item)];
      const HalfTensors& tensors = problem.half(part.half);
      if (!keys) {
        fill_rows(tensors.dq, problem.dtype, problem.head_dim, problem.heads_q, part);
      } else {
        fill_rows(tensors.dk, problem.dtype, problem.head_dim, problem.heads_kv, part);
        fill_rows(tensors.dv, problem.dtype, problem.head_dim_v, problem.heads_kv, part);
      }
    });
  }
}

std::string describe(const AttentionProblem& problem) {
  return fmt::format("cpu {}, {} threads, tiles {} x {} forward, {} x {} backward", kernels().name,
                     thread_count(problem.num_threads), kForwardTileQ, kForwardTileKv,
                     kBackwardTileQ, kBackwardTileKv);
}

}  // namespace stepwell::cpu
