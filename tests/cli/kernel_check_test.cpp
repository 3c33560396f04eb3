#include "kernel_check.hpp"

#include <gtest/gtest.h>

namespace stepwell::testing {
namespace {

using cli::kernel_problems;
using cli::local_accesses_in_loops;

runtime::CompiledKernel kernel_with(runtime::Resources resources) {
  runtime::CompiledKernel kernel;
  kernel.resources = resources;
  return kernel;
}

runtime::KernelSpec spec_with(int shared_bytes) {
  runtime::KernelSpec spec;
  spec.shared_bytes = shared_bytes;
  spec.accepted_spill_bytes = 32;
  return spec;
}

/// The only problem, or "".
std::string problem(const runtime::KernelSpec& spec, const std::string& arch,
                    const runtime::CompiledKernel& kernel) {
  const auto problems = kernel_problems(spec, arch, kernel, {});
  EXPECT_LE(problems.size(), 1u);
  return problems.empty() ? "" : problems[0];
}

TEST(KernelCheck, SpillsAndLocalMemory) {
  const auto spec = spec_with(0);
  EXPECT_EQ(problem(spec, "sm_80", kernel_with({255, 0, 0, 0, 0, 1})), "");
  EXPECT_EQ(problem(spec, "sm_80", kernel_with({255, 64, 36, 40, 0, 1})),
            "36 bytes stored and 40 loaded by spills; 32 are accepted");
  EXPECT_EQ(problem(spec, "sm_80", kernel_with({255, 64, 8, 33, 0, 1})),
            "8 bytes stored and 33 loaded by spills; 32 are accepted");
  EXPECT_EQ(problem(spec, "sm_80", kernel_with({255, 64, 0, 0, 0, 1})), "64 bytes of local memory");
  // Whether in a loop, only nvdisasm knows.
  EXPECT_NE(problem(spec, "sm_80", kernel_with({255, 8, 4, 4, 0, 1})).find("nvdisasm"),
            std::string::npos);
}

TEST(KernelCheck, SharedMemoryOfTheArchitecture) {
  constexpr int kKiB = 1024;
  struct Limit {
    const char* arch;
    int bytes;
  };
  // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
  for (const auto& [arch, bytes] :
       {Limit{"sm_80", 163 * kKiB}, Limit{"sm_86", 99 * kKiB}, Limit{"sm_89", 99 * kKiB},
        Limit{"sm_90", 227 * kKiB}, Limit{"sm_90a", 227 * kKiB}, Limit{"sm_100", 227 * kKiB},
        Limit{"sm_120", 99 * kKiB}}) {
    EXPECT_EQ(problem(spec_with(bytes), arch, kernel_with({})), "") << arch;
    EXPECT_NE(problem(spec_with(bytes + 1), arch, kernel_with({})), "") << arch;
    EXPECT_NE(problem(spec_with(bytes), arch, kernel_with({32, 0, 0, 0, 16, 1})), "") << arch;
  }
}

TEST(KernelCheck, NotesOfTheCompiler) {
  auto kernel = kernel_with({});
  kernel.log =
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient register resources in function 'kernel'\n"
      "ptxas info    : Used 168 registers\n";
  EXPECT_NE(problem(spec_with(0), "sm_90a", kernel).find("C7510"), std::string::npos);
  kernel.log = "ptxas info    : Used 168 registers, used 1 barriers\n";
  EXPECT_EQ(problem(spec_with(0), "sm_90a", kernel), "");
}

// As nvdisasm prints: a store before the loop, a load in it, the end that branches to itself.
constexpr const char* kListing =
    "\t.section\t.text.kernel,\"ax\",@progbits\n"
    ".text.kernel:\n"
    "        /*0000*/                   MOV R1, c[0x0][0x28] ;\n"
    "        /*0010*/                   STL [R1], R4 ;\n"
    ".L_x_0:\n"
    "        /*0020*/                   LDL R5, [R1] ;\n"
    "        /*0030*/              @!P0 BRA `(.L_x_1) ;\n"
    "        /*0040*/               @P1 BRA `(.L_x_0) ;\n"
    ".L_x_1:\n"
    "        /*0050*/                   LDL.64 R6, [R1] ;\n"
    "        /*0060*/                   EXIT ;\n"
    ".L_x_2:\n"
    "        /*0070*/                   BRA `(.L_x_2);\n";

TEST(KernelCheck, LocalMemoryInLoops) {
  EXPECT_EQ(local_accesses_in_loops(kListing), 1);
  EXPECT_EQ(local_accesses_in_loops(""), 0);
  std::string listing = kListing;
  listing.replace(listing.find("LDL R5, [R1]"), 12, "IMAD R5, R1,");
  EXPECT_EQ(local_accesses_in_loops(listing), 0);
}

}  // namespace
}  // namespace stepwell::testing
