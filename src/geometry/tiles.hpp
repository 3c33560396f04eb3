// Tiles: which key tiles a query tile meets, which query tiles a key tile meets, and how.
//
// Segments are tiled separately: a tile never straddles two halves, two views or two samples.
// Tile t of a segment covers indices [t * tile, min((t + 1) * tile, len)).
#pragma once

#include "geometry/interval.hpp"
#include "geometry/rule.hpp"

namespace stepwell::geometry {

enum class TileClass : i32 { kEmpty, kPartial, kFull };

constexpr Interval tile_interval(i32 tile, i32 tile_size, i32 len) {
  const i32 begin = tile * tile_size;
  return {begin, min_of(begin + tile_size, len)};
}

/// Positions of `rows` whose row sees a key at positions [key_first, key_last], all of them valid
/// keys: an interval, since bounds do not decrease. For rules without a table.
constexpr Interval positions_reaching(const IntervalRule& rule, Interval rows, i32 key_first,
                                      i32 key_last) {
  const i32 reach = max_of(rows.begin, first_position_above(rule, rule.end, key_first));
  const i32 leave = min_of(rows.end, first_position_above(rule, rule.begin, key_last));
  // Of those only a rule with begin == end at every row (a window of one) sees nothing.
  if (reach >= leave || row_interval(rule, reach).empty()) return {0, 0};
  return {reach, leave};
}

/// The class of the tile `rows` x `keys` (indices; rows sit at query_position + index).
/// Exact: kEmpty if and only if no pair is visible, kFull if and only if all are.
constexpr TileClass classify(const IntervalRule& rule, i32 query_position, Interval rows,
                             Interval keys) {
  if (rows.empty() || keys.empty()) return TileClass::kEmpty;
  const i32 first = query_position + rows.begin;
  const i32 last = query_position + rows.end - 1;
  if (rule.table != nullptr) {
    bool any = false;
    bool all = true;
    for (i32 j = block_of(rule, first); j <= block_of(rule, last); ++j) {
      const Interval seen = table_interval(rule, j);
      any = any || seen.meets(keys);
      all = all && seen.contains(keys);
    }
    return !any ? TileClass::kEmpty : all ? TileClass::kFull : TileClass::kPartial;
  }
  const i32 key_first = keys.begin + rule.key_position;
  const i32 key_last = keys.end - 1 + rule.key_position;
  if (keys.end >
      rule.key_len) {  // keys past the end are never visible: only a partial tile is left
    const Interval valid{keys.begin, rule.key_len};
    const TileClass inside = classify(rule, query_position, rows, valid);
    return inside == TileClass::kEmpty ? inside : TileClass::kPartial;
  }
  if (bound_at(rule, rule.begin, last) <= key_first && bound_at(rule, rule.end, first) > key_last) {
    return TileClass::kFull;
  }
  const Interval reaching = positions_reaching(rule, {first, last + 1}, key_first, key_last);
  return reaching.empty() ? TileClass::kEmpty : TileClass::kPartial;
}

/// The smallest interval of key indices that holds what every row of `rows` sees.
constexpr Interval key_hull(const IntervalRule& rule, i32 query_position, Interval rows) {
  if (rows.empty()) return {0, 0};
  const i32 first = query_position + rows.begin;
  const i32 last = query_position + rows.end - 1;
  if (rule.table != nullptr) {
    Interval keys{0, 0};
    for (i32 j = block_of(rule, first); j <= block_of(rule, last); ++j) {
      keys = hull(keys, table_interval(rule, j));
    }
    return keys;
  }
  if (rule.key_len <= 0) return {0, 0};
  const Interval reaching = positions_reaching(rule, {first, last + 1}, rule.key_position,
                                               rule.key_position + rule.key_len - 1);
  if (reaching.empty()) return {0, 0};
  return {row_interval(rule, reaching.begin).begin, row_interval(rule, reaching.end - 1).end};
}

/// The smallest interval of query indices that holds every row that sees a key of `keys`.
constexpr Interval query_hull(const IntervalRule& rule, i32 query_position, i32 query_len,
                              Interval keys) {
  const Interval valid{max_of(keys.begin, 0), min_of(keys.end, rule.key_len)};
  if (valid.empty() || query_len <= 0) return {0, 0};
  if (rule.table != nullptr) {
    Interval rows{0, 0};
    for (i32 first = 0; first < query_len;) {
      const i32 p = query_position + first;
      const i32 next = min_of(block_start(rule, p) + rule.block_size - query_position, query_len);
      if (row_interval(rule, p).meets(valid)) rows = hull(rows, {first, next});
      first = next;
    }
    return rows;
  }
  const Interval reaching =
      positions_reaching(rule, {query_position, query_position + query_len},
                         valid.begin + rule.key_position, valid.end - 1 + rule.key_position);
  if (reaching.empty()) return {0, 0};
  return {reaching.begin - query_position, reaching.end - query_position};
}

/// Tile indices [begin, end) of size `tile_size` that cover `elements`.
constexpr Interval covering_tiles(Interval elements, i32 tile_size) {
  if (elements.empty()) return {0, 0};
  return {elements.begin / tile_size, ceil_div(elements.end, tile_size)};
}

/// Calls visit(key_tile, TileClass) for each key tile that the query tile `rows` meets, ascending,
/// each exactly once; empty tiles inside the hull are skipped.
template <typename Visit>
constexpr void for_each_key_tile(const IntervalRule& rule, i32 query_position, Interval rows,
                                 i32 tile_kv, Visit&& visit) {
  const Interval tiles = covering_tiles(key_hull(rule, query_position, rows), tile_kv);
  for (i32 t = tiles.begin; t < tiles.end; ++t) {
    const Interval keys = tile_interval(t, tile_kv, rule.key_len);
    const TileClass tile_class = classify(rule, query_position, rows, keys);
    if (tile_class != TileClass::kEmpty) visit(t, tile_class);
  }
}

/// Calls visit(query_tile, TileClass) for each query tile that sees the key tile `keys`, ascending.
template <typename Visit>
constexpr void for_each_query_tile(const IntervalRule& rule, i32 query_position, i32 query_len,
                                   Interval keys, i32 tile_q, Visit&& visit) {
  const Interval tiles = covering_tiles(query_hull(rule, query_position, query_len, keys), tile_q);
  for (i32 t = tiles.begin; t < tiles.end; ++t) {
    const Interval rows = tile_interval(t, tile_q, query_len);
    const TileClass tile_class = classify(rule, query_position, rows, keys);
    if (tile_class != TileClass::kEmpty) visit(t, tile_class);
  }
}

}  // namespace stepwell::geometry
