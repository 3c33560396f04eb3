// Attention under any of the library's masks: forward, backward, and what a mask looks like.
//
// The one-call functions check, plan and run. Callers that repeat a shape keep the plan:
//
//   AttentionPlan plan = plan_attention_forward(args, outputs);
//   std::vector<std::byte> workspace(plan.workspace_bytes());
//   run(plan, args, outputs, workspace.data());
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "stepwell/error.hpp"
#include "stepwell/mask.hpp"
#include "stepwell/tensor.hpp"

namespace stepwell {

/// How the rows of noisy and clean tokens lie in the tensors. With V views (V = 1 unless said):
enum class TokenLayout {
  /// q, k, v `[batch, (V + 1) n, heads, dim]`: views and clean half of a sample one after the
  /// other.
  kBatched,
  /// q, k, v `[total, heads, dim]`: sample after sample, each with its views and its clean half;
  /// `cu_seqlens` counts (V + 1) n per sample.
  kInterleaved,
  /// q, k, v `[total, heads, dim]`: view 0 of all samples, ..., clean half of all samples; each
  /// part
  /// takes total / (V + 1) rows, and `cu_seqlens` counts n per sample.
  kHalves,
  /// Noisy rows in q, k, v and clean rows in q_clean, k_clean, v_clean, of lengths of their own;
  /// batched (rank 4), or packed (rank 3) with `cu_seqlens` (V n per sample) and
  /// `cu_seqlens_clean`.
  kSplit,
  /// One sequence (SequenceMask): q `[batch, len_q, heads_q, dim]`, k and v `[batch, len_kv, ...]`,
  /// or
  /// packed with `cu_seqlens` for queries and `cu_seqlens_kv` for keys (default: the same).
  kSequence,
};

/// Where the one-call functions get their workspace.
struct WorkspaceAllocator {
  /// Returns `bytes` bytes of the device's memory, aligned to 64, which stay the call's until it
  /// has returned and the work it queued on its stream is done; throws where there is none.
  void* (*allocate)(void* context, std::size_t bytes, Device device) = nullptr;
  void* context = nullptr;  ///< passed on to `allocate`
};

/// Arguments of forward and backward. Tensors that are not given stay default-made.
///
/// Floating-point tensors: float32, float16 or bfloat16, all the same; any stride whose last
/// dimension is contiguous; dim of q and k, and of v, a multiple of 8 in [8, 256]; heads_q a
/// multiple of heads_kv. Integer tensors: int32, contiguous, on the same device.
///
/// On CUDA: addresses and strides that are multiples of 16 bytes. Values of integer tensors are not
/// checked there, and clamped to the tensors' bounds. With the environment variable
/// STEPWELL_DEBUG_SYNC=1 every call copies them to the host, checks them, and waits for its
/// kernels, so that errors show at the call that made them.
struct AttentionArgs {
  Mask mask;
  TokenLayout layout = TokenLayout::kBatched;

  Tensor q, k, v;  ///< joint tensors; kSplit: the noisy rows; kSequence: the sequence
  Tensor q_clean, k_clean, v_clean;  ///< kSplit; without q_clean there are no clean queries

  Tensor cu_seqlens;          ///< `[batch + 1]`; packed layouts
  Tensor cu_seqlens_clean;    ///< `[batch + 1]`; kSplit packed: rows of k_clean and q_clean
  Tensor cu_seqlens_clean_q;  ///< `[batch + 1]`; kSplit packed: rows of q_clean, where they differ
  Tensor cu_seqlens_kv;  ///< `[batch + 1]`; kSequence packed: rows of k, where they differ from q

  Tensor
      prefix_lens;  ///< `[batch]` position at which a block starts (blocks count backward before)
  Tensor seqused;   ///< `[batch]` valid tokens of each half; kSplit: of each noisy view;
                    ///< kSequence: of q
  Tensor
      seqused_clean;  ///< `[batch]` kSplit: valid clean tokens (keys; queries at those positions)
  Tensor seqused_kv;  ///< `[batch]` kSequence: valid keys
  /// kSplit: `[num_blocks, 2]` or `[batch, num_blocks, 2]`: noisy block j (counted from the first
  /// noisy row) sees the clean keys of indices `[lo, hi)` instead of those before its block.
  Tensor block_ranges;

  Tensor noisy_offsets;  ///< `[batch]` kSplit: position of the first noisy row; or noisy_offset
  Tensor q_offsets;      ///< `[batch]` kSplit: position of the first clean query; kSequence: of
                         ///< the first query; or q_offset
  std::int64_t noisy_offset = 0;
  std::int64_t q_offset = 0;

  std::int64_t max_seqlen = -1;  ///< packed: no sample has more tokens in one half; -1: not known

  std::optional<double> softmax_scale;  ///< default 1 / sqrt(dim)
  double softcap = 0.0;                 ///< scores become softcap * tanh(score / softcap); 0: none
  double dropout_p = 0.0;               ///< in [0, 1), rounded to a multiple of 1/256, at least one
  std::uint64_t dropout_seed = 0;       ///< the same seed and offset give the same mask in backward
  std::uint64_t dropout_offset = 0;
  Tensor dropout_state;  ///< int64 `[2]` (seed, offset) on the device, instead of the two numbers
  /// Bitwise equal results from run to run; as it is when planned.
  bool deterministic = false;

  int num_threads = 0;  ///< CPU backend; 0: OpenMP's default, as it is when planned

  /// CUDA: the CUstream that everything is queued on; nullptr is the device's default stream. No
  /// call waits for the device or reads its memory.
  void* stream = nullptr;
  WorkspaceAllocator allocator;  ///< default: memory of the library's own
};

/// Results of the forward pass, allocated by the caller; every element is written.
struct AttentionOutputs {
  Tensor out;  ///< like q, with the last dimension of v
  Tensor lse;  ///< float32 `[batch, heads_q, rows]` or `[heads_q, total]`: natural logarithm of
               ///< the sum of exponentials of the scaled, capped scores; -inf where a row sees
               ///< no key. May be left out.
  Tensor out_clean;  ///< kSplit with q_clean
  Tensor lse_clean;
};

/// Inputs and results of the backward pass; gradients may be strided and every element is written.
struct AttentionGradients {
  Tensor out, lse, dout;                    ///< of the forward pass; dout like out
  Tensor dlse;                              ///< gradient of lse, like lse; may be left out
  Tensor out_clean, lse_clean, dout_clean;  ///< kSplit with q_clean
  Tensor dlse_clean;
  Tensor dq, dk, dv;                    ///< like q, k, v
  Tensor dq_clean, dk_clean, dv_clean;  ///< kSplit
};

/// What was decided for a set of shapes: which backend, which tiles, how much workspace.
class AttentionPlan {
 public:
  struct Impl;
  explicit AttentionPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  /// Bytes of scratch memory, on the tensors' device, that run() needs; aligned to 64.
  std::size_t workspace_bytes() const;
  /// One line: backend, tiles, threads.
  std::string describe() const;
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Checks shapes, dtypes and devices and plans the forward pass; no element is read. On CUDA also
/// compiles and loads the kernels.
/// Throws Error naming the argument that is not accepted.
AttentionPlan plan_attention_forward(const AttentionArgs& args, const AttentionOutputs& outputs);
/// The same for the backward pass.
AttentionPlan plan_attention_backward(const AttentionArgs& args, const AttentionGradients& grads);

/// Runs a plan on tensors of the planned shapes, dtypes and strides, with the planned layout, mask
/// and number of threads (checked); checks the values of integer arrays where they lie in host
/// memory. `workspace`: plan.workspace_bytes() bytes, aligned to 64; may be null where that is 0.
void run(const AttentionPlan& plan, const AttentionArgs& args, const AttentionOutputs& outputs,
         void* workspace);
void run(const AttentionPlan& plan, const AttentionArgs& args, const AttentionGradients& grads,
         void* workspace);

/// Plan and run in one call, with a workspace of its own.
void attention_forward(const AttentionArgs& args, const AttentionOutputs& outputs);
void attention_backward(const AttentionArgs& args, const AttentionGradients& grads);

/// Writes the mask as bytes (1: visible) `[batch, rows_q, rows_kv]` for batched layouts and
/// `[rows_q, rows_kv]` for packed ones, from the element rule. kSplit: rows are the noisy rows
/// followed by the clean ones. `visible` has `capacity` bytes; throws if that is too few. For
/// tests, documentation and pictures; quadratic. Only shapes of the tensors are used.
void attention_mask(const AttentionArgs& args, unsigned char* visible, std::size_t capacity);

/// Visible (query, key) pairs of all samples, of one head; throws where they do not fit 64 bits.
std::int64_t visible_pairs(const AttentionArgs& args);

/// The library's version, "major.minor.patch".
const char* version();

}  // namespace stepwell
