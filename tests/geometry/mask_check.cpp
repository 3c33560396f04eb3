#include "geometry/mask_check.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <vector>

#include "geometry/pairs.hpp"
#include "geometry/tiles.hpp"
#include "reference/attention.hpp"

namespace stepwell::testing {

using geometry::Half;
using geometry::Interval;
using geometry::IntervalRule;
using geometry::SampleMask;
using geometry::TileClass;

namespace {

using Bits = std::uint64_t;

Bits bits_of(Interval x) {
  if (x.empty()) return 0;
  const Bits below_end = x.end >= 64 ? ~Bits{0} : (Bits{1} << x.end) - 1;
  return below_end & ~((Bits{1} << x.begin) - 1);
}

Interval hull_of(Bits bits) {
  if (bits == 0) return {0, 0};
  return {std::countr_zero(bits), 64 - std::countl_zero(bits)};
}

/// What one query half sees of one key half, by the element rule.
struct Seen {
  std::vector<Bits> rows;     // keys of each query
  std::vector<Bits> columns;  // queries of each key

  Seen(const SampleMask& mask, Half query, Half key)
      : rows(geometry::query_len(mask, query)), columns(geometry::key_len(mask, key)) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t k = 0; k < columns.size(); ++k) {
        if (!reference::visible(mask, query, 0, static_cast<int>(i), key, 0, static_cast<int>(k)))
          continue;
        rows[i] |= Bits{1} << k;
        columns[k] |= Bits{1} << i;
      }
    }
  }

  TileClass classify(Interval queries, Interval keys) const {
    const Bits asked = bits_of(keys);
    Bits any = 0;
    Bits all = queries.empty() ? 0 : asked;
    for (int i = queries.begin; i < queries.end; ++i) {
      any |= rows[i] & asked;
      all &= rows[i];
    }
    if (any == 0) return TileClass::kEmpty;
    return all == asked ? TileClass::kFull : TileClass::kPartial;
  }

  Interval key_hull(Interval queries) const {
    Bits any = 0;
    for (int i = queries.begin; i < queries.end; ++i) any |= rows[i];
    return hull_of(any);
  }

  Interval query_hull(Interval keys) const {
    Bits any = 0;
    for (int k = keys.begin; k < keys.end && k < static_cast<int>(columns.size()); ++k)
      any |= columns[k];
    return hull_of(any);
  }
};

bool same(Interval a, Interval b) { return a == b || (a.empty() && b.empty()); }

std::string show(Interval x) { return fmt::format("[{}, {})", x.begin, x.end); }

std::string check_rows_and_columns(const IntervalRule& rule, const Seen& seen, int position) {
  long long pairs = 0;
  const auto len = static_cast<int>(seen.rows.size());
  for (int i = 0; i < len; ++i) {
    const Interval row = geometry::row_interval(rule, position + i);
    pairs += row.size();
    if (bits_of(row) != seen.rows[i]) {
      return fmt::format("row {}: {} but sees bits {:x}", i, show(row), seen.rows[i]);
    }
  }
  for (int k = -1; k <= static_cast<int>(seen.columns.size()); ++k) {
    const bool valid = k >= 0 && k < static_cast<int>(seen.columns.size());
    const Bits want = valid ? seen.columns[k] : 0;
    const Interval column = geometry::column_interval(rule, k, position, len);
    // With a table only the hull of the column is promised.
    const Bits promised = rule.table == nullptr ? want : bits_of(hull_of(want));
    if (bits_of(column) != promised) {
      return fmt::format("column {}: {} but seen by bits {:x}", k, show(column), want);
    }
  }
  const long long counted = geometry::visible_pairs(rule, position, len);
  if (counted != pairs) return fmt::format("visible_pairs: {} but there are {}", counted, pairs);
  return "";
}

/// Visits of one tile row or column.
struct Visits {
  std::array<std::pair<int, TileClass>, 64> list;
  int count = 0;

  void add(int tile, TileClass tile_class) { list[count++] = {tile, tile_class}; }
  bool equals(const Visits& other) const {
    return count == other.count &&
           std::equal(list.begin(), list.begin() + count, other.list.begin());
  }
  std::string show() const {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += fmt::format(" {}:{}", list[i].first, static_cast<int>(list[i].second));
    return text;
  }
};

std::string check_tiles(const IntervalRule& rule, const Seen& seen, int position, TileShape tile) {
  const auto len_q = static_cast<int>(seen.rows.size());
  const auto len_kv = static_cast<int>(seen.columns.size());
  const int tiles_q = geometry::ceil_div(len_q, tile.q);
  const int tiles_kv = geometry::ceil_div(len_kv, tile.kv);
  std::array<Visits, 64> of_queries;
  std::array<Visits, 64> of_keys;
  for (int a = 0; a < tiles_q; ++a) {
    const Interval rows = geometry::tile_interval(a, tile.q, len_q);
    for (int c = 0; c < tiles_kv; ++c) {
      const Interval keys = geometry::tile_interval(c, tile.kv, len_kv);
      const TileClass want = seen.classify(rows, keys);
      const TileClass got = geometry::classify(rule, position, rows, keys);
      if (got != want) {
        return fmt::format("classify {} x {}: {} but is {}", show(rows), show(keys),
                           static_cast<int>(got), static_cast<int>(want));
      }
      if (want == TileClass::kEmpty) continue;
      of_queries[a].add(c, want);
      of_keys[c].add(a, want);
    }
    const Interval hull = geometry::key_hull(rule, position, rows);
    if (!same(hull, seen.key_hull(rows))) {
      return fmt::format("key_hull {}: {} but is {}", show(rows), show(hull),
                         show(seen.key_hull(rows)));
    }
    Visits visits;
    geometry::for_each_key_tile(rule, position, rows, tile.kv,
                                [&](int t, TileClass c) { visits.add(t, c); });
    if (!visits.equals(of_queries[a])) {
      return fmt::format("key tiles of {}:{} but are{}", show(rows), visits.show(),
                         of_queries[a].show());
    }
  }
  for (int c = 0; c < tiles_kv; ++c) {
    const Interval keys = geometry::tile_interval(c, tile.kv, len_kv);
    const Interval hull = geometry::query_hull(rule, position, len_q, keys);
    if (!same(hull, seen.query_hull(keys))) {
      return fmt::format("query_hull {}: {} but is {}", show(keys), show(hull),
                         show(seen.query_hull(keys)));
    }
    Visits visits;
    geometry::for_each_query_tile(rule, position, len_q, keys, tile.q,
                                  [&](int t, TileClass k) { visits.add(t, k); });
    if (!visits.equals(of_keys[c])) {
      return fmt::format("query tiles of {}:{} but are{}", show(keys), visits.show(),
                         of_keys[c].show());
    }
  }
  return "";
}

constexpr std::pair<Half, Half> kHalfPairs[] = {
    {Half::kNoisy, Half::kNoisy}, {Half::kNoisy, Half::kClean}, {Half::kClean, Half::kClean}};

std::string place(const SampleMask& mask, Half query, Half key) {
  const auto name = [](Half half) { return half == Half::kNoisy ? "noisy" : "clean"; };
  return fmt::format("{}: {} to {}: ", describe(mask), name(query), name(key));
}

}  // namespace

std::string describe(const SampleMask& mask) {
  std::string text = fmt::format(
      "b={} o={} clean={} noisy={} w={} window=({}, {}) views={} noisy {}+{} clean queries {}+{} "
      "keys {}",
      mask.block_size, mask.origin, static_cast<int>(mask.clean), static_cast<int>(mask.noisy),
      mask.clean_window, mask.window_left, mask.window_right, mask.num_views, mask.noisy_position,
      mask.noisy_len, mask.clean_q_position, mask.clean_q_len, mask.clean_kv_len);
  if (mask.block_ranges != nullptr) {
    text += " table";
    for (int j = 0; j < mask.num_block_ranges; ++j)
      text += fmt::format(" ({}, {})", mask.block_ranges[2 * j], mask.block_ranges[2 * j + 1]);
  }
  return text;
}

std::string first_mismatch(const SampleMask& mask, std::span<const TileShape> tiles) {
  for (const auto& [query, key] : kHalfPairs) {
    if (query == Half::kNoisy && mask.num_views == 0) continue;
    const IntervalRule rule = geometry::rule_between(mask, query, key);
    const Seen seen(mask, query, key);
    const int position = geometry::query_position(mask, query);
    std::string found = check_rows_and_columns(rule, seen, position);
    for (const TileShape& tile : tiles) {
      if (!found.empty()) break;
      found = check_tiles(rule, seen, position, tile);
    }
    if (!found.empty()) return place(mask, query, key) + found;
  }
  return "";
}

std::string first_rectangle_mismatch(const SampleMask& mask) {
  for (const auto& [query, key] : kHalfPairs) {
    if (query == Half::kNoisy && mask.num_views == 0) continue;
    const IntervalRule rule = geometry::rule_between(mask, query, key);
    const Seen seen(mask, query, key);
    const int position = geometry::query_position(mask, query);
    const auto len_q = static_cast<int>(seen.rows.size());
    const auto len_kv = static_cast<int>(seen.columns.size());
    for (int k0 = 0; k0 <= len_kv + 2; ++k0) {
      for (int k1 = k0; k1 <= len_kv + 2; ++k1) {
        const Interval keys{k0, k1};
        const Interval hull = geometry::query_hull(rule, position, len_q, keys);
        if (!same(hull, seen.query_hull(keys))) {
          return fmt::format("{}query_hull {}: {} but is {}", place(mask, query, key), show(keys),
                             show(hull), show(seen.query_hull(keys)));
        }
        for (int q0 = 0; q0 <= len_q; ++q0) {
          for (int q1 = q0; q1 <= len_q; ++q1) {
            const TileClass got = geometry::classify(rule, position, {q0, q1}, keys);
            const TileClass want = seen.classify({q0, q1}, keys);
            if (got == want) continue;
            return fmt::format("{}classify {} x {}: {} but is {}", place(mask, query, key),
                               show({q0, q1}), show(keys), static_cast<int>(got),
                               static_cast<int>(want));
          }
        }
      }
    }
    for (int q0 = 0; q0 <= len_q; ++q0) {
      for (int q1 = q0; q1 <= len_q; ++q1) {
        const Interval hull = geometry::key_hull(rule, position, {q0, q1});
        if (same(hull, seen.key_hull({q0, q1}))) continue;
        return fmt::format("{}key_hull {}: {} but is {}", place(mask, query, key), show({q0, q1}),
                           show(hull), show(seen.key_hull({q0, q1})));
      }
    }
  }
  return "";
}

long long count_visible(const SampleMask& mask) {
  struct Token {
    Half half;
    int view;
    int index;
  };
  const auto tokens = [&mask](int clean_len) {
    std::vector<Token> list;
    for (int view = 0; view < mask.num_views; ++view) {
      for (int i = 0; i < mask.noisy_len; ++i) list.push_back({Half::kNoisy, view, i});
    }
    for (int i = 0; i < clean_len; ++i) list.push_back({Half::kClean, 0, i});
    return list;
  };
  const std::vector<Token> keys = tokens(mask.clean_kv_len);
  long long pairs = 0;
  for (const Token& q : tokens(mask.clean_q_len)) {
    for (const Token& k : keys)
      pairs += reference::visible(mask, q.half, q.view, q.index, k.half, k.view, k.index) ? 1 : 0;
  }
  return pairs;
}

}  // namespace stepwell::testing
