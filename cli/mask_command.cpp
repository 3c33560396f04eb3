#include "mask_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "mask_layout.hpp"
#include "mask_options.hpp"
#include "mask_picture.hpp"

namespace stepwell::cli {
namespace {

constexpr long long kMostTiles = 1LL << 28;  // about a second of counting

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

int default_tile(const MaskOptions& options) {
  const int longest = *std::max_element(options.length.begin(), options.length.end());
  for (const int tile : kTiles) {
    if (tile * 6 >= longest) return tile;
  }
  return kTiles.back();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error(fmt::format("--output: cannot write {}", path));
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
  const std::unique_ptr<OwnedLayout> owned = layout_of(options);
  const geometry::Layout& layout = owned->layout;
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
      write_file(path,
                 path.ends_with(".svg") ? to_svg(picture.drawing, title) : to_png(picture.drawing));
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
    // Names of files need not be UTF-8.
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
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

}  // namespace

void add_mask_command(CLI::App& app) {
  CLI::App* mask = app.add_subcommand("mask", "Count and draw a mask and the tiles of a kernel.");
  add_mask_options(*mask, run_mask);
  mask->footer(kExamples);
}

}  // namespace stepwell::cli
