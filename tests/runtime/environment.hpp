// Environment variables, folders and log lines of a test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/log.hpp"
#include "runtime/spec.hpp"
#include "stepwell/error.hpp"

namespace stepwell::testing {

/// A new empty folder, removed afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// An environment variable's value for a scope; no value removes it.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::optional<std::string>& value);
  ~ScopedVariable();
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

/// Collects what the library logs during a scope.
class LogLines {
 public:
  LogLines();
  ~LogLines();
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  std::vector<std::string> lines(runtime::LogLevel level);

 private:
  std::mutex mutex_;
  std::map<runtime::LogLevel, std::vector<std::string>> lines_;
};

/// A kernel that no other test has.
runtime::KernelSpec unique_spec();

/// Expects an Error of `kind` whose message has all the `parts`.
template <typename Body>
void expect_error(ErrorKind kind, const std::vector<std::string>& parts, Body&& body) {
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.what();
    }
  }
}

std::string read_text(const std::filesystem::path& file);
void write_text(const std::filesystem::path& file, const std::string& text);
std::vector<std::string> file_names(const std::filesystem::path& dir);
int line_count(const std::filesystem::path& file);

}  // namespace stepwell::testing
