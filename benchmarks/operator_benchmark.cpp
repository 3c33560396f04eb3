// Times the operator table's benchmark cases, in the dtypes they may have, with Google Benchmark:
//
//   operator_benchmark [--benchmark_filter=n2048.*backward] [--benchmark_format=json]
//
// The counter `visible_flops` is the rate of floating-point operations on visible pairs alone:
// 2 * pairs * heads * (dim + dim_v) forward, 2 * pairs * heads * (3 dim + 2 dim_v) backward.

#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include "operators/cases.hpp"
#include "operators/operands.hpp"
#include "stepwell/stepwell.hpp"

namespace stepwell::testing {
namespace {

enum class Pass { kForward, kBackward };

const char* name_of(DType dtype) {
  return dtype == DType::kFloat32 ? "f32" : dtype == DType::kFloat16 ? "f16" : "bf16";
}

void time_case(benchmark::State& state, const Case& c, Pass pass) {
  Call call(c, random_inputs(c, 1));
  call.forward();
  const double pairs = static_cast<double>(visible_pairs(call.args)) * c.heads_q;
  const double flops = pass == Pass::kForward
                           ? 2.0 * pairs * (c.head_dim + c.head_dim_v)
                           : 2.0 * pairs * (3.0 * c.head_dim + 2.0 * c.head_dim_v);
  for (auto _ : state) {
    pass == Pass::kForward ? call.forward() : call.backward();
  }
  state.counters["visible_flops"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (Case c : benchmark_cases()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      c.dtype = dtype;
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const std::string name =
            c.name + "/" + name_of(dtype) + (pass == Pass::kForward ? "/forward" : "/backward");
        benchmark::RegisterBenchmark(
            name.c_str(), [c, pass](benchmark::State& state) { time_case(state, c, pass); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
}

}  // namespace
}  // namespace stepwell::testing

int main(int argc, char** argv) {
  stepwell::testing::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
