#pragma once

#include <CLI/CLI.hpp>

namespace stepwell::cli {

/// Adds `stepwell doctor`: what there is to run on a GPU, and what is missing.
void add_doctor_command(CLI::App& app);

}  // namespace stepwell::cli
