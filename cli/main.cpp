#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "bench_command.hpp"
#include "compile_command.hpp"
#include "doctor_command.hpp"
#include "mask_command.hpp"

namespace {

constexpr int kFailure = 1;
constexpr int kBadUsage = 2;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Attention kernels for diffusion models.", "stepwell"};
  app.set_version_flag("--version", "stepwell " STEPWELL_VERSION);
  app.require_subcommand(0, 1);
  app.footer(
      "`stepwell COMMAND --help` explains a command.\n"
      "Exit status: 0 done, 1 the work failed, 2 an argument is not accepted.");
  try {
    stepwell::cli::add_mask_command(app);
    stepwell::cli::add_compile_command(app);
    stepwell::cli::add_doctor_command(app);
    stepwell::cli::add_bench_command(app);
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) {
      std::fprintf(stderr, "a command is missing\n\n%s", app.help().c_str());
      return kBadUsage;
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stepwell: %s\n", error.what());
    return kFailure;
  }
  return 0;
}
