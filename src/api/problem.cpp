// The backend's form of checked arguments.
#include <cmath>

#include "api/arguments.hpp"

namespace stepwell {
namespace {

using geometry::CleanRule;
using geometry::Half;
using geometry::kMaxLength;
using geometry::NoisyRule;
using geometry::Packing;

// What pointers of a planned problem point at: not null, never read.
alignas(16) unsigned char stand_in[16] = {};

template <typename T = void>
T* address(const Tensor& tensor, Addresses addresses) {
  if (!tensor.given()) return nullptr;
  return static_cast<T*>(addresses == Addresses::kReal ? tensor.data : stand_in);
}

// Strides of dimensions with one element may hold anything; no address depends on them.
std::int64_t stride_of(const Tensor& tensor, int dimension) {
  return tensor.shape[dimension] > 1 ? tensor.stride[dimension] : 0;
}

Rows rows_of(const Tensor& tensor, Addresses addresses) {
  if (!tensor.given()) return {};
  const int row = tensor.rank - 3;
  return {address(tensor, addresses), tensor.rank == 4 ? stride_of(tensor, 0) : 0,
          stride_of(tensor, row), stride_of(tensor, row + 1)};
}

RowValues row_values_of(const Tensor& tensor, Addresses addresses) {
  if (!tensor.given()) return {};
  const int head = tensor.rank - 2;
  return {address<float>(tensor, addresses), tensor.rank == 3 ? stride_of(tensor, 0) : 0,
          stride_of(tensor, head), stride_of(tensor, head + 1)};
}

void set_mask(const DiffusionMask& mask, geometry::SampleMask& out) {
  out.block_size = static_cast<int>(mask.block_size);
  out.clean = mask.clean == CleanAttention::kCausal ? CleanRule::kCausal : CleanRule::kBlock;
  out.noisy =
      mask.noisy == NoisyAttention::kCausal ? NoisyRule::kCausal : NoisyRule::kBidirectional;
  out.clean_window = static_cast<int>(mask.clean_window);
  out.num_views = static_cast<int>(mask.num_views);
}

void set_mask(const SequenceMask& mask, geometry::SampleMask& out) {
  // Positions reach 2 * kMaxLength (offset + index), so a wider window has no bound.
  const auto window = [](std::int64_t w) {
    return static_cast<int>(geometry::min_of<std::int64_t>(w, 2 * std::int64_t{kMaxLength}));
  };
  out.num_views = 0;
  switch (mask.kind) {
    case SequenceMask::Kind::kFull:
      out.clean = CleanRule::kFull;
      break;
    case SequenceMask::Kind::kCausal:
      out.clean = CleanRule::kCausal;
      break;
    case SequenceMask::Kind::kWindow:
      out.clean = CleanRule::kWindow;
      out.window_left = window(mask.window_left);
      out.window_right = window(mask.window_right);
      break;
    case SequenceMask::Kind::kBlockCausal:
      out.clean = CleanRule::kBlock;
      out.block_size = static_cast<int>(mask.block_size);
      break;
  }
}

geometry::Layout build_layout(const AttentionArgs& args, const AttentionShape& shape,
                              Addresses addresses) {
  const auto ints = [addresses](const Tensor& tensor) {
    return address<const std::int32_t>(tensor, addresses);
  };
  geometry::Layout layout;
  std::visit([&](const auto& mask) { set_mask(mask, layout.mask); }, args.mask);
  layout.batch = static_cast<int>(shape.batch);
  layout.origins = ints(args.prefix_lens);
  switch (args.layout) {
    case TokenLayout::kBatched:
    case TokenLayout::kInterleaved:
    case TokenLayout::kHalves:
      layout.packing =
          args.layout == TokenLayout::kHalves ? Packing::kJointHalves : Packing::kJoint;
      layout.clean_first = std::get<DiffusionMask>(args.mask).order == Order::kCleanNoisy;
      layout.joint_rows = shape.rows_q;
      layout.cu_noisy = ints(args.cu_seqlens);
      layout.seqused_noisy = ints(args.seqused);
      layout.seqused_clean_q = layout.seqused_noisy;
      layout.seqused_clean_kv = layout.seqused_noisy;
      break;
    case TokenLayout::kSplit:
      layout.packing = Packing::kSplit;
      layout.noisy_rows = shape.rows_q;
      layout.clean_q_rows = shape.rows_clean_q;
      layout.clean_kv_rows = shape.rows_clean_kv;
      layout.cu_noisy = ints(args.cu_seqlens);
      layout.cu_clean_kv = ints(args.cu_seqlens_clean);
      if (args.q_clean.given()) {
        layout.cu_clean_q =
            args.cu_seqlens_clean_q.given() ? ints(args.cu_seqlens_clean_q) : layout.cu_clean_kv;
        layout.clean_q_positions = ints(args.q_offsets);
        layout.mask.clean_q_position = static_cast<int>(args.q_offset);
        layout.seqused_clean_q = ints(args.seqused_clean);
        layout.clean_q_used_by_position = true;
      }
      layout.seqused_noisy = ints(args.seqused);
      layout.seqused_clean_kv = ints(args.seqused_clean);
      layout.noisy_positions = ints(args.noisy_offsets);
      layout.mask.noisy_position = static_cast<int>(args.noisy_offset);
      if (args.block_ranges.given()) {
        const Tensor& ranges = args.block_ranges;
        layout.mask.block_ranges = ints(ranges);
        layout.mask.num_block_ranges = static_cast<int>(ranges.shape[ranges.rank - 2]);
        layout.block_ranges_stride = ranges.rank == 3 ? ranges.shape[1] : 0;
      }
      break;
    case TokenLayout::kSequence:
      layout.packing = Packing::kSplit;
      layout.clean_q_rows = shape.rows_q;
      layout.clean_kv_rows = shape.rows_kv;
      layout.cu_clean_q = ints(args.cu_seqlens);
      layout.cu_clean_kv =
          args.cu_seqlens_kv.given() ? ints(args.cu_seqlens_kv) : layout.cu_clean_q;
      layout.clean_q_positions = ints(args.q_offsets);
      layout.mask.clean_q_position = static_cast<int>(args.q_offset);
      layout.seqused_clean_q = ints(args.seqused);
      layout.seqused_clean_kv = ints(args.seqused_kv);
      break;
  }
  return layout;
}

}  // namespace

AttentionProblem build_problem(const AttentionArgs& args, const AttentionShape& shape,
                               Addresses addresses) {
  AttentionProblem problem;
  problem.layout = build_layout(args, shape, addresses);
  problem.max_seqlen = args.max_seqlen;
  problem.heads_q = static_cast<int>(shape.heads_q);
  problem.heads_kv = static_cast<int>(shape.heads_kv);
  problem.head_dim = static_cast<int>(shape.head_dim);
  problem.head_dim_v = static_cast<int>(shape.head_dim_v);
  problem.dtype = args.q.dtype;
  HalfTensors& noisy = problem.half(Half::kNoisy);
  HalfTensors& clean = problem.half(Half::kClean);
  HalfTensors& first = args.layout == TokenLayout::kSequence ? clean : noisy;
  first.q = rows_of(args.q, addresses);
  first.k = rows_of(args.k, addresses);
  first.v = rows_of(args.v, addresses);
  if (args.layout == TokenLayout::kSplit) {
    clean.q = rows_of(args.q_clean, addresses);
    clean.k = rows_of(args.k_clean, addresses);
    clean.v = rows_of(args.v_clean, addresses);
  } else if (args.layout != TokenLayout::kSequence) {
    clean = noisy;
  }
  problem.softmax_scale = args.softmax_scale.has_value()
                              ? *args.softmax_scale
                              : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  problem.softcap = args.softcap;
  problem.dropout_p = args.dropout_p;
  problem.dropout_seed = args.dropout_seed;
  problem.dropout_offset = args.dropout_offset;
  problem.dropout_state = address<const std::int64_t>(args.dropout_state, addresses);
  problem.deterministic = args.deterministic;
  problem.num_threads = args.num_threads;
  return problem;
}

void set_outputs(const AttentionArgs& args, const AttentionOutputs& outputs, Addresses addresses,
                 AttentionProblem& problem) {
  const bool joint = args.layout != TokenLayout::kSplit && args.layout != TokenLayout::kSequence;
  HalfTensors& noisy = problem.half(Half::kNoisy);
  HalfTensors& clean = problem.half(Half::kClean);
  HalfTensors& first = args.layout == TokenLayout::kSequence ? clean : noisy;
  first.out = rows_of(outputs.out, addresses);
  first.lse = row_values_of(outputs.lse, addresses);
  if (args.layout == TokenLayout::kSplit) {
    clean.out = rows_of(outputs.out_clean, addresses);
    clean.lse = row_values_of(outputs.lse_clean, addresses);
  } else if (joint) {
    clean = noisy;
  }
}

void set_gradients(const AttentionArgs& args, const AttentionGradients& gradients,
                   Addresses addresses, AttentionProblem& problem) {
  const bool joint = args.layout != TokenLayout::kSplit && args.layout != TokenLayout::kSequence;
  HalfTensors& noisy = problem.half(Half::kNoisy);
  HalfTensors& clean = problem.half(Half::kClean);
  HalfTensors& first = args.layout == TokenLayout::kSequence ? clean : noisy;
  first.out = rows_of(gradients.out, addresses);
  first.lse = row_values_of(gradients.lse, addresses);
  first.dout = rows_of(gradients.dout, addresses);
  first.dlse = row_values_of(gradients.dlse, addresses);
  first.dq = rows_of(gradients.dq, addresses);
  first.dk = rows_of(gradients.dk, addresses);
  first.dv = rows_of(gradients.dv, addresses);
  if (args.layout == TokenLayout::kSplit) {
    clean.out = rows_of(gradients.out_clean, addresses);
    clean.lse = row_values_of(gradients.lse_clean, addresses);
    clean.dout = rows_of(gradients.dout_clean, addresses);
    clean.dlse = row_values_of(gradients.dlse_clean, addresses);
    clean.dq = rows_of(gradients.dq_clean, addresses);
    clean.dk = rows_of(gradients.dk_clean, addresses);
    clean.dv = rows_of(gradients.dv_clean, addresses);
  } else if (joint) {
    clean = noisy;
  }
}

}  // namespace stepwell
