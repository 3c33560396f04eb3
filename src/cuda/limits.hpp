// What a GPU gives to a CTA, by compute capability: kernels compiled ahead of time, without a GPU,
// are those that a GPU asks for.
#pragma once

namespace stepwell::cuda {

struct DeviceLimits {
  int major = 0;                 // of the compute capability
  int shared_bytes_per_cta = 0;  // that a CTA can ask for
  int shared_bytes_per_sm = 0;   // of all CTAs on an SM, 1 KiB of each taken by the system
  bool warpgroups = false;       // wgmma and tensor copies, of 9.0 alone: kernels for sm_90a
  int sms = 0;                   // 0: not known; no configuration depends on it
};

/// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
constexpr DeviceLimits limits_of(int major, int minor) {
  constexpr int kKiB = 1024;
  if (major == 8 && (minor == 0 || minor == 7)) return {major, 163 * kKiB, 164 * kKiB};
  if (major >= 9 && major <= 11) return {major, 227 * kKiB, 228 * kKiB, major == 9};
  // 8.6, 8.9, 12.x; the least of all, so that unknown GPUs take it too.
  return {major, 99 * kKiB, 100 * kKiB};
}

}  // namespace stepwell::cuda
