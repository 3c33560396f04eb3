#include "cpu/parallel.hpp"

#include <omp.h>

namespace stepwell::cpu {

int thread_count(int requested) { return requested > 0 ? requested : omp_get_max_threads(); }

void parallel_for_raw(std::int64_t items, int threads, void (*body)(void*, std::int64_t, int),
                      void* state) {
  if (items <= 0) return;
  if (threads <= 1 || items == 1) {
    for (std::int64_t i = 0; i < items; ++i) body(state, i, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::int64_t i = 0; i < items; ++i) body(state, i, omp_get_thread_num());
}

}  // namespace stepwell::cpu
