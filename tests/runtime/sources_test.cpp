#include "runtime/sources.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "runtime/environment.hpp"

namespace stepwell::testing {
namespace {

namespace fs = std::filesystem;

std::set<std::string> embedded_paths() {
  std::set<std::string> paths;
  for (const auto& file : runtime::device_sources()) paths.emplace(file.path);
  return paths;
}

TEST(Sources, EmbeddedTextsAreTheFiles) {
  ASSERT_FALSE(runtime::device_sources().empty());
  for (const auto& file : runtime::device_sources()) {
    EXPECT_TRUE(file.text == read_text(fs::path(SOURCE_DIR) / file.path)) << file.path;
  }
}

TEST(Sources, EveryDeviceFileIsEmbeddedOnce) {
  const auto paths = embedded_paths();
  EXPECT_EQ(paths.size(), runtime::device_sources().size());
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(SOURCE_DIR) / "cuda")) {
    if (entry.path().extension() != ".cuh") continue;
    const auto path = fs::relative(entry.path(), SOURCE_DIR).string();
    EXPECT_TRUE(paths.contains(path)) << path;
  }
}

TEST(Sources, IncludesAreFollowed) {
  std::set<std::string> paths;
  for (const auto& file : runtime::included_sources("// c\n#include \"geometry/layout.hpp\"\n")) {
    paths.emplace(file.path);
  }
  EXPECT_EQ(paths, (std::set<std::string>{"geometry/interval.hpp", "geometry/layout.hpp",
                                          "geometry/mask.hpp", "geometry/rule.hpp"}));
  EXPECT_TRUE(runtime::included_sources("int no_include;\n").empty());
}

// What stands in for a GPU in tests is left out.
TEST(Sources, EveryEmbeddedFileHasItsIncludes) {
  for (const auto& file : runtime::device_sources()) {
    EXPECT_NO_THROW(runtime::included_sources(file.text)) << file.path;
    EXPECT_FALSE(file.path.starts_with("host_model/")) << file.path;
  }
}

TEST(Sources, UnknownIncludeIsNamed) {
  expect_error(ErrorKind::kRuntime, {"cuda/none.cuh"},
               [] { runtime::included_sources("#include \"cuda/none.cuh\"\n"); });
}

}  // namespace
}  // namespace stepwell::testing
