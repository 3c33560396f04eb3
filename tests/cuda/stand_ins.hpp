// Stand-ins for the driver and NVRTC, whose device memory is the host's.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cuda/calls.hpp"
#include "runtime/stand_in_driver.hpp"

namespace stepwell::testing {

/// Makes the library find the stand-ins instead of a real GPU; before its first use of one.
inline void use_stand_ins() {
  setenv("STEPWELL_LIBRARY_DIRS", STAND_INS, 1);
  setenv("STEPWELL_CACHE_DIR", "", 1);
  setenv("STEPWELL_PACKAGED_CUBINS", "", 1);
}

/// What the stand-in for the driver has seen.
inline StandInDriver& driver() {
  static StandInDriver* const found = [] {
    void* library = dlopen(STAND_INS "/libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(dlerror());
    using Getter = StandInDriver* (*)();
    return reinterpret_cast<Getter>(dlsym(library, "stand_in_driver"))();
  }();
  return *found;
}

}  // namespace stepwell::testing
