// The kernels of kernel_list.hpp, compiled for the host model: generated code fills the table.
#pragma once

#include <vector>

#include "cuda/kernels.hpp"

namespace stepwell::testing {

struct CompiledKernel {
  cuda::KernelKey key;
  void (*run)(const void* params);  // what one thread does
};

void add_compiled_kernels(std::vector<CompiledKernel>& table);

}  // namespace stepwell::testing
