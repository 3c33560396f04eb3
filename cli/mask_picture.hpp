// Counts and picture of a mask, from the same geometry that the kernels use.
#pragma once

#include <string>

#include "drawing.hpp"
#include "geometry/layout.hpp"

namespace stepwell::cli {

struct TileShape {
  int q = 0;
  int kv = 0;
};

/// Pairs are of one head; `own` and `noisy_clean` are queries of noisy tokens, `clean` those of
/// clean tokens (of the only sequence, if there is no noisy segment).
struct MaskCounts {
  long long rows_q = 0;
  long long rows_kv = 0;
  long long visible = 0;
  long long visible_own = 0;
  long long visible_noisy_clean = 0;
  long long visible_clean = 0;
  long long computed = 0;  // pairs inside the tiles visited
  long long tiles = 0;     // of the whole rectangle
  long long tiles_full = 0;
  long long tiles_partial = 0;

  long long dense() const { return rows_q * rows_kv; }
  long long tiles_visited() const { return tiles_full + tiles_partial; }
  long long tiles_skipped() const { return tiles - tiles_visited(); }
};

/// Query rows and key rows of the whole layout, padding included.
long long rows_of_queries(const geometry::Layout& layout);
long long rows_of_keys(const geometry::Layout& layout);

/// Tiles of the whole rectangle, to be bounded before count_mask and draw_mask are called.
long long tiles_of(const geometry::Layout& layout, TileShape tile);

MaskCounts count_mask(const geometry::Layout& layout, TileShape tile);

/// The longest axis that can be drawn, in rows.
inline constexpr long long kLargestDrawing = 4096;

/// Where the matrix lies in the picture: the pair (row, key) has its top left corner at
/// (left + key * cell, top + row * cell).
struct MaskPicture {
  Drawing drawing;
  double left = 0;
  double top = 0;
  double cell = 0;  // picture units
};

/// `cell_size`: picture units of one pair, or 0 to choose by the size of the matrix.
MaskPicture draw_mask(const geometry::Layout& layout, TileShape tile, const MaskCounts& counts,
                      const std::string& title, int cell_size);

/// "12,345".
std::string grouped(long long number);
/// "31.2%": part of whole, or "-" where whole is 0.
std::string percent(long long part, long long whole);

}  // namespace stepwell::cli
