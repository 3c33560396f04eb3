#include "mask_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>

#include "geometry/interval.hpp"

namespace stepwell::cli {
namespace {

using geometry::kMaxLength;

CLI::Validator whole_number(long long least, long long most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        std::string accepted =
            fmt::format("'{}' is not a whole number in [{}, {}]", text, least, most);
        std::size_t used = 0;
        try {
          const long long value = std::stoll(text, &used);
          if (used != text.size() || value < least || value > most) return accepted;
        } catch (const std::logic_error&) {
          return accepted;
        }
        return {};
      },
      "", "");
}

std::vector<std::string> kinds() {
  return {"diffusion", "block_causal", "full", "causal", "window"};
}

std::string alternatives(const std::vector<std::string>& choices) {
  return fmt::format("{}", fmt::join(choices, "|"));
}

/// Takes hyphens for underscores.
CLI::Validator one_of(const std::vector<std::string>& choices) {
  return CLI::Validator(
      [choices](std::string& text) -> std::string {
        std::replace(text.begin(), text.end(), '-', '_');
        if (std::find(choices.begin(), choices.end(), text) != choices.end()) return {};
        return fmt::format("'{}' is not one of {}", text, fmt::join(choices, ", "));
      },
      "", "");
}

/// Two whole numbers with a colon between them.
std::optional<std::pair<int, int>> interval(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string begin = text.substr(0, colon);
  std::string end = text.substr(colon + 1);
  const CLI::Validator number = whole_number(0, kMaxLength);
  if (!number(begin).empty() || !number(end).empty()) return std::nullopt;
  return std::pair{std::stoi(begin), std::stoi(end)};
}

/// Why a title cannot be written into pictures and JSON, or an empty text: those take UTF-8, and
/// XML has no control characters.
std::string title_error(const std::string& text) {
  constexpr const char* kAccepted = "accepted: UTF-8 without control characters";
  if (text.empty()) return "is empty; leave it out for one made of the options";
  for (std::size_t i = 0; i < text.size();) {
    const auto byte_at = [&](std::size_t place) -> std::uint32_t {
      return place < text.size() ? static_cast<unsigned char>(text[place]) : 0;
    };
    const std::uint32_t lead = byte_at(i);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
    std::uint32_t code = length == 1 ? lead : lead & (0x7FU >> length);
    bool good = length == 1 || (lead >= 0xC0 && lead < 0xF8);
    for (std::size_t k = 1; k < length; ++k) {
      good = good && (byte_at(i + k) & 0xC0U) == 0x80;
      code = code << 6U | (byte_at(i + k) & 0x3FU);
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if (!good || code < kLeast[length] || code > 0x10FFFF || surrogate) {
      return fmt::format("has the byte 0x{:02X}, which is no UTF-8 there; {}", lead, kAccepted);
    }
    if (code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xFFFE || code == 0xFFFF) {
      return fmt::format("has the character U+{:04X}; {}", code, kAccepted);
    }
    i += length;
  }
  return {};
}

/// The parts between commas; an empty text has one empty part.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// Options and the masks or layouts that have them.
class OptionList {
 public:
  OptionList(CLI::App& app, MaskOptions& options) : app_(app), options_(options) {}

  template <typename T>
  CLI::Option* add(const std::string& name, T& value, const std::string& help) {
    return app_.add_option(name, value, help);
  }

  CLI::Option* add_number(const std::string& name, int& value, long long least, long long most,
                          const std::string& help) {
    return app_.add_option(name, value, help)->check(whole_number(least, most))->type_name("N");
  }

  /// Numbers separated by commas, none of them missing.
  CLI::Option* add_numbers(const std::string& name, std::vector<int>& values, long long least,
                           long long most, const std::string& help) {
    const CLI::Validator number = whole_number(least, most);
    return app_
        .add_option_function<std::string>(
            name,
            [&values](const std::string& text) {
              for (const std::string& part : split(text)) values.push_back(std::stoi(part));
            },
            help)
        ->check(CLI::Validator(
            [number](std::string& text) -> std::string {
              for (const std::string& part : split(text)) {
                std::string error = number(part);
                if (!error.empty()) return error;
              }
              return {};
            },
            "", ""))
        ->type_name("N,...");
  }

  /// Intervals LO:HI separated by commas.
  CLI::Option* add_intervals(const std::string& name, std::vector<std::pair<int, int>>& values,
                             const std::string& help) {
    return app_
        .add_option_function<std::string>(
            name,
            [&values](const std::string& text) {
              for (const std::string& part : split(text)) values.push_back(*interval(part));
            },
            help)
        ->check(CLI::Validator(
            [](std::string& text) -> std::string {
              for (const std::string& part : split(text)) {
                if (!interval(part)) return fmt::format("'{}' is not LO:HI, two numbers", part);
              }
              return {};
            },
            "", ""))
        ->type_name("LO:HI,...");
  }

  CLI::Option* add_choice(const std::string& name, std::string& value,
                          const std::vector<std::string>& choices, const std::string& help) {
    return app_.add_option(name, value, help)
        ->transform(one_of(choices))
        ->type_name(alternatives(choices));
  }

  /// Refuses the option where `applies` does not hold, saying where it does.
  void restrict(CLI::Option* option, const std::string& where,
                bool (*applies)(const MaskOptions&)) {
    restrictions_.push_back({option, where, applies});
  }

  void check() const {
    for (const Restriction& r : restrictions_) {
      if (r.option->count() > 0 && !r.applies(options_)) {
        throw UsageError(r.option->get_name(), "applies to " + r.where + " only");
      }
    }
  }

 private:
  struct Restriction {
    CLI::Option* option;
    std::string where;
    bool (*applies)(const MaskOptions&);
  };
  CLI::App& app_;
  MaskOptions& options_;
  std::vector<Restriction> restrictions_;
};

bool is_joint(const MaskOptions& options) {
  return is_diffusion(options) && options.layout != "split";
}
bool is_split(const MaskOptions& options) {
  return is_diffusion(options) && options.layout == "split";
}
bool is_sequence(const MaskOptions& options) { return !is_diffusion(options); }
bool is_window(const MaskOptions& options) { return options.kind == "window"; }
bool has_blocks(const MaskOptions& options) {
  return is_diffusion(options) || options.kind == "block_causal";
}

void add_options(OptionList& list, MaskOptions& o) {
  const std::string diffusion = "the diffusion mask";
  const std::string split = "--layout split";
  const std::string sequence = "masks of one sequence";
  // Checked when all is parsed: an unknown option before it would pass for its value.
  list.add("kind", o.kind, "the mask (default: diffusion)")->type_name(alternatives(kinds()));
  list.add_numbers("-n,--length", o.length, 0, kMaxLength,
                   "tokens of each half, or queries; one number per packed sample")
      ->required();
  CLI::Option* block_size =
      list.add_number("-b,--block-size", o.block_size, 1, kMaxLength,
                      "tokens of a block; required, where the mask has blocks (diffusion, "
                      "block_causal)");
  list.restrict(block_size, "the diffusion and block_causal masks", has_blocks);
  list.restrict(list.add_numbers("--prefix-lens", o.prefix_lens, 0, kMaxLength,
                                 "position where a block starts; blocks count backward before it"),
                "the diffusion and block_causal masks", has_blocks);
  list.add_numbers(
      "--seqused", o.seqused, 0, kMaxLength,
      "valid tokens of each half (split: of the noisy one), or valid queries; the rest is "
      "padding");

  list.restrict(list.add_choice("--layout", o.layout, {"batched", "interleaved", "halves", "split"},
                                "where noisy and clean rows lie (default: batched; interleaved "
                                "with several lengths)"),
                diffusion, is_diffusion);
  list.restrict(
      list.add_choice("--order", o.order, {"noisy_clean", "clean_noisy"}, "which half comes first"),
      "the diffusion mask in one tensor", is_joint);
  list.restrict(list.add_choice("--clean", o.clean, {"block", "causal"},
                                "clean rows see up to the end of their block, or up to themselves"),
                diffusion, is_diffusion);
  list.restrict(list.add_choice("--noisy", o.noisy, {"bidirectional", "causal"},
                                "noisy rows see all of their block, or those up to themselves"),
                diffusion, is_diffusion);
  list.restrict(list.add_number("--clean-window", o.clean_window, 1, kMaxLength,
                                "noisy rows see clean [start - N + 1, start) before their block "
                                "(default: all)"),
                diffusion, is_diffusion);
  list.restrict(
      list.add_number("--num-views", o.num_views, 1, 64, "noisy copies that share one clean half"),
      diffusion, is_diffusion);
  list.restrict(list.add_number("--total", o.total, 1, kMaxLength,
                                "rows of the packed tensor, tail padding included"),
                "--layout interleaved and halves", [](const MaskOptions& options) {
                  return is_joint(options) &&
                         (options.layout == "halves" || options.layout == "interleaved");
                });

  list.restrict(list.add_numbers("--clean-length", o.clean_length, 0, kMaxLength,
                                 "split: clean tokens (default: --length)"),
                split, is_split);
  list.restrict(list.add_numbers("--clean-queries", o.clean_queries, 0, kMaxLength,
                                 "split: clean tokens with queries (default: all)"),
                split, is_split);
  list.restrict(list.add_numbers("--seqused-clean", o.seqused_clean, 0, kMaxLength,
                                 "split: valid clean tokens"),
                split, is_split);
  list.restrict(list.add_numbers("--noisy-offset", o.noisy_offset, 0, kMaxLength,
                                 "split: position of the first noisy token"),
                split, is_split);
  list.restrict(list.add_numbers("--clean-q-offset", o.clean_q_offset, 0, kMaxLength,
                                 "split: position of the first clean query"),
                split, is_split);
  list.restrict(
      list.add_intervals("--block-ranges", o.block_ranges,
                         "split: clean tokens [LO, HI) that each noisy block sees, one interval "
                         "for every block"),
      split, is_split);

  list.restrict(list.add_numbers("--length-kv", o.length_kv, 0, kMaxLength,
                                 "keys (default: --length + --q-offset)"),
                sequence, is_sequence);
  list.restrict(
      list.add_numbers("--q-offset", o.q_offset, 0, kMaxLength, "position of the first query"),
      sequence, is_sequence);
  list.restrict(list.add_numbers("--seqused-kv", o.seqused_kv, 0, kMaxLength, "valid keys"),
                sequence, is_sequence);
  list.restrict(list.add_number("--window-left", o.window_left, 0, kMaxLength,
                                "keys before the row's own (default: no bound)"),
                "the window mask", is_window);
  list.restrict(list.add_number("--window-right", o.window_right, 0, kMaxLength,
                                "keys after the row's own (default: no bound)"),
                "the window mask", is_window);

  const std::string automatic = fmt::format(
      " (default: the smallest of {} that is at least a sixth of the longest "
      "--length, or {})",
      fmt::join(kTiles, ", "), kTiles.back());
  list.add_number("--tile-q", o.tile_q, 1, kMaxLength, "query rows of a tile" + automatic);
  list.add_number("--tile-kv", o.tile_kv, 1, kMaxLength, "keys of a tile" + automatic);
}

void add_output_options(OptionList& list, CLI::App& app, MaskOptions& o) {
  list.add("-o,--output", o.output, "picture to write, .svg or .png; may be given more than once")
      ->check(CLI::Validator(
          [](std::string& path) -> std::string {
            if (path.ends_with(".svg") || path.ends_with(".png")) return {};
            return fmt::format("{} does not end in .svg or .png", path);
          },
          "", ""))
      ->type_name("FILE")
      ->allow_extra_args(false);
  list.restrict(list.add_number("--cell", o.cell, 1, 64,
                                "size of one pair in the picture (default: by length)"),
                "pictures (--output)",
                [](const MaskOptions& options) { return !options.output.empty(); });
  list.add("--title", o.title, "name of the mask, above the picture and the counts")
      ->check(CLI::Validator([](std::string& text) { return title_error(text); }, "", ""))
      ->type_name("TEXT");
  app.add_flag("--json", o.json, "print the counts as JSON");
}

}  // namespace

bool is_diffusion(const MaskOptions& options) { return options.kind == "diffusion"; }

void add_mask_options(CLI::App& app, void (*run)(const MaskOptions&)) {
  auto options = std::make_shared<MaskOptions>();
  auto list = std::make_shared<OptionList>(app, *options);
  add_options(*list, *options);
  add_output_options(*list, app, *options);
  app.callback([options, list, run] {
    const std::string error = one_of(kinds())(options->kind);
    if (!error.empty()) throw UsageError("kind", error);
    if (options->layout.empty()) {
      options->layout = options->length.size() > 1 ? "interleaved" : "batched";
    }
    list->check();
    if (has_blocks(*options) && options->block_size == 0) {
      throw UsageError("--block-size", "is missing: the mask has blocks");
    }
    run(*options);
  });
}

}  // namespace stepwell::cli
