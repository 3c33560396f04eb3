// NVIDIA's libraries and tools in Python environments, where the program is not told about them.
#pragma once

#include <filesystem>
#include <vector>

namespace stepwell::cli {

/// Lets the runtime find NVRTC in the environment that the program is installed in, and in the
/// active one.
void use_cuda_wheels();

/// `nvdisasm` of PATH or of those environments; empty where there is none.
std::filesystem::path find_nvdisasm();

}  // namespace stepwell::cli
