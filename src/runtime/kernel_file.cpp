#include "runtime/kernel_file.hpp"

#include <charconv>
#include <map>

#include "core/check.hpp"
#include "runtime/sha256.hpp"

namespace stepwell::runtime {
namespace {

constexpr std::string_view kMagic = "stepwell kernel 1 ";
constexpr std::size_t kDigestDigits = 64;

/// `text` up to its first line's end, which is removed from it.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

using Fields = std::map<std::string_view, std::string_view>;

template <typename Number>
Number number_field(const Fields& fields, std::string_view name) {
  Number number{};
  const auto field = fields.find(name);
  if (field != fields.end()) {
    const std::string_view text = field->second;
    std::from_chars(text.data(), text.data() + text.size(), number);
  }
  return number;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

std::string pack_kernel(const std::string& key, const KernelSpec& spec, const std::string& arch,
                        const CompiledKernel& kernel) {
  const Resources& used = kernel.resources;
  const std::string body = fmt::format(
      "key {}\nname {}\narch {}\nmajor {}\nminor {}\nseconds {:.3f}\nregisters {}\n"
      "stack_bytes {}\nspill_store_bytes {}\nspill_load_bytes {}\nstatic_shared_bytes {}\n"
      "barriers {}\nlog_bytes {}\n\n{}{}",
      key, one_line(spec.name), arch, kernel.compiler.major, kernel.compiler.minor, kernel.seconds,
      used.registers, used.stack_bytes, used.spill_store_bytes, used.spill_load_bytes,
      used.static_shared_bytes, used.barriers, kernel.log.size(), kernel.log, kernel.cubin);
  return fmt::format("{}{}\n{}", kMagic, sha256_hex(body), body);
}

std::optional<CompiledKernel> unpack_kernel(std::string_view bytes, const std::string& key) {
  if (!bytes.starts_with(kMagic)) return std::nullopt;
  bytes.remove_prefix(kMagic.size());
  const std::string_view digest = take_line(bytes);
  if (digest.size() != kDigestDigits || digest != sha256_hex(bytes)) return std::nullopt;

  Fields fields;
  for (std::string_view line = take_line(bytes); !line.empty(); line = take_line(bytes)) {
    const std::size_t space = std::min(line.find(' '), line.size());
    fields[line.substr(0, space)] = line.substr(std::min(space + 1, line.size()));
  }
  if (fields["key"] != key) return std::nullopt;

  CompiledKernel kernel;
  kernel.compiler.major = number_field<int>(fields, "major");
  kernel.compiler.minor = number_field<int>(fields, "minor");
  kernel.seconds = number_field<double>(fields, "seconds");
  kernel.resources.registers = number_field<int>(fields, "registers");
  kernel.resources.stack_bytes = number_field<int>(fields, "stack_bytes");
  kernel.resources.spill_store_bytes = number_field<int>(fields, "spill_store_bytes");
  kernel.resources.spill_load_bytes = number_field<int>(fields, "spill_load_bytes");
  kernel.resources.static_shared_bytes = number_field<int>(fields, "static_shared_bytes");
  kernel.resources.barriers = number_field<int>(fields, "barriers");
  const auto log_bytes = number_field<std::size_t>(fields, "log_bytes");
  if (log_bytes > bytes.size()) return std::nullopt;
  kernel.log = bytes.substr(0, log_bytes);
  kernel.cubin = bytes.substr(log_bytes);
  return kernel;
}

}  // namespace stepwell::runtime
