// Checked arguments: what every function of the API does before any work.
//
//   check_arguments   shapes, dtypes, strides, devices and numbers; reads no element and no pointer
//   check_outputs     the same for what the caller wants written
//   build_problem     the backend's form of the arguments
//   check_values      the elements of integer arrays that lie in host memory
//   check_cuda        what the CUDA backend does not take of all this
#pragma once

#include <cstdint>

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

/// What the CUDA backend takes: strides and addresses.
void check_cuda(const AttentionArgs& args, const AttentionOutputs& outputs);
void check_cuda(const AttentionArgs& args, const AttentionGradients& gradients);
void check_cuda_data(const AttentionArgs& args, const AttentionOutputs& outputs);
void check_cuda_data(const AttentionArgs& args, const AttentionGradients& gradients);

/// Whether STEPWELL_DEBUG_SYNC asks for checks that wait for the device.
bool debug_sync();
/// check_values of arrays in device memory, after waiting for the stream.
void check_cuda_values(const AttentionArgs& args, const AttentionShape& shape);

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

}  // namespace stepwell
