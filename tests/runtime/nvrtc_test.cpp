// The real NVRTC; skipped where there is none.
#include <gtest/gtest.h>

#include "runtime/compiler.hpp"
#include "runtime/environment.hpp"
#include "runtime/library.hpp"

namespace stepwell::testing {
namespace {

class Nvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto report = runtime::report_nvrtc();
    if (!report.found) GTEST_SKIP() << report.problem;
  }
};

runtime::KernelSpec saxpy() {
  runtime::KernelSpec spec;
  spec.name = "saxpy";
  spec.source =
      "#include \"geometry/interval.hpp\"\n"
      "struct Params { const float* x; float* y; float a; stepwell::geometry::i64 count; };\n"
      "extern \"C\" __global__ void kernel(const __grid_constant__ Params p) {\n"
      "  const stepwell::geometry::i64 i = 128ll * blockIdx.x + threadIdx.x;\n"
      "  if (i < p.count) p.y[i] += p.a * p.x[i];\n"
      "}\n";
  spec.threads = 128;
  return spec;
}

TEST_F(Nvrtc, CompilesWithoutAGpu) {
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const auto kernel = compile_kernel(saxpy(), arch);
    EXPECT_TRUE(
        kernel.cubin.starts_with("\x7f"
                                 "ELF"))
        << arch;
    EXPECT_NE(kernel.log.find(arch), std::string::npos) << kernel.log;
    EXPECT_GT(kernel.resources.registers, 0);
    EXPECT_EQ(kernel.resources.spill_store_bytes, 0);
    EXPECT_GT(kernel.seconds, 0.0);
    EXPECT_EQ(kernel.compiler, runtime::compiler_version());
  }
}

TEST_F(Nvrtc, SpillsAreRead) {
  auto spec = saxpy();
  spec.options = {"--maxrregcount=24"};
  spec.source =
      "extern \"C\" __global__ void kernel(float* x) {\n"
      "  float v[64];\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 64; ++i) v[i] = x[i * 32 + threadIdx.x];\n"
      "  __syncthreads();\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 64; ++i) x[i * 32 + threadIdx.x] = v[63 - i] * v[i];\n"
      "}\n";
  const auto kernel = compile_kernel(spec, "sm_80");
  EXPECT_LE(kernel.resources.registers, 24) << kernel.log;
  EXPECT_GT(kernel.resources.spill_store_bytes, 0) << kernel.log;
  EXPECT_GT(kernel.resources.stack_bytes, 0) << kernel.log;
}

TEST_F(Nvrtc, ErrorsShowTheLog) {
  auto spec = saxpy();
  spec.source += "undefined_type x;\n";
  expect_error(ErrorKind::kRuntime, {"saxpy", "sm_80", "undefined_type"},
               [&] { compile_kernel(spec, "sm_80"); });
  expect_error(ErrorKind::kRuntime, {"does not compile for sm_999", "sm_90"},
               [] { compile_kernel(saxpy(), "sm_999"); });
}

}  // namespace
}  // namespace stepwell::testing
