#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#include <stb/stb_easy_font.h>
#include <stb/stb_image_write.h>

#include "drawing.hpp"

namespace stepwell::cli {
namespace {

constexpr double kLeastScale = 2;              // sharp on dense screens
constexpr std::size_t kFloatsPerLetter = 256;  // 16 quads of four vertices of 16 bytes

/// The letters of the PNG's font are those of ASCII; the few others that pictures use have a
/// spelling in it.
std::string to_ascii(const std::string& text) {
  struct Spelling {
    const char* utf8;
    const char* ascii;
  };
  static constexpr Spelling kSpellings[] = {{"→", "->"}, {"×", "x"}, {"·", "-"}, {"–", "-"}};
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      result += c >= 0x20 && c < 0x7F ? text[i] : ' ';
      ++i;
      continue;
    }
    std::size_t length = 1;
    while (i + length < text.size() &&
           (static_cast<unsigned char>(text[i + length]) & 0xC0) == 0x80) {
      ++length;
    }
    const std::string letter = text.substr(i, length);
    const char* ascii = "?";
    for (const Spelling& spelling : kSpellings) {
      if (letter == spelling.utf8) ascii = spelling.ascii;
    }
    result += ascii;
    i += length;
  }
  return result;
}

class Image {
 public:
  Image(const Drawing& drawing, double scale)
      : scale_(scale),
        width_(static_cast<int>(std::ceil(drawing.width() * scale))),
        height_(static_cast<int>(std::ceil(drawing.height() * scale))),
        pixels_(std::size_t{3} * width_ * height_) {
    fill({0, 0, drawing.width(), drawing.height()}, drawing.background());
  }

  void fill(const Box& box, Color color) {
    paint(box, color, [](int, int) { return true; });
  }

  void hatch(const Box& box, Color color) {
    const int period = static_cast<int>(std::lround(kHatchPeriod * scale_));
    const int line = static_cast<int>(std::lround(kHatchWidth * scale_));
    paint(box, color, [=](int x, int y) { return (x + y) % period < line; });
  }

  void outline(const Box& box, Color color, double line_width, double dash) {
    const double w = std::max(line_width, 1.0 / scale_);
    const int period = static_cast<int>(std::lround(2 * dash * scale_));
    const auto along_x = [=](int x, int) { return period == 0 || x % period < period / 2; };
    const auto along_y = [=](int, int y) { return period == 0 || y % period < period / 2; };
    paint({box.x, box.y, box.width, w}, color, along_x);
    paint({box.x, box.y + box.height - w, box.width, w}, color, along_x);
    paint({box.x, box.y, w, box.height}, color, along_y);
    paint({box.x + box.width - w, box.y, w, box.height}, color, along_y);
  }

  void write(const Text& text) {
    std::string ascii = to_ascii(text.text);
    // One font unit in pixels: the font's capitals are 7 units high, those of SVG's 0.7 of a size.
    const int unit = std::max(1, static_cast<int>(text.size * scale_ / 10.5));
    std::vector<float> vertices(ascii.size() * kFloatsPerLetter);
    const int quads = stb_easy_font_print(0, 0, ascii.data(), nullptr, vertices.data(),
                                          static_cast<int>(vertices.size() * sizeof(float)));
    const double length = stb_easy_font_width(ascii.data()) * unit;
    const double shift = text.align == Align::kLeft     ? 0
                         : text.align == Align::kCenter ? length / 2
                                                        : length;
    const auto x0 = static_cast<int>(std::lround(text.x * scale_ - (text.upward ? 0 : shift)));
    const auto y0 = static_cast<int>(std::lround(text.y * scale_ + (text.upward ? shift : 0)));
    constexpr int kBaseline = 7;  // font units from the top of a capital to the baseline
    for (int quad = 0; quad < quads; ++quad) {
      // Four vertices of x, y, z and a colour; the first and the third are opposite corners.
      const float* corner = vertices.data() + std::ptrdiff_t{16} * quad;
      const int left = static_cast<int>(corner[0]) * unit;
      const int top = (static_cast<int>(corner[1]) - kBaseline) * unit;
      const int right = static_cast<int>(corner[8]) * unit + (text.bold ? unit / 2 : 0);
      const int bottom = (static_cast<int>(corner[9]) - kBaseline) * unit;
      if (text.upward) {
        paint_pixels(x0 + top, y0 - right, x0 + bottom, y0 - left, text.color,
                     [](int, int) { return true; });
      } else {
        paint_pixels(x0 + left, y0 + top, x0 + right, y0 + bottom, text.color,
                     [](int, int) { return true; });
      }
    }
  }

  std::string encoded() const {
    std::string bytes;
    const auto append = [](void* context, void* data, int size) {
      static_cast<std::string*>(context)->append(static_cast<const char*>(data),
                                                 static_cast<std::size_t>(size));
    };
    if (stbi_write_png_to_func(append, &bytes, width_, height_, 3, pixels_.data(), 3 * width_) ==
        0) {
      throw std::runtime_error(
          fmt::format("cannot encode a PNG of {} x {} pixels", width_, height_));
    }
    return bytes;
  }

 private:
  template <typename Covers>
  void paint(const Box& box, Color color, Covers covers) {
    const auto pixel = [this](double units) {
      // The small number keeps equal steps equal where they fall between two pixels.
      return static_cast<int>(std::lround(units * scale_ + 1e-6));
    };
    paint_pixels(pixel(box.x), pixel(box.y), pixel(box.x + box.width), pixel(box.y + box.height),
                 color, covers);
  }

  template <typename Covers>
  void paint_pixels(int left, int top, int right, int bottom, Color color, Covers covers) {
    for (int y = std::max(top, 0); y < std::min(bottom, height_); ++y) {
      for (int x = std::max(left, 0); x < std::min(right, width_); ++x) {
        if (!covers(x, y)) continue;
        std::uint8_t* pixel = &pixels_[3 * (std::size_t{1} * y * width_ + x)];
        pixel[0] = color.r;
        pixel[1] = color.g;
        pixel[2] = color.b;
      }
    }
  }

  double scale_;
  int width_, height_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace

double text_width(const std::string& text, double size) {
  // The PNG's font is the wider one.
  std::string ascii = to_ascii(text);
  return stb_easy_font_width(ascii.data()) * size / 10.5;
}

double png_scale(const Drawing& drawing) {
  return std::ceil(kLeastScale * drawing.grid()) / drawing.grid();
}

std::string to_png(const Drawing& drawing) {
  Image image(drawing, png_scale(drawing));
  for (const Drawing::Shape& shape : drawing.shapes()) {
    switch (shape.kind) {
      case Drawing::Shape::Kind::kFill:
        image.fill(shape.box, shape.color);
        break;
      case Drawing::Shape::Kind::kHatch:
        image.hatch(shape.box, shape.color);
        break;
      case Drawing::Shape::Kind::kOutline:
        image.outline(shape.box, shape.color, shape.line_width, shape.dash);
        break;
      case Drawing::Shape::Kind::kText:
        image.write(shape.text);
        break;
    }
  }
  return image.encoded();
}

}  // namespace stepwell::cli
