// What is wrong with a compiled kernel.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/compiler.hpp"
#include "runtime/spec.hpp"

namespace stepwell::cli {

/// One line each: spills and local memory above what the spec accepts, or in a loop; notes of the
/// compiler that it serialised or ignored something; more shared memory than a CTA can have on
/// `arch`. `nvdisasm` is asked about loops where a kernel spills at all; without it, any spill is a
/// problem.
std::vector<std::string> kernel_problems(const runtime::KernelSpec& spec, const std::string& arch,
                                         const runtime::CompiledKernel& kernel,
                                         const std::filesystem::path& nvdisasm);

/// Local-memory instructions inside loops, of `nvdisasm -c`'s listing.
int local_accesses_in_loops(std::string_view listing);

}  // namespace stepwell::cli
