// Runs the micro kernels on the model and compares with micro_expected.txt, which is what a GPU is
// compared with too. With STEPWELL_MICRO_WRITE=FILE it writes that file instead.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "host_model/micro_kernels.cuh"

namespace stepwell::testing {
namespace {

namespace hm = host_model;

struct MicroKernel {
  const char* name;
  void (*run)(const u32* in, u32* out);
  hm::Dim3 grid;
  u32 threads;
  u32 shared_bytes;
  u32 words;        // of out
  double relative;  // error allowed in words that are floats; 0, 0: bits are compared
  double absolute;
};

// Errors: PTX ISA, ex2.approx, rcp.approx and lg2.approx; one rounding and the sum's length for
// products.
constexpr double kTiny = 0x1p-126;  // results that only one machine flushes
const MicroKernel kKernels[] = {
    {"micro_identity", micro_identity, {2, 2, 2}, 32, 0, 8 * 32 * 3, 0, 0},
    {"micro_shared", micro_shared, {}, 32, 32 * 80, 32 * 22, 0, 0},
    {"micro_global", micro_global, {}, 32, 0, 32 * 6, 0, 0},
    {"micro_atomics", micro_atomics, {}, 32, 0, 12, 0, 0},
    {"micro_warp", micro_warp, {}, 32, 0, 32 * 8, 0, 0},
    {"micro_barriers", micro_barriers, {}, 96, 256, 3 * 64, 0, 0},
    {"micro_copies", micro_copies, {}, 32, 1024, 32 * 8, 0, 0},
    {"micro_ldmatrix", micro_ldmatrix, {}, 32, 1024, 32 * 14, 0, 0},
    {"micro_stmatrix", micro_stmatrix, {}, 32, 1024, 256, 0, 0},
    {"micro_conversions", micro_conversions, {}, 64, 0, 64 * 6, 0, 0},
    {"micro_max", micro_max, {}, 64, 0, 320, 0, 0},
    {"micro_mma_bf16", micro_mma_bf16, {}, 32, 0, 32 * 4, 1e-6, 3e-5},
    {"micro_mma_f16", micro_mma_f16, {}, 32, 0, 32 * 4, 1e-6, 3e-5},
    {"micro_exponential", micro_exponential, {}, 64, 0, 64 * 4, 4e-7, kTiny},
    {"micro_logarithm", micro_logarithm, {}, 64, 0, 64 * 2, 4e-7, 4e-7},
    {"micro_dot", micro_dot, {}, 64, 0, 64 * 2, 1e-6, 1e-6},
};

/// What the kernels get: compare_with_gpu.py makes the same.
std::vector<u32> noise() {
  std::vector<u32> words(4096);
  u32 x = 1;
  for (u32& word : words) {
    x = x * 1664525u + 1013904223u;
    word = x ^ x >> 16;
  }
  return words;
}

std::vector<u32> run(const MicroKernel& kernel, const hm::Options& options) {
  alignas(16) static u32 in[4096];
  alignas(16) static u32 out[4096];
  const std::vector<u32> words = noise();
  std::copy(words.begin(), words.end(), in);
  std::fill(out, out + kernel.words, 0);
  hm::launch(kernel.grid, kernel.threads, kernel.shared_bytes, options,
             [&] { kernel.run(in, out); });
  return {out, out + kernel.words};
}

std::string header(const MicroKernel& k) {
  return fmt::format("{} grid {} {} {} threads {} shared {} words {} relative {:g} absolute {:g}",
                     k.name, k.grid.x, k.grid.y, k.grid.z, k.threads, k.shared_bytes, k.words,
                     k.relative, k.absolute);
}

bool agree(const MicroKernel& kernel, u32 got, u32 expected) {
  if (got == expected) return true;
  if (kernel.relative == 0) return false;
  const double x = ptx::float_of(got);
  const double y = ptx::float_of(expected);
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  return x == y || std::abs(x - y) <= kernel.relative * std::abs(y) + kernel.absolute;
}

TEST(Micro, ModelGivesWhatGpusWereComparedWith) {
  const char* write_to = std::getenv("STEPWELL_MICRO_WRITE");
  if (write_to != nullptr) {
    std::ofstream file(write_to);
    for (const MicroKernel& kernel : kKernels) {
      file << header(kernel);
      const std::vector<u32> words = run(kernel, {});
      for (std::size_t i = 0; i < words.size(); ++i) {
        file << fmt::format("{}{:08x}", i % 10 == 0 ? '\n' : ' ', words[i]);
      }
      file << '\n';
    }
    return;
  }
  std::ifstream file(STEPWELL_MICRO_EXPECTED);
  for (const MicroKernel& kernel : kKernels) {
    SCOPED_TRACE(kernel.name);
    std::string line;
    std::getline(file, line);
    ASSERT_EQ(line, header(kernel));
    std::vector<u32> expected(kernel.words);
    for (u32& word : expected) ASSERT_TRUE(file >> std::hex >> word);
    file.ignore();
    for (const hm::Schedule schedule :
         {hm::Schedule::kForward, hm::Schedule::kReverse, hm::Schedule::kRandom}) {
      const std::vector<u32> got = run(kernel, {.schedule = schedule, .check_races = true});
      for (u32 i = 0; i < kernel.words; ++i) {
        ASSERT_TRUE(agree(kernel, got[i], expected[i]))
            << "word " << i << fmt::format(" is {:08x}, expected {:08x}", got[i], expected[i]);
      }
    }
  }
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The functions that a header of wrappers defines.
std::set<std::string> functions_in(const std::string& text) {
  const std::string attribute = "__forceinline__";
  std::set<std::string> names;
  for (std::size_t at = text.find(attribute); at != std::string::npos;
       at = text.find(attribute, at + 1)) {
    const std::size_t end = text.find('(', at);
    std::size_t begin = end;
    while (in_name(text[begin - 1])) --begin;
    names.insert(text.substr(begin, end - begin));
  }
  return names;
}

bool calls(const std::string& text, const std::string& function) {
  const std::string call = "ptx::" + function;
  for (std::size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) {
    if (!in_name(text[at + call.size()])) return true;
  }
  return false;
}

/// A wrapper without a micro kernel would never meet a GPU.
TEST(Micro, EveryWrapperHasAKernel) {
  const std::set<std::string> wrappers = functions_in(text_of(STEPWELL_WRAPPERS));
  const std::string kernels = text_of(STEPWELL_MICRO_KERNELS);
  EXPECT_GE(wrappers.size(), 40u);
  EXPECT_EQ(wrappers.count("mma_m16n8k16"), 1u);
  for (const std::string& name : wrappers) EXPECT_TRUE(calls(kernels, name)) << name;
}

}  // namespace
}  // namespace stepwell::testing
