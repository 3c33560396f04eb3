// What the library says besides its errors: kernels compiled, caches that cannot be used.
#pragma once

#include <functional>
#include <string>

namespace stepwell::runtime {

enum class LogLevel {
  kInfo,     ///< a kernel was compiled, with its time
  kWarning,  ///< something works, but worse than it could: no cache, local memory in a kernel
};

using LogCallback = std::function<void(LogLevel level, const std::string& line)>;

/// Sets who gets the lines, from any thread; without a callback they are dropped. The library
/// itself never prints.
void set_log_callback(LogCallback callback);

void log(LogLevel level, const std::string& line);

}  // namespace stepwell::runtime
