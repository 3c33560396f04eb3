#include "cuda_wheels.hpp"

#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "runtime/library.hpp"

namespace stepwell::cli {
namespace {

namespace fs = std::filesystem;

/// lib/python3.x/site-packages/nvidia of the environments.
std::vector<fs::path> nvidia_dirs() {
  std::vector<fs::path> prefixes;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) prefixes.push_back(program.parent_path().parent_path());
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* const value = std::getenv(name)) prefixes.emplace_back(value);
  }
  std::vector<fs::path> dirs;
  for (const fs::path& prefix : prefixes) {
    std::error_code none;
    for (fs::directory_iterator entry(prefix / "lib", none), end; !none && entry != end;
         entry.increment(none)) {
      if (!entry->path().filename().string().starts_with("python3")) continue;
      const fs::path dir = entry->path() / "site-packages" / "nvidia";
      if (fs::is_directory(dir, error)) dirs.push_back(dir);
    }
  }
  return dirs;
}

}  // namespace

void use_cuda_wheels() {
  std::vector<fs::path> dirs;
  for (const char* part : {"cu13/lib", "cuda_nvrtc/lib"}) {
    for (const fs::path& dir : nvidia_dirs()) dirs.push_back(dir / part);
  }
  runtime::set_library_dirs(dirs);
}

fs::path find_nvdisasm() {
  std::vector<fs::path> dirs;
  const char* const path = std::getenv("PATH");
  std::istringstream stream(path == nullptr ? "" : path);
  for (std::string dir; std::getline(stream, dir, ':');) dirs.emplace_back(dir);
  for (const fs::path& dir : nvidia_dirs()) dirs.push_back(dir / "cu13/bin");
  dirs.emplace_back("/usr/local/cuda/bin");
  for (const fs::path& dir : dirs) {
    fs::path file = dir / "nvdisasm";
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

}  // namespace stepwell::cli
