// Where the tokens of a case lie and what its samples' masks are, worked out from the case alone:
// nothing here comes from the library's own handling of layouts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geometry/mask.hpp"
#include "operators/cases.hpp"
#include "reference/head.hpp"

namespace stepwell::testing {

/// A valid token and its row in the tensors of a set (kFirst or kClean).
struct Place {
  reference::Token token;
  int set = 0;
  std::int64_t batch = 0;
  std::int64_t row = 0;
};

struct SampleModel {
  geometry::SampleMask mask;
  std::vector<Place> queries, keys;

  bool visible(const Place& query, const Place& key) const;
};

/// The samples of a case. Tables are pointed to, not copied: the case must outlive them.
std::vector<SampleModel> samples_of(const Case& c);

/// "noisy 1:7" for token 7 of view 1.
std::string to_string(const Place& place);

}  // namespace stepwell::testing
