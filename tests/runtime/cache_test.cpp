// Files of compiled kernels: names, contents, trust, eviction.
#include "runtime/cache.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "runtime/environment.hpp"
#include "runtime/kernel_file.hpp"

namespace stepwell::testing {
namespace {

namespace fs = std::filesystem;
using runtime::CompiledKernel;
using runtime::CompilerVersion;
using runtime::KernelCache;
using runtime::KernelSpec;
using Access = KernelCache::Access;

constexpr CompilerVersion kCompiler{13, 0};
const std::string kKey(64, 'a');
const std::string kOtherKey(64, 'b');

CompiledKernel some_kernel() {
  CompiledKernel kernel;
  kernel.cubin = std::string(
      "\x7f"
      "ELF\0\n\n binary",
      14);
  kernel.log = "ptxas info\nsecond line\n";
  kernel.resources = {255, 24, 16, 8, 1024, 3};
  kernel.compiler = kCompiler;
  kernel.seconds = 1.25;
  return kernel;
}

fs::path store(const KernelCache& cache, const std::string& key) {
  KernelSpec spec;
  spec.name = "a kernel\nof two lines";
  return cache.store(key, spec, "sm_80", some_kernel());
}

void set_age(const fs::path& file, std::chrono::hours age) {
  fs::last_write_time(file, fs::file_time_type::clock::now() - age);
}

TEST(Key, CoversAllThatChangesTheKernel) {
  KernelSpec spec;
  spec.name = "kernel";
  spec.source = "#include \"core/philox.hpp\"\nint config = 1;\n";
  spec.options = {"--one"};
  const std::string key = kernel_key(spec, "sm_80");
  EXPECT_EQ(key.size(), 64u);
  EXPECT_EQ(kernel_key(spec, "sm_80"), key);
  std::set<std::string> keys = {key};
  const auto expect_new = [&](const std::string& other) { EXPECT_TRUE(keys.insert(other).second); };

  expect_new(kernel_key(spec, "sm_89"));
  KernelSpec changed = spec;
  changed.source += " ";
  expect_new(kernel_key(changed, "sm_80"));
  changed = spec;
  changed.options = {"--two"};
  expect_new(kernel_key(changed, "sm_80"));
  changed.options = {"--one", "--two"};
  expect_new(kernel_key(changed, "sm_80"));
  changed.options = {};
  expect_new(kernel_key(changed, "sm_80"));
  changed = spec;
  changed.entry = "other";
  expect_new(kernel_key(changed, "sm_80"));
  {
    const ScopedVariable flags("NVRTC_APPEND_FLAGS", "--use_fast_math");
    expect_new(kernel_key(spec, "sm_80"));
  }
  {
    const ScopedVariable flags("NVRTC_PREPEND_FLAGS", "--use_fast_math");
    expect_new(kernel_key(spec, "sm_80"));
  }

  const runtime::SourceFile file{"core/philox.hpp", "text"};
  const runtime::SourceFile edited{"core/philox.hpp", "texts"};
  const runtime::SourceFile moved{"core/other.hpp", "text"};
  expect_new(kernel_key(spec, "sm_80", {&file, 1}));
  expect_new(kernel_key(spec, "sm_80", {&edited, 1}));
  expect_new(kernel_key(spec, "sm_80", {&moved, 1}));
  EXPECT_EQ(kernel_key(spec, "sm_80", runtime::included_sources(spec.source)), key);
}

TEST(Key, IgnoresDescriptions) {
  KernelSpec spec;
  spec.source = "int config = 1;\n";
  const std::string key = kernel_key(spec, "sm_80");
  spec.name = "another name";
  spec.threads = 64;
  spec.shared_bytes = 1;
  spec.accepted_spill_bytes = 8;
  spec.factors = {{"head_dim", "64"}};
  EXPECT_EQ(kernel_key(spec, "sm_80"), key);
}

TEST(Cache, KeepsEverything) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path() / "new" / "cache", Access::kPrivate);
  EXPECT_FALSE(cache.find(kKey, kCompiler));
  const fs::path file = store(cache, kKey);
  EXPECT_EQ(file.parent_path(), cache.dir());
  const auto found = cache.find(kKey, kCompiler);
  ASSERT_TRUE(found);
  const CompiledKernel expected = some_kernel();
  EXPECT_EQ(found->cubin, expected.cubin);
  EXPECT_EQ(found->log, expected.log);
  EXPECT_EQ(found->resources, expected.resources);
  EXPECT_EQ(found->compiler, expected.compiler);
  EXPECT_EQ(found->seconds, expected.seconds);
  EXPECT_EQ(file_names(cache.dir()), std::vector<std::string>{file.filename().string()});
  EXPECT_EQ(cache.usage().files, 1u);
  EXPECT_EQ(cache.usage().bytes, fs::file_size(file));
}

TEST(Cache, IsPrivate) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path() / "cache", Access::kPrivate);
  const fs::path file = store(cache, kKey);
  EXPECT_EQ(fs::status(cache.dir()).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(Cache, PackagedKernelsAreForEverybody) {
  const TemporaryFolder folder;
  const mode_t before = umask(022);
  const KernelCache cache(folder.path() / "cubins", Access::kPackaged);
  const fs::path file = store(cache, kKey);
  umask(before);
  EXPECT_EQ(fs::status(cache.dir()).permissions(), static_cast<fs::perms>(0755));
  EXPECT_EQ(fs::status(file).permissions(), static_cast<fs::perms>(0644));
  EXPECT_TRUE(cache.find(kKey, kCompiler));
  fs::permissions(file, fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(cache.find(kKey, kCompiler));
}

TEST(Cache, CompilerVersionsAreKeptApart) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path(), Access::kPrivate);
  CompiledKernel kernel = some_kernel();
  cache.store(kKey, {}, "sm_80", kernel);
  EXPECT_FALSE(cache.find(kKey, CompilerVersion{12, 9}));
  kernel.compiler = {12, 9};
  kernel.cubin = "of 12.9";
  cache.store(kKey, {}, "sm_80", kernel);
  EXPECT_EQ(cache.find(kKey, CompilerVersion{12, 9})->cubin, "of 12.9");
  EXPECT_EQ(cache.find(kKey, kCompiler)->cubin, some_kernel().cubin);
  // Without a compiler the newest will do.
  EXPECT_EQ(cache.find(kKey, std::nullopt)->compiler, kCompiler);
  EXPECT_FALSE(cache.find(kOtherKey, std::nullopt));
}

TEST(Cache, RefusesEveryDamage) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path(), Access::kPrivate);
  const fs::path file = store(cache, kKey);
  const std::string sound = read_text(file);
  for (std::size_t at = 0; at < sound.size(); ++at) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_FALSE(runtime::unpack_kernel(damaged, kKey)) << "byte " << at;
    EXPECT_FALSE(runtime::unpack_kernel(sound.substr(0, at), kKey)) << "cut to " << at;
  }
  EXPECT_FALSE(runtime::unpack_kernel(sound + '\0', kKey));
  EXPECT_TRUE(runtime::unpack_kernel(sound, kKey));

  LogLines log;
  write_text(file, sound.substr(0, sound.size() / 2));
  EXPECT_FALSE(cache.find(kKey, kCompiler));
  EXPECT_EQ(log.lines(runtime::LogLevel::kWarning).size(), 1u);
  store(cache, kKey);
  EXPECT_TRUE(cache.find(kKey, kCompiler));
}

TEST(Cache, RefusesAnotherKernelsFile) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path(), Access::kPrivate);
  const fs::path file = store(cache, kKey);
  const fs::path renamed = cache.dir() / (kOtherKey + ".13.0.cubin");
  fs::copy(file, renamed);
  EXPECT_FALSE(cache.find(kOtherKey, kCompiler));
  // Nor of another compiler.
  fs::copy(file, cache.dir() / (kKey + ".13.1.cubin"));
  EXPECT_FALSE(cache.find(kKey, CompilerVersion{13, 1}));
}

TEST(Cache, RefusesFilesThatOthersMayWrite) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path(), Access::kPrivate);
  const fs::path file = store(cache, kKey);
  for (const auto bits : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(file, bits, fs::perm_options::add);
    EXPECT_FALSE(cache.find(kKey, kCompiler));
    fs::permissions(file, bits, fs::perm_options::remove);
    EXPECT_TRUE(cache.find(kKey, kCompiler));
  }
}

TEST(Cache, RefusesLinksAndPipes) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path(), Access::kPrivate);
  const fs::path file = store(cache, kKey);
  fs::rename(file, folder.path() / "elsewhere");
  fs::create_symlink(folder.path() / "elsewhere", file);
  EXPECT_FALSE(cache.find(kKey, kCompiler));
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_FALSE(cache.find(kKey, kCompiler));
}

TEST(Cache, RefusesAFolderThatOthersMayWrite) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path(), Access::kPrivate);
  store(cache, kKey);
  fs::permissions(folder.path(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_FALSE(cache.find(kKey, kCompiler));
  EXPECT_TRUE(store(cache, kOtherKey).empty());
  EXPECT_NE(cache.problem().find("chmod go-w"), std::string::npos) << cache.problem();
  fs::permissions(folder.path(), fs::perms::group_write, fs::perm_options::remove);
  EXPECT_EQ(cache.problem(), "");
  EXPECT_TRUE(cache.find(kKey, kCompiler));
}

TEST(Cache, RefusesAnotherUsersFilesAndFolder) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  constexpr uid_t kOther = 12345;
  const TemporaryFolder folder;
  const KernelCache cache(folder.path(), Access::kPrivate);
  const KernelCache packaged(folder.path(), Access::kPackaged);
  const fs::path file = store(cache, kKey);
  ASSERT_EQ(chown(file.c_str(), kOther, kOther), 0);
  EXPECT_FALSE(cache.find(kKey, kCompiler));
  EXPECT_TRUE(packaged.find(kKey, kCompiler));
  ASSERT_EQ(chown(file.c_str(), 0, 0), 0);
  ASSERT_EQ(chown(folder.path().c_str(), kOther, kOther), 0);
  EXPECT_FALSE(cache.find(kKey, kCompiler));
  EXPECT_NE(cache.problem().find("12345"), std::string::npos) << cache.problem();
  ASSERT_EQ(chown(folder.path().c_str(), 0, 0), 0);
  EXPECT_TRUE(cache.find(kKey, kCompiler));
}

TEST(Cache, EvictsTheFilesUnusedLongest) {
  const TemporaryFolder folder;
  const KernelCache unbounded(folder.path(), Access::kPrivate);
  const auto key = [](char digit) { return std::string(64, digit); };
  std::uint64_t bytes = 0;
  for (const char digit : {'0', '1', '2', '3'}) {
    const fs::path file = store(unbounded, key(digit));
    bytes = fs::file_size(file);
    set_age(file, std::chrono::hours(10 * ('4' - digit)));
  }
  EXPECT_TRUE(unbounded.find(key('0'), kCompiler));  // used now

  const KernelCache bounded(folder.path(), Access::kPrivate, 3 * bytes);
  store(bounded, key('4'));
  EXPECT_EQ(bounded.usage().files, 3u);
  EXPECT_FALSE(bounded.find(key('1'), kCompiler));
  EXPECT_FALSE(bounded.find(key('2'), kCompiler));
  for (const char digit : {'0', '3', '4'}) EXPECT_TRUE(bounded.find(key(digit), kCompiler));

  // What was just written stays, however small the bound.
  const KernelCache tiny(folder.path(), Access::kPrivate, 1);
  store(tiny, key('5'));
  EXPECT_EQ(tiny.usage().files, 1u);
  EXPECT_TRUE(tiny.find(key('5'), kCompiler));
}

TEST(Cache, RemovesAbandonedFilesAndNoOthers) {
  const TemporaryFolder folder;
  const KernelCache cache(folder.path(), Access::kPrivate);
  const std::vector<std::string> old = {".writing-1-2-3", "x.cubin.lock", "notes.txt"};
  for (const auto& name : old) {
    write_text(folder.path() / name, "");
    set_age(folder.path() / name, std::chrono::hours(2));
  }
  write_text(folder.path() / ".writing-4-5-6", "");
  const std::string stored = store(cache, kKey).filename().string();
  EXPECT_EQ(file_names(folder.path()),
            (std::vector<std::string>{".writing-4-5-6", stored, "notes.txt"}));
}

TEST(Cache, AFolderThatCannotBeMadeIsHarmless) {
  const TemporaryFolder folder;
  write_text(folder.path() / "file", "");
  const KernelCache cache(folder.path() / "file" / "cache", Access::kPrivate);
  LogLines log;
  EXPECT_FALSE(cache.find(kKey, kCompiler));
  EXPECT_TRUE(store(cache, kKey).empty());
  EXPECT_NE(cache.problem(), "");
  const auto warnings = log.lines(runtime::LogLevel::kWarning);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find(cache.dir().string()), std::string::npos) << warnings[0];
}

}  // namespace
}  // namespace stepwell::testing
