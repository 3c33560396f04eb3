// What the library says besides its errors: kernels compiled, caches that cannot be used.
#pragma once

#include <functional>
#include <string>
#include <vector>

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

struct LogLine {
  LogLevel level;
  std::string line;
};

/// While it lives, the thread's lines are kept here, for another thread to log: a callback may need
/// what the thread that waits for this one holds, such as Python's interpreter.
class KeptLog {
 public:
  KeptLog();
  ~KeptLog();
  KeptLog(const KeptLog&) = delete;
  KeptLog& operator=(const KeptLog&) = delete;

  std::vector<LogLine> lines;

 private:
  KeptLog* outer_;
};

}  // namespace stepwell::runtime
