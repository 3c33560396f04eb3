// Checked arguments: what every function of the API does before any work.
//
//   check_arguments   shapes, dtypes, strides, devices and numbers; reads no element and no pointer
//   check_outputs     the same for what the caller wants written
//   build_problem     the backend's form of the arguments
//   check_values      the elements of integer arrays, which lie in host memory
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"
#include "stepwell/attention.hpp"

namespace stepwell {

/// Sizes that the checks found to agree. Rows are those of one batch entry or, packed, of the
/// tensor.
struct AttentionShape {
  bool packed = false;
  std::int64_t batch = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  std::int64_t rows_q = 0;
  std::int64_t rows_kv = 0;
  std::int64_t rows_clean_q = 0;  // kSplit
  std::int64_t rows_clean_kv = 0;
};

/// Whether a tensor has no elements; their number may not fit 64 bits where it is expanded.
inline bool is_empty(const Tensor& tensor) {
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return true;
  }
  return false;
}

/// Throws Error unless the arguments describe a problem.
AttentionShape check_arguments(const AttentionArgs& args);
/// What may change from run to run of a plan: offsets, scale, cap, dropout, max_seqlen.
void check_numbers(const AttentionArgs& args);

void check_outputs(const AttentionArgs& args, const AttentionShape& shape,
                   const AttentionOutputs& outputs);
void check_gradients(const AttentionArgs& args, const AttentionShape& shape,
                     const AttentionGradients& gradients);

/// Throws unless tensors with elements have an aligned address.
void check_tensor_data(const AttentionArgs& args);
void check_array_data(const AttentionArgs& args);
void check_data(const AttentionArgs& args, const AttentionOutputs& outputs);
void check_data(const AttentionArgs& args, const AttentionGradients& gradients);

/// Throws unless `tensors` have the dtypes, devices, shapes and strides of `planned`.
void check_as_planned(const AttentionArgs& args, const AttentionArgs& planned);
void check_as_planned(const AttentionArgs& args, const AttentionOutputs& outputs,
                      const AttentionOutputs& planned);
void check_as_planned(const AttentionArgs& args, const AttentionGradients& gradients,
                      const AttentionGradients& planned);

/// Elements of cu_seqlens*, prefix_lens, seqused*, block_ranges and offsets; `layout` is the one of
/// build_problem.
void check_values(const AttentionArgs& args, const geometry::Layout& layout);

/// Whether pointers are those of the tensors, or stand-ins that are never read.
enum class Addresses { kReal, kPlanned };

AttentionProblem build_problem(const AttentionArgs& args, const AttentionShape& shape,
                               Addresses addresses);
void set_outputs(const AttentionArgs& args, const AttentionOutputs& outputs, Addresses addresses,
                 AttentionProblem& problem);
void set_gradients(const AttentionArgs& args, const AttentionGradients& gradients,
                   Addresses addresses, AttentionProblem& problem);

/// kSplit with seqused_clean: valid clean queries are those at positions below it. Points
/// problem.layout at `storage` where clean queries start at another position than the keys.
void set_valid_clean_queries(const AttentionArgs& args, AttentionProblem& problem,
                             std::vector<std::int32_t>& storage);

}  // namespace stepwell
