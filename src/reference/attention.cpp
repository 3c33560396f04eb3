#include "reference/attention.hpp"

#include <limits>
#include <vector>

#include "core/philox.hpp"
#include "geometry/layout.hpp"
#include "reference/dtype.hpp"
#include "reference/head.hpp"

namespace stepwell::reference {

using geometry::CleanRule;
using geometry::floor_div;
using geometry::Half;
using geometry::NoisyRule;
using geometry::Sample;
using geometry::SampleMask;

bool visible(const SampleMask& mask, Half query_half, int query_view, int query_index,
             Half key_half, int key_view, int key_index) {
  using i64 = std::int64_t;
  const bool noisy_query = query_half == Half::kNoisy;
  const bool noisy_key = key_half == Half::kNoisy;
  const int query_len = noisy_query ? mask.noisy_len : mask.clean_q_len;
  const int key_len = noisy_key ? mask.noisy_len : mask.clean_kv_len;
  if (query_index < 0 || query_index >= query_len) return false;
  if (key_index < 0 || key_index >= key_len) return false;

  const i64 pq = i64{query_index} + (noisy_query ? mask.noisy_position : mask.clean_q_position);
  const i64 pk = i64{key_index} + (noisy_key ? mask.noisy_position : 0);
  const i64 b = mask.block_size;
  const bool table = mask.block_ranges != nullptr;
  const i64 origin = noisy_query && table ? mask.noisy_position : mask.origin;
  const auto block = [&](i64 p) { return floor_div(p - origin, b); };

  if (noisy_query && noisy_key) {
    if (query_view != key_view || block(pq) != block(pk)) return false;
    return mask.noisy == NoisyRule::kBidirectional || pk <= pq;
  }
  if (noisy_query) {
    if (table) {
      const i64 j = query_index / b;
      return j < mask.num_block_ranges && mask.block_ranges[2 * j] <= key_index &&
             key_index < mask.block_ranges[2 * j + 1];
    }
    if (block(pk) >= block(pq)) return false;
    const i64 start = origin + block(pq) * b;
    return mask.clean_window == 0 || pk > start - mask.clean_window;
  }
  if (noisy_key) return false;
  switch (mask.clean) {
    case CleanRule::kBlock:
      return block(pk) <= block(pq);
    case CleanRule::kCausal:
      return pk <= pq;
    case CleanRule::kFull:
      return true;
    case CleanRule::kWindow:
      return pq - mask.window_left <= pk && pk <= pq + mask.window_right;
  }
  return false;
}

namespace {

/// A token with its place in the tensors of its half.
struct Place {
  Token token;
  std::int64_t row = 0;
};

/// The valid query (or key) tokens of a sample.
std::vector<Place> places_of(const Sample& sample, bool keys) {
  std::vector<Place> places;
  const SampleMask& mask = sample.mask;
  for (int view = 0; view < mask.num_views; ++view) {
    for (int i = 0; i < mask.noisy_len; ++i) {
      places.push_back(
          {{Half::kNoisy, view, i}, sample.noisy.first + view * sample.view_stride + i});
    }
  }
  const std::int64_t first = keys ? sample.clean_kv.first : sample.clean_q.first;
  const int len = keys ? mask.clean_kv_len : mask.clean_q_len;
  for (int i = 0; i < len; ++i) places.push_back({{Half::kClean, 0, i}, first + i});
  return places;
}

/// Reads and writes rows of one head, [places, dim], of whichever half each token is in.
class HeadAccess {
 public:
  HeadAccess(const AttentionProblem& problem, const Sample& sample)
      : problem_(problem), batch_(sample.batch_index) {}

  std::vector<double> gather(const std::vector<Place>& places, Rows HalfTensors::*tensor, int head,
                             int dim) const {
    std::vector<double> values;
    values.reserve(places.size() * dim);
    for (const Place& place : places) {
      const Rows& rows = problem_.half(place.token.half).*tensor;
      const std::int64_t offset = rows.offset(batch_, place.row, head);
      for (int d = 0; d < dim; ++d) values.push_back(load(rows.data, problem_.dtype, offset + d));
    }
    return values;
  }

  void scatter(const std::vector<Place>& places, Rows HalfTensors::*tensor, int head, int dim,
               const std::vector<double>& values) const {
    std::size_t next = 0;
    for (const Place& place : places) {
      const Rows& rows = problem_.half(place.token.half).*tensor;
      const std::int64_t offset = rows.offset(batch_, place.row, head);
      for (int d = 0; d < dim; ++d) store(rows.data, problem_.dtype, offset + d, values[next++]);
    }
  }

  float* row_value(const Place& place, RowValues HalfTensors::*tensor, int head) const {
    const RowValues& values = problem_.half(place.token.half).*tensor;
    return values.data == nullptr ? nullptr : values.at(batch_, head, place.row);
  }

 private:
  const AttentionProblem& problem_;
  std::int64_t batch_;
};

HeadProblem head_problem(const AttentionProblem& problem, const Sample& sample, int sample_index,
                         const std::vector<Place>& queries, const std::vector<Place>& keys,
                         int head) {
  const HeadAccess access(problem, sample);
  HeadProblem result;
  result.mask = sample.mask;
  for (const Place& place : queries) result.queries.push_back(place.token);
  for (const Place& place : keys) result.keys.push_back(place.token);
  const int head_kv = head / problem.group();
  result.q = access.gather(queries, &HalfTensors::q, head, problem.head_dim);
  result.k = access.gather(keys, &HalfTensors::k, head_kv, problem.head_dim);
  result.v = access.gather(keys, &HalfTensors::v, head_kv, problem.head_dim_v);
  result.dim = problem.head_dim;
  result.dim_v = problem.head_dim_v;
  result.scale = problem.softmax_scale;
  result.softcap = problem.softcap;
  result.dropout_p = problem.dropout_p;
  const std::int64_t* state = problem.dropout_state;
  result.dropout_key = state != nullptr ? dropout_key(static_cast<std::uint64_t>(state[0]),
                                                      static_cast<std::uint64_t>(state[1]))
                                        : dropout_key(problem.dropout_seed, problem.dropout_offset);
  result.sample_head = static_cast<std::uint32_t>(sample_index * problem.heads_q + head);
  return result;
}

/// Writes zeros to rows that no sample covers.
void clear_unused(const AttentionProblem& problem, bool keys, Rows HalfTensors::*tensor, int heads,
                  int dim) {
  for_each_unused_run(problem.layout, keys,
                      [&](Half half, int batch, std::int64_t first, std::int64_t count) {
                        const Rows& rows = problem.half(half).*tensor;
                        if (rows.data == nullptr) return;
                        for (std::int64_t row = first; row < first + count; ++row) {
                          for (int head = 0; head < heads; ++head) {
                            const std::int64_t offset = rows.offset(batch, row, head);
                            for (int d = 0; d < dim; ++d)
                              store(rows.data, problem.dtype, offset + d, 0.0);
                          }
                        }
                      });
}

void add(std::vector<double>& sum, const std::vector<double>& term) {
  if (sum.empty()) sum.assign(term.size(), 0.0);
  for (std::size_t i = 0; i < term.size(); ++i) sum[i] += term[i];
}

}  // namespace

void forward(const AttentionProblem& problem) {
  for (int i = 0; i < problem.layout.batch; ++i) {
    const Sample sample = geometry::sample_at(problem.layout, i);
    const std::vector<Place> queries = places_of(sample, false);
    const std::vector<Place> keys = places_of(sample, true);
    const HeadAccess access(problem, sample);
    for (int head = 0; head < problem.heads_q; ++head) {
      const HeadResults results = forward(head_problem(problem, sample, i, queries, keys, head));
      access.scatter(queries, &HalfTensors::out, head, problem.head_dim_v, results.out);
      for (std::size_t r = 0; r < queries.size(); ++r) {
        float* lse = access.row_value(queries[r], &HalfTensors::lse, head);
        if (lse != nullptr) *lse = static_cast<float>(results.lse[r]);
      }
    }
  }
  clear_unused(problem, false, &HalfTensors::out, problem.heads_q, problem.head_dim_v);
  for_each_unused_run(problem.layout, false,
                      [&](Half half, int batch, std::int64_t first, std::int64_t count) {
                        const RowValues& lse = problem.half(half).lse;
                        if (lse.data == nullptr) return;
                        for (int head = 0; head < problem.heads_q; ++head) {
                          for (std::int64_t row = first; row < first + count; ++row)
                            *lse.at(batch, head, row) = -std::numeric_limits<float>::infinity();
                        }
                      });
}

void backward(const AttentionProblem& problem) {
  const int group = problem.group();
  for (int i = 0; i < problem.layout.batch; ++i) {
    const Sample sample = geometry::sample_at(problem.layout, i);
    const std::vector<Place> queries = places_of(sample, false);
    const std::vector<Place> keys = places_of(sample, true);
    const HeadAccess access(problem, sample);
    for (int head_kv = 0; head_kv < problem.heads_kv; ++head_kv) {
      std::vector<double> dk, dv;
      for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        const std::vector<double> dout =
            access.gather(queries, &HalfTensors::dout, head, problem.head_dim_v);
        std::vector<double> dlse;
        for (const Place& place : queries) {
          const float* value = access.row_value(place, &HalfTensors::dlse, head);
          dlse.push_back(value == nullptr ? 0.0 : *value);
        }
        const HeadGradients grads =
            backward(head_problem(problem, sample, i, queries, keys, head), dout, dlse);
        access.scatter(queries, &HalfTensors::dq, head, problem.head_dim, grads.dq);
        add(dk, grads.dk);
        add(dv, grads.dv);
      }
      access.scatter(keys, &HalfTensors::dk, head_kv, problem.head_dim, dk);
      access.scatter(keys, &HalfTensors::dv, head_kv, problem.head_dim_v, dv);
    }
  }
  clear_unused(problem, false, &HalfTensors::dq, problem.heads_q, problem.head_dim);
  clear_unused(problem, true, &HalfTensors::dk, problem.heads_kv, problem.head_dim);
  clear_unused(problem, true, &HalfTensors::dv, problem.heads_kv, problem.head_dim_v);
}

}  // namespace stepwell::reference
