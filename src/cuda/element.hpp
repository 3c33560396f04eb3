// The floating-point types that kernels compute with: the mma.sync kernels 16-bit ones, those of
// float32 (forward_f32.cuh and its neighbours) float32.
#pragma once

namespace stepwell::cuda {

enum class Element : int { kBFloat16, kFloat16, kFloat32 };

}  // namespace stepwell::cuda
