#include "mask_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "geometry/layout.hpp"
#include "mask_picture.hpp"

namespace stepwell::cli {
namespace {

using geometry::CleanRule;
using geometry::kMaxLength;
using geometry::Layout;
using geometry::NoisyRule;
using geometry::Packing;

constexpr long long kMostTiles = 1LL << 28;  // about a second of counting

/// An argument that is not accepted, found after parsing.
class UsageError : public CLI::ValidationError {
 public:
  UsageError(const std::string& option, const std::string& message)
      : CLI::ValidationError(option, message) {}
};

struct MaskOptions {
  std::string kind = "diffusion";
  std::string layout;  // empty: batched, or interleaved with several lengths
  std::vector<int> length;
  int block_size = 0;
  std::string order = "noisy_clean";
  std::string clean = "block";
  std::string noisy = "bidirectional";
  int clean_window = 0;
  int num_views = 1;
  std::vector<int> prefix_lens;
  std::vector<int> seqused;

  std::vector<int> clean_length;
  std::vector<int> clean_queries;
  std::vector<int> seqused_clean;
  std::vector<int> noisy_offset;
  std::vector<int> clean_q_offset;
  std::string block_ranges;

  std::vector<int> length_kv;
  std::vector<int> q_offset;
  std::vector<int> seqused_kv;
  int window_left = -1;
  int window_right = -1;

  int total = 0;
  int tile_q = 0;
  int tile_kv = 0;
  int cell = 0;
  std::string title;
  std::vector<std::string> output;
  bool json = false;
};

bool is_diffusion(const MaskOptions& options) { return options.kind == "diffusion"; }

/// Layout with the arrays it points to.
struct OwnedLayout {
  Layout layout;
  std::vector<int> cu_noisy, cu_clean_q, cu_clean_kv;
  std::vector<int> origins, noisy_positions, clean_q_positions;
  std::vector<int> seqused_noisy, seqused_clean_q, seqused_clean_kv;
  std::vector<int> block_ranges;
};

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

/// As many values as there are samples, or one for all.
std::vector<int> per_sample(const std::string& option, const std::vector<int>& values,
                            std::size_t samples) {
  if (values.size() == samples) return values;
  if (values.size() == 1) return std::vector<int>(samples, values.front());
  throw UsageError(option,
                   fmt::format("has {} values but --length has {}", values.size(), samples));
}

/// Running counts from 0.
std::vector<int> running_counts(const std::string& option, const std::vector<int>& counts,
                                int factor) {
  std::vector<int> sums{0};
  for (const int count : counts) {
    const long long sum = sums.back() + static_cast<long long>(count) * factor;
    if (sum > kMaxLength) {
      throw UsageError(
          option, fmt::format("has {} rows in all but at most {} are possible", sum, kMaxLength));
    }
    sums.push_back(static_cast<int>(sum));
  }
  return sums;
}

std::vector<int> parse_block_ranges(const std::string& ranges,
                                    const std::vector<int>& clean_length) {
  std::vector<int> table;
  for (const std::string& text : split(ranges)) {
    int begin = 0;
    int end = 0;
    int used = 0;
    const int fields = std::sscanf(text.c_str(), "%9d:%9d%n", &begin, &end, &used);
    if (fields != 2 || static_cast<std::size_t>(used) != text.size() || begin < 0 || end < begin ||
        end > clean_length.front()) {
      throw UsageError("--block-ranges",
                       fmt::format("has '{}' but takes LO:HI with 0 <= LO <= HI <= {} clean tokens",
                                   text, clean_length.front()));
    }
    table.push_back(begin);
    table.push_back(end);
  }
  return table;
}

/// The rows of noisy and clean tokens in one tensor.
void set_joint(const MaskOptions& options, OwnedLayout& owned) {
  Layout& layout = owned.layout;
  const int parts = options.num_views + 1;
  const bool halves = options.layout == "halves";
  layout.packing = halves ? Packing::kJointHalves : Packing::kJoint;
  layout.clean_first = options.order == "clean_noisy";
  owned.cu_noisy = running_counts("--length", options.length, halves ? 1 : parts);
  const long long rows = static_cast<long long>(owned.cu_noisy.back()) * (halves ? parts : 1);
  if (rows > kMaxLength) {
    throw UsageError("--length",
                     fmt::format("gives {} rows but at most {} are possible", rows, kMaxLength));
  }
  layout.joint_rows = rows;
  if (options.total > 0) {
    if (options.total < rows || (halves && options.total % parts != 0)) {
      throw UsageError("--total", fmt::format("is {} but must be at least the {} rows of all "
                                              "samples{}",
                                              options.total, rows,
                                              halves ? fmt::format(" and a multiple of {}", parts)
                                                     : std::string()));
    }
    layout.joint_rows = options.total;
  }
  if (options.layout != "batched") layout.cu_noisy = owned.cu_noisy.data();
}

/// Noisy rows and clean rows in tensors of their own.
void set_split(const MaskOptions& options, OwnedLayout& owned) {
  Layout& layout = owned.layout;
  const std::size_t samples = options.length.size();
  layout.packing = Packing::kSplit;
  const std::vector<int> clean_kv =
      options.clean_length.empty() ? options.length
                                   : per_sample("--clean-length", options.clean_length, samples);
  const std::vector<int> clean_q =
      options.clean_queries.empty() ? clean_kv
                                    : per_sample("--clean-queries", options.clean_queries, samples);
  owned.cu_noisy = running_counts("--length", options.length, options.num_views);
  owned.cu_clean_q = running_counts("--clean-queries", clean_q, 1);
  owned.cu_clean_kv = running_counts("--clean-length", clean_kv, 1);
  if (!options.noisy_offset.empty()) {
    owned.noisy_positions = per_sample("--noisy-offset", options.noisy_offset, samples);
    layout.noisy_positions = owned.noisy_positions.data();
  }
  if (!options.clean_q_offset.empty()) {
    owned.clean_q_positions = per_sample("--clean-q-offset", options.clean_q_offset, samples);
    layout.clean_q_positions = owned.clean_q_positions.data();
  }
  if (!options.seqused_clean.empty()) {
    owned.seqused_clean_kv = per_sample("--seqused-clean", options.seqused_clean, samples);
    layout.seqused_clean_kv = owned.seqused_clean_kv.data();
    // Queries are the clean tokens at their positions: those past the valid ones are padding.
    for (std::size_t i = 0; i < samples; ++i) {
      const int offset = owned.clean_q_positions.empty() ? 0 : owned.clean_q_positions[i];
      owned.seqused_clean_q.push_back(std::max(0, owned.seqused_clean_kv[i] - offset));
    }
    layout.seqused_clean_q = owned.seqused_clean_q.data();
  }
  if (!options.block_ranges.empty()) {
    owned.block_ranges = parse_block_ranges(options.block_ranges, clean_kv);
    layout.mask.block_ranges = owned.block_ranges.data();
    layout.mask.num_block_ranges = static_cast<int>(owned.block_ranges.size() / 2);
  }
}

void set_sequence(const MaskOptions& options, OwnedLayout& owned) {
  Layout& layout = owned.layout;
  const std::size_t samples = options.length.size();
  layout.packing = Packing::kSplit;
  owned.clean_q_positions = per_sample(
      "--q-offset", options.q_offset.empty() ? std::vector<int>{0} : options.q_offset, samples);
  layout.clean_q_positions = owned.clean_q_positions.data();
  std::vector<int> length_kv;
  if (options.length_kv.empty()) {
    for (std::size_t i = 0; i < samples; ++i) {
      length_kv.push_back(options.length[i] + owned.clean_q_positions[i]);
    }
  } else {
    length_kv = per_sample("--length-kv", options.length_kv, samples);
  }
  owned.cu_clean_q = running_counts("--length", options.length, 1);
  owned.cu_clean_kv = running_counts("--length-kv", length_kv, 1);
  if (!options.seqused_kv.empty()) {
    owned.seqused_clean_kv = per_sample("--seqused-kv", options.seqused_kv, samples);
    layout.seqused_clean_kv = owned.seqused_clean_kv.data();
  }
  const auto bounded = [](int side) { return side < 0 ? kMaxLength : side; };
  layout.mask.window_left = bounded(options.window_left);
  layout.mask.window_right = bounded(options.window_right);
}

std::unique_ptr<OwnedLayout> layout_of(const MaskOptions& options) {
  auto owned = std::make_unique<OwnedLayout>();
  Layout& layout = owned->layout;
  const std::size_t samples = options.length.size();
  layout.batch = static_cast<int>(samples);
  geometry::SampleMask& mask = layout.mask;
  mask.block_size = std::max(options.block_size, 1);
  if (is_diffusion(options)) {
    mask.num_views = options.num_views;
    mask.clean_window = options.clean_window;
    mask.clean = options.clean == "causal" ? CleanRule::kCausal : CleanRule::kBlock;
    mask.noisy = options.noisy == "causal" ? NoisyRule::kCausal : NoisyRule::kBidirectional;
  } else {
    mask.clean = options.kind == "full"     ? CleanRule::kFull
                 : options.kind == "causal" ? CleanRule::kCausal
                 : options.kind == "window" ? CleanRule::kWindow
                                            : CleanRule::kBlock;
  }
  if (!options.prefix_lens.empty()) {
    owned->origins = per_sample("--prefix-lens", options.prefix_lens, samples);
    layout.origins = owned->origins.data();
  }

  if (!is_diffusion(options)) {
    set_sequence(options, *owned);
  } else if (options.layout == "split") {
    set_split(options, *owned);
  } else {
    set_joint(options, *owned);
  }
  if (layout.packing == Packing::kSplit) {
    const bool noisy = mask.num_views > 0;
    if (noisy) layout.noisy_rows = owned->cu_noisy.back();
    layout.clean_q_rows = owned->cu_clean_q.back();
    layout.clean_kv_rows = owned->cu_clean_kv.back();
    if (samples > 1) {
      if (noisy) layout.cu_noisy = owned->cu_noisy.data();
      layout.cu_clean_q = owned->cu_clean_q.data();
      layout.cu_clean_kv = owned->cu_clean_kv.data();
    }
  }
  if (!options.seqused.empty()) {
    std::vector<int> used = per_sample("--seqused", options.seqused, samples);
    const bool joint = layout.packing != Packing::kSplit;
    if (mask.num_views > 0) {
      owned->seqused_noisy = used;
      layout.seqused_noisy = owned->seqused_noisy.data();
    }
    if (joint || mask.num_views == 0) {
      owned->seqused_clean_q = used;
      layout.seqused_clean_q = owned->seqused_clean_q.data();
    }
    if (joint) {
      owned->seqused_clean_kv = std::move(used);
      layout.seqused_clean_kv = owned->seqused_clean_kv.data();
    }
  }
  return owned;
}

std::string joined(const std::vector<int>& values) {
  return fmt::format("{}", fmt::join(values, ", "));
}

/// The mask in words.
std::string title_of(const MaskOptions& options) {
  const std::string lengths = joined(options.length);
  if (!is_diffusion(options)) {
    const std::string name = options.kind == "block_causal" ? "block-causal" : options.kind;
    std::string title = name + " attention, " + lengths + " queries";
    if (options.kind == "block_causal") title += fmt::format(", blocks of {}", options.block_size);
    if (options.window_left >= 0) title += fmt::format(", {} to the left", options.window_left);
    if (options.window_right >= 0) title += fmt::format(", {} to the right", options.window_right);
    if (!options.q_offset.empty()) title += ", offset " + joined(options.q_offset);
    title.front() = static_cast<char>(title.front() - 'a' + 'A');
    return title;
  }
  std::string title =
      fmt::format("Block diffusion, {}{} tokens in blocks of {}",
                  options.length.size() > 1 ? "samples of " : "", lengths, options.block_size);
  if (options.clean == "causal") title += ", clean causal";
  if (options.noisy == "causal") title += ", noisy causal";
  if (options.clean_window > 0) title += fmt::format(", window {}", options.clean_window);
  if (options.num_views > 1) title += fmt::format(", {} views", options.num_views);
  if (!options.prefix_lens.empty()) title += ", origin " + joined(options.prefix_lens);
  if (!options.block_ranges.empty()) title += ", clean ranges by table";
  if (options.order == "clean_noisy") title += ", clean half first";
  if (options.length.size() > 1) title += ", " + options.layout;
  return title;
}

/// Tiles that show a mask of this length well: about six along a segment, at most the 128 of real
/// kernels.
int default_tile(const MaskOptions& options) {
  const int longest = *std::max_element(options.length.begin(), options.length.end());
  int tile = 8;
  while (tile < 128 && tile * 6 < longest) tile *= 2;
  return tile;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error(fmt::format("--output: cannot write {}", path));
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

void print_text(const std::string& title, const MaskCounts& counts, TileShape tile,
                bool diffusion) {
  fmt::print("{}\n", title);
  fmt::print("  queries x keys   {} x {}\n", grouped(counts.rows_q), grouped(counts.rows_kv));
  fmt::print("  visible pairs    {} ({} of {} in a dense mask)\n", grouped(counts.visible),
             percent(counts.visible, counts.dense()), grouped(counts.dense()));
  if (diffusion) {
    fmt::print("    own block      {}\n", grouped(counts.visible_own));
    fmt::print("    noisy to clean {}\n", grouped(counts.visible_noisy_clean));
    fmt::print("    clean to clean {}\n", grouped(counts.visible_clean));
  }
  fmt::print("  tiles {:<10} {} visited of {}: {} full, {} partial, {} skipped\n",
             fmt::format("{} x {}", tile.q, tile.kv), grouped(counts.tiles_visited()),
             grouped(counts.tiles), grouped(counts.tiles_full), grouped(counts.tiles_partial),
             grouped(counts.tiles_skipped()));
  fmt::print("  computed pairs   {} ({} visible)", grouped(counts.computed),
             percent(counts.visible, counts.computed));
  if (counts.computed > 0) {
    fmt::print(", {:.2f} x less than dense",
               static_cast<double>(counts.dense()) / static_cast<double>(counts.computed));
  }
  fmt::print("\n");
}

nlohmann::ordered_json json_of(const std::string& title, const MaskCounts& counts, TileShape tile) {
  nlohmann::ordered_json json;
  json["mask"] = title;
  json["rows_q"] = counts.rows_q;
  json["rows_kv"] = counts.rows_kv;
  json["pairs"] = {{"visible", counts.visible},
                   {"own_block", counts.visible_own},
                   {"noisy_clean", counts.visible_noisy_clean},
                   {"clean", counts.visible_clean},
                   {"computed", counts.computed},
                   {"dense", counts.dense()}};
  json["tiles"] = {{"tile_q", tile.q},
                   {"tile_kv", tile.kv},
                   {"all", counts.tiles},
                   {"visited", counts.tiles_visited()},
                   {"full", counts.tiles_full},
                   {"partial", counts.tiles_partial},
                   {"skipped", counts.tiles_skipped()}};
  return json;
}

void run_mask(const MaskOptions& options) {
  if (is_diffusion(options) && options.layout == "batched" && options.length.size() > 1) {
    throw UsageError("--layout",
                     "is batched, where all samples are alike: give one --length, or "
                     "choose interleaved, halves or split");
  }
  const std::unique_ptr<OwnedLayout> owned = layout_of(options);
  const Layout& layout = owned->layout;
  const int tile = default_tile(options);
  const TileShape tiles{options.tile_q > 0 ? options.tile_q : tile,
                        options.tile_kv > 0 ? options.tile_kv : tile};
  if (tiles_of(layout, tiles) > kMostTiles) {
    throw UsageError(
        "--tile-q, --tile-kv",
        fmt::format("{} x {} cut this mask into {} tiles but at most {} are counted", tiles.q,
                    tiles.kv, grouped(tiles_of(layout, tiles)), grouped(kMostTiles)));
  }
  const MaskCounts counts = count_mask(layout, tiles);
  const std::string title = options.title.empty() ? title_of(options) : options.title;
  nlohmann::ordered_json json = json_of(title, counts, tiles);

  if (!options.output.empty()) {
    const long long longest = std::max(counts.rows_q, counts.rows_kv);
    if (longest > kLargestDrawing) {
      throw UsageError("--length",
                       fmt::format("gives {} rows but a picture has at most {}; without --output "
                                   "the counts are printed",
                                   grouped(longest), grouped(kLargestDrawing)));
    }
    if (longest * options.cell > 2 * kLargestDrawing) {
      throw UsageError("--cell",
                       fmt::format("is {}, which makes a picture of {} x {} units; at "
                                   "most {} are possible",
                                   options.cell, options.cell, longest, 2 * kLargestDrawing));
    }
    const MaskPicture picture = draw_mask(layout, tiles, counts, title, options.cell);
    for (const std::string& path : options.output) {
      write_file(
          path, ends_with(path, ".svg") ? to_svg(picture.drawing, title) : to_png(picture.drawing));
    }
    json["picture"] = {{"files", options.output},
                       {"width", picture.drawing.width()},
                       {"height", picture.drawing.height()},
                       {"left", picture.left},
                       {"top", picture.top},
                       {"cell", picture.cell},
                       {"png_scale", png_scale(picture.drawing)}};
  }
  if (options.json) {
    fmt::print("{}\n", json.dump(2));
    return;
  }
  print_text(title, counts, tiles, is_diffusion(options));
  for (const std::string& path : options.output) fmt::print("  wrote {}\n", path);
}

constexpr const char* kExamples = R"(Examples:
  The mask of block diffusion training, as a picture and as counts
    stepwell mask --length 32 --block-size 4 --output mask.svg --output mask.png
  What a kernel with 128 x 128 tiles does on 4096 tokens
    stepwell mask --length 4096 --block-size 32 --tile-q 128 --tile-kv 128
  Three samples packed one after the other, and all noisy rows before all clean ones
    stepwell mask --length 7,5,6 --block-size 4 --layout interleaved -o packed.svg
    stepwell mask --length 7,5,6 --block-size 4 --layout halves -o packed.svg
  A prompt of 6 tokens and 9 noisy ones behind it; blocks start at the prompt's end
    stepwell mask --layout split --length 9 --clean-length 15 --noisy-offset 6
        --prefix-lens 6 --block-size 4
  Noisy blocks at anchors 3 and 7 of 12 clean tokens, without clean queries
    stepwell mask --layout split --length 8 --clean-length 12 --clean-queries 0
        --block-size 4 --block-ranges 0:3,0:7
  The second chunk of a prefill, blocks of 8
    stepwell mask block_causal --length 32 --q-offset 32 --block-size 8)";

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

void add_mask_options(OptionList& list, MaskOptions& o) {
  const std::string diffusion = "the diffusion mask";
  const std::string split = "--layout split";
  const std::string sequence = "masks of one sequence";
  // Checked when all is parsed: an unknown option before it would pass for its value.
  list.add("kind", o.kind, "the mask (default: diffusion)")->type_name(alternatives(kinds()));
  list.add_numbers("-n,--length", o.length, 0, kMaxLength,
                   "tokens of each half, or queries; one number per packed sample")
      ->required();
  CLI::Option* block_size =
      list.add_number("-b,--block-size", o.block_size, 1, kMaxLength, "tokens of a block");
  list.restrict(block_size, "the diffusion and block_causal masks", has_blocks);
  list.restrict(list.add_numbers("--prefix-lens", o.prefix_lens, 0, kMaxLength,
                                 "position where a block starts; blocks count backward before it"),
                "the diffusion and block_causal masks", has_blocks);
  list.add_numbers("--seqused", o.seqused, 0, kMaxLength,
                   "valid tokens of each half, or valid queries");

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
  list.restrict(list.add_number("--clean-window", o.clean_window, 0, kMaxLength,
                                "noisy rows see clean [start - N + 1, start) before their block; "
                                "0: all"),
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
  CLI::Option* ranges = list.add("--block-ranges", o.block_ranges,
                                 "split: clean tokens [LO, HI) that each noisy block sees")
                            ->type_name("LO:HI,...");
  list.restrict(ranges, split, is_split);

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

  list.add_number("--tile-q", o.tile_q, 1, kMaxLength, "query rows of a tile");
  list.add_number("--tile-kv", o.tile_kv, 1, kMaxLength, "keys of a tile");
}

void add_output_options(OptionList& list, CLI::App& app, MaskOptions& o) {
  list.add("-o,--output", o.output, "picture to write, .svg or .png; may be given more than once")
      ->check(CLI::Validator(
          [](std::string& path) -> std::string {
            if (ends_with(path, ".svg") || ends_with(path, ".png")) return {};
            return fmt::format("{} does not end in .svg or .png", path);
          },
          "", ""))
      ->type_name("FILE")
      ->allow_extra_args(false);
  list.add_number("--cell", o.cell, 1, 64, "size of one pair in the picture (default: by length)");
  list.add("--title", o.title, "text above the picture")->type_name("TEXT");
  app.add_flag("--json", o.json, "print the counts as JSON");
}

}  // namespace

void add_mask_command(CLI::App& app) {
  auto options = std::make_shared<MaskOptions>();
  CLI::App* mask = app.add_subcommand("mask", "Count and draw a mask and the tiles of a kernel.");
  auto list = std::make_shared<OptionList>(*mask, *options);
  add_mask_options(*list, *options);
  add_output_options(*list, *mask, *options);
  mask->footer(kExamples);
  mask->callback([options, list] {
    const std::string error = one_of(kinds())(options->kind);
    if (!error.empty()) throw UsageError("kind", error);
    if (options->layout.empty()) {
      options->layout = options->length.size() > 1 ? "interleaved" : "batched";
    }
    list->check();
    if (has_blocks(*options) && options->block_size == 0) {
      throw UsageError("--block-size", "is missing: the mask has blocks");
    }
    run_mask(*options);
  });
}

}  // namespace stepwell::cli
