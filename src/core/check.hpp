// STEPWELL_CHECK: the only macro of the library.
#pragma once

#include <fmt/format.h>

#include "stepwell/error.hpp"

/// Throws stepwell::Error of `kind` (kValue, kType, kNotImplemented, kRuntime) with a formatted
/// message unless `condition` holds.
#define STEPWELL_CHECK(condition, kind, ...)                                            \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      throw ::stepwell::Error(::stepwell::ErrorKind::kind, ::fmt::format(__VA_ARGS__)); \
    }                                                                                   \
  } while (false)
