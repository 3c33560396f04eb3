// Files and folders that only their owner may write to, through file descriptors, so that what was
// checked is what is read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace stepwell::runtime {

/// An open file or folder, closed at the end of its scope.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// Whose files are trusted.
enum class Owner {
  kUser,       ///< the user's own, writable by nobody else
  kInstalled,  ///< as the library itself is: anybody's, unless everybody may write to it
};

struct OpenedFolder {
  FileDescriptor fd;
  std::string problem;  // why it is not used; "" for a folder that does not exist
};

OpenedFolder open_folder(const std::filesystem::path& dir, Owner owner);

/// The file's bytes; nothing where it does not exist, is not a plain file or is not to be trusted.
/// With `touch` its time is set to now.
std::optional<std::string> read_file(const FileDescriptor& folder, const std::string& name,
                                     Owner owner, bool touch);

/// Writes under a temporary name (kTemporaryPrefix), then renames. The user's own files are for
/// nobody else to read. Returns an error text, or "".
std::string write_file(const FileDescriptor& folder, const std::string& name,
                       std::string_view bytes, Owner owner);

inline constexpr std::string_view kTemporaryPrefix = ".writing-";
inline constexpr std::string_view kLockSuffix = ".lock";

/// Held by one process at a time, for the file `name`. Where locks do not work, or the holder takes
/// longer than a minute, goes on without: a lock saves work, correctness does not depend on it.
class FileLock {
 public:
  FileLock(const FileDescriptor& folder, const std::string& name);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  const FileDescriptor& folder_;
  std::string name_;
  FileDescriptor file_;
};

}  // namespace stepwell::runtime
