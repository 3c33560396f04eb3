// What the CUDA backend does not take.
#include <cstdint>
#include <cstdlib>
#include <list>
#include <string_view>
#include <vector>

#include "api/arguments.hpp"
#include "api/names.hpp"
#include "api/text.hpp"
#include "core/check.hpp"
#include "runtime/device.hpp"

namespace stepwell {
namespace {

// Kernels move 16 bytes at a time.
constexpr int kAccessBytes = 16;

// All but log-sum-exp and its gradient, which are read float by float.
template <typename Struct>
bool has_rows(const Tensor& tensor, const Field<Struct>& field) {
  for (const auto values : {&ArgumentNames::lse, &ArgumentNames::lse_clean, &ArgumentNames::dlse,
                            &ArgumentNames::dlse_clean}) {
    if (field.name == values) return false;
  }
  return tensor.given() && tensor.size() > 0;
}

template <typename Struct, std::size_t N>
void check_strides(const Struct& given, const ArgumentNames& names,
                   const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) {
    const Tensor& tensor = given.*field.tensor;
    if (!has_rows(tensor, field)) continue;
    const int elements = kAccessBytes / size_of(tensor.dtype);
    for (int i = 0; i + 1 < tensor.rank; ++i) {
      STEPWELL_CHECK(tensor.shape[i] <= 1 || tensor.stride[i] % elements == 0, kValue,
                     "{} has stride {} in dimension {}; on CUDA strides must be multiples of {} "
                     "elements",
                     names.*field.name, tensor.stride[i], i, elements);
    }
  }
}

template <typename Struct, std::size_t N>
void check_addresses(const Struct& given, const ArgumentNames& names,
                     const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) {
    const Tensor& tensor = given.*field.tensor;
    if (!has_rows(tensor, field)) continue;
    STEPWELL_CHECK(reinterpret_cast<std::uintptr_t>(tensor.data) % kAccessBytes == 0, kValue,
                   "{} starts at an address that is not a multiple of {} bytes, as CUDA needs it",
                   names.*field.name, kAccessBytes);
  }
}

void check_common(const AttentionArgs& args) {
  const ArgumentNames& names = names_of(args.layout);
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

bool debug_sync() {
  static const bool sync = [] {
    const char* value = std::getenv("STEPWELL_DEBUG_SYNC");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }();
  return sync;
}

void check_cuda_values(const AttentionArgs& args, const AttentionShape& shape) {
  const int device = args.q.device.index;
  AttentionArgs on_host = args;
  std::list<std::vector<std::int64_t>> memory;
  for (const Field<AttentionArgs>& field : kArrayFields) {
    Tensor& tensor = on_host.*field.tensor;
    if (!tensor.given() || tensor.size() == 0) continue;
    const auto bytes = static_cast<std::size_t>(tensor.size() * size_of(tensor.dtype));
    void* copy = memory.emplace_back(bytes / sizeof(std::int64_t) + 1).data();
    runtime::copy_to_host(device, copy, tensor.data, bytes, args.stream);
    tensor.data = copy;
  }
  runtime::synchronize(device, args.stream);
  check_values(on_host, build_problem(on_host, shape, Addresses::kReal).layout);
}

}  // namespace stepwell
