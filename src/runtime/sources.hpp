// Device sources as text: every file that kernels include, embedded when the library is built.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace stepwell::runtime {

struct SourceFile {
  std::string_view path;  ///< as in #include, relative to src/
  std::string_view text;
};

/// All embedded files, by path.
std::span<const SourceFile> device_sources();

/// The embedded files that `text` includes, directly or through others, by path. Throws an Error
/// that names an included file which is not embedded.
std::vector<SourceFile> included_sources(std::string_view text);

}  // namespace stepwell::runtime
