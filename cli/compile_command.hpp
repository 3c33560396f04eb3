#pragma once

#include <CLI/CLI.hpp>

namespace stepwell::cli {

/// Adds `stepwell compile`: kernels ahead of time, with the compiler's report.
void add_compile_command(CLI::App& app);

}  // namespace stepwell::cli
