// Shapes, dtypes, strides, devices and numbers of the arguments.
#include <cmath>
#include <initializer_list>
#include <limits>

#include "api/arguments.hpp"
#include "api/names.hpp"
#include "api/text.hpp"
#include "core/check.hpp"
#include "geometry/interval.hpp"

namespace stepwell {
namespace {

using geometry::kMaxLength;

// Head dims the backends are built for (AttentionArgs in stepwell/attention.hpp).
constexpr std::int64_t kHeadDimStep = 8;
constexpr std::int64_t kMaxHeadDim = 256;

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

bool is_known(DeviceType type) {
  return type == DeviceType::kCpu || type == DeviceType::kCuda || type == DeviceType::kHip;
}

void check_length(std::int64_t value, const char* name, std::int64_t least) {
  STEPWELL_CHECK(least <= value && value <= kMaxLength, kValue,
                 "{} is {}; it must be an integer in [{}, {}]", name, value, least, kMaxLength);
}

/// Whether `value` is one of the enumerators from 0 to `last`; callers may hand over any number.
template <typename Enum>
void check_choice(Enum value, Enum last, const char* name, const char* accepted) {
  const auto code = static_cast<std::int64_t>(value);
  STEPWELL_CHECK(code >= 0 && code <= static_cast<std::int64_t>(last), kValue,
                 "{} is {}, which is none of its enumerators; accepted: {}", name, code, accepted);
}

void check_layout(TokenLayout layout) {
  check_choice(layout, TokenLayout::kSequence, "layout",
               "kBatched, kInterleaved, kHalves, kSplit, kSequence");
}

void check_mask(const DiffusionMask& mask, TokenLayout layout) {
  check_choice(mask.order, Order::kCleanNoisy, "order", "kNoisyClean, kCleanNoisy");
  check_choice(mask.clean, CleanAttention::kCausal, "clean", "kBlock, kCausal");
  check_choice(mask.noisy, NoisyAttention::kCausal, "noisy", "kBidirectional, kCausal");
  STEPWELL_CHECK(layout != TokenLayout::kSequence, kValue,
                 "mask is a diffusion mask, but the layout is sequence; diffusion masks take the "
                 "layouts batched, interleaved, halves and split");
  check_length(mask.block_size, "block_size", 1);
  check_length(mask.num_views, "num_views", 1);
  STEPWELL_CHECK(mask.clean_window >= 0 && mask.clean_window <= kMaxLength, kValue,
                 "clean_window is {}; it must be an integer in [1, {}], or left out",
                 mask.clean_window, kMaxLength);
  STEPWELL_CHECK(layout != TokenLayout::kSplit || mask.order == Order::kNoisyClean, kValue,
                 "order is clean_noisy, but noisy and clean rows are separate tensors; leave order "
                 "out");
}

void check_window(std::int64_t window, const char* name, SequenceMask::Kind kind) {
  const bool bounded = window != std::numeric_limits<std::int64_t>::max();
  STEPWELL_CHECK(window >= 0, kValue, "{} is {}; it must be at least 0, or left out", name, window);
  STEPWELL_CHECK(!bounded || kind == SequenceMask::Kind::kWindow, kValue,
                 "{} is {}, but the mask is {}; only window masks take it", name, window,
                 to_text(kind));
}

void check_mask(const SequenceMask& mask, TokenLayout layout) {
  check_choice(mask.kind, SequenceMask::Kind::kBlockCausal, "mask.kind",
               "kFull, kCausal, kWindow, kBlockCausal");
  STEPWELL_CHECK(layout == TokenLayout::kSequence, kValue,
                 "mask is {}, which takes one sequence, but the layout is {}", to_text(mask.kind),
                 to_text(layout));
  if (mask.kind == SequenceMask::Kind::kBlockCausal) {
    check_length(mask.block_size, "block_size", 1);
  } else {
    STEPWELL_CHECK(mask.block_size == 1, kValue,
                   "block_size is {}, but a {} mask has no blocks; leave block_size out",
                   mask.block_size, to_text(mask.kind));
  }
  check_window(mask.window_left, "window_left", mask.kind);
  check_window(mask.window_right, "window_right", mask.kind);
}

void check_given(const Tensor& tensor, const char* name, const char* reason) {
  STEPWELL_CHECK(tensor.given(), kValue, "{} is missing; {}", name, reason);
}

void refuse(const Tensor& tensor, const char* name, const char* reason) {
  STEPWELL_CHECK(!tensor.given(), kValue, "{} is given, but {}", name, reason);
}

void check_extents(const Tensor& tensor, const char* name) {
  for (int i = 0; i < tensor.rank; ++i) {
    STEPWELL_CHECK(tensor.shape[i] >= 0, kValue, "{} has shape {}; extents must not be negative",
                   name, shape_text(tensor));
  }
}

void check_last_stride(const Tensor& tensor, const char* name) {
  const int last = tensor.rank - 1;
  STEPWELL_CHECK(tensor.stride[last] == 1 || tensor.shape[last] <= 1 || is_empty(tensor), kValue,
                 "{} has stride {} in its last dimension; it must be contiguous there (stride 1)",
                 name, tensor.stride[last]);
}

/// q, k, v and their clean counterparts; `q` sets dtype, device and rank.
void check_float_tensor(const Tensor& tensor, const char* name, const Tensor& q,
                        const char* q_name) {
  STEPWELL_CHECK(tensor.rank == q.rank, kType, "{} has rank {} (shape {}); {} has rank {}", name,
                 tensor.rank, shape_text(tensor), q_name, q.rank);
  STEPWELL_CHECK(tensor.dtype == q.dtype, kType, "{} is {}; {} is {}, and they must be the same",
                 name, to_text(tensor.dtype), q_name, to_text(q.dtype));
  STEPWELL_CHECK(tensor.device == q.device, kType, "{} is on {}; {} is on {}", name,
                 to_text(tensor.device), q_name, to_text(q.device));
  check_extents(tensor, name);
  const std::int64_t rows = tensor.shape[tensor.rank - 3];
  STEPWELL_CHECK(rows <= kMaxLength, kValue, "{} has {} rows; at most {} are accepted", name, rows,
                 kMaxLength);
  check_last_stride(tensor, name);
}

std::int64_t rows_of(const Tensor& tensor) { return tensor.shape[tensor.rank - 3]; }
std::int64_t heads_of(const Tensor& tensor) { return tensor.shape[tensor.rank - 2]; }
std::int64_t dim_of(const Tensor& tensor) { return tensor.shape[tensor.rank - 1]; }
std::int64_t batch_of(const Tensor& tensor) { return tensor.rank == 4 ? tensor.shape[0] : 1; }

void check_equal(std::int64_t value, std::int64_t expected, const char* what, const char* name,
                 const char* expected_name) {
  STEPWELL_CHECK(value == expected, kValue, "{} has {} {}; {} has {}, and they must be equal", name,
                 what, value, expected_name, expected);
}

void check_head_dim(const Tensor& tensor, const char* name) {
  const std::int64_t dim = dim_of(tensor);
  STEPWELL_CHECK(dim >= kHeadDimStep && dim <= kMaxHeadDim && dim % kHeadDimStep == 0, kValue,
                 "{} has head dim {}; it must be a multiple of {} in [{}, {}]", name, dim,
                 kHeadDimStep, kHeadDimStep, kMaxHeadDim);
}

/// An int32 array of the given extents; -1 accepts any.
void check_int_array(const Tensor& tensor, const char* name, const Tensor& q, const char* q_name,
                     std::initializer_list<std::int64_t> extents, const char* extents_text) {
  STEPWELL_CHECK(tensor.dtype == DType::kInt32, kType, "{} is {}; it must be int32", name,
                 to_text(tensor.dtype));
  STEPWELL_CHECK(tensor.device == q.device, kType, "{} is on {}; {} is on {}", name,
                 to_text(tensor.device), q_name, to_text(q.device));
  STEPWELL_CHECK(tensor.rank == static_cast<int>(extents.size()), kType,
                 "{} has rank {} (shape {}); its shape must be {}", name, tensor.rank,
                 shape_text(tensor), extents_text);
  check_extents(tensor, name);
  std::int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    const std::int64_t expected = extents.begin()[i];
    STEPWELL_CHECK(expected < 0 || tensor.shape[i] == expected, kValue,
                   "{} has shape {}; its shape must be {}, with {} in dimension {}", name,
                   shape_text(tensor), extents_text, expected, i);
    STEPWELL_CHECK(tensor.stride[i] == stride || tensor.shape[i] <= 1 || is_empty(tensor), kValue,
                   "{} is not contiguous (stride {} in dimension {}); make it contiguous", name,
                   tensor.stride[i], i);
    stride *= tensor.shape[i];
  }
}

class Checker {
 public:
  explicit Checker(const AttentionArgs& args) : args_(args), names_(names_of(args.layout)) {}

  AttentionShape run() {
    check_layout(args_.layout);
    std::visit([&](const auto& mask) { check_mask(mask, args_.layout); }, args_.mask);
    check_query();
    check_keys();
    if (args_.layout == TokenLayout::kSplit) {
      check_clean_tensors();
    } else {
      refuse_clean_tensors();
    }
    check_rows();
    check_running_lengths();
    check_per_sample_arrays();
    check_block_ranges();
    check_numbers(args_);
    return shape_;
  }

 private:
  bool joint() const {
    return args_.layout != TokenLayout::kSplit && args_.layout != TokenLayout::kSequence;
  }
  const DiffusionMask* diffusion() const { return std::get_if<DiffusionMask>(&args_.mask); }
  std::int64_t num_views() const { return diffusion() != nullptr ? diffusion()->num_views : 0; }

  void check_query() {
    const Tensor& q = args_.q;
    check_given(q, names_.q, "it is required");
    switch (args_.layout) {
      case TokenLayout::kBatched:
        STEPWELL_CHECK(q.rank == 4, kType,
                       "{} has rank {}; the batched layout takes [batch, rows, heads, head_dim]",
                       names_.q, q.rank);
        break;
      case TokenLayout::kInterleaved:
      case TokenLayout::kHalves:
        STEPWELL_CHECK(q.rank == 3, kType,
                       "{} has rank {}; packed layouts take [total, heads, head_dim]", names_.q,
                       q.rank);
        break;
      case TokenLayout::kSplit:
      case TokenLayout::kSequence:
        STEPWELL_CHECK(q.rank == 4 || q.rank == 3, kType,
                       "{} has rank {}; it must be [batch, rows, heads, head_dim] or packed "
                       "[total, heads, head_dim]",
                       names_.q, q.rank);
        break;
    }
    STEPWELL_CHECK(is_float(q.dtype), kType, "{} is {}; it must be float32, float16 or bfloat16",
                   names_.q, to_text(q.dtype));
    STEPWELL_CHECK(is_known(q.device.type), kType,
                   "{} is on {}; accepted devices are cpu, cuda and hip", names_.q,
                   to_text(q.device));
    check_float_tensor(q, names_.q, q, names_.q);
    check_head_dim(q, names_.q);
    STEPWELL_CHECK(heads_of(q) >= 1, kValue, "{} has no heads (shape {})", names_.q, shape_text(q));
    shape_.packed = q.rank == 3;
    shape_.batch = batch_of(q);
    shape_.heads_q = heads_of(q);
    shape_.head_dim = dim_of(q);
    shape_.rows_q = rows_of(q);
  }

  void check_keys() {
    const Tensor& k = args_.k;
    const Tensor& v = args_.v;
    check_given(k, names_.k, "it is required");
    check_given(v, names_.v, "it is required");
    check_float_tensor(k, names_.k, args_.q, names_.q);
    check_float_tensor(v, names_.v, args_.q, names_.q);
    check_equal(batch_of(k), shape_.batch, "batch size", names_.k, names_.q);
    check_equal(batch_of(v), shape_.batch, "batch size", names_.v, names_.q);
    check_equal(dim_of(k), shape_.head_dim, "head dim", names_.k, names_.q);
    check_head_dim(v, names_.v);
    check_equal(heads_of(v), heads_of(k), "heads", names_.v, names_.k);
    check_equal(rows_of(v), rows_of(k), "rows", names_.v, names_.k);
    shape_.heads_kv = heads_of(k);
    shape_.head_dim_v = dim_of(v);
    shape_.rows_kv = rows_of(k);
    STEPWELL_CHECK(shape_.heads_kv >= 1 && shape_.heads_q % shape_.heads_kv == 0, kValue,
                   "{} has {} heads and {} has {}; heads_q must be a multiple of heads_kv",
                   names_.q, shape_.heads_q, names_.k, shape_.heads_kv);
    if (args_.layout != TokenLayout::kSequence) {
      check_equal(shape_.rows_kv, shape_.rows_q, "rows", names_.k, names_.q);
    }
  }

  void check_clean_tensors() {
    const Tensor& k = args_.k_clean;
    const Tensor& v = args_.v_clean;
    const Tensor& q = args_.q_clean;
    check_given(k, names_.k_clean, "the split layout takes noisy and clean keys");
    check_given(v, names_.v_clean, "the split layout takes noisy and clean values");
    check_float_tensor(k, names_.k_clean, args_.q, names_.q);
    check_float_tensor(v, names_.v_clean, args_.q, names_.q);
    check_equal(batch_of(k), shape_.batch, "batch size", names_.k_clean, names_.q);
    check_equal(batch_of(v), shape_.batch, "batch size", names_.v_clean, names_.q);
    check_equal(heads_of(k), shape_.heads_kv, "heads", names_.k_clean, names_.k);
    check_equal(heads_of(v), shape_.heads_kv, "heads", names_.v_clean, names_.k);
    check_equal(dim_of(k), shape_.head_dim, "head dim", names_.k_clean, names_.k);
    check_equal(dim_of(v), shape_.head_dim_v, "head dim", names_.v_clean, names_.v);
    check_equal(rows_of(v), rows_of(k), "rows", names_.v_clean, names_.k_clean);
    shape_.rows_clean_kv = rows_of(k);
    if (!q.given()) return;
    check_float_tensor(q, names_.q_clean, args_.q, names_.q);
    check_equal(batch_of(q), shape_.batch, "batch size", names_.q_clean, names_.q);
    check_equal(heads_of(q), shape_.heads_q, "heads", names_.q_clean, names_.q);
    check_equal(dim_of(q), shape_.head_dim, "head dim", names_.q_clean, names_.q);
    shape_.rows_clean_q = rows_of(q);
  }

  void refuse_clean_tensors() {
    constexpr const char* kReason = "only the split layout takes separate clean tensors";
    refuse(args_.q_clean, names_.q_clean, kReason);
    refuse(args_.k_clean, names_.k_clean, kReason);
    refuse(args_.v_clean, names_.v_clean, kReason);
  }

  /// Row counts that the views, or views and clean half, must divide.
  void check_rows() {
    if (joint()) {
      const bool divides = shape_.rows_q % (num_views() + 1) == 0;
      STEPWELL_CHECK(args_.layout == TokenLayout::kInterleaved || divides, kValue,
                     "{} has {} rows; with num_views = {} their number must be a multiple of {}",
                     names_.q, shape_.rows_q, num_views(), num_views() + 1);
    } else if (args_.layout == TokenLayout::kSplit && !shape_.packed) {
      STEPWELL_CHECK(shape_.rows_q % num_views() == 0, kValue,
                     "{} has {} rows; with num_views = {} their number must be a multiple of {}",
                     names_.q, shape_.rows_q, num_views(), num_views());
    }
  }

  void check_running_length(const Tensor& cu_seqlens, const char* name) {
    check_int_array(cu_seqlens, name, args_.q, names_.q, {shape_.batch + 1}, "[batch + 1]");
  }

  void check_running_lengths() {
    const bool split = args_.layout == TokenLayout::kSplit;
    if (shape_.packed) {
      const Tensor& first = args_.cu_seqlens;
      check_given(first, names_.cu_seqlens, "packed tensors (rank 3) need it");
      check_int_array(first, names_.cu_seqlens, args_.q, names_.q, {-1}, "[batch + 1]");
      STEPWELL_CHECK(first.shape[0] >= 1, kValue,
                     "{} has no elements; its shape must be [batch + 1]", names_.cu_seqlens);
      shape_.batch = first.shape[0] - 1;
      if (split) {
        check_given(args_.cu_seqlens_clean, names_.cu_seqlens_clean,
                    "packed clean tensors (rank 3) need it");
      }
    } else {
      constexpr const char* kReason = "the tensors are batched (rank 4)";
      refuse(args_.cu_seqlens, names_.cu_seqlens, kReason);
      refuse(args_.cu_seqlens_clean, names_.cu_seqlens_clean, kReason);
      refuse(args_.cu_seqlens_clean_q, names_.cu_seqlens_clean_q, kReason);
      refuse(args_.cu_seqlens_kv, names_.cu_seqlens_kv, kReason);
    }
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    // Divided, since the product may not fit.
    STEPWELL_CHECK(shape_.heads_q <= kMost && shape_.batch <= kMost / shape_.heads_q, kValue,
                   "batch size {} times {} heads is more than {}", shape_.batch, shape_.heads_q,
                   kMost);
    if (!split) {
      constexpr const char* kReason = "only the split layout takes it";
      refuse(args_.cu_seqlens_clean, names_.cu_seqlens_clean, kReason);
      refuse(args_.cu_seqlens_clean_q, names_.cu_seqlens_clean_q, kReason);
    } else if (!args_.q_clean.given()) {
      refuse(args_.cu_seqlens_clean_q, names_.cu_seqlens_clean_q, "q_clean is not");
    }
    if (args_.layout != TokenLayout::kSequence) {
      refuse(args_.cu_seqlens_kv, names_.cu_seqlens_kv, "only masks of one sequence take it");
    }
    if (args_.cu_seqlens_clean.given()) {
      check_running_length(args_.cu_seqlens_clean, names_.cu_seqlens_clean);
    }
    if (args_.cu_seqlens_clean_q.given()) {
      check_running_length(args_.cu_seqlens_clean_q, names_.cu_seqlens_clean_q);
    }
    if (args_.cu_seqlens_kv.given()) {
      check_running_length(args_.cu_seqlens_kv, names_.cu_seqlens_kv);
    }
  }

  void check_per_sample(const Tensor& tensor, const char* name) {
    if (!tensor.given()) return;
    check_int_array(tensor, name, args_.q, names_.q, {shape_.batch}, "[batch]");
  }

  void check_per_sample_arrays() {
    const bool split = args_.layout == TokenLayout::kSplit;
    const bool sequence = args_.layout == TokenLayout::kSequence;
    if (!split) {
      refuse(args_.seqused_clean, names_.seqused_clean, "only the split layout takes it");
      refuse(args_.noisy_offsets, names_.noisy_offset, "only the split layout takes it");
    }
    if (!sequence) {
      refuse(args_.seqused_kv, names_.seqused_kv, "only masks of one sequence take it");
    }
    if (!sequence && !split) {
      refuse(args_.q_offsets, names_.q_offset, "only split layouts and masks of one sequence do");
    } else if (split && !args_.q_clean.given()) {
      refuse(args_.q_offsets, names_.q_offset, "q_clean is not");
    }
    if (const auto* mask = std::get_if<SequenceMask>(&args_.mask);
        mask != nullptr && mask->kind != SequenceMask::Kind::kBlockCausal) {
      STEPWELL_CHECK(!args_.prefix_lens.given(), kValue, "{} is given, but a {} mask has no blocks",
                     names_.prefix_lens, to_text(mask->kind));
    }
    check_per_sample(args_.prefix_lens, names_.prefix_lens);
    check_per_sample(args_.seqused, names_.seqused);
    check_per_sample(args_.seqused_clean, names_.seqused_clean);
    check_per_sample(args_.seqused_kv, names_.seqused_kv);
    check_per_sample(args_.noisy_offsets, names_.noisy_offset);
    check_per_sample(args_.q_offsets, names_.q_offset);
  }

  void check_block_ranges() {
    const Tensor& ranges = args_.block_ranges;
    if (!ranges.given()) return;
    STEPWELL_CHECK(args_.layout == TokenLayout::kSplit, kValue,
                   "{} is given, but only the split layout takes it", names_.block_ranges);
    const DiffusionMask& mask = *diffusion();
    STEPWELL_CHECK(mask.clean_window == 0, kValue,
                   "{} is given with clean_window = {}; the table replaces the window",
                   names_.block_ranges, mask.clean_window);
    STEPWELL_CHECK(mask.num_views == 1, kValue,
                   "{} is given with num_views = {}; it takes one view", names_.block_ranges,
                   mask.num_views);
    const bool clean_blocks = args_.q_clean.given() && mask.clean == CleanAttention::kBlock;
    STEPWELL_CHECK(clean_blocks || !args_.prefix_lens.given(), kValue,
                   "{} is given with {}, whose blocks count from the first noisy row, and no clean "
                   "query has blocks",
                   names_.prefix_lens, names_.block_ranges);
    if (ranges.rank == 3) {
      check_int_array(ranges, names_.block_ranges, args_.q, names_.q, {shape_.batch, -1, 2},
                      "[num_blocks, 2] or [batch, num_blocks, 2]");
    } else {
      check_int_array(ranges, names_.block_ranges, args_.q, names_.q, {-1, 2},
                      "[num_blocks, 2] or [batch, num_blocks, 2]");
    }
    const std::int64_t blocks = ranges.shape[ranges.rank - 2];
    STEPWELL_CHECK(blocks <= kMaxLength, kValue, "{} has {} blocks; at most {} are accepted",
                   names_.block_ranges, blocks, kMaxLength);
  }

  const AttentionArgs& args_;
  const ArgumentNames& names_;
  AttentionShape shape_;
};

void check_offset(std::int64_t offset, const Tensor& offsets, const char* name, bool accepted,
                  const char* reason) {
  STEPWELL_CHECK(offset == 0 || accepted, kValue, "{} is {}, but {}", name, offset, reason);
  STEPWELL_CHECK(offset == 0 || !offsets.given(), kValue,
                 "{} is given both as a number ({}) and as a tensor", name, offset);
  check_length(offset, name, 0);
}

/// Magnitudes of scales and caps whose products with log2(e) and with each other stay normal
/// floats.
constexpr double kSmallest = 1e-30;
constexpr double kLargest = 1e30;

}  // namespace

AttentionShape check_arguments(const AttentionArgs& args) { return Checker(args).run(); }

void check_numbers(const AttentionArgs& args) {
  const ArgumentNames& names = names_of(args.layout);
  const bool split = args.layout == TokenLayout::kSplit;
  check_offset(args.noisy_offset, args.noisy_offsets, names.noisy_offset, split,
               "only the split layout takes it");
  const bool takes_q_offset =
      args.layout == TokenLayout::kSequence || (split && args.q_clean.given());
  check_offset(args.q_offset, args.q_offsets, names.q_offset, takes_q_offset,
               split ? "q_clean is not given" : "only split layouts and masks of one sequence do");
  if (args.softmax_scale.has_value()) {
    const double magnitude = std::abs(*args.softmax_scale);
    STEPWELL_CHECK(magnitude == 0.0 || (magnitude >= kSmallest && magnitude <= kLargest), kValue,
                   "softmax_scale is {}; it must be 0 or of a magnitude in [{}, {}]",
                   *args.softmax_scale, kSmallest, kLargest);
  }
  STEPWELL_CHECK(args.softcap == 0.0 || (args.softcap >= kSmallest && args.softcap <= kLargest),
                 kValue, "softcap is {}; it must be in [{}, {}], or 0 for none", args.softcap,
                 kSmallest, kLargest);
  STEPWELL_CHECK(args.dropout_p >= 0.0 && args.dropout_p < 1.0, kValue,
                 "dropout_p is {}; it must be in [0, 1)", args.dropout_p);
  STEPWELL_CHECK(args.max_seqlen == -1 || args.q.rank == 3, kValue,
                 "max_seqlen is {}, but the tensors are batched (rank 4); leave it out",
                 args.max_seqlen);
  STEPWELL_CHECK(args.max_seqlen >= -1 && args.max_seqlen <= kMaxLength, kValue,
                 "max_seqlen is {}; it must be an integer in [0, {}], or left out", args.max_seqlen,
                 kMaxLength);
  STEPWELL_CHECK(args.num_threads >= 0, kValue,
                 "num_threads is {}; it must be positive, or 0 for the default", args.num_threads);
  const Tensor& state = args.dropout_state;
  if (!state.given()) return;
  STEPWELL_CHECK(args.dropout_seed == 0 && args.dropout_offset == 0, kValue,
                 "{} is given both as numbers ({}, {}) and as a tensor", names.dropout_state,
                 args.dropout_seed, args.dropout_offset);
  STEPWELL_CHECK(state.dtype == DType::kInt64, kType, "{} is {}; a tensor must be int64",
                 names.dropout_state, to_text(state.dtype));
  STEPWELL_CHECK(state.device == args.q.device, kType, "{} is on {}; {} is on {}",
                 names.dropout_state, to_text(state.device), names.q, to_text(args.q.device));
  STEPWELL_CHECK(state.rank == 1 && state.shape[0] == 2, kValue,
                 "{} has shape {}; a tensor must be [2]: seed and offset", names.dropout_state,
                 shape_text(state));
  STEPWELL_CHECK(state.stride[0] == 1, kValue, "{} has stride {}; it must be contiguous",
                 names.dropout_state, state.stride[0]);
}

}  // namespace stepwell
