// A picture as a list of shapes, written as SVG or as PNG from the same list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::cli {

struct Color {
  std::uint8_t r = 0, g = 0, b = 0;
  friend bool operator==(const Color&, const Color&) = default;
};

/// Axis-aligned rectangle in picture units, y downward.
struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};

enum class Align { kLeft, kCenter, kRight };

struct Text {
  double x = 0, y = 0;  // the baseline at the aligned end
  std::string text;     // UTF-8 without control characters
  double size = 12;
  Color color;
  Align align = Align::kLeft;
  bool bold = false;
  bool upward = false;  // turned to read from bottom to top
};

/// Shapes in painting order.
class Drawing {
 public:
  struct Shape {
    enum class Kind { kFill, kHatch, kOutline, kText } kind = Kind::kFill;
    Box box;
    Color color;
    double line_width = 1;  // kOutline, kHatch
    double dash = 0;        // kOutline: length of dashes and gaps; 0: a solid line
    Text text;              // kText
  };

  /// `grid`: picture units that must come out as a whole number of pixels.
  Drawing(double width, double height, Color background, double grid);

  void fill(Box box, Color color);
  /// Diagonal lines, all on one lattice so that neighbouring boxes join.
  void hatch(Box box, Color color);
  /// A line of `line_width` inside the box's edge.
  void outline(Box box, Color color, double line_width, double dash = 0);
  void write(Text text);

  double width() const { return width_; }
  double height() const { return height_; }
  double grid() const { return grid_; }
  Color background() const { return background_; }
  const std::vector<Shape>& shapes() const { return shapes_; }

 private:
  double width_, height_, grid_;
  Color background_;
  std::vector<Shape> shapes_;
};

inline constexpr double kHatchPeriod = 6;    // picture units between hatch lines, along x
inline constexpr double kHatchWidth = 1.25;  // width of a hatch line, along x

/// An upper estimate of the width of `text` in picture units, for either format.
double text_width(const std::string& text, double size);

/// The whole SVG document; `title` is its accessible name.
std::string to_svg(const Drawing& drawing, const std::string& title);

/// Pixels per picture unit: at least 2, and such that the grid falls on pixels.
double png_scale(const Drawing& drawing);
/// The PNG file's bytes.
std::string to_png(const Drawing& drawing);

}  // namespace stepwell::cli
