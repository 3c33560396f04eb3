// Arguments of small calls with memory of their own, for tests that change one thing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <list>
#include <vector>

#include "stepwell/stepwell.hpp"

namespace stepwell::testing {

class Call {
 public:
  AttentionArgs args;
  AttentionOutputs outputs;
  AttentionGradients gradients;

  /// Contiguous tensors that live as long as the call. Floats are small and vary; a written tensor
  /// holds NaN.
  Tensor floats(std::initializer_list<std::int64_t> shape, DType dtype = DType::kFloat32);
  Tensor written(std::initializer_list<std::int64_t> shape);
  Tensor ints(std::initializer_list<std::int32_t> values);
  Tensor ints(std::initializer_list<std::int64_t> shape, std::vector<std::int32_t> values);
  Tensor longs(std::initializer_list<std::int64_t> values);

  /// Makes outputs and gradients (where head_dim_v = head_dim) that fit the arguments.
  void make_outputs();
  /// Runs forward, then backward on its results.
  void forward() { attention_forward(args, outputs); }
  void backward();

 private:
  void* allocate(std::size_t bytes);

  std::list<std::vector<std::int64_t>> memory_;
};

/// q `[2, 32, 4, 16]`, k and v with 2 heads, block size 4: two samples of 16 tokens.
Call batched_call();
/// Samples of 7, 0 and 5 tokens, and 2 (interleaved) or 1 (halves) rows of tail in each part.
Call interleaved_call();
Call halves_call();
/// 12 noisy rows, 16 clean rows, clean queries.
Call split_call();
/// Samples of 8 and 4 noisy, 8 and 6 clean tokens; clean queries.
Call split_packed_call();
/// 6 queries at position 4, 10 keys.
Call sequence_call(SequenceMask::Kind kind);
/// Samples of 3 and 5 queries, 7 and 5 keys.
Call sequence_packed_call(SequenceMask::Kind kind);

/// attention_mask as a vector.
std::vector<unsigned char> mask_of(const AttentionArgs& args, std::size_t elements);

}  // namespace stepwell::testing
