// Compiles the tile code once per instruction set and picks one at run time.
//
// Highway is used through its headers alone: distributions ship its compiled part (which holds the
// processor detection) as a shared library only, and a wheel must not need that where it is
// imported.

#include "cpu/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels.cpp"
// Two widths with FMA, one without, and the portable code for anything else. The sets left out
// bring nothing that this code uses; vectors of unknown length cannot live in arrays.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include "hwy/foreach_target.h"
// clang-format off: foreach_target.h comes first
#include "cpu/backward-inl.hpp"
#include "cpu/forward-inl.hpp"
#include "cpu/row_values-inl.hpp"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace stepwell::cpu::HWY_NAMESPACE {

inline const Kernels& table() {
  static const Kernels kTable = {
      hwy::TargetName(HWY_TARGET),
      kPanel,
      forward_scratch_floats,
      forward_tile,
      backward_scratch_floats,
      row_values_scratch_floats,
      row_values,
      backward_part,
      store_dq,
  };
  return kTable;
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/check.hpp"

namespace stepwell::cpu {
namespace {

#if HWY_ARCH_X86
/// From cpuid: clang 14's __builtin_cpu_supports does not know the name. Whether the system keeps
/// the wide registers, "avx2" says.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c() &&
         __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
}

bool has_avx3() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
}

bool has_sse4() {
  return __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") &&
         __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
}
#endif

/// What this build and this processor can run, best first.
std::vector<const Kernels*> available() {
  std::vector<const Kernels*> tables;
#if HWY_ARCH_X86
#if HWY_TARGETS & HWY_AVX3
  if (has_avx3()) tables.push_back(&N_AVX3::table());
#endif
#if HWY_TARGETS & HWY_AVX2
  if (has_avx2()) tables.push_back(&N_AVX2::table());
#endif
#if HWY_TARGETS & HWY_SSE4
  if (has_sse4()) tables.push_back(&N_SSE4::table());
#endif
#endif
  const Kernels* baseline = &HWY_STATIC_DISPATCH(table)();
  if (std::find(tables.begin(), tables.end(), baseline) == tables.end()) {
    tables.push_back(baseline);
  }
  return tables;
}

/// STEPWELL_CPU_TARGET names another instruction set than the best, for tests and comparisons.
const Kernels& choose() {
  const std::vector<const Kernels*> tables = available();
  const char* wanted = std::getenv("STEPWELL_CPU_TARGET");
  if (wanted == nullptr) return *tables.front();
  std::string names;
  for (const Kernels* table : tables) {
    if (std::strcmp(wanted, table->name) == 0) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  STEPWELL_CHECK(false, kValue, "STEPWELL_CPU_TARGET is '{}'; this processor can run: {}", wanted,
                 names);
  return *tables.front();
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace stepwell::cpu

#endif  // HWY_ONCE
