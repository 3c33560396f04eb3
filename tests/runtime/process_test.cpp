// Many processes, and processes where something is missing.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "runtime/environment.hpp"

namespace stepwell::testing {
namespace {

namespace fs = std::filesystem;

class Probe {
 public:
  explicit Probe(std::vector<std::string> arguments) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    arguments.insert(arguments.begin(), RUNTIME_PROBE);
    std::vector<char*> pointers;
    for (auto& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  Probe(Probe&& other) noexcept : pid_(other.pid_), output_(std::exchange(other.output_, -1)) {}
  ~Probe() {
    if (output_ >= 0) finish();
  }

  void kill() { ::kill(pid_, SIGKILL); }

  /// All that it printed.
  std::string finish() {
    std::string text;
    char buffer[4096];
    for (ssize_t count = 0; (count = read(output_, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, count);
    }
    close(std::exchange(output_, -1));
    waitpid(pid_, &status_, 0);
    return text;
  }

  bool succeeded() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  int status_ = 0;
};

TEST(Processes, OneCompilesForAll) {
  const TemporaryFolder folder;
  const fs::path cache = folder.path() / "cache";
  const fs::path log = folder.path() / "log";
  const ScopedVariable count("STAND_IN_NVRTC_LOG", log);
  const ScopedVariable slow("STAND_IN_NVRTC_MILLIS", "300");
  std::vector<Probe> probes;
  for (int i = 0; i < 8; ++i) probes.emplace_back(std::vector<std::string>{"compile", cache});
  int compiled = 0;
  for (auto& probe : probes) {
    const std::string text = probe.finish();
    EXPECT_TRUE(probe.succeeded());
    EXPECT_TRUE(text == "compiled\n" || text == "found\n") << text;
    if (text == "compiled\n") ++compiled;
  }
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(line_count(log), 1);
  const auto files = file_names(cache);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_TRUE(files[0].ends_with(".13.0.cubin")) << files[0];
}

// Without locks, as on file systems that have none: each compiles, each result is whole.
TEST(Processes, WritersDoNotMeet) {
  const TemporaryFolder folder;
  const ScopedVariable slow("STAND_IN_NVRTC_MILLIS", "50");
  // A folder in the place of the lock file: it cannot be opened as a file.
  Probe(std::vector<std::string>{"compile", folder.path()}).finish();
  const fs::path file = folder.path() / file_names(folder.path())[0];
  fs::create_directory(file.string() + ".lock");
  const auto whole = fs::file_size(file);
  for (int round = 0; round < 3; ++round) {
    fs::remove(file);
    std::vector<Probe> probes;
    for (int i = 0; i < 6; ++i) {
      probes.emplace_back(std::vector<std::string>{"compile", folder.path()});
    }
    // Whoever looks meanwhile sees no file or a whole one.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    while (std::chrono::steady_clock::now() < until) {
      std::error_code none;
      const auto size = fs::file_size(file, none);
      if (none) continue;
      ASSERT_EQ(size, whole);
    }
    for (auto& probe : probes) {
      const std::string text = probe.finish();
      EXPECT_TRUE(text == "compiled\n" || text == "found\n") << text;
    }
    EXPECT_EQ(file_names(folder.path()).size(), 2u);  // the kernel and the obstacle
  }
}

TEST(Processes, AKilledOneHoldsUpNobody) {
  const TemporaryFolder folder;
  const fs::path log = folder.path() / "log";
  const fs::path cache = folder.path() / "cache";
  const ScopedVariable count("STAND_IN_NVRTC_LOG", log);
  {
    const ScopedVariable slow("STAND_IN_NVRTC_MILLIS", "60000");
    Probe probe({"compile", cache});
    while (line_count(log) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    probe.kill();
    EXPECT_EQ(probe.finish(), "");
  }
  Probe next({"compile", cache});
  EXPECT_EQ(next.finish(), "compiled\n");
  EXPECT_EQ(file_names(cache).size(), 1u);
}

TEST(Processes, MissingLibrariesAreNamedWithTheirCure) {
  const TemporaryFolder empty;
  const ScopedVariable dirs("STEPWELL_LIBRARY_DIRS", empty.path());
  Probe probe({"libraries"});
  std::istringstream lines(probe.finish());
  std::string driver;
  std::string nvrtc;
  std::getline(lines, driver);
  std::getline(lines, nvrtc);
  if (driver.starts_with("found") && nvrtc.starts_with("found")) {
    GTEST_SKIP() << "this machine has both on the system's search path";
  }
  if (!driver.starts_with("found")) {
    EXPECT_NE(driver.find("libcuda.so.1 was not found"), std::string::npos) << driver;
    EXPECT_NE(driver.find("GPU driver"), std::string::npos) << driver;
  }
  if (!nvrtc.starts_with("found")) {
    EXPECT_NE(nvrtc.find("no NVRTC"), std::string::npos) << nvrtc;
    EXPECT_NE(nvrtc.find("pip install nvidia-cuda-nvrtc"), std::string::npos) << nvrtc;
    EXPECT_NE(nvrtc.find("STEPWELL_LIBRARY_DIRS"), std::string::npos) << nvrtc;
  }
}

TEST(Processes, UnusableLibrariesAreNamed) {
  const TemporaryFolder folder;
  fs::copy(fs::path(STAND_INS) / "libnvrtc.so.13", folder.path() / "libnvrtc.so.13");
  write_text(folder.path() / "libcuda.so.1", "not a library");
  const ScopedVariable dirs("STEPWELL_LIBRARY_DIRS", folder.path());
  const ScopedVariable old("STAND_IN_NVRTC_VERSION", "11.8");
  Probe probe({"libraries"});
  const std::string text = probe.finish();
  EXPECT_NE(text.find("is NVRTC 11.8; 12.0 or later is needed"), std::string::npos) << text;
  if (!text.starts_with("found")) {
    EXPECT_NE(text.find((folder.path() / "libcuda.so.1").string()), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace stepwell::testing
