#include "bench_command.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace stepwell::cli {
namespace {

namespace fs = std::filesystem;

/// execvp and posix_spawnp take pointers to characters that they do not change.
std::vector<char*> argv_of(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  return argv;
}

/// Why `python`, a path or a name on PATH, cannot run the benchmark; empty where it can.
std::string problem_of(const std::string& python) {
  const char* const code =
      "import importlib.util, sys; sys.exit(importlib.util.find_spec('stepwell') is None)";
  const std::vector<std::string> arguments = {python, "-c", code};
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, python.c_str(), nullptr, nullptr, argv_of(arguments).data(), environ);
  if (error != 0) return std::strerror(error);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return std::strerror(errno);
  }
  const bool found = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return found ? "" : "does not have the Python package stepwell";
}

/// The Python of the environment that the program is installed in, else python3 of PATH.
std::string find_python() {
  std::vector<std::string> candidates;
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  for (const char* name : {"python", "python3"}) {
    const fs::path beside = program.parent_path() / name;
    if (!program.empty() && fs::exists(beside, none)) {
      candidates.push_back(beside.string());
      break;
    }
  }
  candidates.emplace_back("python3");
  std::string problems;
  for (const std::string& python : candidates) {
    const std::string problem = problem_of(python);
    if (problem.empty()) return python;
    problems += fmt::format("\n  {}: {}", python, problem);
  }
  throw std::runtime_error(
      fmt::format("bench runs in Python, and none was found that has the package stepwell:{}\n"
                  "Install it with `pip install '.[bench]'` in the repository, or run "
                  "`PYTHON -m stepwell.bench` with a Python that has it",
                  problems));
}

/// Becomes Python, so that signals and the exit status are its own.
[[noreturn]] void run_bench(const std::vector<std::string>& arguments) {
  const std::string python = find_python();
  std::vector<std::string> command = {python, "-m", "stepwell.bench"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  execvp(python.c_str(), argv_of(command).data());
  throw std::runtime_error(fmt::format("{}: {}", python, std::strerror(errno)));
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "bench", "Measure attention against other implementations; needs Python with torch.");
  // Options are the Python module's, --help too.
  command->set_help_flag();
  command->prefix_command();
  command->callback([command] { run_bench(command->remaining()); });
}

}  // namespace stepwell::cli
