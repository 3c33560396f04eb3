// The operator table: one list of attention problems for tests and benchmarks, on every backend.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stepwell/attention.hpp"

namespace stepwell::testing {

/// How the floating-point tensors of a case lie in memory.
enum class Memory {
  kContiguous,
  kFusedQkv,     // q, k and v are views of one tensor, and so are dq, dk and dv
  kPaddedHeads,  // unused elements between heads, rows and batch entries
  kHeadsFirst,   // memory order [batch, heads, rows, dim]
  kUnaligned,    // starts and strides that are not multiples of 16 bytes
  kOddStrides,   // arbitrary strides in dimensions of one element
};

/// One attention problem. Lengths are tokens of one half (of one noisy view).
struct Case {
  std::string name;
  Mask mask = DiffusionMask{};
  TokenLayout layout = TokenLayout::kBatched;
  bool packed = false;  // kSplit and kSequence; the joint layouts say it themselves
  int tail = 0;         // packed: rows past the last sample (of each part in kHalves)

  std::vector<int> lengths;          // per sample; batched: all equal. kSequence: of queries
  std::vector<int> clean_lengths;    // kSplit: of clean keys; kSequence: of keys. Empty: lengths
  std::vector<int> clean_q_lengths;  // kSplit: of clean queries. Empty: clean_lengths
  bool clean_queries = true;         // kSplit

  // Per-sample arrays; empty: not given.
  std::vector<int> prefix_lens;
  std::vector<int> seqused, seqused_clean, seqused_kv;
  std::vector<int> noisy_offsets, q_offsets;
  int noisy_offset = 0;
  int q_offset = 0;
  std::vector<int> block_ranges;  // pairs: of num_blocks blocks, or of batch x num_blocks
  int num_blocks = 0;             // blocks of one table

  int heads_q = 2;
  int heads_kv = 1;
  int head_dim = 16;
  int head_dim_v = 16;
  DType dtype = DType::kFloat32;
  Memory memory = Memory::kContiguous;
  bool expanded_dout = false;  // every row and head of dout is the same memory
  bool with_dlse = true;
  double input_scale = 1.0;  // standard deviation of q and k

  std::optional<double> softmax_scale;
  double softcap = 0.0;
  double dropout_p = 0.0;
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
  bool dropout_tensor = false;  // seed and offset in a tensor
  bool deterministic = false;

  int batch() const { return static_cast<int>(lengths.size()); }
  int num_views() const;
  bool is_packed() const;
  const std::vector<int>& key_lengths() const {
    return clean_lengths.empty() ? lengths : clean_lengths;
  }
  const std::vector<int>& clean_query_lengths() const {
    return clean_q_lengths.empty() ? key_lengths() : clean_q_lengths;
  }
};

/// Every mask variant, layout, option and shape that is promised, in sizes a naive float64
/// reference can follow. All are float32: tests run each in every dtype.
std::vector<Case> operator_cases();

/// Problems of the sizes people train with, for timing.
std::vector<Case> benchmark_cases();

/// A random case of the same kind.
Case random_case(std::uint64_t seed);

}  // namespace stepwell::testing
