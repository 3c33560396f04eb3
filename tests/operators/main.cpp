// Tests of the operator table. --device=, --mode=, --kernels= and --random-cases= are those of
// RunnerOptions.
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "operators/runner.hpp"

namespace stepwell::testing {
namespace {

std::unique_ptr<Runner> runner;

}  // namespace

Runner& test_runner() { return *runner; }

}  // namespace stepwell::testing

int main(int argc, char** argv) {
  using stepwell::testing::make_runner;
  using stepwell::testing::RunnerOptions;
  RunnerOptions options;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      const auto give = [&argument](const std::string& name, std::string& value) {
        if (argument.rfind(name, 0) == 0) value = argument.substr(name.size());
      };
      give("--device=", options.device);
      give("--mode=", options.mode);
      give("--kernels=", options.kernels);
      give("--random-cases=", options.random_cases);
    }
    // Before GoogleTest asks for the cases.
    stepwell::testing::runner = make_runner(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
