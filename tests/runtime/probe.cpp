// One process of a test of many:
//   runtime_probe compile DIR    finds or compiles a kernel in the cache DIR, prints where it was
//   runtime_probe libraries      prints what is missing of the driver and of NVRTC
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/cache.hpp"
#include "runtime/library.hpp"

namespace {

using stepwell::runtime::KernelCache;

int compile(const std::string& dir) {
  stepwell::runtime::KernelSpec spec;
  spec.name = "kernel";
  spec.source = "extern \"C\" __global__ void kernel(int) {}\n" + std::string(1 << 20, '/');
  const KernelCache cache(dir, KernelCache::Access::kPrivate);
  const auto found = find_or_compile(spec, "sm_80", cache);
  const bool whole = found.kernel.cubin.ends_with(spec.source);
  std::printf("%s\n", !whole                                                 ? "damaged"
                      : found.origin == stepwell::runtime::Origin::kCompiled ? "compiled"
                                                                             : "found");
  return 0;
}

int libraries() {
  for (const auto& report :
       {stepwell::runtime::report_driver(), stepwell::runtime::report_nvrtc()}) {
    std::printf("%s\n", report.found ? ("found " + report.path).c_str() : report.problem.c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[0] == "compile") return compile(arguments[1]);
  if (arguments.size() == 1 && arguments[0] == "libraries") return libraries();
  return 2;
}
