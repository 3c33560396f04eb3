// Tensors that a call writes, and those of the forward pass that a backward call reads.
#include <algorithm>
#include <array>

#include "api/arguments.hpp"
#include "api/names.hpp"
#include "api/text.hpp"
#include "core/check.hpp"

namespace stepwell {
namespace {

/// Whether different indices may reach the same element.
bool may_overlap(const Tensor& tensor) {
  struct Dimension {
    std::int64_t stride;
    std::int64_t extent;
  };
  std::array<Dimension, Tensor::kMaxRank> dimensions{};  // by ascending stride
  int count = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] == 0) return false;
    if (tensor.shape[i] == 1) continue;
    const std::int64_t stride = tensor.stride[i] < 0 ? -tensor.stride[i] : tensor.stride[i];
    int at = count++;
    for (; at > 0 && dimensions[at - 1].stride > stride; --at) dimensions[at] = dimensions[at - 1];
    dimensions[at] = {stride, tensor.shape[i]};
  }
  std::int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    if (dimensions[i].stride <= reach) return true;
    reach += (dimensions[i].extent - 1) * dimensions[i].stride;
  }
  return false;
}

void check_written(const Tensor& tensor, const char* name) {
  STEPWELL_CHECK(!may_overlap(tensor), kValue,
                 "{} is written, but elements of it share memory (shape {}, an extent repeats with "
                 "a stride too small); give it memory of its own",
                 name, shape_text(tensor));
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin());
}

/// A tensor like `model`, with another last dimension if `last_dim` is not negative.
void check_like(const Tensor& tensor, const char* name, const Tensor& model, const char* model_name,
                std::int64_t last_dim = -1) {
  Tensor expected = model;
  if (last_dim >= 0) expected.shape[expected.rank - 1] = last_dim;
  STEPWELL_CHECK(tensor.given(), kValue, "{} is missing; it must have shape {}", name,
                 shape_text(expected));
  STEPWELL_CHECK(tensor.dtype == model.dtype, kType,
                 "{} is {}; {} is {}, and they must be the same", name, to_text(tensor.dtype),
                 model_name, to_text(model.dtype));
  STEPWELL_CHECK(tensor.device == model.device, kType, "{} is on {}; {} is on {}", name,
                 to_text(tensor.device), model_name, to_text(model.device));
  STEPWELL_CHECK(tensor.rank == model.rank, kType, "{} has shape {}; it must be {}", name,
                 shape_text(tensor), shape_text(expected));
  STEPWELL_CHECK(same_shape(tensor, expected), kValue, "{} has shape {}; it must be {}", name,
                 shape_text(tensor), shape_text(expected));
  const int last = tensor.rank - 1;
  STEPWELL_CHECK(tensor.stride[last] == 1 || tensor.shape[last] <= 1 || is_empty(tensor), kValue,
                 "{} has stride {} in its last dimension; it must be contiguous there (stride 1)",
                 name, tensor.stride[last]);
}

/// float32 `[batch, heads_q, rows]`, packed `[heads_q, total]`, of any strides.
void check_row_values(const Tensor& tensor, const char* name, const Tensor& q) {
  Tensor expected;
  expected.rank = q.rank - 1;
  if (q.rank == 4) {
    expected.shape = {q.shape[0], q.shape[2], q.shape[1]};
  } else {
    expected.shape = {q.shape[1], q.shape[0]};
  }
  STEPWELL_CHECK(tensor.given(), kValue, "{} is missing; it must be float32 of shape {}", name,
                 shape_text(expected));
  STEPWELL_CHECK(tensor.dtype == DType::kFloat32, kType, "{} is {}; it must be float32", name,
                 to_text(tensor.dtype));
  STEPWELL_CHECK(tensor.device == q.device, kType, "{} is on {}; the queries are on {}", name,
                 to_text(tensor.device), to_text(q.device));
  STEPWELL_CHECK(tensor.rank == expected.rank, kType, "{} has shape {}; it must be {}", name,
                 shape_text(tensor), shape_text(expected));
  STEPWELL_CHECK(same_shape(tensor, expected), kValue, "{} has shape {}; it must be {}", name,
                 shape_text(tensor), shape_text(expected));
}

void refuse_without_clean_queries(const Tensor& tensor, const char* name) {
  STEPWELL_CHECK(!tensor.given(), kValue,
                 "{} is given, but there are no clean queries in tensors of their own (q_clean)",
                 name);
}

bool same_metadata(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank) return false;
  if (!a.given()) return true;
  if (a.dtype != b.dtype || a.device != b.device || !same_shape(a, b)) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] > 1 && a.stride[i] != b.stride[i]) return false;
  }
  return true;
}

template <typename Struct, std::size_t N>
void check_fields_as_planned(const Struct& given, const Struct& planned, const ArgumentNames& names,
                             const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) {
    const Tensor& a = given.*field.tensor;
    const Tensor& b = planned.*field.tensor;
    STEPWELL_CHECK(same_metadata(a, b), kValue,
                   "{} is {} {} now and was {} {} when planned; presence, shape, strides, dtype "
                   "and device must be as planned",
                   names.*field.name, a.given() ? to_text(a.dtype) : "missing", shape_text(a),
                   b.given() ? to_text(b.dtype) : "missing", shape_text(b));
  }
}

template <typename Struct, std::size_t N>
void check_field_data(const Struct& given, const ArgumentNames& names,
                      const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) {
    const Tensor& tensor = given.*field.tensor;
    if (!tensor.given()) continue;
    if (tensor.data == nullptr) {
      STEPWELL_CHECK(is_empty(tensor), kValue, "{} has shape {} but no memory (null data)",
                     names.*field.name, shape_text(tensor));
    } else {
      const auto misaligned =
          reinterpret_cast<std::uintptr_t>(tensor.data) & (size_of(tensor.dtype) - 1);
      STEPWELL_CHECK(misaligned == 0 || is_empty(tensor), kValue,
                     "{} starts at an address that is not a multiple of its element's {} bytes",
                     names.*field.name, size_of(tensor.dtype));
    }
  }
}

}  // namespace

void check_outputs(const AttentionArgs& args, const AttentionShape& shape,
                   const AttentionOutputs& outputs) {
  const ArgumentNames& names = names_of(args.layout);
  const auto written = [&](const Tensor& out, const char* out_name, const Tensor& lse,
                           const char* lse_name, const Tensor& q, const char* q_name) {
    check_like(out, out_name, q, q_name, shape.head_dim_v);
    check_written(out, out_name);
    if (!lse.given()) return;
    check_row_values(lse, lse_name, q);
    check_written(lse, lse_name);
  };
  written(outputs.out, names.out, outputs.lse, names.lse, args.q, names.q);
  if (args.q_clean.given()) {
    written(outputs.out_clean, names.out_clean, outputs.lse_clean, names.lse_clean, args.q_clean,
            names.q_clean);
  } else {
    refuse_without_clean_queries(outputs.out_clean, names.out_clean);
    refuse_without_clean_queries(outputs.lse_clean, names.lse_clean);
  }
}

void check_gradients(const AttentionArgs& args, const AttentionShape& shape,
                     const AttentionGradients& gradients) {
  const ArgumentNames& names = names_of(args.layout);
  const AttentionGradients& g = gradients;
  const auto gradient = [](const Tensor& tensor, const char* name, const Tensor& model,
                           const char* model_name) {
    check_like(tensor, name, model, model_name);
    check_written(tensor, name);
  };
  check_like(g.out, names.out, args.q, names.q, shape.head_dim_v);
  check_row_values(g.lse, names.lse, args.q);
  check_like(g.dout, names.dout, args.q, names.q, shape.head_dim_v);
  if (g.dlse.given()) check_row_values(g.dlse, names.dlse, args.q);
  gradient(g.dq, names.dq, args.q, names.q);
  gradient(g.dk, names.dk, args.k, names.k);
  gradient(g.dv, names.dv, args.v, names.v);
  if (args.q_clean.given()) {
    check_like(g.out_clean, names.out_clean, args.q_clean, names.q_clean, shape.head_dim_v);
    check_row_values(g.lse_clean, names.lse_clean, args.q_clean);
    check_like(g.dout_clean, names.dout_clean, args.q_clean, names.q_clean, shape.head_dim_v);
    if (g.dlse_clean.given()) check_row_values(g.dlse_clean, names.dlse_clean, args.q_clean);
    gradient(g.dq_clean, names.dq_clean, args.q_clean, names.q_clean);
  } else {
    refuse_without_clean_queries(g.out_clean, names.out_clean);
    refuse_without_clean_queries(g.lse_clean, names.lse_clean);
    refuse_without_clean_queries(g.dout_clean, names.dout_clean);
    refuse_without_clean_queries(g.dlse_clean, names.dlse_clean);
    refuse_without_clean_queries(g.dq_clean, names.dq_clean);
  }
  if (args.layout == TokenLayout::kSplit) {
    gradient(g.dk_clean, names.dk_clean, args.k_clean, names.k_clean);
    gradient(g.dv_clean, names.dv_clean, args.v_clean, names.v_clean);
  } else {
    constexpr const char* kReason = "{} is given, but only the split layout has clean tensors";
    STEPWELL_CHECK(!g.dk_clean.given(), kValue, kReason, names.dk_clean);
    STEPWELL_CHECK(!g.dv_clean.given(), kValue, kReason, names.dv_clean);
  }
}

void check_tensor_data(const AttentionArgs& args) {
  check_field_data(args, names_of(args.layout), kTensorFields);
}

void check_array_data(const AttentionArgs& args) {
  check_field_data(args, names_of(args.layout), kArrayFields);
}

void check_data(const AttentionArgs& args, const AttentionOutputs& outputs) {
  check_field_data(outputs, names_of(args.layout), kOutputFields);
}

void check_data(const AttentionArgs& args, const AttentionGradients& gradients) {
  check_field_data(gradients, names_of(args.layout), kGradientFields);
}

void check_as_planned(const AttentionArgs& args, const AttentionArgs& planned) {
  const ArgumentNames& names = names_of(planned.layout);
  STEPWELL_CHECK(args.layout == planned.layout, kValue, "layout is {} now and was {} when planned",
                 to_text(args.layout), to_text(planned.layout));
  STEPWELL_CHECK(args.mask == planned.mask, kValue, "mask is not the planned one");
  STEPWELL_CHECK(args.num_threads == planned.num_threads, kValue,
                 "num_threads is {} now and was {} when planned", args.num_threads,
                 planned.num_threads);
  STEPWELL_CHECK(args.deterministic == planned.deterministic, kValue,
                 "deterministic is {} now and was {} when planned", args.deterministic,
                 planned.deterministic);
  check_fields_as_planned(args, planned, names, kTensorFields);
  check_fields_as_planned(args, planned, names, kArrayFields);
}

void check_as_planned(const AttentionArgs& args, const AttentionOutputs& outputs,
                      const AttentionOutputs& planned) {
  check_fields_as_planned(outputs, planned, names_of(args.layout), kOutputFields);
}

void check_as_planned(const AttentionArgs& args, const AttentionGradients& gradients,
                      const AttentionGradients& planned) {
  check_fields_as_planned(gradients, planned, names_of(args.layout), kGradientFields);
}

}  // namespace stepwell
