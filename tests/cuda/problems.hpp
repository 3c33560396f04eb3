// Problems whose tensors have shapes and strides, and addresses that nothing reads.
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace stepwell::cuda {

inline void* address(std::uintptr_t value) {
  return reinterpret_cast<void*>(value);  // NOLINT(performance-no-int-to-ptr)
}

inline const int* array(std::uintptr_t value) { return static_cast<const int*>(address(value)); }

struct Heads {
  int q = 8;
  int kv = 2;
  int dim = 128;
  int dim_v = 64;
};

inline Rows contiguous_rows(std::uintptr_t at, std::int64_t rows, int heads, int dim) {
  return {address(at), rows * heads * dim, std::int64_t{heads} * dim, dim};
}

inline HalfTensors contiguous_tensors(std::uintptr_t at, std::int64_t rows_q, std::int64_t rows_kv,
                                      Heads heads) {
  HalfTensors t;
  constexpr std::uintptr_t kApart = std::uintptr_t{1} << 40;
  t.q = contiguous_rows(at, rows_q, heads.q, heads.dim);
  t.k = contiguous_rows(at + kApart, rows_kv, heads.kv, heads.dim);
  t.v = contiguous_rows(at + 2 * kApart, rows_kv, heads.kv, heads.dim_v);
  t.out = contiguous_rows(at + 3 * kApart, rows_q, heads.q, heads.dim_v);
  t.lse = {static_cast<float*>(address(at + 4 * kApart)), heads.q * rows_q, rows_q, 1};
  t.dout = contiguous_rows(at + 5 * kApart, rows_q, heads.q, heads.dim_v);
  t.dq = contiguous_rows(at + 6 * kApart, rows_q, heads.q, heads.dim);
  t.dk = contiguous_rows(at + 7 * kApart, rows_kv, heads.kv, heads.dim);
  t.dv = contiguous_rows(at + 8 * kApart, rows_kv, heads.kv, heads.dim_v);
  return t;
}

inline AttentionProblem problem_of(Heads heads) {
  AttentionProblem problem;
  problem.heads_q = heads.q;
  problem.heads_kv = heads.kv;
  problem.head_dim = heads.dim;
  problem.head_dim_v = heads.dim_v;
  problem.dtype = DType::kBFloat16;
  problem.softmax_scale = 0.125;
  return problem;
}

/// `batch` samples of views + 1 segments of n rows.
inline AttentionProblem batched_problem(int batch, std::int64_t n, int views = 1,
                                        Heads heads = {}) {
  AttentionProblem problem = problem_of(heads);
  problem.layout.batch = batch;
  problem.layout.joint_rows = (views + 1) * n;
  problem.layout.mask.block_size = 16;
  problem.layout.mask.num_views = views;
  problem.halves[0] = contiguous_tensors(1 << 20, (views + 1) * n, (views + 1) * n, heads);
  problem.halves[1] = problem.halves[0];
  return problem;
}

/// `batch` samples in `rows` rows, noisy and clean.
inline AttentionProblem interleaved_problem(int batch, std::int64_t rows, Heads heads = {}) {
  AttentionProblem problem = batched_problem(batch, rows / 2, 1, heads);
  problem.layout.joint_rows = rows;
  problem.layout.cu_noisy = array(4096);
  return problem;
}

/// One sequence with more keys than queries.
inline AttentionProblem sequence_problem(int batch, std::int64_t rows_q, std::int64_t rows_kv,
                                         Heads heads = {}) {
  AttentionProblem problem = problem_of(heads);
  problem.layout.packing = geometry::Packing::kSplit;
  problem.layout.batch = batch;
  problem.layout.clean_q_rows = rows_q;
  problem.layout.clean_kv_rows = rows_kv;
  problem.layout.mask.clean = geometry::CleanRule::kCausal;
  problem.halves[1] = contiguous_tensors(1 << 20, rows_q, rows_kv, heads);
  return problem;
}

/// Separate tensors: two views of n noisy rows, clean queries and keys.
inline AttentionProblem split_problem(int batch, std::int64_t n, std::int64_t clean_q,
                                      std::int64_t clean_kv, Heads heads = {}) {
  AttentionProblem problem = sequence_problem(batch, clean_q, clean_kv, heads);
  problem.layout.mask.clean = geometry::CleanRule::kBlock;
  problem.layout.mask.num_views = 2;
  problem.layout.mask.block_size = 4;
  problem.layout.noisy_rows = 2 * n;
  problem.halves[0] = contiguous_tensors(std::uintptr_t{1} << 45, 2 * n, 2 * n, heads);
  return problem;
}

}  // namespace stepwell::cuda
