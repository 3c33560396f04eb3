// Calls with the tensors of CPU tests as they would be on a GPU.
#pragma once

#include <string_view>

#include "api/call.hpp"
#include "api/names.hpp"

namespace stepwell::testing {

template <typename Struct, std::size_t N>
void move_to_cuda(Struct& tensors, const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) {
    Tensor& tensor = tensors.*field.tensor;
    if (!tensor.given()) continue;
    tensor.device = {DeviceType::kCuda, 0};
    const bool row_values =
        std::string_view(kPlainNames.*field.name).find("lse") != std::string_view::npos;
    if (tensor.dtype == DType::kFloat32 && !row_values) tensor.dtype = DType::kBFloat16;
  }
}

/// A call as it would be on GPU 0: bfloat16, and memory of float32 behind it.
inline Call on_cuda(Call call) {
  call.make_outputs();
  move_to_cuda(call.args, kTensorFields);
  move_to_cuda(call.args, kArrayFields);
  move_to_cuda(call.outputs, kOutputFields);
  move_to_cuda(call.gradients, kGradientFields);
  return call;
}

}  // namespace stepwell::testing
