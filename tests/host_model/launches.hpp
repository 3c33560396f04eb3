// What the tests of the host model have in common.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cuda/ptx/sm80.cuh"

namespace stepwell::testing {

inline constexpr cuda::u32 kBase = 1024;  // of shared memory

inline const host_model::Options kPlain{};
inline const host_model::Options kRaces{.check_races = true};

inline std::vector<host_model::Options> all_options() {
  using host_model::Delivery;
  using host_model::Schedule;
  std::vector<host_model::Options> list;
  for (const Schedule schedule : {Schedule::kForward, Schedule::kReverse, Schedule::kRandom}) {
    for (const Delivery delivery : {Delivery::kLate, Delivery::kEarly, Delivery::kRandom}) {
      for (const bool races : {false, true}) {
        list.push_back({.schedule = schedule, .delivery = delivery, .check_races = races});
      }
    }
  }
  return list;
}

inline cuda::u32 lane() { return cuda::ptx::thread_index() % 32; }

/// The error of a launch with 4096 bytes of shared memory, as "kind: text".
inline std::string error_of(cuda::u32 threads, const host_model::Options& options,
                            const std::function<void()>& body) {
  try {
    host_model::launch({1}, threads, 4096, options, body);
  } catch (const host_model::Error& error) {
    return error.kind + ": " + error.what();
  }
  return "no error";
}

inline ::testing::AssertionResult says(const std::string& text,
                                       const std::vector<const char*>& parts) {
  std::size_t from = 0;
  for (const char* part : parts) {
    from = text.find(part, from);
    if (from == std::string::npos) {
      return ::testing::AssertionFailure() << "no \"" << part << "\" in \"" << text << "\"";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace stepwell::testing
