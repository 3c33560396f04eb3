// Compiled kernels on disk.
//
// A file is named by its spec's key and the compiler's version, so that a changed source,
// configuration, option, architecture or compiler is another file. It holds the SHA-256 of its own
// contents, which is verified before anything of it is used. Files are written under a temporary
// name and renamed. A folder or file that another user owns or may write to is not used.
//
// Environment variables:
//   STEPWELL_CACHE_DIR         the user's cache; default $XDG_CACHE_HOME/stepwell or
//                              ~/.cache/stepwell; an empty value turns it off
//   STEPWELL_CACHE_BYTES       its bound, default 1 GiB; the files unused longest are removed
//   STEPWELL_PACKAGED_CUBINS   kernels compiled ahead of time with `stepwell compile`; default:
//                              `cubins` beside the library
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "runtime/compiler.hpp"
#include "runtime/sources.hpp"
#include "runtime/spec.hpp"

namespace stepwell::runtime {

/// SHA-256, in hexadecimal digits, of all that makes the compiled kernel what it is except the
/// compiler's version: the sources it includes, its own text, options and architecture.
std::string kernel_key(const KernelSpec& spec, const std::string& arch);

/// The same, where `spec.source` includes `sources`.
std::string kernel_key(const KernelSpec& spec, const std::string& arch,
                       std::span<const SourceFile> sources);

/// A folder of compiled kernels.
class KernelCache {
 public:
  enum class Access {
    kPrivate,   ///< only the user may write to it; created as 0700; read files become the newest
    kPackaged,  ///< trusted as the library itself is; created for everybody to read
  };

  KernelCache(std::filesystem::path dir, Access access, std::uint64_t max_bytes = kUnbounded);

  /// The kernel, or nothing where no sound file has it. Without a `compiler`, a file of any version
  /// will do, the newest first.
  std::optional<CompiledKernel> find(const std::string& key,
                                     std::optional<CompilerVersion> compiler) const;

  /// Keeps the kernel and removes the files unused longest past the bound. Returns the file's path,
  /// or an empty one where it cannot be written, which is logged once and harmless.
  std::filesystem::path store(const std::string& key, const KernelSpec& spec,
                              const std::string& arch, const CompiledKernel& kernel) const;

  const std::filesystem::path& dir() const { return dir_; }
  Access access() const { return access_; }

  /// Creates the folder where it does not exist; returns why it cannot be used, or nothing.
  std::string problem() const;

  struct Usage {
    std::uint64_t files = 0;
    std::uint64_t bytes = 0;
  };
  Usage usage() const;
  std::uint64_t max_bytes() const { return max_bytes_; }

  static constexpr std::uint64_t kUnbounded = ~std::uint64_t{0};

 private:
  std::filesystem::path dir_;
  Access access_;
  std::uint64_t max_bytes_;
};

/// As the environment says when called; nothing where it is turned off or does not exist.
std::optional<KernelCache> user_cache();
std::optional<KernelCache> packaged_cache();

/// Where a kernel came from.
enum class Origin { kPackaged, kCache, kCompiled };

struct FoundKernel {
  CompiledKernel kernel;
  Origin origin = Origin::kCompiled;
};

/// The kernel from the packaged ones, the user's cache, or the compiler, in this order. Processes
/// that want the same kernel at the same time wait for the first to compile it. Thread-safe.
FoundKernel find_or_compile(const KernelSpec& spec, const std::string& arch);

/// The same with nothing but one given cache.
FoundKernel find_or_compile(const KernelSpec& spec, const std::string& arch,
                            const KernelCache& cache);

}  // namespace stepwell::runtime
