#pragma once

#include <CLI/CLI.hpp>

namespace stepwell::cli {

/// Adds `stepwell bench`, which runs `python -m stepwell.bench` with the same arguments.
void add_bench_command(CLI::App& app);

}  // namespace stepwell::cli
