// What the two float32 kernels of the backward pass share.
//
//   attention_backward_dq_f32   first, by query tiles: row values, then dQ
//   attention_backward_dkv_f32  by key tiles: dK and dV
//
// Both recompute the scores, and nothing is added in memory: results are the same from run to run.
#pragma once

#include "cuda/attention/f32_config.hpp"
#include "cuda/attention/params.hpp"
#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/math_f32.cuh"

namespace stepwell::cuda {

/// What the backward pass needs of a query row, 16 bytes in the workspace.
struct RowValuesF32 {
  float lse;     // log-sum-exp in units of log 2
  float factor;  // of P: makes up for the rounding of lse
  float delta;   // sum of dout * out
  float dlse;    // apart from delta, which may be so large that their sum loses bits of it
};

/// P, and the factor of dP - delta + dlse in dS: P times the slope of the cap.
struct ProbabilityF32 {
  float p;
  float slope;
};

/// From a raw score; at most 2, also where scores are past the precision of a float.
template <F32Config C>
__device__ __forceinline__ ProbabilityF32 probability_f32(const BackwardParamsF32& p, float s,
                                                          float lse) {
  float slope = 1.0f;
  if constexpr (C.softcap) {
    s = tanh_f32(s * p.softcap_scale);
    slope = ptx::fma_f32(-s, s, 1.0f);
  }
  return {exp2_of_score(s, p.scale_log2, lse), slope};
}

}  // namespace stepwell::cuda
