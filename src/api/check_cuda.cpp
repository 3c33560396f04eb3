// What the CUDA backend does not take.
#include <cstdint>

#include "api/arguments.hpp"
#include "api/names.hpp"
#include "api/text.hpp"
#include "core/check.hpp"

namespace stepwell {
namespace {

// Kernels move 16 bytes at a time.
constexpr int kAccessBytes = 16;
constexpr int kAccessElements = kAccessBytes / 2;

bool has_rows(const Tensor& tensor) {
  const bool half = tensor.dtype == DType::kFloat16 || tensor.dtype == DType::kBFloat16;
  return tensor.given() && half && tensor.size() > 0;
}

template <typename Struct, std::size_t N>
void check_strides(const Struct& given, const ArgumentNames& names,
                   const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) {
    const Tensor& tensor = given.*field.tensor;
    if (!has_rows(tensor)) continue;
    for (int i = 0; i + 1 < tensor.rank; ++i) {
      STEPWELL_CHECK(tensor.shape[i] <= 1 || tensor.stride[i] % kAccessElements == 0, kValue,
                     "{} has stride {} in dimension {}; on CUDA strides must be multiples of {} "
                     "elements",
                     names.*field.name, tensor.stride[i], i, kAccessElements);
    }
  }
}

template <typename Struct, std::size_t N>
void check_addresses(const Struct& given, const ArgumentNames& names,
                     const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) {
    const Tensor& tensor = given.*field.tensor;
    if (!has_rows(tensor)) continue;
    STEPWELL_CHECK(reinterpret_cast<std::uintptr_t>(tensor.data) % kAccessBytes == 0, kValue,
                   "{} starts at an address that is not a multiple of {} bytes, as CUDA needs it",
                   names.*field.name, kAccessBytes);
  }
}

void check_common(const AttentionArgs& args) {
  const ArgumentNames& names = names_of(args.layout);
  STEPWELL_CHECK(args.q.dtype != DType::kFloat32, kNotImplemented,
                 "{} is float32 on CUDA; accepted: bfloat16, float16", names.q);
  check_strides(args, names, kTensorFields);
}

}  // namespace

void check_cuda(const AttentionArgs& args, const AttentionOutputs& outputs) {
  check_common(args);
  check_strides(outputs, names_of(args.layout), kOutputFields);
}

void check_cuda(const AttentionArgs& args, const AttentionGradients& gradients) {
  check_common(args);
  check_strides(gradients, names_of(args.layout), kGradientFields);
}

void check_cuda_numbers(const AttentionArgs& args, bool backward) {
  STEPWELL_CHECK(!backward || !args.deterministic, kNotImplemented,
                 "deterministic is True on CUDA, whose backward pass adds dq in any order; "
                 "accepted: False");
  STEPWELL_CHECK(
      !args.softmax_scale.has_value() || *args.softmax_scale >= 0.0 || args.softcap > 0.0,
      kNotImplemented, "softmax_scale is {} on CUDA; accepted without softcap: 0 or more",
      *args.softmax_scale);
}

void check_cuda_data(const AttentionArgs& args, const AttentionOutputs& outputs) {
  const ArgumentNames& names = names_of(args.layout);
  check_addresses(args, names, kTensorFields);
  check_addresses(outputs, names, kOutputFields);
}

void check_cuda_data(const AttentionArgs& args, const AttentionGradients& gradients) {
  const ArgumentNames& names = names_of(args.layout);
  check_addresses(args, names, kTensorFields);
  check_addresses(gradients, names, kGradientFields);
}

}  // namespace stepwell
