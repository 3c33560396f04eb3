#include "doctor_command.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "cuda_wheels.hpp"
#include "runtime/cache.hpp"
#include "runtime/device.hpp"
#include "runtime/library.hpp"
#include "runtime/module.hpp"

namespace stepwell::cli {
namespace {

constexpr double kMebibyte = 1 << 20;
constexpr double kGibibyte = 1 << 30;

/// Lines "subject  text", and how many of them were bad news.
class Report {
 public:
  void good(const std::string& subject, const std::string& text) { print(subject, "", text); }
  void bad(const std::string& subject, const std::string& text) {
    ++problems_;
    print(subject, "PROBLEM: ", text);
  }
  int problems() const { return problems_; }

 private:
  static void print(const std::string& subject, const char* mark, const std::string& text) {
    std::printf("%-9s %s%s\n", subject.c_str(), mark, text.c_str());
  }

  int problems_ = 0;
};

bool check_library(Report& report, const char* subject, const char* prefix,
                   const runtime::LibraryReport& library) {
  if (library.found) {
    report.good(subject, fmt::format("{}{}, {}", prefix, library.version, library.path));
  } else {
    report.bad(subject, library.problem);
  }
  return library.found;
}

void check_caches(Report& report) {
  if (const auto cache = runtime::user_cache()) {
    const std::string problem = cache->problem();
    const auto usage = cache->usage();
    if (problem.empty()) {
      report.good("cache", fmt::format("{}: {} kernels, {:.1f} of {:.0f} MiB",
                                       cache->dir().string(), usage.files, usage.bytes / kMebibyte,
                                       cache->max_bytes() / kMebibyte));
    } else {
      report.bad("cache", fmt::format("{}. Until then every process compiles its kernels anew; "
                                      "STEPWELL_CACHE_DIR names another folder",
                                      problem));
    }
  } else {
    report.good("cache", "none: STEPWELL_CACHE_DIR is empty, or there is no home folder");
  }
  if (const auto packaged = runtime::packaged_cache()) {
    const std::string problem = packaged->problem();
    if (problem.empty()) {
      report.good("packaged",
                  fmt::format("{}: {} kernels", packaged->dir().string(), packaged->usage().files));
    } else {
      report.bad("packaged", problem);
    }
  }
}

/// Compiles or finds, loads and runs a kernel that adds one.
void try_kernel(int device) {
  runtime::KernelSpec spec;
  spec.name = "doctor";
  spec.source =
      "struct Params { int* value; };\n"
      "extern \"C\" __global__ void kernel(const __grid_constant__ Params p) { *p.value += 1; }\n";
  spec.threads = 1;
  const runtime::Kernel kernel = runtime::get_kernel(spec, device);
  struct Params {
    void* value;
  } params{runtime::allocate_device(device, sizeof(int))};
  constexpr int kBefore = 41;
  int value = kBefore;
  runtime::copy_to_device(device, params.value, &value, sizeof(value), nullptr);
  runtime::launch(kernel, {}, nullptr, &params);
  runtime::copy_to_host(device, &value, params.value, sizeof(value), nullptr);
  runtime::synchronize(device, nullptr);
  runtime::free_device(device, params.value);
  if (value != kBefore + 1) {
    throw std::runtime_error(fmt::format("a kernel that adds 1 made {} of {}", value, kBefore));
  }
}

void check_device(Report& report, int device) {
  const std::string subject = fmt::format("GPU {}", device);
  const runtime::DeviceProperties& gpu = runtime::device_properties(device);
  const std::string text =
      fmt::format("{}, {}, {} SMs, {:.0f} GiB, {} KiB of shared memory a CTA", gpu.name, gpu.arch(),
                  gpu.sm_count, gpu.memory_bytes / kGibibyte, gpu.max_shared_bytes / 1024);
  if (gpu.major < 8) {
    report.bad(subject, text + ": kernels need compute capability 8.0 (Ampere) or later");
    return;
  }
  try {
    const auto begin = std::chrono::steady_clock::now();
    try_kernel(device);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    report.good(subject, fmt::format("{}: ran a kernel after {:.2f} s", text, seconds.count()));
  } catch (const std::exception& error) {
    report.bad(subject, fmt::format("{}: {}", text, error.what()));
  }
}

void run_doctor() {
  use_cuda_wheels();
  std::printf("stepwell %s\n", STEPWELL_VERSION);
  Report report;
  const bool driver = check_library(report, "driver", "CUDA ", runtime::report_driver());
  check_library(report, "NVRTC", "", runtime::report_nvrtc());
  check_caches(report);
  if (driver) {
    const int count = runtime::device_count();
    if (count == 0) report.bad("GPU", "none is visible (CUDA_VISIBLE_DEVICES hides GPUs)");
    for (int device = 0; device < count; ++device) check_device(report, device);
  }
  std::fflush(stdout);
  if (report.problems() > 0) {
    throw std::runtime_error("not ready for a GPU; the CPU backend needs none of this");
  }
  std::printf("ready\n");
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Show driver, compiler, kernel caches and GPUs, and what is missing.");
  command->footer("Exit status: 0 kernels run on every GPU, 1 something is missing.");
  command->callback(run_doctor);
}

}  // namespace stepwell::cli
