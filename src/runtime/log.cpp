#include "runtime/log.hpp"

#include <memory>
#include <mutex>
#include <utility>

namespace stepwell::runtime {
namespace {

// Never destroyed: a callback may belong to an interpreter that is gone by then.
struct Logger {
  std::mutex mutex;
  std::shared_ptr<const LogCallback> callback;
};

Logger& logger() {
  static auto* const created = new Logger;
  return *created;
}

thread_local KeptLog* kept_log = nullptr;

}  // namespace

KeptLog::KeptLog() : outer_(std::exchange(kept_log, this)) {}
KeptLog::~KeptLog() { kept_log = outer_; }

void set_log_callback(LogCallback callback) {
  auto kept = callback ? std::make_shared<const LogCallback>(std::move(callback)) : nullptr;
  const std::lock_guard lock(logger().mutex);
  std::swap(logger().callback, kept);
}

void log(LogLevel level, const std::string& line) {
  if (kept_log != nullptr) {
    kept_log->lines.push_back({level, line});
    return;
  }
  std::shared_ptr<const LogCallback> callback;
  {
    const std::lock_guard lock(logger().mutex);
    callback = logger().callback;
  }
  if (callback) (*callback)(level, line);
}

}  // namespace stepwell::runtime
