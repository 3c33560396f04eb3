// Runs the micro kernels on the model and compares with micro_expected.txt and
// micro_expected_sm90.txt, which are what a GPU is compared with too. With
// STEPWELL_MICRO_WRITE=FOLDER it writes those files instead.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "host_model/micro_kernels.cuh"
#include "host_model/micro_kernels_sm90.cuh"

namespace stepwell::testing {
namespace {

namespace hm = host_model;
using cuda::Swizzle;
using cuda::TensorMap;
using cuda::TiledTensor;

/// The tensor map that a kernel gets.
struct MicroTensor {
  enum { kNone, kIn, kOut } data = kNone;  // which of the two buffers it describes
  Swizzle swizzle = Swizzle::kNone;
  u32 row = 0;  // elements of box[0]
};

struct MicroKernel {
  const char* name;
  void (*run)(const u32* in, u32* out);
  hm::Dim3 grid;
  u32 threads;
  u32 shared_bytes;
  u32 words;        // of out
  double relative;  // error allowed in words that are floats; 0, 0: bits are compared
  double absolute;
  void (*run_tensor)(TensorMap map, u32 box_words, const u32* in, u32* out) = nullptr;
  MicroTensor tensor = {};
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
    {"micro_fma", micro_fma, {}, 64, 0, 64 * 2, 0, 0},
    {"micro_mma_bf16", micro_mma_bf16, {}, 32, 0, 32 * 4, 1e-6, 3e-5},
    {"micro_mma_f16", micro_mma_f16, {}, 32, 0, 32 * 4, 1e-6, 3e-5},
    {"micro_exponential", micro_exponential, {}, 64, 0, 64 * 4, 4e-7, kTiny},
    {"micro_logarithm", micro_logarithm, {}, 64, 0, 64 * 2, 4e-7, 4e-7},
    {"micro_permute", micro_permute, {}, 64, 0, 64 * 3, 0, 0},
    {"micro_dot", micro_dot, {}, 64, 0, 64 * 2, 1e-6, 1e-6},
};

MicroKernel load_kernel(Swizzle swizzle, u32 row) {
  return {"micro_tensor_load",
          nullptr,
          {},
          32,
          9216,
          2 * 8 * row / 2,
          0,
          0,
          micro_tensor_load,
          {MicroTensor::kIn, swizzle, row}};
}

MicroKernel store_kernel(Swizzle swizzle, u32 row) {
  return {"micro_tensor_store",
          nullptr,
          {},
          32,
          9216,
          288,
          0,
          0,
          micro_tensor_store,
          {MicroTensor::kOut, swizzle, row}};
}

// Sums of small integers are exact.
const MicroKernel kKernelsSm90[] = {
    {"micro_elect", micro_elect, {}, 128, 0, 128, 0, 0},
    {"micro_mbarrier", micro_mbarrier, {}, 64, 256, 128, 0, 0},
    {"micro_bulk_load", micro_bulk_load, {}, 32, 512, 64, 0, 0},
    load_kernel(Swizzle::kNone, 64),
    load_kernel(Swizzle::k32, 16),
    load_kernel(Swizzle::k64, 32),
    load_kernel(Swizzle::k128, 64),
    store_kernel(Swizzle::kNone, 64),
    store_kernel(Swizzle::k32, 16),
    store_kernel(Swizzle::k64, 32),
    store_kernel(Swizzle::k128, 64),
    {"micro_wgmma_ss", micro_wgmma_ss, {}, 128, 49152, 1536, 0, 0},
    {"micro_wgmma_mn_major_a", micro_wgmma_mn_major_a, {}, 128, 49152, 1536, 0, 0},
    {"micro_wgmma_rs", micro_wgmma_rs, {}, 128, 49152, 1536, 0, 0},
    {"micro_wgmma_groups", micro_wgmma_groups, {}, 128, 16384, 128, 0, 0},
};

TiledTensor tiled(const MicroTensor& tensor, const void* data) {
  TiledTensor t;
  t.data = data;
  t.rank = 5;
  t.swizzle = tensor.swizzle;
  const bool in = tensor.data == MicroTensor::kIn;
  const u32 dims[] = {in ? 40u : 24u, in ? 6u : 3u, in ? 5u : 2u, in ? 3u : 2u, 2};
  const u32 box[] = {tensor.row, 4, 2, 1, 1};
  unsigned long long bytes = 2;
  for (int d = 0; d < 5; ++d) {
    t.dims[d] = dims[d];
    t.box[d] = box[d];
    if (d != 0) t.strides[d - 1] = bytes;
    bytes *= dims[d];
  }
  return t;
}

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
  TensorMap map{};
  if (kernel.run_tensor != nullptr) {
    const bool of_in = kernel.tensor.data == MicroTensor::kIn;
    map = hm::encode_tensor_map(tiled(kernel.tensor, of_in ? in : out));
  }
  hm::launch(kernel.grid, kernel.threads, kernel.shared_bytes, options, [&] {
    if (kernel.run_tensor != nullptr) {
      kernel.run_tensor(map, 8 * kernel.tensor.row / 2, in, out);
    } else {
      kernel.run(in, out);
    }
  });
  return {out, out + kernel.words};
}

std::string header(const MicroKernel& k) {
  std::string text = fmt::format(
      "{} grid {} {} {} threads {} shared {} words {} relative {:g} absolute {:g}", k.name,
      k.grid.x, k.grid.y, k.grid.z, k.threads, k.shared_bytes, k.words, k.relative, k.absolute);
  if (k.run_tensor != nullptr) {
    const TiledTensor t = tiled(k.tensor, nullptr);
    text += fmt::format(" tensor {} swizzle {} dims {} strides {} box {}",
                        k.tensor.data == MicroTensor::kIn ? 0 : 1, static_cast<int>(t.swizzle),
                        fmt::join(t.dims, " "), fmt::join(t.strides, " "), fmt::join(t.box, " "));
  }
  return text;
}

bool agree(const MicroKernel& kernel, u32 got, u32 expected) {
  if (got == expected) return true;
  if (kernel.relative == 0) return false;
  const double x = ptx::float_of(got);
  const double y = ptx::float_of(expected);
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  return x == y || std::abs(x - y) <= kernel.relative * std::abs(y) + kernel.absolute;
}

void write_expected(const std::string& path, std::span<const MicroKernel> kernels) {
  std::ofstream file(path);
  for (const MicroKernel& kernel : kernels) {
    file << header(kernel);
    const std::vector<u32> words = run(kernel, {});
    for (std::size_t i = 0; i < words.size(); ++i) {
      file << fmt::format("{}{:08x}", i % 10 == 0 ? '\n' : ' ', words[i]);
    }
    file << '\n';
  }
}

void compare_with_expected(const std::string& path, std::span<const MicroKernel> kernels) {
  std::ifstream file(path);
  for (const MicroKernel& kernel : kernels) {
    SCOPED_TRACE(header(kernel));
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

TEST(Micro, ModelGivesWhatGpusWereComparedWith) {
  const char* write_to = std::getenv("STEPWELL_MICRO_WRITE");
  const std::string folder = write_to != nullptr ? write_to : STEPWELL_MICRO_FOLDER;
  const auto each = write_to != nullptr ? write_expected : compare_with_expected;
  each(folder + "/micro_expected.txt", std::span(kKernels));
  each(folder + "/micro_expected_sm90.txt", std::span(kKernelsSm90));
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
  std::set<std::string> wrappers;
  for (const char* file : {"sm80.cuh", "sm90.cuh", "wgmma.cuh"}) {
    wrappers.merge(functions_in(text_of(std::string(STEPWELL_WRAPPERS) + "/" + file)));
  }
  const std::string folder = STEPWELL_MICRO_FOLDER;
  const std::string kernels =
      text_of(folder + "/micro_kernels.cuh") + text_of(folder + "/micro_kernels_sm90.cuh");
  EXPECT_GE(wrappers.size(), 60u);
  EXPECT_EQ(wrappers.count("mma_m16n8k16"), 1u);
  EXPECT_EQ(wrappers.count("wgmma_rs"), 1u);
  for (const std::string& name : wrappers) EXPECT_TRUE(calls(kernels, name)) << name;
}

}  // namespace
}  // namespace stepwell::testing
