#include <fmt/format.h>

#include <iterator>
#include <vector>

#include "drawing.hpp"

namespace stepwell::cli {
namespace {

/// `text` is UTF-8 without control characters, which XML does not have.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string hex(Color color) {
  return fmt::format("#{:02x}{:02x}{:02x}", color.r, color.g, color.b);
}

/// Three decimals at most, without trailing zeros.
std::string number(double value) {
  std::string text = fmt::format("{:.3f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string path_of(const Box& box) {
  return fmt::format("M{} {}h{}v{}h{}z", number(box.x), number(box.y), number(box.width),
                     number(box.height), number(-box.width));
}

}  // namespace

std::string to_svg(const Drawing& drawing, const std::string& title) {
  using Kind = Drawing::Shape::Kind;
  const std::string width = number(drawing.width());
  const std::string height = number(drawing.height());
  std::string svg;
  auto out = std::back_inserter(svg);
  fmt::format_to(out,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
                 "viewBox=\"0 0 {0} {1}\" role=\"img\" font-family=\"system-ui, 'Segoe UI', "
                 "Roboto, 'Helvetica Neue', Arial, sans-serif\">\n<title>{2}</title>\n",
                 width, height, escaped(title));

  std::vector<Color> hatches;
  for (const Drawing::Shape& shape : drawing.shapes()) {
    bool known = shape.kind != Kind::kHatch;
    for (const Color& color : hatches) known = known || color == shape.color;
    if (!known) hatches.push_back(shape.color);
  }
  for (const Color& color : hatches) {
    // Three parallel lines so that the corners of the pattern cell are covered too.
    fmt::format_to(out,
                   "<defs><pattern id=\"hatch-{0}\" width=\"{1}\" height=\"{1}\" "
                   "patternUnits=\"userSpaceOnUse\"><path d=\"M-1 1l2 -2M0 {1}L{1} 0M{2} {3}l2 "
                   "-2\" stroke=\"{4}\" stroke-width=\"{5}\"/></pattern></defs>\n",
                   hex(color).substr(1), number(kHatchPeriod), number(kHatchPeriod - 1),
                   number(kHatchPeriod + 1), hex(color), number(kHatchWidth / 1.41421));
  }
  fmt::format_to(out, "<rect width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", width, height,
                 hex(drawing.background()));

  const std::vector<Drawing::Shape>& shapes = drawing.shapes();
  for (std::size_t i = 0; i < shapes.size();) {
    const Drawing::Shape& shape = shapes[i];
    if (shape.kind == Kind::kText) {
      const Text& text = shape.text;
      const char* anchor = text.align == Align::kLeft     ? "start"
                           : text.align == Align::kCenter ? "middle"
                                                          : "end";
      const std::string x = number(text.x);
      const std::string y = number(text.y);
      fmt::format_to(
          out, "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\" text-anchor=\"{}\"{}{}>{}", x,
          y, number(text.size), hex(text.color), anchor, text.bold ? " font-weight=\"600\"" : "",
          text.upward ? fmt::format(" transform=\"rotate(-90 {} {})\"", x, y) : std::string(),
          escaped(text.text));
      svg += "</text>\n";
      ++i;
      continue;
    }
    // Neighbours in the list that differ in their place only become one path.
    std::string path;
    std::size_t next = i;
    for (; next < shapes.size(); ++next) {
      const Drawing::Shape& other = shapes[next];
      if (other.kind != shape.kind || !(other.color == shape.color) ||
          other.line_width != shape.line_width || other.dash != shape.dash) {
        break;
      }
      Box box = other.box;
      if (other.kind == Kind::kOutline) {
        const double half = other.line_width / 2;
        box = {box.x + half, box.y + half, box.width - 2 * half, box.height - 2 * half};
      }
      path += path_of(box);
    }
    if (shape.kind == Kind::kFill) {
      fmt::format_to(out, "<path fill=\"{}\" d=\"{}\"/>\n", hex(shape.color), path);
    } else if (shape.kind == Kind::kHatch) {
      fmt::format_to(out, "<path fill=\"url(#hatch-{})\" d=\"{}\"/>\n", hex(shape.color).substr(1),
                     path);
    } else {
      fmt::format_to(out, "<path fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{} d=\"{}\"/>\n",
                     hex(shape.color), number(shape.line_width),
                     shape.dash > 0 ? fmt::format(" stroke-dasharray=\"{}\"", number(shape.dash))
                                    : std::string(),
                     path);
    }
    i = next;
  }
  svg += "</svg>\n";
  return svg;
}

}  // namespace stepwell::cli
