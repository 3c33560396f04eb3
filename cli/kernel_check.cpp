#include "kernel_check.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>

#include "cuda/limits.hpp"

namespace stepwell::cli {
namespace {

/// Notes such as "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
/// and "(C7508) ... 'setmaxnreg' ignored".
constexpr std::string_view kNotes[] = {"(C75", "Performance Loss"};

std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

cuda::DeviceLimits limits_of_arch(const std::string& arch) {
  int number = 0;
  std::from_chars(arch.data() + std::min(arch.size(), std::size_t{3}), arch.data() + arch.size(),
                  number);
  return cuda::limits_of(number / 10, number % 10);
}

/// The listing of `nvdisasm -c`.
std::string disassemble(const std::filesystem::path& nvdisasm, const std::string& cubin) {
  std::string file = (std::filesystem::temp_directory_path() / "stepwell-XXXXXX").string();
  const int fd = mkstemp(file.data());
  if (fd < 0) throw std::runtime_error("no temporary file for nvdisasm");
  close(fd);
  std::ofstream(file, std::ios::binary) << cubin;
  const std::string command = fmt::format("'{}' -c '{}' 2>&1", nvdisasm.string(), file);
  std::string listing;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe != nullptr) {
    char buffer[4096];
    for (std::size_t count = 0; (count = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
      listing.append(buffer, count);
    }
  }
  const int status = pipe == nullptr ? -1 : pclose(pipe);
  std::filesystem::remove(file);
  if (status != 0) throw std::runtime_error(fmt::format("{} failed: {}", command, listing));
  return listing;
}

}  // namespace

int local_accesses_in_loops(std::string_view listing) {
  // A loop is all between a label and a later branch back to it.
  std::map<std::string_view, int> labels;
  std::vector<int> accesses;
  std::vector<std::pair<int, int>> loops;
  for (int number = 0; !listing.empty(); ++number) {
    std::string_view line = take_line(listing);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.starts_with(".L") && line.ends_with(':')) {
      labels[line.substr(0, line.size() - 1)] = number;
    } else if (line.find(" LDL") != line.npos || line.find(" STL") != line.npos) {
      accesses.push_back(number);
    } else if (line.find(" BRA") != line.npos) {
      const std::size_t begin = line.find(".L");
      const std::size_t end = line.find(')', std::min(begin, line.size()));
      if (begin == line.npos || end == line.npos) continue;
      const auto target = labels.find(line.substr(begin, end - begin));
      // Code ends with a branch to itself.
      if (target != labels.end() && target->second < number - 1) {
        loops.emplace_back(target->second, number);
      }
    }
  }
  return static_cast<int>(std::ranges::count_if(accesses, [&](int access) {
    return std::ranges::any_of(
        loops, [&](const auto& loop) { return loop.first < access && access < loop.second; });
  }));
}

std::vector<std::string> kernel_problems(const runtime::KernelSpec& spec, const std::string& arch,
                                         const runtime::CompiledKernel& kernel,
                                         const std::filesystem::path& nvdisasm) {
  std::vector<std::string> problems;
  const runtime::Resources& used = kernel.resources;
  const int spilled = std::max(used.spill_store_bytes, used.spill_load_bytes);
  if (spilled > spec.accepted_spill_bytes) {
    problems.push_back(fmt::format("{} bytes stored and {} loaded by spills; {} are accepted",
                                   used.spill_store_bytes, used.spill_load_bytes,
                                   spec.accepted_spill_bytes));
  } else if (used.stack_bytes > spec.accepted_spill_bytes) {
    problems.push_back(fmt::format("{} bytes of local memory", used.stack_bytes));
  } else if (spilled > 0 || used.stack_bytes > 0) {
    if (nvdisasm.empty()) {
      problems.push_back(
          fmt::format("{} bytes of local memory: whether in a loop, nvdisasm would tell (`pip "
                      "install nvidia-cuda-nvdisasm`)",
                      used.stack_bytes));
    } else if (const int count = local_accesses_in_loops(disassemble(nvdisasm, kernel.cubin))) {
      problems.push_back(fmt::format("{} local-memory instructions in loops", count));
    }
  }

  for (std::string_view log = kernel.log; !log.empty();) {
    const std::string_view line = take_line(log);
    if (std::ranges::any_of(kNotes, [&](auto note) { return line.find(note) != line.npos; })) {
      problems.emplace_back(line);
    }
  }

  const int shared = spec.shared_bytes + used.static_shared_bytes;
  const int limit = limits_of_arch(arch).shared_bytes_per_cta;
  if (shared > limit) {
    problems.push_back(
        fmt::format("{} bytes of shared memory; a CTA has {} on {}", shared, limit, arch));
  }
  return problems;
}

}  // namespace stepwell::cli
