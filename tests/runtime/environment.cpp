#include "runtime/environment.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>

namespace stepwell::testing {
namespace {

void set_variable(const std::string& name, const std::optional<std::string>& value) {
  if (value) {
    setenv(name.c_str(), value->c_str(), 1);
  } else {
    unsetenv(name.c_str());
  }
}

// The library looks for its stand-ins when it is first used, which is in a test.
[[maybe_unused]] const bool kPrepared = [] {
  set_variable("STEPWELL_LIBRARY_DIRS", STAND_INS);
  set_variable("STEPWELL_CACHE_DIR", "");
  set_variable("STEPWELL_PACKAGED_CUBINS", "");
  return true;
}();

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "stepwell-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

ScopedVariable::ScopedVariable(std::string name, const std::optional<std::string>& value)
    : name_(std::move(name)) {
  if (const char* const before = std::getenv(name_.c_str())) before_ = before;
  set_variable(name_, value);
}

ScopedVariable::~ScopedVariable() { set_variable(name_, before_); }

LogLines::LogLines() {
  runtime::set_log_callback([this](runtime::LogLevel level, const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_[level].push_back(line);
  });
}

LogLines::~LogLines() { runtime::set_log_callback({}); }

std::vector<std::string> LogLines::lines(runtime::LogLevel level) {
  const std::lock_guard lock(mutex_);
  return lines_[level];
}

runtime::KernelSpec unique_spec() {
  static std::atomic<int> count{0};
  runtime::KernelSpec spec;
  spec.name = fmt::format("kernel {}", count++);
  spec.source = fmt::format("extern \"C\" __global__ void kernel(int) {{}}  // {}\n", spec.name);
  spec.threads = 128;
  spec.shared_bytes = 50 * 1024;
  return spec;
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream) << file;
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  EXPECT_TRUE(stream.flush()) << file;
}

std::vector<std::string> file_names(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

int line_count(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return 0;
  const std::string text = read_text(file);
  return static_cast<int>(std::ranges::count(text, '\n'));
}

}  // namespace stepwell::testing
