// Rows of every sample in every packing, and that each row of a tensor is either some sample's
// valid token or reported as unused, once.
#include "geometry/layout.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "core/problem.hpp"
#include "support/random.hpp"

namespace stepwell::testing {
namespace {

using geometry::Half;
using geometry::Layout;
using geometry::Packing;
using geometry::Sample;
using geometry::sample_at;

Layout joint(int views, int batch, int rows, bool clean_first = false) {
  Layout layout;
  layout.mask.num_views = views;
  layout.packing = Packing::kJoint;
  layout.clean_first = clean_first;
  layout.batch = batch;
  layout.joint_rows = rows;
  return layout;
}

TEST(Layout, Batched) {
  for (const bool clean_first : {false, true}) {
    const Layout layout = joint(1, 3, 14, clean_first);
    for (int i = 0; i < 3; ++i) {
      const Sample sample = sample_at(layout, i);
      EXPECT_EQ(sample.batch_index, i);
      EXPECT_EQ(sample.noisy.first, clean_first ? 7 : 0);
      EXPECT_EQ(sample.clean_q.first, clean_first ? 0 : 7);
      EXPECT_EQ(sample.clean_kv.first, clean_first ? 0 : 7);
      EXPECT_EQ(sample.noisy.count, 7);
      EXPECT_EQ(sample.clean_kv.count, 7);
      EXPECT_EQ(sample.mask.noisy_len, 7);
      EXPECT_EQ(sample.mask.clean_q_len, 7);
      EXPECT_EQ(sample.mask.clean_kv_len, 7);
    }
  }
}

TEST(Layout, BatchedViews) {
  const Sample first = sample_at(joint(3, 2, 20), 1);
  EXPECT_EQ(first.noisy.first, 0);
  EXPECT_EQ(first.view_stride, 5);
  EXPECT_EQ(first.clean_q.first, 15);
  const Sample second = sample_at(joint(3, 2, 20, true), 1);
  EXPECT_EQ(second.noisy.first, 5);
  EXPECT_EQ(second.view_stride, 5);
  EXPECT_EQ(second.clean_q.first, 0);
}

TEST(Layout, Interleaved) {
  const int cu_seqlens[] = {0, 14, 14, 24};
  Layout layout = joint(1, 3, 30);
  layout.cu_noisy = cu_seqlens;
  const Sample last = sample_at(layout, 2);
  EXPECT_EQ(last.batch_index, 0);
  EXPECT_EQ(last.noisy.first, 14);
  EXPECT_EQ(last.clean_kv.first, 19);
  EXPECT_EQ(last.noisy.count, 5);
  EXPECT_EQ(sample_at(layout, 1).noisy.count, 0);
  layout.clean_first = true;
  EXPECT_EQ(sample_at(layout, 2).noisy.first, 19);
  EXPECT_EQ(sample_at(layout, 2).clean_kv.first, 14);
}

TEST(Layout, InterleavedViews) {
  const int cu_seqlens[] = {0, 12, 21};
  Layout layout = joint(2, 2, 21);
  layout.cu_noisy = cu_seqlens;
  const Sample last = sample_at(layout, 1);
  EXPECT_EQ(last.noisy.first, 12);
  EXPECT_EQ(last.view_stride, 3);
  EXPECT_EQ(last.clean_q.first, 18);
}

// The clean half starts at total / 2, tail included.
TEST(Layout, Halves) {
  const int cu_seqlens[] = {0, 7, 12, 18};
  Layout layout = joint(1, 3, 2 * 20);
  layout.packing = Packing::kJointHalves;
  layout.cu_noisy = cu_seqlens;
  const Sample middle = sample_at(layout, 1);
  EXPECT_EQ(middle.noisy.first, 7);
  EXPECT_EQ(middle.noisy.count, 5);
  EXPECT_EQ(middle.clean_q.first, 27);
  layout.clean_first = true;
  EXPECT_EQ(sample_at(layout, 1).noisy.first, 27);
  EXPECT_EQ(sample_at(layout, 1).clean_q.first, 7);
}

TEST(Layout, HalvesViews) {
  const int cu_seqlens[] = {0, 4, 9};
  Layout layout = joint(2, 2, 3 * 10);
  layout.packing = Packing::kJointHalves;
  layout.cu_noisy = cu_seqlens;
  const Sample last = sample_at(layout, 1);
  EXPECT_EQ(last.noisy.first, 4);
  EXPECT_EQ(last.view_stride, 10);
  EXPECT_EQ(last.clean_kv.first, 24);
}

TEST(Layout, Split) {
  Layout layout;
  layout.packing = Packing::kSplit;
  layout.batch = 2;
  layout.mask.num_views = 2;
  layout.noisy_rows = 10;
  layout.clean_q_rows = 4;
  layout.clean_kv_rows = 9;
  const Sample batched = sample_at(layout, 1);
  EXPECT_EQ(batched.batch_index, 1);
  EXPECT_EQ(batched.noisy.count, 5);
  EXPECT_EQ(batched.view_stride, 5);
  EXPECT_EQ(batched.clean_q.count, 4);
  EXPECT_EQ(batched.clean_kv.count, 9);

  const int noisy[] = {0, 4, 10};
  const int clean_q[] = {0, 1, 4};
  const int clean_kv[] = {0, 3, 9};
  layout.cu_noisy = noisy;
  layout.cu_clean_q = clean_q;
  layout.cu_clean_kv = clean_kv;
  const Sample packed = sample_at(layout, 1);
  EXPECT_EQ(packed.batch_index, 0);
  EXPECT_EQ(packed.noisy.first, 4);
  EXPECT_EQ(packed.noisy.count, 3);
  EXPECT_EQ(packed.clean_q.first, 1);
  EXPECT_EQ(packed.clean_q.count, 3);
  EXPECT_EQ(packed.clean_kv.first, 3);
  EXPECT_EQ(packed.clean_kv.count, 6);

  layout.cu_clean_q = nullptr;
  EXPECT_EQ(sample_at(layout, 1).clean_q.count, 0);
}

TEST(Layout, Sequence) {
  Layout layout;
  layout.packing = Packing::kSplit;
  layout.batch = 2;
  layout.clean_q_rows = 5;
  layout.clean_kv_rows = 8;
  layout.mask.clean_q_position = 3;
  const Sample sample = sample_at(layout, 0);
  EXPECT_EQ(sample.noisy.count, 0);
  EXPECT_EQ(sample.mask.noisy_len, 0);
  EXPECT_EQ(sample.mask.clean_q_len, 5);
  EXPECT_EQ(sample.mask.clean_kv_len, 8);
  EXPECT_EQ(sample.mask.clean_q_position, 3);
}

TEST(Layout, PerSampleValues) {
  const int origins[] = {6, 2};
  const int noisy_positions[] = {1, 4};
  const int q_positions[] = {0, 5};
  const int used_noisy[] = {3, 4};
  const int used_q[] = {2, 0};
  const int used_kv[] = {5, 1};
  const int table[] = {0, 1, 0, 2, 0, 3, 0, 4};
  Layout layout;
  layout.packing = Packing::kSplit;
  layout.batch = 2;
  layout.mask.num_views = 1;
  layout.noisy_rows = layout.clean_q_rows = layout.clean_kv_rows = 6;
  layout.origins = origins;
  layout.noisy_positions = noisy_positions;
  layout.clean_q_positions = q_positions;
  layout.seqused_noisy = used_noisy;
  layout.seqused_clean_q = used_q;
  layout.seqused_clean_kv = used_kv;
  layout.mask.block_ranges = table;
  layout.mask.num_block_ranges = 2;
  layout.block_ranges_stride = 2;
  const Sample sample = sample_at(layout, 1);
  EXPECT_EQ(sample.mask.origin, 2);
  EXPECT_EQ(sample.mask.noisy_position, 4);
  EXPECT_EQ(sample.mask.clean_q_position, 5);
  EXPECT_EQ(sample.mask.noisy_len, 4);
  EXPECT_EQ(sample.mask.clean_q_len, 0);
  EXPECT_EQ(sample.mask.clean_kv_len, 1);
  EXPECT_EQ(sample.mask.block_ranges, table + 4);
  layout.block_ranges_stride = 0;
  EXPECT_EQ(sample_at(layout, 1).mask.block_ranges, table);
}

// Values that live on a GPU are not checked by the host: none of them may lead outside a tensor.
TEST(Layout, BadArraysStayInside) {
  constexpr int kHuge = std::numeric_limits<int>::max();
  constexpr int kLow = std::numeric_limits<int>::min();
  Random random(5);
  for (int round = 0; round < 20000; ++round) {
    const auto value = [&random]() {
      return random.chance(0.2) ? random.pick({kHuge, kLow, -1, 0})
                                : static_cast<int>(random.between(-10, 60));
    };
    int arrays[9][3];
    for (auto& array : arrays) {
      for (int& entry : array) entry = value();
    }
    Layout layout = joint(static_cast<int>(random.between(1, 3)), 2,
                          static_cast<int>(random.between(0, 50)), random.chance(0.5));
    layout.packing = random.pick({Packing::kJoint, Packing::kJointHalves, Packing::kSplit});
    layout.noisy_rows = random.between(0, 50);
    layout.clean_q_rows = random.between(0, 50);
    layout.clean_kv_rows = random.between(0, 50);
    layout.cu_noisy = arrays[0];
    layout.cu_clean_q = arrays[1];
    layout.cu_clean_kv = arrays[2];
    layout.origins = arrays[3];
    layout.noisy_positions = arrays[4];
    layout.clean_q_positions = arrays[5];
    layout.seqused_noisy = arrays[6];
    layout.seqused_clean_q = arrays[7];
    layout.seqused_clean_kv = arrays[8];
    for (int i = 0; i < 2; ++i) {
      const Sample sample = sample_at(layout, i);
      const bool split = layout.packing == Packing::kSplit;
      const auto inside = [](geometry::SegmentRows rows, std::int64_t views, std::int64_t stride,
                             std::int64_t total) {
        const std::int64_t end =
            rows.first + (views - 1) * stride + static_cast<std::int64_t>(rows.count);
        return rows.count >= 0 && rows.first >= 0 && (rows.count == 0 || end <= total);
      };
      ASSERT_TRUE(inside(sample.noisy, layout.mask.num_views, sample.view_stride,
                         split ? layout.noisy_rows : layout.joint_rows));
      ASSERT_TRUE(inside(sample.clean_q, 1, 0, split ? layout.clean_q_rows : layout.joint_rows));
      ASSERT_TRUE(inside(sample.clean_kv, 1, 0, split ? layout.clean_kv_rows : layout.joint_rows));
      ASSERT_TRUE(0 <= sample.mask.noisy_len && sample.mask.noisy_len <= sample.noisy.count);
      ASSERT_TRUE(0 <= sample.mask.clean_q_len && sample.mask.clean_q_len <= sample.clean_q.count);
      ASSERT_TRUE(0 <= sample.mask.clean_kv_len &&
                  sample.mask.clean_kv_len <= sample.clean_kv.count);
      for (const int position :
           {sample.mask.origin, sample.mask.noisy_position, sample.mask.clean_q_position})
        ASSERT_TRUE(0 <= position && position <= geometry::kMaxLength);
    }
  }
}

/// Counts how often each row of the layout's tensors is claimed.
class Coverage {
 public:
  Coverage(const Layout& layout, bool keys) : layout_(layout), keys_(keys) {
    const bool split = layout.packing == Packing::kSplit;
    for (int batch = 0; batch < (layout.packed() ? 1 : layout.batch); ++batch) {
      if (!split) {
        expect(Half::kNoisy, batch, layout.joint_rows);
      } else {
        expect(Half::kNoisy, batch, layout.mask.num_views > 0 ? layout.noisy_rows : 0);
        expect(Half::kClean, batch, keys ? layout.clean_kv_rows : layout.clean_q_rows);
      }
    }
    for (int i = 0; i < layout.batch; ++i) {
      const Sample sample = sample_at(layout, i);
      for (int view = 0; view < layout.mask.num_views; ++view) {
        claim(Half::kNoisy, sample.batch_index, sample.noisy.first + view * sample.view_stride,
              sample.mask.noisy_len);
      }
      claim(Half::kClean, sample.batch_index, keys ? sample.clean_kv.first : sample.clean_q.first,
            keys ? sample.mask.clean_kv_len : sample.mask.clean_q_len);
    }
    for_each_unused_run(layout, keys,
                        [this](Half half, int batch, std::int64_t first, std::int64_t count) {
                          claim(half, batch, first, count);
                        });
  }

  void expect_every_row_once() const {
    for (const auto& [row, claims] : claims_) {
      ASSERT_EQ(claims, 1) << "half " << std::get<0>(row) << " batch " << std::get<1>(row)
                           << " row " << std::get<2>(row) << (keys_ ? " of keys" : " of queries");
    }
  }

 private:
  using Row = std::tuple<int, int, std::int64_t>;

  // Joint layouts hold both halves in one tensor.
  Row row_of(Half half, int batch, std::int64_t row) const {
    const bool one_tensor = layout_.packing != Packing::kSplit;
    return {one_tensor ? 0 : static_cast<int>(half), batch, row};
  }
  void expect(Half half, int batch, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) claims_[row_of(half, batch, row)] = 0;
  }
  void claim(Half half, int batch, std::int64_t first, std::int64_t count) {
    for (std::int64_t row = first; row < first + count; ++row)
      claims_[row_of(half, batch, row)] += 1;
  }

  const Layout& layout_;
  bool keys_;
  std::map<Row, int> claims_;
};

std::vector<int> random_cu_seqlens(Random& random, int batch, int step) {
  std::vector<int> cu_seqlens = {0};
  for (int i = 0; i < batch; ++i) {
    const auto len = random.chance(0.3) ? 0 : static_cast<int>(random.between(1, 6));
    cu_seqlens.push_back(cu_seqlens.back() + len * step);
  }
  return cu_seqlens;
}

TEST(Layout, EveryRowIsValidOrUnused) {
  Random random(6);
  for (int round = 0; round < 6000; ++round) {
    const auto batch = static_cast<int>(random.between(0, 4));
    const auto views = static_cast<int>(random.between(1, 3));
    Layout layout = joint(views, batch, 0, random.chance(0.5));
    layout.packing = random.pick({Packing::kJoint, Packing::kJointHalves, Packing::kSplit});
    const bool split = layout.packing == Packing::kSplit;
    if (split && random.chance(0.3)) layout.mask.num_views = 0;  // a single sequence
    const bool packed = layout.packing == Packing::kJointHalves || random.chance(0.5);
    const std::int64_t tail = random.chance(0.5) ? random.between(1, 5) : 0;

    const int step = layout.packing == Packing::kJoint ? views + 1 : split ? views : 1;
    const std::vector<int> noisy = random_cu_seqlens(random, batch, step);
    const std::vector<int> clean_q = random_cu_seqlens(random, batch, 1);
    const std::vector<int> clean_kv = random_cu_seqlens(random, batch, 1);
    const bool clean_queries = random.chance(0.7);
    if (packed) {
      if (layout.mask.num_views > 0) layout.cu_noisy = noisy.data();
      if (split) {
        if (clean_queries) layout.cu_clean_q = clean_q.data();
        layout.cu_clean_kv = clean_kv.data();
      }
      layout.joint_rows = layout.packing == Packing::kJoint ? noisy.back() + tail
                                                            : (noisy.back() + tail) * (views + 1);
      layout.noisy_rows = noisy.back() + tail;
      layout.clean_q_rows = clean_queries ? clean_q.back() + tail : 0;
      layout.clean_kv_rows = clean_kv.back() + tail;
    } else {
      layout.joint_rows = random.between(0, 6) * (views + 1);
      layout.noisy_rows = random.between(0, 6) * views;
      layout.clean_q_rows = clean_queries ? random.between(0, 6) : 0;
      layout.clean_kv_rows = random.between(0, 6);
    }
    std::vector<int> used(batch);
    for (int& count : used) count = static_cast<int>(random.between(0, 8));
    if (random.chance(0.5)) {
      layout.seqused_noisy = used.data();
      // Joint halves hold the same tokens; split ones have lengths of their own.
      if (!split || random.chance(0.5)) {
        layout.seqused_clean_q = used.data();
        layout.seqused_clean_kv = used.data();
      }
    }
    for (const bool keys : {false, true}) Coverage(layout, keys).expect_every_row_once();
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
}

}  // namespace
}  // namespace stepwell::testing
