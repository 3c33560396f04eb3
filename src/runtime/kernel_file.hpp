// The format of a compiled kernel's file: a line with the SHA-256 of all that follows, lines of
// fields, an empty line, the compiler's log, the cubin.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/compiler.hpp"

namespace stepwell::runtime {

std::string pack_kernel(const std::string& key, const KernelSpec& spec, const std::string& arch,
                        const CompiledKernel& kernel);

/// Nothing where the bytes are damaged or are another kernel than `key`.
std::optional<CompiledKernel> unpack_kernel(std::string_view bytes, const std::string& key);

}  // namespace stepwell::runtime
