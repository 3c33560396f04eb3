// Every argument that is not accepted raises an error that names it, before anything is written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "api/call.hpp"
#include "geometry/interval.hpp"

namespace stepwell::testing {
namespace {

using Kind = SequenceMask::Kind;
using geometry::kMaxLength;

struct BadInput {
  const char* name;
  std::function<Call()> make;
  std::function<void(Call&)> spoil;
  ErrorKind kind;
  std::vector<std::string> words;  // what the message must say
};

DiffusionMask& diffusion(Call& call) { return std::get<DiffusionMask>(call.args.mask); }
SequenceMask& sequence(Call& call) { return std::get<SequenceMask>(call.args.mask); }

Call causal_call() { return sequence_call(Kind::kCausal); }
Call full_call() { return sequence_call(Kind::kFull); }
Call window_call() { return sequence_call(Kind::kWindow); }
Call block_causal_call() { return sequence_call(Kind::kBlockCausal); }
Call causal_packed_call() { return sequence_packed_call(Kind::kCausal); }

Call split_without_queries() {
  Call call = split_call();
  call.args.q_clean = {};
  call.outputs.out_clean = {};
  call.outputs.lse_clean = {};
  call.gradients.out_clean = {};
  call.gradients.lse_clean = {};
  call.gradients.dout_clean = {};
  call.gradients.dq_clean = {};
  return call;
}

/// Three blocks of noisy rows see all clean rows.
Call table_call() {
  Call call = split_without_queries();
  call.args.block_ranges = call.ints({3, 2}, {0, 16, 0, 16, 0, 16});
  return call;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr ErrorKind kValue = ErrorKind::kValue;
constexpr ErrorKind kType = ErrorKind::kType;

std::vector<BadInput> mask_cases() {
  return {
      {"block size not set",
       batched_call,
       [](Call& c) { diffusion(c) = {}; },
       kValue,
       {"block_size is 0", "[1, "}},
      {"block size negative",
       batched_call,
       [](Call& c) { diffusion(c).block_size = -4; },
       kValue,
       {"block_size is -4", "[1, "}},
      {"block size too large",
       batched_call,
       [](Call& c) { diffusion(c).block_size = std::int64_t{kMaxLength} + 1; },
       kValue,
       {"block_size is 268435457", "268435456]"}},
      {"clean window negative",
       batched_call,
       [](Call& c) { diffusion(c).clean_window = -1; },
       kValue,
       {"clean_window is -1"}},
      {"no views",
       batched_call,
       [](Call& c) { diffusion(c).num_views = 0; },
       kValue,
       {"num_views is 0"}},
      {"order with separate tensors",
       split_call,
       [](Call& c) { diffusion(c).order = Order::kCleanNoisy; },
       kValue,
       {"order"}},
      {"diffusion mask of one sequence",
       full_call,
       [](Call& c) { c.args.mask = DiffusionMask{.block_size = 4}; },
       kValue,
       {"mask", "sequence", "batched"}},
      {"sequence mask of two halves",
       batched_call,
       [](Call& c) { c.args.mask = SequenceMask{.kind = Kind::kCausal}; },
       kValue,
       {"mask is causal", "batched"}},
      {"block size of a causal mask",
       causal_call,
       [](Call& c) { sequence(c).block_size = 4; },
       kValue,
       {"block_size is 4", "causal"}},
      {"block-causal without block size",
       block_causal_call,
       [](Call& c) { sequence(c).block_size = 0; },
       kValue,
       {"block_size is 0"}},
      {"window negative",
       window_call,
       [](Call& c) { sequence(c).window_left = -2; },
       kValue,
       {"window_left is -2"}},
      {"window of a full mask",
       full_call,
       [](Call& c) { sequence(c).window_right = 3; },
       kValue,
       {"window_right is 3", "full"}},
      {"no layout",
       batched_call,
       [](Call& c) { c.args.layout = static_cast<TokenLayout>(99); },
       kValue,
       {"layout is 99", "kBatched, "}},
      {"layout negative",
       batched_call,
       [](Call& c) { c.args.layout = static_cast<TokenLayout>(-1); },
       kValue,
       {"layout is -1"}},
      {"no order",
       batched_call,
       [](Call& c) { diffusion(c).order = static_cast<Order>(9); },
       kValue,
       {"order is 9", "kNoisyClean, kCleanNoisy"}},
      {"no clean rule",
       batched_call,
       [](Call& c) { diffusion(c).clean = static_cast<CleanAttention>(2); },
       kValue,
       {"clean is 2", "kBlock, kCausal"}},
      {"no noisy rule",
       split_call,
       [](Call& c) { diffusion(c).noisy = static_cast<NoisyAttention>(-7); },
       kValue,
       {"noisy is -7", "kBidirectional, kCausal"}},
      {"no kind",
       causal_call,
       [](Call& c) { sequence(c).kind = static_cast<Kind>(77); },
       kValue,
       {"mask.kind is 77", "kBlockCausal"}},
  };
}

std::vector<BadInput> tensor_cases() {
  return {
      {"q missing", batched_call, [](Call& c) { c.args.q = {}; }, kValue, {"q is missing"}},
      {"v missing", batched_call, [](Call& c) { c.args.v = {}; }, kValue, {"v is missing"}},
      {"noisy k missing",
       split_call,
       [](Call& c) { c.args.k = {}; },
       kValue,
       {"k_noisy is missing"}},
      {"clean k missing",
       split_call,
       [](Call& c) { c.args.k_clean = {}; },
       kValue,
       {"k_clean is missing"}},
      {"clean tensor of a joint layout",
       batched_call,
       [](Call& c) { c.args.k_clean = c.args.k; },
       kValue,
       {"k_clean is given", "split"}},
      {"packed tensor of a batched layout",
       batched_call,
       [](Call& c) {
         c.args.q = c.floats({32, 4, 16});
       },
       kType,
       {"q has rank 3", "batch"}},
      {"batched tensor of a packed layout",
       interleaved_call,
       [](Call& c) {
         c.args.q = c.floats({2, 32, 4, 16});
       },
       kType,
       {"q has rank 4", "total"}},
      {"rank of q",
       full_call,
       [](Call& c) {
         c.args.q = c.floats({6, 16});
       },
       kType,
       {"q has rank 2"}},
      {"rank of k",
       full_call,
       [](Call& c) {
         c.args.k = c.floats({10, 2, 16});
       },
       kType,
       {"k has rank 3", "q has rank 4"}},
      {"integers",
       batched_call,
       [](Call& c) { c.args.q.dtype = DType::kInt32; },
       kType,
       {"q is int32", "float32, float16 or bfloat16"}},
      {"no dtype",
       batched_call,
       [](Call& c) { c.args.q.dtype = static_cast<DType>(42); },
       kType,
       {"q is of another dtype", "float32, float16 or bfloat16"}},
      {"dtypes differ",
       batched_call,
       [](Call& c) {
         c.args.v = c.floats({2, 32, 2, 16}, DType::kBFloat16);
       },
       kType,
       {"v is bfloat16", "q is float32"}},
      {"devices differ",
       batched_call,
       [](Call& c) {
         c.args.k.device = {DeviceType::kCuda, 1};
       },
       kType,
       {"k is on cuda:1", "q is on cpu"}},
      {"unknown device",
       batched_call,
       [](Call& c) {
         c.args.q.device = {DeviceType::kOther, 0};
       },
       kType,
       {"q is on", "cuda"}},
      {"no device",
       batched_call,
       [](Call& c) { c.args.q.device.type = static_cast<DeviceType>(42); },
       kType,
       {"q is on another device", "cuda"}},
      {"batch times heads past 64 bits",
       batched_call,
       [](Call& c) {
         for (Tensor* tensor : {&c.args.q, &c.args.k, &c.args.v}) {
           tensor->shape[0] = tensor->shape[2] = std::int64_t{1} << 32;
           tensor->stride[0] = tensor->stride[2] = 0;
         }
       },
       kValue,
       {"batch size 4294967296 times 4294967296 heads"}},
      {"batch sizes differ",
       batched_call,
       [](Call& c) {
         c.args.k = c.floats({3, 32, 2, 16});
       },
       kValue,
       {"k has batch size 3", "q has 2"}},
      {"rows of k",
       batched_call,
       [](Call& c) {
         c.args.k = c.floats({2, 30, 2, 16});
       },
       kValue,
       {"rows"}},
      {"rows of v",
       full_call,
       [](Call& c) {
         c.args.v = c.floats({2, 9, 2, 16});
       },
       kValue,
       {"v has rows 9", "k has 10"}},
      {"head dims differ",
       batched_call,
       [](Call& c) {
         c.args.k = c.floats({2, 32, 2, 24});
       },
       kValue,
       {"k has head dim 24", "q has 16"}},
      {"head dim not a multiple of 8",
       full_call,
       [](Call& c) {
         c.args.q = c.floats({2, 6, 4, 12});
         c.args.k = c.floats({2, 10, 2, 12});
       },
       kValue,
       {"q has head dim 12", "multiple of 8"}},
      {"head dim too large",
       full_call,
       [](Call& c) {
         c.args.q = c.floats({2, 6, 4, 264});
         c.args.k = c.floats({2, 10, 2, 264});
       },
       kValue,
       {"q has head dim 264", "256"}},
      {"head dim 0",
       full_call,
       [](Call& c) {
         c.args.q = c.floats({2, 6, 4, 0});
       },
       kValue,
       {"q has head dim 0"}},
      {"value dim",
       full_call,
       [](Call& c) {
         c.args.v = c.floats({2, 10, 2, 20});
       },
       kValue,
       {"v has head dim 20"}},
      {"heads not a multiple",
       full_call,
       [](Call& c) {
         c.args.k = c.floats({2, 10, 3, 16});
         c.args.v = c.floats({2, 10, 3, 16});
       },
       kValue,
       {"q has 4 heads", "k has 3", "multiple"}},
      {"no key heads",
       full_call,
       [](Call& c) {
         c.args.k = c.floats({2, 10, 0, 16});
         c.args.v = c.floats({2, 10, 0, 16});
       },
       kValue,
       {"k has 0"}},
      {"no query heads",
       full_call,
       [](Call& c) {
         c.args.q = c.floats({2, 6, 0, 16});
       },
       kValue,
       {"q has no heads"}},
      {"heads of v",
       full_call,
       [](Call& c) {
         c.args.v = c.floats({2, 10, 4, 16});
       },
       kValue,
       {"v has heads 4", "k has 2"}},
      {"last dimension not contiguous",
       batched_call,
       [](Call& c) { c.args.k.stride[3] = 2; },
       kValue,
       {"k has stride 2", "contiguous"}},
      {"last dimension expanded",
       batched_call,
       [](Call& c) { c.args.v.stride[3] = 0; },
       kValue,
       {"v has stride 0", "contiguous"}},
      {"negative extent",
       batched_call,
       [](Call& c) { c.args.q.shape[1] = -32; },
       kValue,
       {"q has shape [2, -32, 4, 16]", "negative"}},
      {"no memory",
       batched_call,
       [](Call& c) { c.args.k.data = nullptr; },
       kValue,
       {"k has shape [2, 32, 2, 16]", "null"}},
      {"address of a half element",
       batched_call,
       [](Call& c) { c.args.k.data = static_cast<char*>(c.args.k.data) + 2; },
       kValue,
       {"k starts at an address", "4 bytes"}},
      {"rows odd",
       batched_call,
       [](Call& c) {
         c.args.q = c.floats({2, 33, 4, 16});
         c.args.k = c.floats({2, 33, 2, 16});
         c.args.v = c.floats({2, 33, 2, 16});
       },
       kValue,
       {"q has 33 rows", "num_views = 1", "multiple of 2"}},
      {"rows of two views",
       batched_call,
       [](Call& c) { diffusion(c).num_views = 2; },
       kValue,
       {"q has 32 rows", "num_views = 2", "multiple of 3"}},
      {"rows of noisy views",
       split_call,
       [](Call& c) { diffusion(c).num_views = 5; },
       kValue,
       {"q_noisy has 12 rows", "num_views = 5"}},
      {"rows of halves",
       halves_call,
       [](Call& c) { diffusion(c).num_views = 2; },
       kValue,
       {"q has 26 rows", "num_views = 2", "multiple of 3"}},
      {"rows of noisy q and k",
       split_call,
       [](Call& c) {
         c.args.q = c.floats({2, 8, 4, 16});
       },
       kValue,
       {"k_noisy has rows 12", "q_noisy has 8"}},
      {"clean batch",
       split_call,
       [](Call& c) {
         c.args.k_clean = c.floats({1, 16, 2, 16});
       },
       kValue,
       {"k_clean has batch size 1"}},
      {"clean heads",
       split_call,
       [](Call& c) {
         c.args.q_clean = c.floats({2, 16, 2, 16});
       },
       kValue,
       {"q_clean has heads 2", "q_noisy has 4"}},
      {"clean head dim",
       split_call,
       [](Call& c) {
         c.args.v_clean = c.floats({2, 16, 2, 8});
       },
       kValue,
       {"v_clean has head dim 8", "v_noisy has 16"}},
      {"clean rows",
       split_call,
       [](Call& c) {
         c.args.v_clean = c.floats({2, 15, 2, 16});
       },
       kValue,
       {"v_clean has rows 15", "k_clean has 16"}},
  };
}

std::vector<BadInput> array_cases() {
  return {
      {"cu_seqlens missing",
       interleaved_call,
       [](Call& c) { c.args.cu_seqlens = {}; },
       kValue,
       {"cu_seqlens is missing"}},
      {"cu_seqlens_clean missing",
       split_packed_call,
       [](Call& c) { c.args.cu_seqlens_clean = {}; },
       kValue,
       {"cu_seqlens_clean is missing"}},
      {"cu_seqlens of batched tensors",
       batched_call,
       [](Call& c) {
         c.args.cu_seqlens = c.ints({0, 32});
       },
       kValue,
       {"cu_seqlens is given", "batched"}},
      {"cu_seqlens of int64",
       interleaved_call,
       [](Call& c) {
         c.args.cu_seqlens = c.longs({0, 14, 14, 24});
       },
       kType,
       {"cu_seqlens is int64", "int32"}},
      {"cu_seqlens rank",
       interleaved_call,
       [](Call& c) {
         c.args.cu_seqlens = c.ints({1, 4}, {0, 14, 14, 24});
       },
       kType,
       {"cu_seqlens has rank 2", "[batch + 1]"}},
      {"cu_seqlens rank past the largest",
       interleaved_call,
       [](Call& c) { c.args.cu_seqlens.rank = 9; },
       kType,
       {"cu_seqlens has rank 9", "[batch + 1]"}},
      {"cu_seqlens empty",
       interleaved_call,
       [](Call& c) { c.args.cu_seqlens = c.ints({}); },
       kValue,
       {"cu_seqlens has no elements"}},
      {"cu_seqlens strided",
       interleaved_call,
       [](Call& c) { c.args.cu_seqlens.stride[0] = 2; },
       kValue,
       {"cu_seqlens", "contiguous"}},
      {"cu_seqlens does not start at 0",
       interleaved_call,
       [](Call& c) {
         c.args.cu_seqlens = c.ints({2, 14, 14, 24});
       },
       kValue,
       {"cu_seqlens[0] is 2", "must be 0"}},
      {"cu_seqlens decreases",
       interleaved_call,
       [](Call& c) {
         c.args.cu_seqlens = c.ints({0, 14, 12, 24});
       },
       kValue,
       {"cu_seqlens[2] is 12", "cu_seqlens[1] is 14", "decrease"}},
      {"cu_seqlens past the tensor",
       interleaved_call,
       [](Call& c) {
         c.args.cu_seqlens = c.ints({0, 14, 14, 28});
       },
       kValue,
       {"cu_seqlens[3] is 28", "q has 26 rows"}},
      {"cu_seqlens past the half",
       halves_call,
       [](Call& c) {
         c.args.cu_seqlens = c.ints({0, 7, 7, 14});
       },
       kValue,
       {"cu_seqlens[3] is 14", "13 rows"}},
      {"packed length odd",
       interleaved_call,
       [](Call& c) {
         c.args.cu_seqlens = c.ints({0, 13, 13, 24});
       },
       kValue,
       {"cu_seqlens[1] - cu_seqlens[0] is 13", "num_views = 1", "multiple of 2"}},
      {"packed noisy length of two views",
       split_packed_call,
       [](Call& c) {
         diffusion(c).num_views = 2;
         c.args.cu_seqlens = c.ints({0, 7, 11});
       },
       kValue,
       {"cu_seqlens_noisy[1] - cu_seqlens_noisy[0] is 7", "multiple of 2"}},
      {"longer than max_seqlen",
       interleaved_call,
       [](Call& c) { c.args.max_seqlen = 6; },
       kValue,
       {"cu_seqlens gives sample 0", "7 tokens", "max_seqlen is 6"}},
      {"max_seqlen negative",
       interleaved_call,
       [](Call& c) { c.args.max_seqlen = -3; },
       kValue,
       {"max_seqlen is -3"}},
      {"max_seqlen of batched tensors",
       batched_call,
       [](Call& c) { c.args.max_seqlen = 16; },
       kValue,
       {"max_seqlen is 16", "batched"}},
      {"clean cu_seqlens of a joint layout",
       interleaved_call,
       [](Call& c) { c.args.cu_seqlens_clean = c.args.cu_seqlens; },
       kValue,
       {"cu_seqlens_clean is given", "split"}},
      {"key cu_seqlens of halves",
       interleaved_call,
       [](Call& c) { c.args.cu_seqlens_kv = c.args.cu_seqlens; },
       kValue,
       {"cu_seqlens_kv is given"}},
      {"batch of cu_seqlens_kv",
       causal_packed_call,
       [](Call& c) {
         c.args.cu_seqlens_kv = c.ints({0, 4, 7, 12});
       },
       kValue,
       {"cu_seqlens_kv has shape [4]", "[batch + 1]", "3"}},
      {"cu_seqlens_kv past the keys",
       causal_packed_call,
       [](Call& c) {
         c.args.cu_seqlens_kv = c.ints({0, 7, 13});
       },
       kValue,
       {"cu_seqlens_kv[2] is 13", "k has 12 rows"}},
      {"shared cu_seqlens past the keys",
       causal_packed_call,
       [](Call& c) {
         c.args.cu_seqlens_kv = {};
         c.args.cu_seqlens = c.ints({0, 3, 8});
         c.args.k = c.floats({7, 2, 16});
         c.args.v = c.floats({7, 2, 16});
         c.make_outputs();
       },
       kValue,
       {"cu_seqlens[2] is 8", "k has 7 rows"}},
      {"cu_seqlens_clean_q past the queries",
       split_packed_call,
       [](Call& c) {
         c.args.cu_seqlens_clean_q = c.ints({0, 8, 15});
       },
       kValue,
       {"cu_seqlens_clean_q[2] is 15", "q_clean has 14 rows"}},
      {"prefix_lens shape",
       batched_call,
       [](Call& c) {
         c.args.prefix_lens = c.ints({0, 1, 2});
       },
       kValue,
       {"prefix_lens has shape [3]", "[batch]", "2"}},
      {"prefix_lens dtype",
       batched_call,
       [](Call& c) { c.args.prefix_lens = c.floats({2}); },
       kType,
       {"prefix_lens is float32", "int32"}},
      {"prefix_lens device",
       batched_call,
       [](Call& c) {
         c.args.prefix_lens = c.ints({0, 0});
         c.args.prefix_lens.device = {DeviceType::kCuda, 0};
       },
       kType,
       {"prefix_lens is on cuda:0", "q is on cpu"}},
      {"prefix_lens negative",
       batched_call,
       [](Call& c) {
         c.args.prefix_lens = c.ints({0, -1});
       },
       kValue,
       {"prefix_lens[1] is -1"}},
      {"prefix_lens of a full mask",
       full_call,
       [](Call& c) {
         c.args.prefix_lens = c.ints({0, 0});
       },
       kValue,
       {"prefix_lens is given", "full"}},
      {"seqused negative",
       batched_call,
       [](Call& c) {
         c.args.seqused = c.ints({-1, 4});
       },
       kValue,
       {"seqused[0] is -1", "[0, 16]"}},
      {"seqused past the rows",
       batched_call,
       [](Call& c) {
         c.args.seqused = c.ints({16, 17});
       },
       kValue,
       {"seqused[1] is 17", "[0, 16]"}},
      {"seqused past the noisy rows",
       split_call,
       [](Call& c) {
         c.args.seqused = c.ints({12, 13});
       },
       kValue,
       {"seqused_noisy[1] is 13"}},
      {"seqused of packed samples",
       interleaved_call,
       [](Call& c) {
         c.args.seqused = c.ints({7, 1, 5});
       },
       kValue,
       {"seqused[1] is 1", "[0, 0]"}},
      {"seqused_clean past the rows",
       split_call,
       [](Call& c) {
         c.args.seqused_clean = c.ints({17, 0});
       },
       kValue,
       {"seqused_clean[0] is 17", "[0, 16]"}},
      {"seqused_clean of a joint layout",
       batched_call,
       [](Call& c) {
         c.args.seqused_clean = c.ints({1, 1});
       },
       kValue,
       {"seqused_clean is given", "split"}},
      {"seqused_kv of a split layout",
       split_call,
       [](Call& c) {
         c.args.seqused_kv = c.ints({1, 1});
       },
       kValue,
       {"seqused_kv is given"}},
      {"seqused_kv past the keys",
       causal_call,
       [](Call& c) {
         c.args.seqused_kv = c.ints({11, 1});
       },
       kValue,
       {"seqused_kv[0] is 11"}},
      {"noisy offset of a joint layout",
       batched_call,
       [](Call& c) { c.args.noisy_offset = 3; },
       kValue,
       {"noisy_offset is 3", "split"}},
      {"noisy offset negative",
       split_call,
       [](Call& c) { c.args.noisy_offset = -3; },
       kValue,
       {"noisy_offset is -3"}},
      {"noisy offsets negative",
       split_call,
       [](Call& c) {
         c.args.noisy_offsets = c.ints({2, -5});
       },
       kValue,
       {"noisy_offset[1] is -5"}},
      {"noisy offset twice",
       split_call,
       [](Call& c) {
         c.args.noisy_offset = 1;
         c.args.noisy_offsets = c.ints({1, 1});
       },
       kValue,
       {"noisy_offset", "number", "tensor"}},
      {"query offset of a joint layout",
       batched_call,
       [](Call& c) { c.args.q_offset = 3; },
       kValue,
       {"q_offset is 3"}},
      {"query offset too large",
       causal_call,
       [](Call& c) { c.args.q_offset = std::int64_t{kMaxLength} + 1; },
       kValue,
       {"q_offset is 268435457"}},
      {"query offset without clean queries",
       split_without_queries,
       [](Call& c) { c.args.q_offset = 2; },
       kValue,
       {"clean_q_offset is 2", "q_clean"}},
      {"query offsets without clean queries",
       split_without_queries,
       [](Call& c) {
         c.args.q_offsets = c.ints({2, 2});
       },
       kValue,
       {"clean_q_offset is given", "q_clean"}},
  };
}

std::vector<BadInput> table_cases() {
  return {
      {"table of a joint layout",
       batched_call,
       [](Call& c) {
         c.args.block_ranges = c.ints({4, 2}, std::vector<std::int32_t>(8));
       },
       kValue,
       {"block_ranges is given", "split"}},
      {"table shape",
       table_call,
       [](Call& c) {
         c.args.block_ranges = c.ints({2, 3}, std::vector<std::int32_t>(6));
       },
       kValue,
       {"block_ranges has shape [2, 3]", "[num_blocks, 2]"}},
      {"table rank",
       table_call,
       [](Call& c) {
         c.args.block_ranges = c.ints({0, 16, 0, 16, 0, 16});
       },
       kType,
       {"block_ranges has rank 1", "[num_blocks, 2]"}},
      {"table batch",
       table_call,
       [](Call& c) {
         c.args.block_ranges = c.ints({1, 3, 2}, std::vector<std::int32_t>(6));
       },
       kValue,
       {"block_ranges has shape [1, 3, 2]"}},
      {"table too short",
       table_call,
       [](Call& c) {
         c.args.block_ranges = c.ints({2, 2}, {0, 16, 0, 16});
       },
       kValue,
       {"block_ranges has 2 blocks", "12 noisy rows", "needs 3"}},
      {"table entry negative",
       table_call,
       [](Call& c) {
         c.args.block_ranges = c.ints({3, 2}, {0, 16, -1, 16, 0, 16});
       },
       kValue,
       {"block_ranges", "block 1", "[-1, 16)"}},
      {"table entry past the clean rows",
       table_call,
       [](Call& c) {
         c.args.block_ranges = c.ints({3, 2}, {0, 16, 0, 16, 3, 17});
       },
       kValue,
       {"block_ranges", "block 2", "[3, 17)", "16"}},
      {"table entry reversed",
       table_call,
       [](Call& c) {
         c.args.block_ranges = c.ints({3, 2}, {5, 4, 0, 16, 0, 16});
       },
       kValue,
       {"block_ranges", "block 0", "[5, 4)", "lo <= hi"}},
      {"table with a window",
       table_call,
       [](Call& c) { diffusion(c).clean_window = 3; },
       kValue,
       {"block_ranges", "clean_window = 3"}},
      {"table with views",
       table_call,
       [](Call& c) { diffusion(c).num_views = 2; },
       kValue,
       {"block_ranges", "num_views = 2"}},
      {"table with an origin",
       table_call,
       [](Call& c) {
         c.args.prefix_lens = c.ints({0, 0});
       },
       kValue,
       {"prefix_lens", "block_ranges"}},
  };
}

std::vector<BadInput> number_cases() {
  return {
      {"scale NaN",
       batched_call,
       [](Call& c) { c.args.softmax_scale = kNan; },
       kValue,
       {"softmax_scale is nan"}},
      {"scale infinite",
       batched_call,
       [](Call& c) { c.args.softmax_scale = kInfinity; },
       kValue,
       {"softmax_scale is inf"}},
      {"softcap negative",
       batched_call,
       [](Call& c) { c.args.softcap = -1.0; },
       kValue,
       {"softcap is -1"}},
      {"softcap NaN",
       batched_call,
       [](Call& c) { c.args.softcap = kNan; },
       kValue,
       {"softcap is nan"}},
      {"dropout 1",
       batched_call,
       [](Call& c) { c.args.dropout_p = 1.0; },
       kValue,
       {"dropout_p is 1", "[0, 1)"}},
      {"dropout negative",
       batched_call,
       [](Call& c) { c.args.dropout_p = -0.1; },
       kValue,
       {"dropout_p is -0.1", "[0, 1)"}},
      {"dropout NaN",
       batched_call,
       [](Call& c) { c.args.dropout_p = kNan; },
       kValue,
       {"dropout_p is nan", "[0, 1)"}},
      {"dropout state dtype",
       batched_call,
       [](Call& c) {
         c.args.dropout_state = c.ints({1, 2});
       },
       kType,
       {"dropout_seed is int32", "int64"}},
      {"dropout state shape",
       batched_call,
       [](Call& c) {
         c.args.dropout_state = c.longs({1, 2, 3});
       },
       kValue,
       {"dropout_seed has shape [3]", "[2]"}},
      {"dropout state twice",
       batched_call,
       [](Call& c) {
         c.args.dropout_state = c.longs({1, 2});
         c.args.dropout_seed = 3;
       },
       kValue,
       {"dropout_seed", "numbers (3, 0)", "tensor"}},
      {"threads negative",
       batched_call,
       [](Call& c) { c.args.num_threads = -1; },
       kValue,
       {"num_threads is -1"}},
  };
}

std::vector<BadInput> output_cases() {
  return {
      {"out missing",
       batched_call,
       [](Call& c) { c.outputs.out = {}; },
       kValue,
       {"out is missing", "[2, 32, 4, 16]"}},
      {"out shape",
       batched_call,
       [](Call& c) {
         c.outputs.out = c.written({2, 32, 4, 24});
       },
       kValue,
       {"out has shape [2, 32, 4, 24]", "[2, 32, 4, 16]"}},
      {"out rank",
       batched_call,
       [](Call& c) {
         c.outputs.out = c.written({2, 32, 64});
       },
       kType,
       {"out has shape [2, 32, 64]"}},
      {"out dtype",
       batched_call,
       [](Call& c) {
         c.outputs.out = c.floats({2, 32, 4, 16}, DType::kFloat16);
       },
       kType,
       {"out is float16", "q is float32"}},
      {"out expanded",
       batched_call,
       [](Call& c) { c.outputs.out.stride[0] = 0; },
       kValue,
       {"out is written", "share memory"}},
      {"out rows overlap",
       batched_call,
       [](Call& c) { c.outputs.out.stride[1] = 8; },
       kValue,
       {"out is written", "share memory"}},
      {"out not contiguous",
       batched_call,
       [](Call& c) { c.outputs.out.stride[3] = 2; },
       kValue,
       {"out has stride 2"}},
      {"lse dtype",
       batched_call,
       [](Call& c) {
         c.outputs.lse = c.floats({2, 4, 32}, DType::kFloat16);
       },
       kType,
       {"lse is float16", "float32"}},
      {"lse shape",
       batched_call,
       [](Call& c) {
         c.outputs.lse = c.written({2, 32, 4});
       },
       kValue,
       {"lse has shape [2, 32, 4]", "[2, 4, 32]"}},
      {"lse expanded",
       batched_call,
       [](Call& c) { c.outputs.lse.stride[1] = 0; },
       kValue,
       {"lse is written", "share memory"}},
      {"lse of packed rows",
       interleaved_call,
       [](Call& c) {
         c.outputs.lse = c.written({26, 4});
       },
       kValue,
       {"lse has shape [26, 4]", "[4, 26]"}},
      {"clean out of a joint layout",
       batched_call,
       [](Call& c) { c.outputs.out_clean = c.outputs.out; },
       kValue,
       {"out_clean is given"}},
      {"clean out missing",
       split_call,
       [](Call& c) { c.outputs.out_clean = {}; },
       kValue,
       {"out_clean is missing"}},
      {"noisy out missing",
       split_call,
       [](Call& c) { c.outputs.out = {}; },
       kValue,
       {"out_noisy is missing"}},
      {"clean lse shape",
       split_call,
       [](Call& c) {
         c.outputs.lse_clean = c.written({2, 4, 12});
       },
       kValue,
       {"lse_clean has shape [2, 4, 12]", "[2, 4, 16]"}},
  };
}

std::vector<BadInput> gradient_cases() {
  return {
      {"out missing",
       batched_call,
       [](Call& c) { c.gradients.out = {}; },
       kValue,
       {"out is missing"}},
      {"lse missing",
       batched_call,
       [](Call& c) { c.gradients.lse = {}; },
       kValue,
       {"lse is missing"}},
      {"dout shape",
       batched_call,
       [](Call& c) {
         c.gradients.dout = c.floats({2, 32, 4, 8});
       },
       kValue,
       {"dout has shape [2, 32, 4, 8]"}},
      {"dout last dimension",
       batched_call,
       [](Call& c) { c.gradients.dout.stride[3] = 0; },
       kValue,
       {"dout has stride 0"}},
      {"dlse shape",
       batched_call,
       [](Call& c) {
         c.gradients.dlse = c.floats({2, 4, 16});
       },
       kValue,
       {"dlse has shape [2, 4, 16]", "[2, 4, 32]"}},
      {"dk like q",
       batched_call,
       [](Call& c) {
         c.gradients.dk = c.written({2, 32, 4, 16});
       },
       kValue,
       {"dk has shape [2, 32, 4, 16]", "[2, 32, 2, 16]"}},
      {"dv expanded",
       batched_call,
       [](Call& c) { c.gradients.dv.stride[2] = 0; },
       kValue,
       {"dv is written", "share memory"}},
      {"dq missing",
       split_call,
       [](Call& c) { c.gradients.dq = {}; },
       kValue,
       {"dq_noisy is missing"}},
      {"clean dk missing",
       split_call,
       [](Call& c) { c.gradients.dk_clean = {}; },
       kValue,
       {"dk_clean is missing"}},
      {"clean dk of a joint layout",
       batched_call,
       [](Call& c) { c.gradients.dk_clean = c.gradients.dk; },
       kValue,
       {"dk_clean is given"}},
      {"clean dq without clean queries",
       split_without_queries,
       [](Call& c) {
         c.gradients.dq_clean = c.written({2, 16, 4, 16});
       },
       kValue,
       {"dq_clean is given", "q_clean"}},
      {"clean dlse of a joint layout",
       batched_call,
       [](Call& c) { c.gradients.dlse_clean = c.gradients.lse; },
       kValue,
       {"dlse_clean is given"}},
  };
}

void expect_error(const BadInput& bad, const std::function<void()>& run) {
  try {
    run();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(bad.kind)) << error.what();
    const std::string message = error.what();
    for (const std::string& word : bad.words) {
      EXPECT_NE(message.find(word), std::string::npos)
          << "\"" << word << "\" is not in: " << message;
    }
  }
}

bool untouched(const Tensor& written) {
  if (written.dtype != DType::kFloat32 || !written.given()) return true;
  return std::isnan(*static_cast<const float*>(written.data));
}

void check_all(const std::vector<BadInput>& cases) {
  for (const BadInput& bad : cases) {
    SCOPED_TRACE(bad.name);
    Call call = bad.make();
    bad.spoil(call);
    expect_error(bad, [&] { attention_forward(call.args, call.outputs); });
    EXPECT_TRUE(untouched(call.outputs.out));
    EXPECT_TRUE(untouched(call.outputs.lse));
  }
}

TEST(BadInput, Masks) { check_all(mask_cases()); }
TEST(BadInput, Tensors) { check_all(tensor_cases()); }
TEST(BadInput, Arrays) { check_all(array_cases()); }
TEST(BadInput, Tables) { check_all(table_cases()); }
TEST(BadInput, Numbers) { check_all(number_cases()); }
TEST(BadInput, Outputs) { check_all(output_cases()); }

TEST(BadInput, Gradients) {
  for (const BadInput& bad : gradient_cases()) {
    SCOPED_TRACE(bad.name);
    Call call = bad.make();
    attention_forward(call.args, call.outputs);
    bad.spoil(call);
    expect_error(bad, [&] { attention_backward(call.args, call.gradients); });
    EXPECT_TRUE(untouched(call.gradients.dq));
  }
}

/// What forward refuses in its arguments, backward, planning and the mask functions refuse too.
TEST(BadInput, OtherFunctions) {
  for (const auto& cases : {mask_cases(), array_cases(), table_cases()}) {
    for (const BadInput& bad : cases) {
      SCOPED_TRACE(bad.name);
      Call call = bad.make();
      bad.spoil(call);
      expect_error(bad, [&] { attention_backward(call.args, call.gradients); });
      expect_error(bad, [&] { visible_pairs(call.args); });
      std::vector<unsigned char> visible(8192);
      expect_error(bad, [&] { attention_mask(call.args, visible.data(), visible.size()); });
    }
  }
  for (const auto& cases : {mask_cases(), number_cases(), output_cases()}) {
    for (const BadInput& bad : cases) {
      SCOPED_TRACE(bad.name);
      Call call = bad.make();
      bad.spoil(call);
      expect_error(bad, [&] { plan_attention_forward(call.args, call.outputs); });
    }
  }
}

TEST(BadInput, BackendsThatAreNotBuilt) {
  Call call = batched_call();
  for (Tensor* tensor :
       {&call.args.q, &call.args.k, &call.args.v, &call.outputs.out, &call.outputs.lse}) {
    tensor->device = {DeviceType::kHip, 0};
  }
  const BadInput expected{
      "", {}, {}, ErrorKind::kNotImplemented, {"q is on", "no HIP backend", "cpu and cuda"}};
  expect_error(expected, [&] { attention_forward(call.args, call.outputs); });
  expect_error(expected, [&] { plan_attention_forward(call.args, call.outputs); });
}

TEST(BadInput, MaskBuffer) {
  const Call call = batched_call();
  std::vector<unsigned char> visible(2 * 32 * 32);
  const BadInput expected{"", {}, {}, kValue, {"visible has 2047 bytes", "2 x 32 x 32"}};
  expect_error(expected, [&] { attention_mask(call.args, visible.data(), 2047); });
  attention_mask(call.args, visible.data(), visible.size());
}

}  // namespace
}  // namespace stepwell::testing
