#include "runtime/sources.hpp"

#include <algorithm>
#include <map>

#include "core/check.hpp"

namespace stepwell::runtime {
namespace {

// Paths of the lines `#include "..."`; as in device sources, at the start of a line.
std::vector<std::string_view> included_paths(std::string_view text) {
  constexpr std::string_view kInclude = "#include \"";
  std::vector<std::string_view> paths;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.starts_with(kInclude)) {
      const std::string_view rest = line.substr(kInclude.size());
      paths.push_back(rest.substr(0, rest.find('"')));
    }
    begin = end + 1;
  }
  return paths;
}

}  // namespace

std::vector<SourceFile> included_sources(std::string_view text) {
  std::map<std::string_view, std::string_view> found;
  std::vector<std::string_view> pending = included_paths(text);
  while (!pending.empty()) {
    const std::string_view path = pending.back();
    pending.pop_back();
    // Only tests that run kernels on the host include those.
    if (path.starts_with("host_model/") || found.contains(path)) continue;
    const auto files = device_sources();
    const auto file = std::ranges::find(files, path, &SourceFile::path);
    STEPWELL_CHECK(file != files.end(), kRuntime,
                   "a kernel includes \"{}\", which is not among the embedded device sources",
                   path);
    found.emplace(file->path, file->text);
    const auto more = included_paths(file->text);
    pending.insert(pending.end(), more.begin(), more.end());
  }
  std::vector<SourceFile> sources;
  for (const auto& [path, file_text] : found) sources.push_back({path, file_text});
  return sources;
}

}  // namespace stepwell::runtime
