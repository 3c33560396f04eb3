// Packaged kernels, then the user's cache, then the compiler.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/cache.hpp"
#include "runtime/environment.hpp"

namespace stepwell::testing {
namespace {

namespace fs = std::filesystem;
using runtime::find_or_compile;
using runtime::KernelCache;
using runtime::LogLevel;
using runtime::Origin;

/// Packaged folder and user's cache of a test, as the environment names them.
struct Levels {
  TemporaryFolder packaged;
  TemporaryFolder user;
  ScopedVariable packaged_variable{"STEPWELL_PACKAGED_CUBINS", packaged.path()};
  ScopedVariable user_variable{"STEPWELL_CACHE_DIR", user.path() / "cache"};
  LogLines log;
};

void overwrite_all(const fs::path& dir) {
  for (const auto& name : file_names(dir)) write_text(dir / name, "not a kernel");
}

TEST(Levels, CompiledOnceAndKept) {
  Levels levels;
  const auto spec = unique_spec();
  const auto first = find_or_compile(spec, "sm_80");
  EXPECT_EQ(first.origin, Origin::kCompiled);
  EXPECT_NE(first.kernel.cubin.find("--gpu-architecture=sm_80"), std::string::npos);
  const auto second = find_or_compile(spec, "sm_80");
  EXPECT_EQ(second.origin, Origin::kCache);
  EXPECT_EQ(second.kernel.cubin, first.kernel.cubin);
  EXPECT_EQ(find_or_compile(spec, "sm_90a").origin, Origin::kCompiled);
  EXPECT_EQ(file_names(levels.user.path() / "cache").size(), 2u);
}

TEST(Levels, CompilingIsLoggedWithItsTime) {
  Levels levels;
  const auto spec = unique_spec();
  find_or_compile(spec, "sm_80");
  find_or_compile(spec, "sm_80");
  const auto lines = levels.log.lines(LogLevel::kInfo);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("compiled " + spec.name + " for sm_80 in 0.0")) << lines[0];
  EXPECT_NE(lines[0].find(" s with NVRTC 13.0, kept in "), std::string::npos) << lines[0];
  EXPECT_TRUE(levels.log.lines(LogLevel::kWarning).empty());
}

TEST(Levels, PackagedComesFirst) {
  Levels levels;
  const auto spec = unique_spec();
  const KernelCache writer(levels.packaged.path(), KernelCache::Access::kPrivate);
  auto kernel = find_or_compile(spec, "sm_80", writer).kernel;
  EXPECT_EQ(find_or_compile(spec, "sm_80").origin, Origin::kPackaged);
  EXPECT_FALSE(fs::exists(levels.user.path() / "cache"));

  // Of whatever compiler.
  fs::remove_all(levels.packaged.path() / file_names(levels.packaged.path())[0]);
  kernel.compiler = {12, 9};
  writer.store(kernel_key(spec, "sm_80"), spec, "sm_80", kernel);
  EXPECT_EQ(find_or_compile(spec, "sm_80").kernel.compiler, kernel.compiler);
}

TEST(Levels, DamagedFilesAreReplaced) {
  Levels levels;
  const auto spec = unique_spec();
  const KernelCache writer(levels.packaged.path(), KernelCache::Access::kPrivate);
  find_or_compile(spec, "sm_80", writer);
  overwrite_all(levels.packaged.path());
  EXPECT_EQ(find_or_compile(spec, "sm_80").origin, Origin::kCompiled);
  EXPECT_EQ(find_or_compile(spec, "sm_80").origin, Origin::kCache);
  overwrite_all(levels.user.path() / "cache");
  EXPECT_EQ(find_or_compile(spec, "sm_80").origin, Origin::kCompiled);
  EXPECT_EQ(find_or_compile(spec, "sm_80").origin, Origin::kCache);
  EXPECT_EQ(levels.log.lines(LogLevel::kWarning).size(), 2u);
}

TEST(Levels, NothingIsKeptWithAnEmptyCacheDir) {
  Levels levels;
  const ScopedVariable off("STEPWELL_CACHE_DIR", "");
  EXPECT_FALSE(runtime::user_cache());
  const auto spec = unique_spec();
  EXPECT_EQ(find_or_compile(spec, "sm_80").origin, Origin::kCompiled);
  EXPECT_EQ(find_or_compile(spec, "sm_80").origin, Origin::kCompiled);
}

TEST(Levels, ALockFileLeftBehindDoesNotBlock) {
  Levels levels;
  const auto spec = unique_spec();
  const fs::path dir = levels.user.path() / "cache";
  find_or_compile(spec, "sm_80");
  const fs::path file = dir / file_names(dir)[0];
  fs::rename(file, file.string() + ".lock");
  EXPECT_EQ(find_or_compile(spec, "sm_80").origin, Origin::kCompiled);
  EXPECT_EQ(file_names(dir).size(), 1u);
}

TEST(Levels, WhereTheUserCacheIs) {
  const ScopedVariable dir("STEPWELL_CACHE_DIR", std::nullopt);
  const ScopedVariable home("HOME", "/home/someone");
  {
    const ScopedVariable base("XDG_CACHE_HOME", "/caches");
    EXPECT_EQ(runtime::user_cache()->dir(), "/caches/stepwell");
  }
  {
    const ScopedVariable base("XDG_CACHE_HOME", "relative");
    EXPECT_EQ(runtime::user_cache()->dir(), "/home/someone/.cache/stepwell");
  }
  const ScopedVariable base("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(runtime::user_cache()->dir(), "/home/someone/.cache/stepwell");
  EXPECT_EQ(runtime::user_cache()->max_bytes(), std::uint64_t{1} << 30);
}

TEST(Levels, TheSizeBoundIsANumber) {
  const ScopedVariable dir("STEPWELL_CACHE_DIR", "/caches");
  {
    const ScopedVariable bytes("STEPWELL_CACHE_BYTES", "12345");
    EXPECT_EQ(runtime::user_cache()->max_bytes(), 12345u);
  }
  for (const char* value : {"1GB", "", "-1", " 5"}) {
    const ScopedVariable bytes("STEPWELL_CACHE_BYTES", value);
    expect_error(ErrorKind::kRuntime, {"STEPWELL_CACHE_BYTES", value},
                 [] { runtime::user_cache(); });
  }
}

}  // namespace
}  // namespace stepwell::testing
