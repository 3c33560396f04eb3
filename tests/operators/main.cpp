// Tests of the operator table: --device=cpu|cuda|cuda-model|cuda-model:8.6 says who runs the cases
// (cpu), --mode=mixed|checked|plain how the host model does (mixed).
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
  std::string device = "cpu";
  std::string mode = "mixed";
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      if (argument.rfind("--device=", 0) == 0) device = argument.substr(9);
      if (argument.rfind("--mode=", 0) == 0) mode = argument.substr(7);
    }
    // Before GoogleTest asks for the cases.
    stepwell::testing::runner = stepwell::testing::make_runner(device, mode);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
