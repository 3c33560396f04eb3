#include "api/call.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace stepwell::testing {
namespace {

constexpr std::int64_t kHeadsQ = 4;
constexpr std::int64_t kHeadsKv = 2;
constexpr std::int64_t kDim = 16;

Tensor like(Call& call, const Tensor& q, std::int64_t last) {
  if (q.rank == 4) return call.written({q.shape[0], q.shape[1], q.shape[2], last});
  return call.written({q.shape[0], q.shape[1], last});
}

Tensor row_values(Call& call, const Tensor& q) {
  if (q.rank == 4) return call.written({q.shape[0], q.shape[2], q.shape[1]});
  return call.written({q.shape[1], q.shape[0]});
}

void set_tensors(Call& call, std::int64_t batch, std::int64_t rows_q, std::int64_t rows_kv) {
  call.args.q = call.floats({batch, rows_q, kHeadsQ, kDim});
  call.args.k = call.floats({batch, rows_kv, kHeadsKv, kDim});
  call.args.v = call.floats({batch, rows_kv, kHeadsKv, kDim});
}

void set_packed_tensors(Call& call, std::int64_t rows_q, std::int64_t rows_kv) {
  call.args.q = call.floats({rows_q, kHeadsQ, kDim});
  call.args.k = call.floats({rows_kv, kHeadsKv, kDim});
  call.args.v = call.floats({rows_kv, kHeadsKv, kDim});
}

SequenceMask sequence_mask(SequenceMask::Kind kind) {
  SequenceMask mask{.kind = kind};
  if (kind == SequenceMask::Kind::kBlockCausal) mask.block_size = 4;
  return mask;
}

}  // namespace

void* Call::allocate(std::size_t bytes) {
  return memory_.emplace_back(bytes / sizeof(std::int64_t) + 1).data();
}

Tensor Call::floats(std::initializer_list<std::int64_t> shape, DType dtype) {
  Tensor tensor = Tensor::contiguous(nullptr, dtype, shape);
  const std::int64_t size = tensor.size();
  tensor.data = allocate(static_cast<std::size_t>(size * size_of(dtype)));
  if (dtype == DType::kFloat32) {
    auto* values = static_cast<float*>(tensor.data);
    for (std::int64_t i = 0; i < size; ++i) {
      values[i] = std::sin(static_cast<float>(i * 7 + static_cast<std::int64_t>(memory_.size())));
    }
  }
  return tensor;
}

Tensor Call::written(std::initializer_list<std::int64_t> shape) {
  Tensor tensor = floats(shape);
  auto* values = static_cast<float*>(tensor.data);
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    values[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return tensor;
}

Tensor Call::ints(std::initializer_list<std::int32_t> values) {
  return ints({static_cast<std::int64_t>(values.size())}, values);
}

Tensor Call::ints(std::initializer_list<std::int64_t> shape, std::vector<std::int32_t> values) {
  void* data = allocate(values.size() * sizeof(std::int32_t));
  if (!values.empty()) std::memcpy(data, values.data(), values.size() * sizeof(std::int32_t));
  return Tensor::contiguous(data, DType::kInt32, shape);
}

Tensor Call::longs(std::initializer_list<std::int64_t> values) {
  void* data = allocate(values.size() * sizeof(std::int64_t));
  std::memcpy(data, values.begin(), values.size() * sizeof(std::int64_t));
  return Tensor::contiguous(data, DType::kInt64, {static_cast<std::int64_t>(values.size())});
}

void Call::make_outputs() {
  const std::int64_t dim_v = args.v.shape[args.v.rank - 1];
  outputs.out = like(*this, args.q, dim_v);
  outputs.lse = row_values(*this, args.q);
  gradients.dq = like(*this, args.q, args.q.shape[args.q.rank - 1]);
  gradients.dk = like(*this, args.k, args.k.shape[args.k.rank - 1]);
  gradients.dv = like(*this, args.v, dim_v);
  if (args.layout == TokenLayout::kSplit) {
    gradients.dk_clean = like(*this, args.k_clean, args.k_clean.shape[args.k_clean.rank - 1]);
    gradients.dv_clean = like(*this, args.v_clean, dim_v);
    if (args.q_clean.given()) {
      outputs.out_clean = like(*this, args.q_clean, dim_v);
      outputs.lse_clean = row_values(*this, args.q_clean);
      gradients.dq_clean = like(*this, args.q_clean, args.q_clean.shape[args.q_clean.rank - 1]);
    }
  }
  gradients.out = outputs.out;
  gradients.lse = outputs.lse;
  gradients.dout = outputs.out;
  gradients.out_clean = outputs.out_clean;
  gradients.lse_clean = outputs.lse_clean;
  gradients.dout_clean = outputs.out_clean;
}

void Call::backward() {
  attention_forward(args, outputs);
  attention_backward(args, gradients);
}

Call batched_call() {
  Call call;
  call.args.mask = DiffusionMask{.block_size = 4};
  call.args.layout = TokenLayout::kBatched;
  set_tensors(call, 2, 32, 32);
  call.make_outputs();
  return call;
}

Call interleaved_call() {
  Call call;
  call.args.mask = DiffusionMask{.block_size = 4};
  call.args.layout = TokenLayout::kInterleaved;
  set_packed_tensors(call, 26, 26);
  call.args.cu_seqlens = call.ints({0, 14, 14, 24});
  call.make_outputs();
  return call;
}

Call halves_call() {
  Call call;
  call.args.mask = DiffusionMask{.block_size = 4};
  call.args.layout = TokenLayout::kHalves;
  set_packed_tensors(call, 26, 26);
  call.args.cu_seqlens = call.ints({0, 7, 7, 12});
  call.make_outputs();
  return call;
}

Call split_call() {
  Call call;
  call.args.mask = DiffusionMask{.block_size = 4};
  call.args.layout = TokenLayout::kSplit;
  set_tensors(call, 2, 12, 12);
  call.args.q_clean = call.floats({2, 16, kHeadsQ, kDim});
  call.args.k_clean = call.floats({2, 16, kHeadsKv, kDim});
  call.args.v_clean = call.floats({2, 16, kHeadsKv, kDim});
  call.make_outputs();
  return call;
}

Call split_packed_call() {
  Call call;
  call.args.mask = DiffusionMask{.block_size = 4};
  call.args.layout = TokenLayout::kSplit;
  set_packed_tensors(call, 12, 12);
  call.args.q_clean = call.floats({14, kHeadsQ, kDim});
  call.args.k_clean = call.floats({14, kHeadsKv, kDim});
  call.args.v_clean = call.floats({14, kHeadsKv, kDim});
  call.args.cu_seqlens = call.ints({0, 8, 12});
  call.args.cu_seqlens_clean = call.ints({0, 8, 14});
  call.make_outputs();
  return call;
}

Call sequence_call(SequenceMask::Kind kind) {
  Call call;
  call.args.mask = sequence_mask(kind);
  call.args.layout = TokenLayout::kSequence;
  set_tensors(call, 2, 6, 10);
  call.args.q_offset = 4;
  call.make_outputs();
  return call;
}

Call sequence_packed_call(SequenceMask::Kind kind) {
  Call call;
  call.args.mask = sequence_mask(kind);
  call.args.layout = TokenLayout::kSequence;
  set_packed_tensors(call, 8, 12);
  call.args.cu_seqlens = call.ints({0, 3, 8});
  call.args.cu_seqlens_kv = call.ints({0, 7, 12});
  call.make_outputs();
  return call;
}

std::vector<unsigned char> mask_of(const AttentionArgs& args, std::size_t elements) {
  std::vector<unsigned char> visible(elements, 7);
  attention_mask(args, visible.data(), visible.size());
  return visible;
}

}  // namespace stepwell::testing
