#include "runtime/dynamic_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <mutex>
#include <sstream>
#include <utility>

#include "runtime/library.hpp"

namespace stepwell::runtime {
namespace {

using Paths = std::vector<std::filesystem::path>;

std::mutex dirs_mutex;

Paths& given_dirs() {
  static auto* const dirs = new Paths;
  return *dirs;
}

Paths environment_dirs() {
  const char* const value = std::getenv("STEPWELL_LIBRARY_DIRS");
  Paths dirs;
  std::istringstream stream(value == nullptr ? "" : value);
  for (std::string dir; std::getline(stream, dir, ':');) {
    if (!dir.empty()) dirs.emplace_back(dir);
  }
  return dirs;
}

bool open_in(const Paths& dirs, const std::vector<std::string>& names, DynamicLibrary& library) {
  for (const auto& name : names) {
    for (const auto& dir : dirs) {
      const auto file = dir / name;
      std::error_code error;
      if (!std::filesystem::exists(file, error)) continue;
      library.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library.handle != nullptr) return true;
      library.problems += fmt::format("; {}", dlerror());
    }
  }
  return false;
}

bool open_by_name(int flags, const std::vector<std::string>& names, DynamicLibrary& library) {
  for (const auto& name : names) {
    library.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    if (library.handle != nullptr) return true;
  }
  return false;
}

}  // namespace

void set_library_dirs(std::vector<std::filesystem::path> dirs) {
  const std::lock_guard lock(dirs_mutex);
  given_dirs() = std::move(dirs);
}

void* DynamicLibrary::symbol(const char* name) const { return dlsym(handle, name); }

DynamicLibrary open_library(const std::vector<std::string>& names,
                            const std::vector<std::filesystem::path>& system_dirs) {
  Paths given;
  {
    const std::lock_guard lock(dirs_mutex);
    given = given_dirs();
  }
  DynamicLibrary library;
  if (open_in(environment_dirs(), names, library) || open_by_name(RTLD_NOLOAD, names, library) ||
      open_in(given, names, library) || open_by_name(0, names, library) ||
      open_in(system_dirs, names, library)) {
    link_map* map = nullptr;
    if (dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0) library.path = map->l_name;
  }
  return library;
}

}  // namespace stepwell::runtime
