// Threads of the CPU backend.
#pragma once

#include <cstdint>
#include <type_traits>

namespace stepwell::cpu {

/// The number of threads that `requested` stands for: itself, or OpenMP's default for 0.
int thread_count(int requested);

/// Calls body(item, thread) for each item in [0, items), threads taking the next item as they
/// become free: items should come longest first. thread is in [0, threads).
void parallel_for_raw(std::int64_t items, int threads, void (*body)(void*, std::int64_t, int),
                      void* state);

template <typename Body>
void parallel_for(std::int64_t items, int threads, Body&& body) {
  parallel_for_raw(
      items, threads,
      [](void* state, std::int64_t item, int thread) {
        (*static_cast<std::remove_reference_t<Body>*>(state))(item, thread);
      },
      &body);
}

}  // namespace stepwell::cpu
