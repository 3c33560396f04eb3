// Stands in for libnvrtc. "Compiling" returns the options and the source. Environment variables:
//   STAND_IN_NVRTC_VERSION  such as "12.9"; default 13.0
//   STAND_IN_NVRTC_LOG      a file that gets a line for each compilation
//   STAND_IN_NVRTC_MILLIS   how long a compilation takes
//   STAND_IN_NVRTC_RESULT   what a compilation returns instead of success
//   STAND_IN_NVRTC_SAYS     the log instead of one of a kernel without problems
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidOption = 5;

struct Program {
  std::string source;
  std::string cubin;
  std::string log;
};

int environment_number(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

Program& program_of(void* handle) { return *static_cast<Program*>(handle); }

}  // namespace

// NVRTC's names.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

int nvrtcVersion(int* major, int* minor) {
  const char* const value = std::getenv("STAND_IN_NVRTC_VERSION");
  return std::sscanf(value == nullptr ? "13.0" : value, "%d.%d", major, minor) == 2 ? kSuccess : 1;
}

int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return kSuccess;
}

int nvrtcGetSupportedArchs(int* archs) {
  archs[0] = 80;
  archs[1] = 90;
  return kSuccess;
}

int nvrtcCreateProgram(void** program, const char* source, const char*, int header_count,
                       const char* const*, const char* const* names) {
  auto* const created = new Program{source, {}, {}};
  for (int i = 0; i < header_count; ++i) created->source += std::string("// ") + names[i] + "\n";
  *program = created;
  return kSuccess;
}

int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  *program = nullptr;
  return kSuccess;
}

int nvrtcCompileProgram(void* handle, int option_count, const char* const* options) {
  Program& program = program_of(handle);
  if (const char* const file = std::getenv("STAND_IN_NVRTC_LOG")) {
    const int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, "compiled\n", 9) != 9) return 1;
    close(fd);
  }
  std::this_thread::sleep_for(
      std::chrono::milliseconds(environment_number("STAND_IN_NVRTC_MILLIS")));
  for (int i = 0; i < option_count; ++i) program.cubin += std::string(options[i]) + "\n";
  program.cubin += program.source;
  program.log =
      "ptxas info    : Used 40 registers, used 1 barriers\n"
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
  if (const char* const text = std::getenv("STAND_IN_NVRTC_SAYS")) program.log = text;
  if (program.cubin.find("--gpu-architecture=sm_10\n") != std::string::npos) return kInvalidOption;
  return environment_number("STAND_IN_NVRTC_RESULT");
}

int nvrtcGetCUBINSize(void* handle, std::size_t* size) {
  *size = program_of(handle).cubin.size();
  return kSuccess;
}

int nvrtcGetCUBIN(void* handle, char* cubin) {
  const std::string& bytes = program_of(handle).cubin;
  std::copy(bytes.begin(), bytes.end(), cubin);
  return kSuccess;
}

int nvrtcGetProgramLogSize(void* handle, std::size_t* size) {
  *size = program_of(handle).log.size() + 1;
  return kSuccess;
}

int nvrtcGetProgramLog(void* handle, char* log) {
  std::strcpy(log, program_of(handle).log.c_str());
  return kSuccess;
}

const char* nvrtcGetErrorString(int result) {
  return result == kSuccess ? "NVRTC_SUCCESS" : "NVRTC_ERROR_OF_THE_STAND_IN";
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
