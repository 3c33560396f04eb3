// What a mask looks like: bytes from the element rule, and the number of visible pairs.
#include <cstring>
#include <limits>

#include "api/arguments.hpp"
#include "api/names.hpp"
#include "api/text.hpp"
#include "core/check.hpp"
#include "geometry/pairs.hpp"
#include "reference/attention.hpp"

namespace stepwell {
namespace {

using geometry::Half;
using geometry::Sample;

constexpr std::int64_t kMostPairs = std::numeric_limits<std::int64_t>::max();

/// The layout of a problem whose tensors have shapes only.
AttentionProblem shape_problem(const AttentionArgs& args, AttentionShape& shape) {
  shape = check_arguments(args);
  STEPWELL_CHECK(args.q.device.type == DeviceType::kCpu, kNotImplemented,
                 "{} is on {}; masks are computed from arrays on cpu", names_of(args.layout).q,
                 to_text(args.q.device));
  check_array_data(args);
  AttentionProblem problem = build_problem(args, shape, Addresses::kReal);
  check_values(args, problem.layout);
  return problem;
}

/// A run of rows: where it starts among all rows of the mask, and what it is.
struct Segment {
  Half half;
  int view;
  std::int64_t first;
  int count;
};

template <typename Visit>
void for_each_segment(const Sample& sample, bool keys, std::int64_t clean_first, Visit&& visit) {
  for (int view = 0; view < sample.mask.num_views; ++view) {
    visit(Segment{Half::kNoisy, view, sample.noisy.first + view * sample.view_stride,
                  geometry::key_len(sample.mask, Half::kNoisy)});
  }
  const geometry::SegmentRows rows = keys ? sample.clean_kv : sample.clean_q;
  visit(Segment{Half::kClean, 0, clean_first + rows.first,
                keys ? sample.mask.clean_kv_len : sample.mask.clean_q_len});
}

}  // namespace

void attention_mask(const AttentionArgs& args, unsigned char* visible, std::size_t capacity) {
  AttentionShape shape;
  const AttentionProblem problem = shape_problem(args, shape);
  // kSplit: clean rows follow the noisy ones.
  const bool split = args.layout == TokenLayout::kSplit;
  const std::int64_t clean_first_q = split ? shape.rows_q : 0;
  const std::int64_t clean_first_kv = split ? shape.rows_kv : 0;
  const std::int64_t rows_q = shape.rows_q + shape.rows_clean_q;
  const std::int64_t rows_kv = shape.rows_kv + shape.rows_clean_kv;
  const std::int64_t matrices = shape.packed ? 1 : shape.batch;
  const std::int64_t elements = rows_q * rows_kv;  // at most 2^58
  // Divided, since the product may not fit.
  STEPWELL_CHECK(matrices == 0 || elements <= kMostPairs / matrices, kValue,
                 "visible has {} bytes; the mask has {} x {} x {} elements, which 64 bits do not "
                 "count",
                 capacity, matrices, rows_q, rows_kv);
  const auto bytes = static_cast<std::size_t>(matrices * elements);
  STEPWELL_CHECK(capacity >= bytes, kValue,
                 "visible has {} bytes; the mask has {} x {} x {} elements", capacity, matrices,
                 rows_q, rows_kv);
  if (bytes == 0) return;
  STEPWELL_CHECK(visible != nullptr, kValue, "visible is null");
  std::memset(visible, 0, bytes);
  for (int i = 0; i < problem.layout.batch; ++i) {
    const Sample sample = geometry::sample_at(problem.layout, i);
    unsigned char* matrix = visible + sample.batch_index * rows_q * rows_kv;
    for_each_segment(sample, /*keys=*/false, clean_first_q, [&](const Segment& query) {
      for_each_segment(sample, /*keys=*/true, clean_first_kv, [&](const Segment& key) {
        for (int r = 0; r < query.count; ++r) {
          unsigned char* row = matrix + (query.first + r) * rows_kv + key.first;
          for (int c = 0; c < key.count; ++c) {
            row[c] =
                reference::visible(sample.mask, query.half, query.view, r, key.half, key.view, c);
          }
        }
      });
    });
  }
}

std::int64_t visible_pairs(const AttentionArgs& args) {
  AttentionShape shape;
  const AttentionProblem problem = shape_problem(args, shape);
  std::int64_t pairs = 0;
  for (int i = 0; i < problem.layout.batch; ++i) {
    // At most 2^58 of one sample.
    const std::int64_t more = geometry::visible_pairs(geometry::sample_at(problem.layout, i).mask);
    STEPWELL_CHECK(more <= kMostPairs - pairs, kValue,
                   "{} has batch size {}, and the visible pairs of that many samples are more than "
                   "{}, the most that are counted",
                   names_of(args.layout).q, shape.batch, kMostPairs);
    pairs += more;
  }
  return pairs;
}

}  // namespace stepwell
