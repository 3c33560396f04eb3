#include "runtime/cache.hpp"

#include <dlfcn.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "core/check.hpp"
#include "runtime/files.hpp"
#include "runtime/kernel_file.hpp"
#include "runtime/library.hpp"
#include "runtime/log.hpp"
#include "runtime/sha256.hpp"
#include "runtime/sources.hpp"

namespace stepwell::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".cubin";
constexpr std::uint64_t kDefaultBytes = std::uint64_t{1} << 30;
constexpr std::chrono::hours kAbandoned{1};  // a temporary or lock file nobody works with any more
constexpr mode_t kPrivateFolder = 0700;
constexpr mode_t kPackagedFolder = 0777;  // less the process's umask

/// Environment variables that change what NVRTC compiles behind our back.
constexpr const char* kCompilerVariables[] = {"NVRTC_PREPEND_FLAGS", "NVRTC_APPEND_FLAGS"};

std::string file_name(const std::string& key, CompilerVersion compiler) {
  return fmt::format("{}.{}.{}{}", key, compiler.major, compiler.minor, kSuffix);
}

void warn_once(const std::string& line) {
  static std::mutex mutex;
  static auto* const said = new std::set<std::string>;
  {
    const std::lock_guard lock(mutex);
    if (!said->insert(line).second) return;
  }
  log(LogLevel::kWarning, line);
}

Owner owner_of(KernelCache::Access access) {
  return access == KernelCache::Access::kPrivate ? Owner::kUser : Owner::kInstalled;
}

/// Creates `dir` where it does not exist; returns an error text or "".
std::string create(const fs::path& dir, KernelCache::Access access) {
  std::error_code error;
  if (dir.has_parent_path()) fs::create_directories(dir.parent_path(), error);
  const bool is_private = access == KernelCache::Access::kPrivate;
  if (mkdir(dir.c_str(), is_private ? kPrivateFolder : kPackagedFolder) == 0 || errno == EEXIST) {
    return "";
  }
  return fmt::format("{}: {}", dir.string(), std::generic_category().message(errno));
}

struct DatedFile {
  fs::file_time_type time;
  std::uint64_t bytes = 0;
  fs::path path;
};

/// The files of `dir`. Those that vanish while it is read are left out.
std::vector<DatedFile> list_files(const fs::path& dir) {
  std::vector<DatedFile> files;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    DatedFile file{entry->last_write_time(gone), 0, entry->path()};
    if (!gone && entry->is_regular_file(gone)) file.bytes = entry->file_size(gone);
    if (!gone) files.push_back(std::move(file));
  }
  return files;
}

bool is_kernel(const DatedFile& file) { return file.path.extension() == kSuffix; }

void remove_file(const fs::path& file) {
  std::error_code gone;
  fs::remove(file, gone);
}

/// Removes what dead processes left behind, and the kernels unused longest until `max_bytes` hold
/// the rest; never `kept`.
void tidy(const fs::path& dir, std::uint64_t max_bytes, const std::string& kept) {
  std::vector<DatedFile> files = list_files(dir);
  const auto now = fs::file_time_type::clock::now();
  std::uint64_t bytes = 0;
  for (const DatedFile& file : files) {
    const std::string name = file.path.filename().string();
    if (is_kernel(file)) bytes += file.bytes;
    if ((name.starts_with(kTemporaryPrefix) || name.ends_with(kLockSuffix)) &&
        now - file.time > kAbandoned) {
      remove_file(file.path);
    }
  }
  if (bytes <= max_bytes) return;
  std::ranges::sort(files, {}, &DatedFile::time);
  for (const DatedFile& file : files) {
    if (bytes <= max_bytes) break;
    if (!is_kernel(file) || file.path.filename() == kept) continue;
    remove_file(file.path);
    bytes -= file.bytes;
  }
}

std::optional<fs::path> environment_path(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return fs::path(value);
}

std::optional<fs::path> home() {
  if (auto path = environment_path("HOME"); path && !path->empty()) return path;
  const passwd* const user = getpwuid(geteuid());
  if (user == nullptr || user->pw_dir == nullptr) return std::nullopt;
  return fs::path(user->pw_dir);
}

std::uint64_t cache_bytes() {
  const char* const value = std::getenv("STEPWELL_CACHE_BYTES");
  if (value == nullptr) return kDefaultBytes;
  std::uint64_t bytes = 0;
  const char* const end = value + std::strlen(value);
  const auto [stop, error] = std::from_chars(value, end, bytes);
  STEPWELL_CHECK(error == std::errc() && stop == end, kRuntime,
                 "the environment variable STEPWELL_CACHE_BYTES is \"{}\"; a number of bytes is "
                 "accepted, such as 1073741824",
                 value);
  return bytes;
}

FoundKernel compile(const KernelSpec& spec, const std::string& arch) {
  return {compile_kernel(spec, arch), Origin::kCompiled};
}

void log_compiled(const KernelSpec& spec, const std::string& arch, const CompiledKernel& kernel,
                  const fs::path& file) {
  log(LogLevel::kInfo,
      fmt::format("compiled {} for {} in {:.2f} s with NVRTC {}.{}{}", spec.name, arch,
                  kernel.seconds, kernel.compiler.major, kernel.compiler.minor,
                  file.empty() ? "" : fmt::format(", kept in {}", file.string())));
}

/// Nothing where there is no NVRTC: any version's kernel is better than none then.
std::optional<CompilerVersion> available_compiler() {
  if (!report_nvrtc().found) return std::nullopt;
  return compiler_version();
}

}  // namespace

std::string kernel_key(const KernelSpec& spec, const std::string& arch) {
  return kernel_key(spec, arch, included_sources(spec.source));
}

std::string kernel_key(const KernelSpec& spec, const std::string& arch,
                       std::span<const SourceFile> sources) {
  Sha256 hash;
  hash.add_field(arch);
  hash.add_field(spec.entry);
  hash.add_field(spec.source);
  for (const char* option : kernel_options()) hash.add_field(option);
  for (const std::string& option : spec.options) hash.add_field(option);
  hash.add_field("sources");  // where the options end
  for (const char* name : kCompilerVariables) {
    const char* const value = std::getenv(name);
    hash.add_field(value == nullptr ? "" : value);
  }
  for (const SourceFile& file : sources) {
    hash.add_field(file.path);
    hash.add_field(file.text);
  }
  return hash.hex_digest();
}

KernelCache::KernelCache(fs::path dir, Access access, std::uint64_t max_bytes)
    : dir_(std::move(dir)), access_(access), max_bytes_(max_bytes) {}

std::optional<CompiledKernel> KernelCache::find(const std::string& key,
                                                std::optional<CompilerVersion> compiler) const {
  const OpenedFolder folder = open_folder(dir_, owner_of(access_));
  if (!folder.problem.empty()) warn_once("compiled kernels are not kept: " + folder.problem);
  if (!folder.fd) return std::nullopt;

  std::vector<std::pair<CompilerVersion, std::string>> candidates;
  if (compiler) {
    candidates.emplace_back(*compiler, file_name(key, *compiler));
  } else {
    for (const DatedFile& file : list_files(dir_)) {
      const std::string name = file.path.filename().string();
      CompilerVersion version;
      if (std::sscanf(name.c_str() + std::min(key.size(), name.size()), ".%d.%d", &version.major,
                      &version.minor) == 2 &&
          name == file_name(key, version)) {
        candidates.emplace_back(version, name);
      }
    }
    std::ranges::sort(candidates, std::ranges::greater());
  }
  for (const auto& [version, name] : candidates) {
    const auto bytes = read_file(folder.fd, name, owner_of(access_), access_ == Access::kPrivate);
    if (!bytes) continue;
    auto kernel = unpack_kernel(*bytes, key);
    if (kernel && kernel->compiler == version) return kernel;
    warn_once(fmt::format("{} is damaged and not used", (dir_ / name).string()));
  }
  return std::nullopt;
}

fs::path KernelCache::store(const std::string& key, const KernelSpec& spec, const std::string& arch,
                            const CompiledKernel& kernel) const {
  std::string problem = create(dir_, access_);
  if (problem.empty()) {
    const OpenedFolder folder = open_folder(dir_, owner_of(access_));
    problem = folder.problem;
    if (folder.fd) {
      const std::string name = file_name(key, kernel.compiler);
      problem =
          write_file(folder.fd, name, pack_kernel(key, spec, arch, kernel), owner_of(access_));
      if (problem.empty()) {
        tidy(dir_, max_bytes_, name);
        return dir_ / name;
      }
      problem = fmt::format("{}: {}", dir_.string(), problem);
    }
  }
  warn_once("compiled kernels are not kept: " + problem);
  return {};
}

std::string KernelCache::problem() const {
  std::string problem = create(dir_, access_);
  if (!problem.empty()) return problem;
  return open_folder(dir_, owner_of(access_)).problem;
}

KernelCache::Usage KernelCache::usage() const {
  Usage usage;
  for (const DatedFile& file : list_files(dir_)) {
    if (!is_kernel(file)) continue;
    ++usage.files;
    usage.bytes += file.bytes;
  }
  return usage;
}

std::optional<KernelCache> user_cache() {
  const std::uint64_t bytes = cache_bytes();
  if (const auto dir = environment_path("STEPWELL_CACHE_DIR")) {
    if (dir->empty()) return std::nullopt;
    return KernelCache(*dir, KernelCache::Access::kPrivate, bytes);
  }
  // The XDG specification has relative paths ignored.
  if (const auto base = environment_path("XDG_CACHE_HOME"); base && base->is_absolute()) {
    return KernelCache(*base / "stepwell", KernelCache::Access::kPrivate, bytes);
  }
  if (const auto dir = home()) {
    return KernelCache(*dir / ".cache" / "stepwell", KernelCache::Access::kPrivate, bytes);
  }
  return std::nullopt;
}

std::optional<KernelCache> packaged_cache() {
  auto dir = environment_path("STEPWELL_PACKAGED_CUBINS");
  if (!dir) {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&packaged_cache), &info) == 0 ||
        info.dli_fname == nullptr) {
      return std::nullopt;
    }
    dir = fs::path(info.dli_fname).parent_path() / "cubins";
  }
  std::error_code error;
  if (dir->empty() || !fs::is_directory(*dir, error)) return std::nullopt;
  return KernelCache(*dir, KernelCache::Access::kPackaged);
}

FoundKernel find_or_compile(const KernelSpec& spec, const std::string& arch,
                            const KernelCache& cache) {
  const std::string key = kernel_key(spec, arch);
  const auto compiler = available_compiler();
  if (auto kernel = cache.find(key, compiler)) return {*std::move(kernel), Origin::kCache};

  create(cache.dir(), cache.access());  // `store` says what went wrong
  const OpenedFolder folder = open_folder(cache.dir(), owner_of(cache.access()));
  std::optional<FileLock> lock;
  if (folder.fd && compiler) {
    lock.emplace(folder.fd, file_name(key, *compiler));
    if (auto kernel = cache.find(key, compiler)) return {*std::move(kernel), Origin::kCache};
  }
  FoundKernel found = compile(spec, arch);
  log_compiled(spec, arch, found.kernel, cache.store(key, spec, arch, found.kernel));
  return found;
}

FoundKernel find_or_compile(const KernelSpec& spec, const std::string& arch) {
  if (const auto packaged = packaged_cache()) {
    if (auto kernel = packaged->find(kernel_key(spec, arch), std::nullopt)) {
      return {*std::move(kernel), Origin::kPackaged};
    }
  }
  if (const auto cache = user_cache()) return find_or_compile(spec, arch, *cache);
  FoundKernel found = compile(spec, arch);
  log_compiled(spec, arch, found.kernel, {});
  return found;
}

}  // namespace stepwell::runtime
