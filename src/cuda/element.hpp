// The 16-bit floating-point types that kernels compute with.
#pragma once

namespace stepwell::cuda {

enum class Element : int { kBFloat16, kFloat16 };

}  // namespace stepwell::cuda
