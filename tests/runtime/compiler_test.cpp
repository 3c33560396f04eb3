// What is made of NVRTC's answers.
#include "runtime/compiler.hpp"

#include <gtest/gtest.h>

#include "runtime/environment.hpp"
#include "runtime/library.hpp"

namespace stepwell::testing {
namespace {

using runtime::compile_kernel;
using runtime::parse_resources;

TEST(Compiler, ReadsTheResourceReport) {
  const auto resources = parse_resources(
      "ptxas info    : 40 bytes gmem, 24 bytes cmem[4]\n"
      "ptxas info    : Compiling entry function 'kernel' for 'sm_80'\n"
      "ptxas info    : Function properties for kernel\n"
      "ptxas         .     152 bytes stack frame, 332 bytes spill stores, 228 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 2 barriers, 152 bytes cumulative stack size, 2048 "
      "bytes smem, 1016 bytes cmem[0], 24 bytes cmem[2]\n"
      "ptxas info    : Compile time = 910.699 ms\n");
  EXPECT_EQ(resources, (runtime::Resources{255, 152, 332, 228, 2048, 2}));
  EXPECT_EQ(parse_resources(""), runtime::Resources{});
}

TEST(Compiler, FunctionsThatAreNotInlinedCountToo) {
  const auto resources = parse_resources(
      "ptxas info    : Function properties for helper\n"
      "    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
      "ptxas info    : Function properties for kernel\n"
      "    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 32 registers");
  EXPECT_EQ(resources, (runtime::Resources{32, 24, 8, 4, 0, 0}));
}

TEST(Compiler, PassesOptionsAndIncludedFiles) {
  auto spec = unique_spec();
  spec.source = "#include \"geometry/rule.hpp\"\n" + spec.source;
  spec.options = {"--extra"};
  const auto kernel = compile_kernel(spec, "sm_90a");
  for (const char* part : {"--gpu-architecture=sm_90a\n", "--std=c++20\n", "--extra\n",
                           "// geometry/rule.hpp\n", "// geometry/interval.hpp\n"}) {
    EXPECT_NE(kernel.cubin.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(kernel.cubin.find("// geometry/layout.hpp"), std::string::npos);
  EXPECT_EQ(kernel.resources.registers, 40);
  EXPECT_EQ(kernel.compiler, (runtime::CompilerVersion{13, 0}));
}

TEST(Compiler, FailuresNameKernelAndCompiler) {
  const auto spec = unique_spec();
  {
    const ScopedVariable result("STAND_IN_NVRTC_RESULT", "6");
    expect_error(ErrorKind::kRuntime, {spec.name, "sm_80", "NVRTC 13.0", "Used 40 registers"},
                 [&] { compile_kernel(spec, "sm_80"); });
  }
  {
    const ScopedVariable result("STAND_IN_NVRTC_RESULT", "7");
    expect_error(ErrorKind::kRuntime, {"libnvrtc-builtins.so.13.0", STAND_INS},
                 [&] { compile_kernel(spec, "sm_80"); });
  }
  expect_error(ErrorKind::kRuntime, {"sm_10", "sm_80, sm_90"},
               [&] { compile_kernel(spec, "sm_10"); });
}

TEST(Compiler, Reports) {
  const auto nvrtc = runtime::report_nvrtc();
  EXPECT_TRUE(nvrtc.found);
  EXPECT_EQ(nvrtc.version, "13.0");
  EXPECT_EQ(nvrtc.path, STAND_INS "/libnvrtc.so.13");
  const auto driver = runtime::report_driver();
  EXPECT_TRUE(driver.found);
  EXPECT_EQ(driver.version, "13.0");
  EXPECT_EQ(driver.path, STAND_INS "/libcuda.so.1");
}

}  // namespace
}  // namespace stepwell::testing
