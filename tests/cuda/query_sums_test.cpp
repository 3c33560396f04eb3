// Padded rows of the backward pass: every row has one, segments share no 16 of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "cuda/attention/query_sums.hpp"
#include "support/random.hpp"

namespace stepwell::cuda {
namespace {

using geometry::Half;
using geometry::i32;
using geometry::i64;
using geometry::Layout;
using geometry::Packing;
using geometry::Sample;
using testing::Random;

/// Checks all segments of the layout that have their queries in the tensor of `half`.
void check(const Layout& layout, Half half, i64 tensor_rows) {
  const i32 views = layout.mask.num_views;
  const bool joint = layout.packing != Packing::kSplit;
  const i64 end = padded_rows(layout, half, tensor_rows);
  EXPECT_EQ(end % kSumRows, 0);
  std::vector<std::pair<i64, i64>> taken;
  for (i32 sample = 0; sample < layout.batch; ++sample) {
    if (!layout.packed()) taken.clear();  // batch entries have memory of their own
    const Sample s = sample_at(layout, sample);
    for (i32 segment = 0; segment <= views; ++segment) {
      const bool clean = segment == views;
      if (!joint && clean != (half == Half::kClean)) continue;
      const i64 first = clean ? s.clean_q.first : s.noisy.first + segment * s.view_stride;
      const i64 count = clean ? s.clean_q.count : s.noisy.count;
      const i64 begin = padded_row(layout, sample, segment, first);
      EXPECT_EQ(begin % kSumRows, 0);
      EXPECT_GE(begin, 0);
      const i64 last = begin + (count + kSumRows - 1) / kSumRows * kSumRows;
      if (count == 0) continue;
      EXPECT_LE(last, end);
      for (const auto& [other_begin, other_end] : taken) {
        EXPECT_TRUE(last <= other_begin || begin >= other_end);
      }
      taken.emplace_back(begin, last);
    }
  }
}

TEST(QuerySums, SegmentsShareNoRows) {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    Layout layout;
    layout.batch = static_cast<i32>(random.between(1, 5));
    layout.mask.num_views = static_cast<i32>(random.between(0, 3));
    layout.packing = random.pick({Packing::kJoint, Packing::kJointHalves, Packing::kSplit});
    layout.clean_first = random.chance(0.5);
    const i32 parts = layout.mask.num_views + 1;
    const bool joint = layout.packing != Packing::kSplit;
    const bool packed = random.chance(0.6) || layout.packing == Packing::kJointHalves;
    // kJointHalves counts one part, the others whole samples.
    const i32 unit = layout.packing == Packing::kJoint   ? parts
                     : layout.packing == Packing::kSplit ? layout.mask.num_views
                                                         : 1;
    std::vector<i32> cu_noisy{0};
    std::vector<i32> cu_clean{0};
    for (i32 i = 0; i < layout.batch; ++i) {
      cu_noisy.push_back(cu_noisy.back() + unit * static_cast<i32>(random.between(0, 40)));
      cu_clean.push_back(cu_clean.back() + static_cast<i32>(random.between(0, 40)));
    }
    const i64 tail = random.between(0, 20);
    if (packed) {
      layout.cu_noisy = cu_noisy.data();
      if (!joint) layout.cu_clean_q = cu_clean.data();
      layout.joint_rows = layout.packing == Packing::kJointHalves ? parts * (cu_noisy.back() + tail)
                                                                  : cu_noisy.back() + tail;
      layout.noisy_rows = cu_noisy.back() + tail;
      layout.clean_q_rows = cu_clean.back() + tail;
    } else {
      layout.joint_rows = parts * random.between(0, 50);
      layout.noisy_rows = layout.mask.num_views * random.between(0, 50);
      layout.clean_q_rows = random.between(0, 50);
    }
    if (joint) {
      check(layout, Half::kNoisy, layout.joint_rows);
    } else {
      check(layout, Half::kNoisy, layout.noisy_rows);
      check(layout, Half::kClean, layout.clean_q_rows);
    }
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST(QuerySums, EveryElementHasOnePlace) {
  for (const i32 width : {64, 96, 128, 192, 256}) {
    std::set<i64> places;
    for (i32 row = 0; row < 48; ++row) {
      for (i32 column = 0; column < width; ++column) places.insert(sum_index(row, column, width));
    }
    EXPECT_EQ(places.size(), static_cast<std::size_t>(48 * width));
    EXPECT_EQ(*places.rbegin(), 48 * width - 1);
  }
}

}  // namespace
}  // namespace stepwell::cuda
