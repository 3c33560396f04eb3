// What names a kernel before it is compiled.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace stepwell::runtime {

/// A kernel to compile: generated text around one of the embedded device sources. Two specs with
/// the same `source` and `options` are the same kernel; the other fields only describe it.
struct KernelSpec {
  /// For people: tables, log lines and error messages; such as "attention_forward_sm80 dim=128
  /// bf16".
  std::string name;

  /// The root source: #include "cuda/..." of embedded files, the configuration as a constexpr, and
  /// one `extern "C" __global__` function.
  std::string source;

  std::string entry = "kernel";  ///< that function's name

  /// Of the compiler, beyond those that every kernel gets (kernel_options of compiler.hpp).
  std::vector<std::string> options;

  int threads = 0;       ///< of a CTA
  int shared_bytes = 0;  ///< dynamic shared memory of a CTA

  /// Spills that are known and accepted, in bytes; more is reported when the kernel is loaded and
  /// fails the compile gate.
  int accepted_spill_bytes = 0;

  /// (name, value) of each choice behind the configuration, such as ("head_dim", "128"): the
  /// columns of tables, and what the pairwise compile gate covers.
  std::vector<std::pair<std::string, std::string>> factors;
};

}  // namespace stepwell::runtime
