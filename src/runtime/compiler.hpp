// Run-time compilation with NVRTC. Works without a GPU.
#pragma once

#include <compare>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/spec.hpp"

namespace stepwell::runtime {

struct CompilerVersion {
  int major = 0;
  int minor = 0;

  auto operator<=>(const CompilerVersion&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// The version of the NVRTC found; throws an Error that says how to get one where there is none.
CompilerVersion compiler_version();

/// Architectures that this NVRTC compiles for, such as "sm_90"; the variants with an "a" are not
/// listed by NVRTC but accepted.
std::vector<std::string> compiler_architectures();

/// Options that every kernel is compiled with, without the architecture.
std::span<const char* const> kernel_options();

/// What the compiler reports about a kernel.
struct Resources {
  int registers = 0;  ///< of a thread
  int stack_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int static_shared_bytes = 0;
  int barriers = 0;

  bool operator==(const Resources&) const = default;
};

/// From the compiler's log, as `--ptxas-options=-v` writes it.
Resources parse_resources(std::string_view log);

struct CompiledKernel {
  std::string cubin;
  std::string log;  ///< everything the compiler said: warnings, notes, resource usage
  Resources resources;
  CompilerVersion compiler;
  double seconds = 0.0;  ///< that compiling took, whenever that was
};

/// Compiles for `arch`, such as "sm_80" or "sm_90a". Throws an Error with the compiler's log where
/// the source is not accepted.
CompiledKernel compile_kernel(const KernelSpec& spec, const std::string& arch);

}  // namespace stepwell::runtime
