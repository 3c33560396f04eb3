// Finding and opening a shared library in the order of library.hpp.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/check.hpp"

namespace stepwell::runtime {

struct DynamicLibrary {
  void* handle = nullptr;  // never closed
  std::filesystem::path path;
  std::string problems;  // files that exist but could not be loaded

  void* symbol(const char* name) const;
};

/// The first of `names` that can be opened, place by place; `system_dirs` are searched last. The
/// handle is nullptr where there is none.
DynamicLibrary open_library(const std::vector<std::string>& names,
                            const std::vector<std::filesystem::path>& system_dirs);

template <typename Function>
void resolve(const DynamicLibrary& library, const char* name, Function*& function) {
  void* const address = library.symbol(name);
  STEPWELL_CHECK(address != nullptr, kRuntime, "{} has no function {}: it is too old",
                 library.path.string(), name);
  function = reinterpret_cast<Function*>(address);
}

}  // namespace stepwell::runtime
