#include "compile_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cuda/configurations.hpp"
#include "cuda_wheels.hpp"
#include "kernel_check.hpp"
#include "runtime/cache.hpp"
#include "runtime/device.hpp"
#include "runtime/library.hpp"
#include "runtime/log.hpp"

namespace stepwell::cli {
namespace {

using runtime::KernelCache;
using runtime::KernelSpec;

constexpr const char* kExamples =
    "Examples:\n"
    "  stepwell compile --arch sm_80,sm_90a --output cubins\n"
    "  stepwell compile --only head_dim=128 --only element=bf16\n"
    "  stepwell compile --preset pairwise --arch sm_89 --check\n"
    "\n"
    "Needs NVRTC and no GPU. Programs use a folder of kernels that STEPWELL_PACKAGED_CUBINS "
    "names,\n"
    "or that lies as `cubins` beside the library.";

struct CompileOptions {
  std::vector<std::string> arch;
  std::string preset = "training";
  std::vector<std::string> only;
  std::string output;
  std::string json;
  int jobs = 0;
  bool check = false;
};

struct Job {
  KernelSpec spec;
  std::string arch;
};

struct Result {
  bool done = false;
  std::string error;  // of a kernel that does not compile
  runtime::FoundKernel found;
  std::vector<std::string> problems;
};

const std::string* factor(const KernelSpec& spec, const std::string& name) {
  for (const auto& [factor_name, value] : spec.factors) {
    if (factor_name == name) return &value;
  }
  return nullptr;
}

/// Of those that a training step without soft cap and dropout launches.
bool is_for_training(const KernelSpec& spec) {
  for (const char* name : {"softcap", "dropout", "deterministic"}) {
    const std::string* const value = factor(spec, name);
    if (value != nullptr && *value != "off") return false;
  }
  const std::string* const dim = factor(spec, "head_dim");
  const std::string* const dim_v = factor(spec, "head_dim_v");
  const std::string* const element = factor(spec, "element");
  return (dim == nullptr || dim_v == nullptr || *dim == *dim_v) &&
         (element == nullptr || *element == "bf16");
}

std::pair<int, int> capability_of(const std::string& arch) {
  constexpr std::size_t kPrefix = 3;  // "sm_"
  int number = 0;
  if (arch.starts_with("sm_")) {
    std::from_chars(arch.data() + kPrefix, arch.data() + arch.size(), number);
  }
  if (number < 80) {
    throw CLI::ValidationError("--arch", arch + " is not an architecture from sm_80 on");
  }
  return {number / 10, number % 10};
}

/// NAME=VALUE[,VALUE...]
std::map<std::string, std::vector<std::string>> parse_only(const std::vector<std::string>& only) {
  std::map<std::string, std::vector<std::string>> accepted;
  for (const std::string& text : only) {
    const std::size_t equal = text.find('=');
    if (equal == std::string::npos) {
      throw CLI::ValidationError("--only", text + " is not NAME=VALUE");
    }
    auto& values = accepted[text.substr(0, equal)];
    for (std::size_t begin = equal + 1; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      values.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return accepted;
}

std::vector<Job> jobs_of(const CompileOptions& options) {
  const auto only = parse_only(options.only);
  std::vector<Job> jobs;
  for (const std::string& arch : options.arch) {
    const auto [major, minor] = capability_of(arch);
    const cuda::DeviceLimits limits = cuda::limits_of(major, minor);
    for (const auto& kernel : options.preset == "pairwise" ? cuda::pairwise_kernels(limits)
                                                           : cuda::all_kernels(limits)) {
      KernelSpec spec = cuda::spec_of(kernel);
      if (options.preset == "training" && !is_for_training(spec)) continue;
      const bool wanted = std::ranges::all_of(only, [&](const auto& name_values) {
        const std::string* const value = factor(spec, name_values.first);
        return value == nullptr ||
               std::ranges::find(name_values.second, *value) != name_values.second.end();
      });
      if (wanted) jobs.push_back({std::move(spec), arch});
    }
  }
  if (jobs.empty()) throw CLI::ValidationError("--only", "leaves no kernel");
  return jobs;
}

Result run_job(const Job& job, const std::optional<KernelCache>& cache,
               const std::filesystem::path& nvdisasm) {
  Result result;
  try {
    result.found = cache ? find_or_compile(job.spec, job.arch, *cache)
                         : runtime::FoundKernel{compile_kernel(job.spec, job.arch), {}};
    result.problems = kernel_problems(job.spec, job.arch, result.found.kernel, nvdisasm);
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  result.done = true;
  return result;
}

void print_header(std::size_t name_width) {
  std::printf("%-*s  %-7s %9s %6s %6s %8s %7s\n", static_cast<int>(name_width), "kernel", "arch",
              "registers", "spills", "stack", "shared", "time");
}

void print_row(const Job& job, const Result& result, std::size_t name_width) {
  const int width = static_cast<int>(name_width);
  if (!result.error.empty()) {
    std::printf("%-*s  %-7s does not compile\n%s\n", width, job.spec.name.c_str(), job.arch.c_str(),
                result.error.c_str());
    return;
  }
  const runtime::Resources& used = result.found.kernel.resources;
  std::printf("%-*s  %-7s %9d %6d %6d %8d %6.2fs%s\n", width, job.spec.name.c_str(),
              job.arch.c_str(), used.registers,
              std::max(used.spill_store_bytes, used.spill_load_bytes), used.stack_bytes,
              job.spec.shared_bytes + used.static_shared_bytes, result.found.kernel.seconds,
              result.found.origin == runtime::Origin::kCompiled ? "" : " kept");
  for (const std::string& problem : result.problems) {
    std::printf("    problem: %s\n", problem.c_str());
  }
  std::fflush(stdout);
}

nlohmann::json json_row(const Job& job, const Result& result) {
  nlohmann::json row = {{"kernel", job.spec.name}, {"arch", job.arch}};
  for (const auto& [name, value] : job.spec.factors) row["factors"][name] = value;
  if (!result.error.empty()) {
    row["error"] = result.error;
    return row;
  }
  const runtime::CompiledKernel& kernel = result.found.kernel;
  row["registers"] = kernel.resources.registers;
  row["spill_store_bytes"] = kernel.resources.spill_store_bytes;
  row["spill_load_bytes"] = kernel.resources.spill_load_bytes;
  row["stack_bytes"] = kernel.resources.stack_bytes;
  row["shared_bytes"] = job.spec.shared_bytes + kernel.resources.static_shared_bytes;
  row["threads"] = job.spec.threads;
  row["cubin_bytes"] = kernel.cubin.size();
  row["seconds"] = kernel.seconds;
  row["kept"] = result.found.origin != runtime::Origin::kCompiled;
  row["nvrtc"] = fmt::format("{}.{}", kernel.compiler.major, kernel.compiler.minor);
  row["problems"] = result.problems;
  return row;
}

/// Runs all jobs on threads and prints their rows in order, each as soon as it can be.
std::vector<Result> run_jobs(const std::vector<Job>& jobs, const std::optional<KernelCache>& cache,
                             int threads) {
  const std::filesystem::path nvdisasm = find_nvdisasm();
  std::vector<Result> results(jobs.size());
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t at = 0; (at = next++) < jobs.size();) {
      Result result = run_job(jobs[at], cache, nvdisasm);
      const std::lock_guard lock(mutex);
      results[at] = std::move(result);
      changed.notify_all();
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work);

  std::size_t name_width = 0;
  for (const Job& job : jobs) name_width = std::max(name_width, job.spec.name.size());
  print_header(name_width);
  for (std::size_t at = 0; at < jobs.size(); ++at) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return results[at].done; });
    print_row(jobs[at], results[at], name_width);
    results[at].found.kernel.log.clear();
  }
  return results;
}

std::optional<KernelCache> cache_of(const CompileOptions& options) {
  if (options.output.empty()) return runtime::user_cache();
  return KernelCache(options.output, KernelCache::Access::kPackaged);
}

void run_compile(CompileOptions options) {
  use_cuda_wheels();
  runtime::compiler_version();  // throws where there is no compiler
  if (options.arch.empty()) {
    if (!runtime::report_driver().found) {
      throw CLI::ValidationError("--arch", "is missing, and this machine has no GPU to ask");
    }
    for (int device = 0; device < runtime::device_count(); ++device) {
      const std::string arch = runtime::device_properties(device).arch();
      if (std::ranges::find(options.arch, arch) == options.arch.end()) options.arch.push_back(arch);
    }
  }
  const std::vector<Job> jobs = jobs_of(options);
  const std::optional<KernelCache> cache = cache_of(options);
  if (cache && !cache->problem().empty()) {
    throw std::runtime_error("kernels cannot be kept: " + cache->problem());
  }
  runtime::set_log_callback([](runtime::LogLevel level, const std::string& line) {
    if (level == runtime::LogLevel::kWarning) std::fprintf(stderr, "%s\n", line.c_str());
  });

  const auto begin = std::chrono::steady_clock::now();
  const int threads =
      options.jobs > 0 ? options.jobs : std::max(1, int(std::thread::hardware_concurrency()));
  const std::vector<Result> results = run_jobs(jobs, cache, threads);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;

  const auto count = [&](auto&& predicate) {
    return static_cast<int>(std::ranges::count_if(results, predicate));
  };
  const int failed = count([](const Result& result) { return !result.error.empty(); });
  const int problems = count([](const Result& result) { return !result.problems.empty(); });
  const int compiled = count([](const Result& result) {
    return result.error.empty() && result.found.origin == runtime::Origin::kCompiled;
  });
  std::printf(
      "\n%zu kernels with NVRTC %d.%d in %.1f s: %d compiled, %d kept from before, %d "
      "with problems, %d do not compile\n",
      results.size(), runtime::compiler_version().major, runtime::compiler_version().minor,
      elapsed.count(), compiled, static_cast<int>(results.size()) - compiled - failed, problems,
      failed);
  if (cache) std::printf("in %s\n", cache->dir().c_str());

  if (!options.json.empty()) {
    nlohmann::json rows = nlohmann::json::array();
    for (std::size_t i = 0; i < jobs.size(); ++i) rows.push_back(json_row(jobs[i], results[i]));
    std::ofstream file(options.json);
    file << rows.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + options.json);
  }
  if (failed > 0) throw std::runtime_error(fmt::format("{} kernels do not compile", failed));
  if (options.check && problems > 0) {
    throw std::runtime_error(fmt::format("{} kernels have problems", problems));
  }
}

}  // namespace

void add_compile_command(CLI::App& app) {
  auto options = std::make_shared<CompileOptions>();
  CLI::App* command =
      app.add_subcommand("compile", "Compile kernels ahead of time, without a GPU.");
  command
      ->add_option("--arch", options->arch,
                   "Architectures, such as sm_80,sm_89,sm_90a; default: those of this machine's "
                   "GPUs")
      ->delimiter(',');
  command
      ->add_option(
          "--preset", options->preset,
          "training: bf16, equal head dims, no soft cap, dropout or deterministic backward "
          "pass; all: every kernel the library can ask for; pairwise: a part of them with "
          "every pair of choices")
      ->check(CLI::IsMember({"training", "all", "pairwise"}))
      ->capture_default_str();
  command->add_option("--only", options->only,
                      "NAME=VALUE[,VALUE...]: leave out kernels whose choice NAME (kernel, "
                      "head_dim, head_dim_v, element, softcap, dropout, deterministic) is another; "
                      "repeatable");
  command->add_option("--output", options->output,
                      "Folder for the kernels; default: the cache that the library uses");
  command->add_option("--jobs", options->jobs, "Kernels compiled at a time; default: one a core");
  command->add_option("--json", options->json, "Write the table to this file too");
  command->add_flag("--check", options->check,
                    "Fail where a kernel spills, uses local memory, exceeds shared memory, or the "
                    "compiler notes that it serialised instructions");
  command->footer(kExamples);
  command->callback([options] { run_compile(*options); });
}

}  // namespace stepwell::cli
