#pragma once

#include <CLI/CLI.hpp>

namespace stepwell::cli {

/// Adds `stepwell mask`: counts and pictures of masks.
void add_mask_command(CLI::App& app);

}  // namespace stepwell::cli
