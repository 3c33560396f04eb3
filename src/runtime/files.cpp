#include "runtime/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/check.hpp"

namespace stepwell::runtime {
namespace {

constexpr mode_t kPrivateFile = 0600;
constexpr mode_t kInstalledFile = 0666;  // less the process's umask
constexpr std::chrono::milliseconds kLockPoll{20};
constexpr std::chrono::seconds kLockTimeout{60};

std::string error_text(int error) { return std::generic_category().message(error); }

/// Why the owner or mode is not accepted, or "".
std::string ownership_problem(const struct stat& status, Owner owner) {
  if (owner == Owner::kUser && status.st_uid != geteuid()) {
    return fmt::format("it belongs to user {}, not to user {} who runs this", status.st_uid,
                       geteuid());
  }
  const mode_t others = owner == Owner::kUser ? S_IWGRP | S_IWOTH : S_IWOTH;
  if ((status.st_mode & others) != 0) {
    return fmt::format("other users may write to it (mode {:04o}); `chmod go-w` makes it private",
                       status.st_mode & 07777);
  }
  return "";
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(written);
  }
  return true;
}

std::string temporary_name() {
  static std::atomic<unsigned> count{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  // Processes of different containers may share both the folder and the process id.
  return fmt::format("{}{}-{}-{:x}", kTemporaryPrefix, getpid(), count++, now);
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

OpenedFolder open_folder(const std::filesystem::path& dir, Owner owner) {
  OpenedFolder folder;
  FileDescriptor fd(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) {
    if (errno != ENOENT) folder.problem = fmt::format("{}: {}", dir.string(), error_text(errno));
    return folder;
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) {
    folder.problem = fmt::format("{}: {}", dir.string(), error_text(errno));
    return folder;
  }
  const std::string problem = ownership_problem(status, owner);
  if (!problem.empty()) {
    folder.problem = fmt::format("{}: {}", dir.string(), problem);
    return folder;
  }
  folder.fd = std::move(fd);
  return folder;
}

std::optional<std::string> read_file(const FileDescriptor& folder, const std::string& name,
                                     Owner owner, bool touch) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const FileDescriptor file(
      openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) return std::nullopt;
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      !ownership_problem(status, owner).empty()) {
    return std::nullopt;
  }
  std::string bytes(status.st_size, '\0');
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t count = read(file.get(), bytes.data() + have, bytes.size() - have);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    have += count;
  }
  if (touch) futimens(file.get(), nullptr);
  return bytes;
}

std::string write_file(const FileDescriptor& folder, const std::string& name,
                       std::string_view bytes, Owner owner) {
  const std::string temporary = temporary_name();
  const FileDescriptor file(openat(folder.get(), temporary.c_str(),
                                   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                                   owner == Owner::kUser ? kPrivateFile : kInstalledFile));
  if (!file) return error_text(errno);
  if (write_all(file.get(), bytes) &&
      renameat(folder.get(), temporary.c_str(), folder.get(), name.c_str()) == 0) {
    return "";
  }
  const int error = errno;
  unlinkat(folder.get(), temporary.c_str(), 0);
  return error_text(error);
}

FileLock::FileLock(const FileDescriptor& folder, const std::string& name)
    : folder_(folder), name_(name + std::string(kLockSuffix)) {
  FileDescriptor file(
      openat(folder.get(), name_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kPrivateFile));
  if (!file) return;
  const auto deadline = std::chrono::steady_clock::now() + kLockTimeout;
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;
    if (std::chrono::steady_clock::now() > deadline) return;
    std::this_thread::sleep_for(kLockPoll);
  }
  file_ = std::move(file);
}

FileLock::~FileLock() {
  // Those who wait for the removed file and those who create a new one may then hold a lock each;
  // both find the kernel that was stored meanwhile.
  if (file_) unlinkat(folder_.get(), name_.c_str(), 0);
}

}  // namespace stepwell::runtime
