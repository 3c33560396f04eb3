#include "mask_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "geometry/mask.hpp"
#include "geometry/pairs.hpp"
#include "geometry/tiles.hpp"

namespace stepwell::cli {
namespace {

using geometry::Half;
using geometry::Interval;
using geometry::IntervalRule;
using geometry::Layout;
using geometry::Packing;
using geometry::Sample;
using geometry::TileClass;

// Orange, sky blue and blue of Okabe and Ito's palette, told apart with any colour vision.
constexpr Color kOwnColor{0xE6, 0x9F, 0x00};
constexpr Color kNoisyCleanColor{0x56, 0xB4, 0xE9};
constexpr Color kCleanColor{0x00, 0x72, 0xB2};
constexpr Color kPage{0xFF, 0xFF, 0xFF};
constexpr Color kHidden{0xF3, 0xF4, 0xF6};
constexpr Color kPadding{0xD5, 0xD9, 0xDF};
constexpr Color kHatch{0xB4, 0xBB, 0xC5};
constexpr Color kGrid{0xFF, 0xFF, 0xFF};
constexpr Color kInk{0x1B, 0x26, 0x36};
constexpr Color kMuted{0x5A, 0x67, 0x78};
constexpr Color kNoisyStrip[2] = {{0xF2, 0xB8, 0x4B}, {0xFA, 0xDD, 0xA6}};
constexpr Color kCleanStrip[2] = {{0x4C, 0x97, 0xC6}, {0xA9, 0xCF, 0xE6}};

constexpr double kTargetSize = 640;  // picture units of the longer axis, where cells allow it
constexpr double kLargestCell = 24;
constexpr double kSmallestGridCell = 7;  // cells below this get no white lines between them
constexpr double kStrip = 9;             // thickness of the axes' block strips

/// Rows of one segment as they are drawn.
struct Segment {
  Half half = Half::kNoisy;
  int sample = 0;
  int view = 0;
  long long first = 0;
  int len = 0;    // valid
  int count = 0;  // padding included
  int position = 0;
};

/// Query rows of one segment and the keys of one that they may see.
struct Pair {
  IntervalRule rule;
  Segment query;
  Segment key;
};

/// Row at which the clean rows of a split layout are drawn: below all noisy ones.
long long clean_offset(const Layout& layout) {
  return layout.packing == Packing::kSplit && layout.mask.num_views > 0 ? layout.noisy_rows : 0;
}

std::vector<Segment> segments_of(const Layout& layout, bool keys) {
  std::vector<Segment> segments;
  for (int i = 0; i < layout.batch; ++i) {
    const Sample sample = geometry::sample_at(layout, i);
    for (int view = 0; view < layout.mask.num_views; ++view) {
      segments.push_back({Half::kNoisy, i, view, sample.noisy.first + view * sample.view_stride,
                          sample.mask.noisy_len, sample.noisy.count, sample.mask.noisy_position});
    }
    const geometry::SegmentRows clean = keys ? sample.clean_kv : sample.clean_q;
    segments.push_back({Half::kClean, i, 0, clean_offset(layout) + clean.first,
                        keys ? sample.mask.clean_kv_len : sample.mask.clean_q_len, clean.count,
                        keys ? 0 : sample.mask.clean_q_position});
  }
  return segments;
}

std::vector<Pair> pairs_of(const Layout& layout) {
  std::vector<Pair> pairs;
  const std::vector<Segment> queries = segments_of(layout, false);
  const std::vector<Segment> keys = segments_of(layout, true);
  std::vector<geometry::SampleMask> masks;
  for (int i = 0; i < layout.batch; ++i) masks.push_back(geometry::sample_at(layout, i).mask);
  const std::size_t per_sample = layout.mask.num_views + 1;
  for (const Segment& query : queries) {
    const geometry::SampleMask& mask = masks[query.sample];
    const Segment* sample_keys = &keys[query.sample * per_sample];
    if (query.half == Half::kNoisy) {
      pairs.push_back(
          {rule_between(mask, Half::kNoisy, Half::kNoisy), query, sample_keys[query.view]});
    }
    pairs.push_back(
        {rule_between(mask, query.half, Half::kClean), query, sample_keys[per_sample - 1]});
  }
  return pairs;
}

/// Calls visit(rows, keys, class) with indices inside the two segments for each tile visited.
template <typename Visit>
void for_each_tile(const Pair& pair, TileShape tile, Visit visit) {
  const int tiles_q = geometry::ceil_div(pair.query.len, tile.q);
  for (int t = 0; t < tiles_q; ++t) {
    const Interval rows = geometry::tile_interval(t, tile.q, pair.query.len);
    geometry::for_each_key_tile(
        pair.rule, pair.query.position, rows, tile.kv, [&](int key_tile, TileClass tile_class) {
          visit(rows, geometry::tile_interval(key_tile, tile.kv, pair.rule.key_len), tile_class);
        });
  }
}

Color color_of(const Pair& pair) {
  if (pair.query.half == Half::kClean) return kCleanColor;
  return pair.key.half == Half::kNoisy ? kOwnColor : kNoisyCleanColor;
}

std::string segment_name(const Layout& layout, const Segment& segment, bool keys) {
  std::string name;
  if (layout.mask.num_views == 0) {
    name = keys ? "keys" : "queries";
  } else {
    name = segment.half == Half::kNoisy ? "noisy" : "clean";
  }
  if (layout.batch > 1) name += fmt::format(" {}", segment.sample + 1);
  if (segment.half == Half::kNoisy && layout.mask.num_views > 1) {
    name += fmt::format(" view {}", segment.view + 1);
  }
  return name;
}

/// Draws one axis: strips of alternating diffusion blocks and the segments' names.
class Axis {
 public:
  Axis(const Layout& layout, bool keys, double left, double top, double cell, Drawing& drawing)
      : layout_(layout), keys_(keys), left_(left), top_(top), cell_(cell), drawing_(drawing) {}

  void draw() const {
    const std::vector<Segment> segments = segments_of(layout_, keys_);
    strip(0, keys_ ? rows_of_keys(layout_) : rows_of_queries(layout_), kPadding);
    for (const Segment& segment : segments) draw_blocks(segment);
    for (const Segment& segment : segments) draw_name(segment);
  }

 private:
  void strip(long long first, long long count, Color color) const {
    const double begin = static_cast<double>(first) * cell_;
    const double length = static_cast<double>(count) * cell_;
    const double gap = cell_ >= kSmallestGridCell ? 1 : 0;
    if (length <= gap) return;
    if (keys_) {
      drawing_.fill({left_ + begin, top_ - kStrip - 4, length - gap, kStrip}, color);
    } else {
      drawing_.fill({left_ - kStrip - 4, top_ + begin, kStrip, length - gap}, color);
    }
  }

  void draw_blocks(const Segment& segment) const {
    const geometry::SampleMask& mask = geometry::sample_at(layout_, segment.sample).mask;
    const Color* colors = segment.half == Half::kNoisy ? kNoisyStrip : kCleanStrip;
    const bool blocks = layout_.mask.num_views > 0 || mask.clean == geometry::CleanRule::kBlock;
    if (!blocks) {
      strip(segment.first, segment.len, colors[0]);
      return;
    }
    const IntervalRule rule =
        segment.half == Half::kNoisy ? geometry::own_rule(mask) : geometry::clean_rule(mask);
    for (int i = 0; i < segment.len;) {
      const int position = segment.position + i;
      const int next = std::min(
          geometry::block_start(rule, position) + rule.block_size - segment.position, segment.len);
      strip(segment.first + i, next - i, colors[geometry::block_of(rule, position) & 1]);
      i = next;
    }
  }

  void draw_name(const Segment& segment) const {
    constexpr double kSize = 13;
    std::string name = segment_name(layout_, segment, keys_);
    const double length = static_cast<double>(segment.count) * cell_;
    if (text_width(name, kSize) > length && segment.half == Half::kNoisy) name = "noisy";
    if (text_width(name, kSize) > length) return;
    const double middle = (static_cast<double>(segment.first) + segment.count / 2.0) * cell_;
    Text text;
    text.text = name;
    text.size = kSize;
    text.color = kInk;
    text.align = Align::kCenter;
    text.bold = true;
    text.upward = !keys_;
    text.x = keys_ ? left_ + middle : left_ - kStrip - 10;
    text.y = keys_ ? top_ - kStrip - 10 : top_ + middle;
    drawing_.write(text);
  }

  const Layout& layout_;
  bool keys_;
  double left_, top_;
  double cell_;
  Drawing& drawing_;
};

void label(Drawing& drawing, double x, double y, const std::string& text, double size, Color color,
           bool bold = false, Align align = Align::kLeft) {
  Text shape;
  shape.x = x;
  shape.y = y;
  shape.text = text;
  shape.size = size;
  shape.color = color;
  shape.bold = bold;
  shape.align = align;
  drawing.write(std::move(shape));
}

/// The matrix: visible pairs over the tiles that are visited.
void draw_matrix(const Layout& layout, TileShape tile, double left, double top, double cell,
                 Drawing& drawing) {
  const auto rows_q = static_cast<double>(rows_of_queries(layout));
  const auto rows_kv = static_cast<double>(rows_of_keys(layout));
  const auto box = [=](const Pair& pair, Interval rows, Interval keys) {
    return Box{left + static_cast<double>(pair.key.first + keys.begin) * cell,
               top + static_cast<double>(pair.query.first + rows.begin) * cell,
               static_cast<double>(keys.size()) * cell, static_cast<double>(rows.size()) * cell};
  };
  drawing.fill({left, top, rows_kv * cell, rows_q * cell}, kHidden);
  const std::vector<Pair> pairs = pairs_of(layout);

  for (const Pair& pair : pairs) {
    for_each_tile(pair, tile, [&](Interval rows, Interval keys, TileClass tile_class) {
      if (tile_class == TileClass::kPartial) drawing.hatch(box(pair, rows, keys), kHatch);
    });
  }
  for (const Pair& pair : pairs) {
    // Neighbouring rows that see the same keys are one box.
    for (int i = 0; i < pair.query.len;) {
      const Interval keys = geometry::row_interval(pair.rule, pair.query.position + i);
      int next = i + 1;
      while (next < pair.query.len &&
             geometry::row_interval(pair.rule, pair.query.position + next) == keys) {
        ++next;
      }
      if (!keys.empty()) drawing.fill(box(pair, {i, next}, keys), color_of(pair));
      i = next;
    }
  }
  if (cell >= kSmallestGridCell) {
    for (int i = 1; i < static_cast<int>(rows_q); ++i) {
      drawing.fill({left, top + static_cast<double>(i) * cell - 1, rows_kv * cell, 1}, kGrid);
    }
    for (int i = 1; i < static_cast<int>(rows_kv); ++i) {
      drawing.fill({left + static_cast<double>(i) * cell - 1, top, 1, rows_q * cell}, kGrid);
    }
  }
  // Lines get thinner with the tiles; below a few units they would hide them.
  const double shorter_side = std::min(tile.q, tile.kv) * cell;
  const bool outlines = shorter_side >= 4;
  const double line = std::clamp(shorter_side / 30, 0.25, 1.0);
  for (const TileClass drawn : {TileClass::kPartial, TileClass::kFull}) {
    for (const Pair& pair : pairs) {
      for_each_tile(pair, tile, [&](Interval rows, Interval keys, TileClass tile_class) {
        if (!outlines || tile_class != drawn) return;
        Box inside = box(pair, rows, keys);
        if (cell >= kSmallestGridCell) {
          inside.width -= 1;
          inside.height -= 1;
        }
        const bool full = tile_class == TileClass::kFull;
        drawing.outline(inside, kInk, full ? 2 * line : line, full ? 0 : 3 * line);
      });
    }
  }
  // Borders between segments.
  for (const bool keys : {false, true}) {
    std::vector<long long> borders{0, keys ? rows_of_keys(layout) : rows_of_queries(layout)};
    for (const Segment& segment : segments_of(layout, keys)) {
      if (segment.count == 0) continue;
      borders.push_back(segment.first);
      borders.push_back(segment.first + segment.count);
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    for (const long long border : borders) {
      const double at = static_cast<double>(border) * cell - 1;
      if (keys) {
        drawing.fill({left + at, top - kStrip - 4, 1.5, rows_q * cell + kStrip + 4}, kMuted);
      } else {
        drawing.fill({left - kStrip - 4, top + at, rows_kv * cell + kStrip + 4, 1.5}, kMuted);
      }
    }
  }
}

struct CountLine {
  std::string name;
  std::string value;
};

std::vector<CountLine> count_lines(const MaskCounts& counts) {
  return {
      {"visible pairs", grouped(counts.visible)},
      {"of a dense mask", percent(counts.visible, counts.dense())},
      {"of computed pairs", percent(counts.visible, counts.computed)},
      {"tiles visited", grouped(counts.tiles_visited())},
      {"full", grouped(counts.tiles_full)},
      {"partial", grouped(counts.tiles_partial)},
      {"tiles skipped", grouped(counts.tiles_skipped())},
  };
}

constexpr double kLegendWidth = 232;
constexpr double kLegendLine = 21;

/// Legend and counts; returns the height used.
double draw_legend(const Layout& layout, TileShape tile, const MaskCounts& counts, double x,
                   double y, Drawing& drawing) {
  constexpr double kSize = 12;
  constexpr double kSwatch = 14;
  const double top = y;
  const bool diffusion = layout.mask.num_views > 0;
  const auto entry = [&](const std::string& name) {
    label(drawing, x + kSwatch + 9, y + kSwatch - 3, name, kSize, kInk);
    y += kLegendLine;
  };
  const auto heading = [&](const std::string& name) {
    y += y > top ? 24 : 8;
    label(drawing, x, y, name, kSize, kMuted, true);
    y += 10;
  };
  heading("visible pairs");
  if (diffusion) {
    drawing.fill({x, y, kSwatch, kSwatch}, kOwnColor);
    entry("noisy → noisy: own block");
    drawing.fill({x, y, kSwatch, kSwatch}, kNoisyCleanColor);
    entry(layout.mask.block_ranges != nullptr ? "noisy → clean: from the table"
          : layout.mask.clean_window > 0      ? "noisy → clean: window"
                                              : "noisy → clean: blocks before");
  }
  if (!diffusion || counts.visible_clean > 0) {
    drawing.fill({x, y, kSwatch, kSwatch}, kCleanColor);
    entry(diffusion ? "clean → clean" : "query → key");
  }
  heading(fmt::format("tiles of {} × {}", tile.q, tile.kv));
  drawing.fill({x, y, kSwatch, kSwatch}, kHidden);
  drawing.outline({x, y, kSwatch, kSwatch}, kInk, 2);
  entry("full: no test inside");
  drawing.hatch({x, y, kSwatch, kSwatch}, kHatch);
  drawing.outline({x, y, kSwatch, kSwatch}, kInk, 1, 3);
  entry("partial: hatched pairs masked");
  drawing.fill({x, y, kSwatch, kSwatch}, kHidden);
  entry("skipped: never loaded");
  heading("counts of one head");
  for (const CountLine& line : count_lines(counts)) {
    const double indent = line.name == "full" || line.name == "partial" ? 10 : 0;
    label(drawing, x + indent, y + kSwatch - 3, line.name, kSize, kInk);
    label(drawing, x + kLegendWidth - 24, y + kSwatch - 3, line.value, kSize, kInk, true,
          Align::kRight);
    y += kLegendLine - 2;
  }
  return y - top;
}

}  // namespace

std::string grouped(long long number) {
  std::string digits = std::to_string(number);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(digits.begin() + i, ',');
  return digits;
}

std::string percent(long long part, long long whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

long long rows_of_queries(const Layout& layout) {
  return layout.packing == Packing::kSplit ? clean_offset(layout) + layout.clean_q_rows
                                           : layout.joint_rows;
}

long long rows_of_keys(const Layout& layout) {
  return layout.packing == Packing::kSplit ? clean_offset(layout) + layout.clean_kv_rows
                                           : layout.joint_rows;
}

long long tiles_of(const Layout& layout, TileShape tile) {
  long long tiles_q = 0;
  long long tiles_kv = 0;
  for (const Segment& s : segments_of(layout, false)) tiles_q += geometry::ceil_div(s.len, tile.q);
  for (const Segment& s : segments_of(layout, true)) tiles_kv += geometry::ceil_div(s.len, tile.kv);
  return tiles_q * tiles_kv;
}

MaskCounts count_mask(const Layout& layout, TileShape tile) {
  MaskCounts counts;
  counts.rows_q = rows_of_queries(layout);
  counts.rows_kv = rows_of_keys(layout);
  counts.tiles = tiles_of(layout, tile);
  for (const Pair& pair : pairs_of(layout)) {
    const long long visible =
        geometry::visible_pairs(pair.rule, pair.query.position, pair.query.len);
    counts.visible += visible;
    if (pair.query.half == Half::kClean) {
      counts.visible_clean += visible;
    } else if (pair.key.half == Half::kNoisy) {
      counts.visible_own += visible;
    } else {
      counts.visible_noisy_clean += visible;
    }
    for_each_tile(pair, tile, [&](Interval rows, Interval keys, TileClass tile_class) {
      counts.computed += static_cast<long long>(rows.size()) * keys.size();
      ++(tile_class == TileClass::kFull ? counts.tiles_full : counts.tiles_partial);
    });
  }
  return counts;
}

MaskPicture draw_mask(const Layout& layout, TileShape tile, const MaskCounts& counts,
                      const std::string& title, int cell_size) {
  const long long longest = std::max<long long>({counts.rows_q, counts.rows_kv, 1});
  double cell = cell_size;
  if (cell_size == 0) {
    cell = std::min(kTargetSize / static_cast<double>(longest), kLargestCell);
    if (cell > 1) cell = std::floor(cell);
  }
  constexpr double kMargin = 20;
  const double left = kMargin + 22 + 16 + kStrip + 4;
  const double top = kMargin + 34 + 22 + 16 + kStrip + 4;
  const double matrix_width = static_cast<double>(counts.rows_kv) * cell;
  const double matrix_height = static_cast<double>(counts.rows_q) * cell;
  const double legend_x = left + matrix_width + 28;
  constexpr double kTitleSize = 16;

  // The legend's height does not depend on the drawing: measure it on a scratch one.
  Drawing scratch(0, 0, kPage, 1);
  const double legend_height = draw_legend(layout, tile, counts, 0, 0, scratch);
  const double width =
      std::max(legend_x + kLegendWidth, 2 * kMargin + text_width(title, kTitleSize) + kMargin);
  const double height = std::max(top + matrix_height, top - kStrip + legend_height) + kMargin;
  MaskPicture picture{Drawing(std::ceil(width), std::ceil(height), kPage, cell), left, top, cell};
  Drawing& drawing = picture.drawing;

  label(drawing, kMargin, kMargin + 15, title, kTitleSize, kInk, true);
  if (layout.mask.num_views > 0) {
    label(drawing, left + matrix_width / 2, top - kStrip - 4 - 24, "keys", 12, kMuted, false,
          Align::kCenter);
    Text queries;
    queries.text = "queries";
    queries.x = left - kStrip - 4 - 24;
    queries.y = top + matrix_height / 2;
    queries.size = 12;
    queries.color = kMuted;
    queries.align = Align::kCenter;
    queries.upward = true;
    drawing.write(std::move(queries));
  }
  draw_matrix(layout, tile, left, top, cell, drawing);
  Axis(layout, true, left, top, cell, drawing).draw();
  Axis(layout, false, left, top, cell, drawing).draw();
  draw_legend(layout, tile, counts, legend_x, top - kStrip, drawing);
  return picture;
}

}  // namespace stepwell::cli
