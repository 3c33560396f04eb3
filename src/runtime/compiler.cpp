#include "runtime/compiler.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string_view>

#include "core/check.hpp"
#include "runtime/nvrtc.hpp"
#include "runtime/sources.hpp"

namespace stepwell::runtime {
namespace {

constexpr const char* kOptions[] = {
    "--std=c++20",
    "-default-device",     // constexpr functions of host and device headers
    "--ptxas-options=-v",  // resource usage in the log
};

/// The number that ends before position `end` of `line`, spaces skipped.
int number_before(std::string_view line, std::size_t end) {
  while (end > 0 && line[end - 1] == ' ') --end;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

/// The number in front of `unit`, or 0 where the line does not have it.
int quantity(std::string_view line, std::string_view unit) {
  const std::size_t at = line.find(unit);
  return at == std::string_view::npos ? 0 : number_before(line, at);
}

class Program {
 public:
  Program(const Nvrtc& api, const KernelSpec& spec) : api_(api) {
    std::vector<std::string> texts;
    std::vector<std::string> names;
    for (const SourceFile& file : included_sources(spec.source)) {
      texts.emplace_back(file.text);
      names.emplace_back(file.path);
    }
    std::vector<const char*> text_pointers;
    std::vector<const char*> name_pointers;
    for (const auto& text : texts) text_pointers.push_back(text.c_str());
    for (const auto& name : names) name_pointers.push_back(name.c_str());
    check(api_.create_program(&program_, spec.source.c_str(), "kernel.cu",
                              static_cast<int>(texts.size()), text_pointers.data(),
                              name_pointers.data()),
          "creating a program");
  }
  ~Program() { api_.destroy_program(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  NvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const auto& option : options) pointers.push_back(option.c_str());
    return api_.compile_program(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() const {
    std::size_t size = 0;
    check(api_.get_program_log_size(program_, &size), "reading the log");
    std::string text(size, '\0');
    if (size > 0) check(api_.get_program_log(program_, text.data()), "reading the log");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

  std::string cubin() const {
    std::size_t size = 0;
    check(api_.get_cubin_size(program_, &size), "reading the kernel");
    std::string bytes(size, '\0');
    check(api_.get_cubin(program_, bytes.data()), "reading the kernel");
    return bytes;
  }

 private:
  void check(NvrtcResult result, const char* what) const {
    STEPWELL_CHECK(result == kNvrtcSuccess, kRuntime, "NVRTC: {} failed: {}", what,
                   api_.get_error_string(result));
  }

  const Nvrtc& api_;
  NvrtcProgram program_ = nullptr;
};

std::string base_architecture(const std::string& arch) {
  return arch.ends_with('a') || arch.ends_with('f') ? arch.substr(0, arch.size() - 1) : arch;
}

}  // namespace

CompilerVersion compiler_version() { return {nvrtc().major, nvrtc().minor}; }

std::vector<std::string> compiler_architectures() {
  const Nvrtc& api = nvrtc();
  int count = 0;
  std::vector<int> numbers;
  NvrtcResult result = api.get_num_supported_archs(&count);
  if (result == kNvrtcSuccess) {
    numbers.resize(count);
    result = api.get_supported_archs(numbers.data());
  }
  STEPWELL_CHECK(result == kNvrtcSuccess, kRuntime, "NVRTC: listing its architectures failed: {}",
                 api.get_error_string(result));
  std::vector<std::string> names;
  for (const int number : numbers) names.push_back(fmt::format("sm_{}", number));
  return names;
}

std::span<const char* const> kernel_options() { return kOptions; }

Resources parse_resources(std::string_view log) {
  Resources resources;
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    // A line for each function that was not inlined.
    resources.stack_bytes += quantity(line, "bytes stack frame");
    resources.spill_store_bytes += quantity(line, "bytes spill stores");
    resources.spill_load_bytes += quantity(line, "bytes spill loads");
    if (line.find(": Used ") == std::string_view::npos) continue;
    resources.registers = std::max(resources.registers, quantity(line, "registers"));
    resources.barriers = std::max(resources.barriers, quantity(line, "barriers"));
    resources.static_shared_bytes =
        std::max(resources.static_shared_bytes, quantity(line, "bytes smem"));
  }
  return resources;
}

CompiledKernel compile_kernel(const KernelSpec& spec, const std::string& arch) {
  const Nvrtc& api = nvrtc();
  std::vector<std::string> options = {"--gpu-architecture=" + arch};
  options.insert(options.end(), std::begin(kOptions), std::end(kOptions));
  options.insert(options.end(), spec.options.begin(), spec.options.end());

  const auto begin = std::chrono::steady_clock::now();
  Program program(api, spec);
  const NvrtcResult result = program.compile(options);
  CompiledKernel kernel;
  kernel.log = program.log();
  if (result == kNvrtcInvalidOption) {
    const auto supported = compiler_architectures();
    STEPWELL_CHECK(std::ranges::find(supported, base_architecture(arch)) != supported.end(),
                   kRuntime, "NVRTC {}.{} ({}) does not compile for {}, only for {}", api.major,
                   api.minor, api.path, arch, fmt::join(supported, ", "));
  }
  STEPWELL_CHECK(result != kNvrtcBuiltinOperationFailure, kRuntime,
                 "NVRTC {}.{} ({}) does not find libnvrtc-builtins.so.{}.{}, which belongs in the "
                 "same folder",
                 api.major, api.minor, api.path, api.major, api.minor);
  STEPWELL_CHECK(result == kNvrtcSuccess, kRuntime, "compiling {} for {} with NVRTC {}.{}: {}\n{}",
                 spec.name, arch, api.major, api.minor, api.get_error_string(result), kernel.log);
  kernel.cubin = program.cubin();
  kernel.resources = parse_resources(kernel.log);
  kernel.compiler = {api.major, api.minor};
  kernel.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return kernel;
}

}  // namespace stepwell::runtime
