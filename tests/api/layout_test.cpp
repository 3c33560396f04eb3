// Layouts, lengths and positions reach the mask as documented; empty problems are problems.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "api/call.hpp"

namespace stepwell::testing {
namespace {

using Kind = SequenceMask::Kind;

std::int64_t count(const std::vector<unsigned char>& mask) {
  return std::accumulate(mask.begin(), mask.end(), std::int64_t{0});
}

TEST(ApiMask, VisiblePairsAgree) {
  const auto check = [](const AttentionArgs& args, std::size_t elements, std::int64_t pairs) {
    EXPECT_EQ(visible_pairs(args), pairs);
    EXPECT_EQ(count(mask_of(args, elements)), pairs);
  };
  check(batched_call().args, 2 * 32 * 32, 2 * 320);
  check(interleaved_call().args, 26 * 26, 74 + 42);  // 7 and 5 tokens in blocks of 4
  check(halves_call().args, 26 * 26, 74 + 42);
  check(sequence_call(Kind::kFull).args, 2 * 6 * 10, 2 * 60);
  check(sequence_call(Kind::kCausal).args, 2 * 6 * 10, 2 * (5 + 6 + 7 + 8 + 9 + 10));
  check(sequence_call(Kind::kWindow).args, 2 * 6 * 10, 2 * 60);
  check(sequence_call(Kind::kBlockCausal).args, 2 * 6 * 10, 2 * (4 * 8 + 2 * 10));
  check(sequence_packed_call(Kind::kFull).args, 8 * 12, 3 * 7 + 5 * 5);
}

/// The clean half is the last one in both, so interleaved rows are a permutation of halves' rows.
TEST(ApiMask, InterleavedIsAPermutationOfHalves) {
  const std::vector<unsigned char> interleaved = mask_of(interleaved_call().args, 26 * 26);
  const std::vector<unsigned char> halves = mask_of(halves_call().args, 26 * 26);
  std::vector<int> place;  // of each interleaved row among the halves' rows
  for (int i = 0; i < 7; ++i) place.push_back(i);
  for (int i = 0; i < 7; ++i) place.push_back(13 + i);
  for (int i = 7; i < 12; ++i) place.push_back(i);
  for (int i = 7; i < 12; ++i) place.push_back(13 + i);
  for (int i : {12, 25}) place.push_back(i);
  for (int r = 0; r < 26; ++r) {
    for (int c = 0; c < 26; ++c) {
      EXPECT_EQ(interleaved[r * 26 + c], halves[place[r] * 26 + place[c]]) << r << ", " << c;
    }
  }
}

TEST(ApiMask, SplitRowsAreNoisyThenClean) {
  Call call = split_call();
  call.args.noisy_offset = 4;
  const int rows = 12 + 16;
  const std::vector<unsigned char> mask = mask_of(call.args, 2 * rows * rows);
  for (int batch = 0; batch < 2; ++batch) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < rows; ++c) {
        const bool noisy_row = r < 12;
        const bool noisy_key = c < 12;
        const int row_block = (noisy_row ? r + 4 : r - 12) / 4;
        const int key_block = (noisy_key ? c + 4 : c - 12) / 4;
        const bool visible = noisy_row
                                 ? (noisy_key ? key_block == row_block : key_block < row_block)
                                 : !noisy_key && key_block <= row_block;
        EXPECT_EQ(mask[(batch * rows + r) * rows + c], visible) << r << ", " << c;
      }
    }
  }
  EXPECT_EQ(visible_pairs(call.args), count(mask));
}

TEST(ApiMask, OneSeqUsedSetsAllHalves) {
  Call call = batched_call();
  call.args.seqused = call.ints({7, 0});
  EXPECT_EQ(visible_pairs(call.args), 74);
  EXPECT_EQ(count(mask_of(call.args, 2 * 32 * 32)), 74);
}

/// Valid clean queries are those at positions below seqused_clean, wherever the queries start.
TEST(ApiMask, SeqUsedCleanCountsPositions) {
  Call call = split_call();
  std::get<DiffusionMask>(call.args.mask).clean = CleanAttention::kCausal;
  call.args.q_clean = call.floats({2, 6, 4, 16});
  call.args.seqused = call.ints({0, 0});
  call.args.seqused_clean = call.ints({9, 16});
  const auto clean_rows = [&] {
    const std::vector<unsigned char> mask = mask_of(call.args, 2 * 18 * 28);
    std::vector<int> seen;
    for (int r = 0; r < 36; ++r) {
      if (r % 18 >= 12) {
        seen.push_back(std::accumulate(mask.begin() + r * 28, mask.begin() + (r + 1) * 28, 0));
      }
    }
    return seen;
  };
  EXPECT_EQ(clean_rows(), (std::vector<int>{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}));
  call.args.q_offset = 6;
  EXPECT_EQ(clean_rows(), (std::vector<int>{7, 8, 9, 0, 0, 0, 7, 8, 9, 10, 11, 12}));
  call.args.q_offset = 0;
  call.args.q_offsets = call.ints({10, 12});
  EXPECT_EQ(clean_rows(), (std::vector<int>{0, 0, 0, 0, 0, 0, 13, 14, 15, 16, 0, 0}));
}

TEST(ApiMask, SequenceLengths) {
  Call call = sequence_call(Kind::kFull);
  call.args.seqused = call.ints({6, 2});
  call.args.seqused_kv = call.ints({3, 10});
  EXPECT_EQ(visible_pairs(call.args), 6 * 3 + 2 * 10);
  EXPECT_EQ(count(mask_of(call.args, 2 * 6 * 10)), 6 * 3 + 2 * 10);
}

TEST(ApiMask, TableEntriesOfUnusedBlocksAreNotRead) {
  Call call = split_call();
  call.args.q_clean = {};
  call.args.block_ranges =
      call.ints({2, 3, 2}, {0, 2, 5, 9, 0, 16, /*sample 1*/ 1, 4, -7, 99, 1000, -1});
  call.args.seqused = call.ints({12, 4});
  const std::int64_t own = 3 * 16 + 16;
  EXPECT_EQ(visible_pairs(call.args), own + 4 * (2 + 4 + 16) + 4 * 3);
}

TEST(ApiMask, WideWindowsHaveNoBound) {
  Call call = sequence_call(Kind::kWindow);
  auto& mask = std::get<SequenceMask>(call.args.mask);
  mask.window_left = std::int64_t{1} << 40;
  mask.window_right = 0;
  EXPECT_EQ(visible_pairs(call.args), 2 * (5 + 6 + 7 + 8 + 9 + 10));
  call.args.q_offset = std::int64_t{1} << 28;
  EXPECT_EQ(visible_pairs(call.args), 2 * 60);
}

/// A full mask of 2^28 rows and as many keys, whose rows share memory; no element is read.
Call vast_call(std::int64_t batch) {
  Call call = sequence_call(Kind::kFull);
  for (Tensor* tensor : {&call.args.q, &call.args.k, &call.args.v}) {
    tensor->shape = {batch, std::int64_t{1} << 28, 1, 16};
    tensor->stride = {0, 0, 0, 1};
  }
  return call;
}

void expect_refused(const std::function<void()>& call, const char* word) {
  try {
    call();
    ADD_FAILURE() << "no error that says " << word;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(ApiMask, CountsPast64BitsAreRefused) {
  EXPECT_EQ(visible_pairs(vast_call(1).args), std::int64_t{1} << 56);
  EXPECT_EQ(visible_pairs(vast_call(127).args), std::int64_t{127} << 56);
  for (const std::int64_t batch : {128, 256, 1000}) {
    const Call call = vast_call(batch);
    expect_refused([&] { visible_pairs(call.args); }, "q has batch size");
    unsigned char byte = 0;
    expect_refused([&] { attention_mask(call.args, &byte, 1); }, "visible has 1 bytes");
  }
}

TEST(ApiEmpty, BatchOfNone) {
  Call call;
  call.args.mask = DiffusionMask{.block_size = 4};
  call.args.q = call.floats({0, 32, 4, 16});
  call.args.k = call.floats({0, 32, 2, 16});
  call.args.v = call.floats({0, 32, 2, 16});
  call.args.seqused = call.ints({});
  call.make_outputs();
  call.backward();
  EXPECT_EQ(visible_pairs(call.args), 0);
}

TEST(ApiEmpty, NoRows) {
  Call call;
  call.args.mask = DiffusionMask{.block_size = 4};
  call.args.layout = TokenLayout::kInterleaved;
  for (Tensor* tensor : {&call.args.q, &call.args.k, &call.args.v}) {
    *tensor = Tensor::contiguous(nullptr, DType::kFloat32, {0, 2, 16});
  }
  call.args.cu_seqlens = call.ints({0});
  call.make_outputs();
  call.backward();
  call.args.cu_seqlens = call.ints({0, 0, 0});
  call.backward();
  EXPECT_EQ(visible_pairs(call.args), 0);
}

void expect_all(const Tensor& tensor, float value) {
  const auto* values = static_cast<const float*>(tensor.data);
  for (std::int64_t i = 0; i < tensor.size(); ++i) ASSERT_EQ(values[i], value) << i;
}

TEST(ApiEmpty, NoKeys) {
  Call call = sequence_call(Kind::kFull);
  call.args.k = call.floats({2, 0, 2, 16});
  call.args.v = call.floats({2, 0, 2, 16});
  call.make_outputs();
  call.backward();
  expect_all(call.outputs.out, 0.0f);
  expect_all(call.outputs.lse, -std::numeric_limits<float>::infinity());
  expect_all(call.gradients.dq, 0.0f);
}

TEST(ApiEmpty, NoQueries) {
  Call call = sequence_call(Kind::kFull);
  call.args.q = call.floats({2, 0, 4, 16});
  call.make_outputs();
  call.backward();
  expect_all(call.gradients.dk, 0.0f);
  expect_all(call.gradients.dv, 0.0f);
}

TEST(ApiEmpty, NoNoisyRows) {
  Call call = split_call();
  call.args.q = call.floats({2, 0, 4, 16});
  call.args.k = call.floats({2, 0, 2, 16});
  call.args.v = call.floats({2, 0, 2, 16});
  call.make_outputs();
  call.backward();
  EXPECT_EQ(visible_pairs(call.args), 2 * 4 * (4 + 8 + 12 + 16));
  for (std::int64_t i = 0; i < call.outputs.out_clean.size(); ++i) {
    ASSERT_TRUE(std::isfinite(static_cast<const float*>(call.outputs.out_clean.data)[i]));
  }
}

}  // namespace
}  // namespace stepwell::testing
