#include "drawing.hpp"

#include <utility>

namespace stepwell::cli {

Drawing::Drawing(double width, double height, Color background, double grid)
    : width_(width), height_(height), grid_(grid), background_(background) {}

void Drawing::fill(Box box, Color color) {
  if (box.width <= 0 || box.height <= 0) return;
  Shape shape;
  shape.kind = Shape::Kind::kFill;
  shape.box = box;
  shape.color = color;
  shapes_.push_back(std::move(shape));
}

void Drawing::hatch(Box box, Color color) {
  if (box.width <= 0 || box.height <= 0) return;
  Shape shape;
  shape.kind = Shape::Kind::kHatch;
  shape.box = box;
  shape.color = color;
  shapes_.push_back(std::move(shape));
}

void Drawing::outline(Box box, Color color, double line_width, double dash) {
  if (box.width <= 0 || box.height <= 0) return;
  Shape shape;
  shape.kind = Shape::Kind::kOutline;
  shape.box = box;
  shape.color = color;
  shape.line_width = line_width;
  shape.dash = dash;
  shapes_.push_back(std::move(shape));
}

void Drawing::write(Text text) {
  Shape shape;
  shape.kind = Shape::Kind::kText;
  shape.color = text.color;
  shape.text = std::move(text);
  shapes_.push_back(std::move(shape));
}

}  // namespace stepwell::cli
