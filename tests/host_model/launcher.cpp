#include "host_model/launcher.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>
#include <vector>

#include "cuda/attention/params.hpp"

namespace stepwell::testing {
namespace {

using host_model::Region;

/// Parts of shared memory from their offsets, in order; the last ends at `bytes`.
std::vector<Region> regions_between(std::vector<Region> starts, int bytes) {
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto end = i + 1 < starts.size() ? starts[i + 1].offset : static_cast<unsigned>(bytes);
    starts[i].bytes = (end - starts[i].offset) / starts[i].count;
  }
  return starts;
}

Region region(const char* name, int offset, int count = 1) {
  return {name, static_cast<unsigned>(offset), 0, static_cast<unsigned>(count)};
}

std::vector<Region> regions_of(const cuda::ForwardKernel& kernel) {
  const cuda::ForwardPlan plan = cuda::forward_plan(kernel.config);
  return regions_between(
      {region("q", plan.q), region("k", plan.k, 2), region("v", plan.v, 2),
       region("row_bounds", plan.row_bounds, 2), region("phases", plan.phases, 2),
       region("warp_bounds", plan.warp_bounds, 2), region("results", plan.results)},
      plan.bytes);
}

std::vector<Region> regions_of(const cuda::ForwardSm90Kernel& kernel) {
  const cuda::ForwardSm90Plan plan = cuda::forward_sm90_plan(kernel.config);
  return regions_between(
      {region("out", plan.out, 2), region("q", plan.q, 2 * cuda::kQueryStages),
       region("k", plan.k, cuda::kKeyStages), region("v", plan.v, cuda::kKeyStages),
       region("bases", plan.bases), region("items", plan.items, cuda::kQueryStages),
       region("barriers", plan.barriers)},
      plan.bytes);
}

std::vector<Region> regions_of(const cuda::ForwardWalkSm90Kernel& kernel) {
  const cuda::ForwardWalkSm90Plan plan = cuda::forward_walk_sm90_plan(kernel.config);
  return regions_between(
      {region("q", plan.q, 2 * kernel.config.query_stages()),
       region("k", plan.k, cuda::kWalkKeyStages), region("v", plan.v, cuda::kWalkKeyStages),
       region("bounds", plan.bounds, cuda::kWalkItemStages), region("bases", plan.bases),
       region("items", plan.items, cuda::kWalkItemStages),
       region("tiles", plan.tiles, cuda::kWalkKeyStages),
       region("dropped", plan.dropped, cuda::kWalkDroppedStages),
       region("barriers", plan.barriers)},
      plan.bytes);
}

std::vector<Region> regions_of(const cuda::BackwardSm90Kernel& kernel) {
  const cuda::BackwardSm90Plan plan = cuda::backward_sm90_plan(kernel.config);
  std::vector<Region> starts{region("k", plan.k), region("v", plan.v)};
  if (kernel.config.splits_slab()) starts.push_back(region("k_columns", plan.k_columns, 2));
  for (const Region& rest :
       {region("q", plan.q, cuda::kRowStages), region("dout", plan.dout, cuda::kDoutStages),
        region("ds", plan.ds, cuda::kDsStages),
        region("row_values", plan.row_values, cuda::kRowStages),
        region("steps", plan.steps, cuda::kStepStages),
        region("items", plan.items, cuda::kItemStages), region("barriers", plan.barriers)}) {
    starts.push_back(rest);
  }
  return regions_between(std::move(starts), plan.bytes);
}

std::vector<Region> regions_of(const cuda::BackwardRowsSm90Kernel& kernel) {
  const cuda::BackwardRowsSm90Plan plan = cuda::backward_rows_sm90_plan(kernel.config);
  if (plan.bytes == 0) return {};
  return regions_between({region("q", plan.q), region("dout", plan.dout), region("k", plan.k),
                          region("v", plan.v), region("ds", plan.ds),
                          region("row_values", plan.row_values), region("barrier", plan.barrier)},
                         plan.bytes);
}

std::vector<Region> regions_of(const cuda::BackwardKernel& kernel) {
  const cuda::BackwardPlan plan = cuda::backward_plan(kernel.config);
  const int stages = kernel.config.stages;
  return regions_between(
      {region("k", plan.k), region("v", plan.v), region("q", plan.q, stages),
       region("dout", plan.dout, stages), region("p", plan.p), region("ds", plan.ds),
       region("row_values", plan.row_values, stages), region("row_bounds", plan.row_bounds, stages),
       region("visible", plan.visible), region("walks", plan.walks, 2), region("walk", plan.walk),
       region("runs", plan.runs)},
      plan.bytes);
}

std::vector<Region> regions_of(const cuda::ForwardF32Kernel& kernel) {
  const cuda::ForwardF32Plan plan = cuda::forward_f32_plan(kernel.config);
  return regions_between(
      {region("q", plan.q), region("k", plan.k), region("v", plan.v), region("p", plan.p),
       region("row_bounds", plan.row_bounds, 2), region("phases", plan.phases, 2)},
      plan.bytes);
}

std::vector<Region> regions_of(const cuda::BackwardDqF32Kernel& kernel) {
  const cuda::BackwardDqF32Plan plan = cuda::backward_dq_f32_plan(kernel.config);
  return regions_between(
      {region("q", plan.q), region("dout", plan.dout), region("k", plan.k), region("v", plan.v),
       region("ds", plan.ds), region("row_bounds", plan.row_bounds, 2),
       region("phases", plan.phases, 2)},
      plan.bytes);
}

std::vector<Region> regions_of(const cuda::BackwardDkvF32Kernel& kernel) {
  const cuda::BackwardDkvF32Plan plan = cuda::backward_dkv_f32_plan(kernel.config);
  return regions_between(
      {region("k", plan.k), region("v", plan.v), region("q", plan.q), region("dout", plan.dout),
       region("p", plan.p), region("row_values", plan.row_values),
       region("row_bounds", plan.row_bounds), region("walks", plan.walks, 2),
       region("walk", plan.walk)},
      plan.bytes);
}

std::vector<Region> regions_of(const cuda::BackwardDqKernel& kernel) {
  const cuda::BackwardDqPlan plan = cuda::backward_dq_plan(kernel.config);
  return regions_between(
      {region("q", plan.q), region("dout", plan.dout), region("k", plan.k, 2),
       region("v", plan.v, 2), region("row_values", plan.row_values),
       region("row_bounds", plan.row_bounds, 2), region("phases", plan.phases, 2),
       region("warp_bounds", plan.warp_bounds, 2), region("result", plan.result)},
      plan.bytes);
}

template <typename RowsKernel>
std::vector<Region> regions_of(const RowsKernel&) {
  return {};
}

std::size_t params_bytes_of(const cuda::AttentionKernel& kernel) {
  if (std::holds_alternative<cuda::ForwardKernel>(kernel)) return sizeof(cuda::ForwardParams);
  if (std::holds_alternative<cuda::ForwardF32Kernel>(kernel)) {
    return sizeof(cuda::ForwardParamsF32);
  }
  if (std::holds_alternative<cuda::ForwardSm90Kernel>(kernel)) {
    return sizeof(cuda::ForwardSm90Params);
  }
  if (std::holds_alternative<cuda::ForwardWalkSm90Kernel>(kernel)) {
    return sizeof(cuda::ForwardWalkSm90Params);
  }
  if (std::holds_alternative<cuda::BackwardSm90Kernel>(kernel) ||
      std::holds_alternative<cuda::BackwardRowsSm90Kernel>(kernel)) {
    return sizeof(cuda::BackwardSm90Params);
  }
  return cuda::is_f32(kernel) ? sizeof(cuda::BackwardParamsF32) : sizeof(cuda::BackwardParams);
}

}  // namespace

ModelLauncher::ModelLauncher(const cuda::DeviceLimits& limits, const std::string& library)
    : limits_(limits) {
  limits_.sms = 2;  // persistent CTAs have several items each
  std::vector<CompiledKernel> table;
  add_compiled_kernels(table);
  if (!library.empty()) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::invalid_argument(dlerror());
    void* add = dlsym(handle, "stepwell_add_kernels");
    if (add == nullptr) throw std::invalid_argument(dlerror());
    reinterpret_cast<void (*)(std::vector<CompiledKernel>&)>(add)(table);
  }
  for (const CompiledKernel& kernel : table) kernels_[kernel.key] = kernel.run;
}

void ModelLauncher::launch(const cuda::AttentionKernel& kernel, std::int64_t ctas,
                           const void* params, std::size_t params_bytes) {
  const auto found = kernels_.find(cuda::key_of(kernel));
  if (found == kernels_.end()) {
    throw std::logic_error(cuda::spec_of(kernel).name + " is not in kernel_list.cpp");
  }
  if (params_bytes != params_bytes_of(kernel)) {
    throw std::logic_error("the parameters have another size");
  }
  host_model::Options options = options_;
  options.regions = std::visit([](const auto& k) { return regions_of(k); }, kernel);
  try {
    const host_model::Statistics run = host_model::launch(
        {static_cast<unsigned>(ctas)}, static_cast<unsigned>(cuda::threads_of(kernel)),
        static_cast<unsigned>(cuda::shared_bytes_of(kernel)), options,
        [&] { found->second(params); });
    if (run.ldmatrix_conflicts != 0) {
      throw host_model::Error("banks",
                              fmt::format("{}, banks: {} matrices whose rows share a bank",
                                          cuda::spec_of(kernel).name, run.ldmatrix_conflicts));
    }
  } catch (const host_model::Error& error) {
    throw host_model::Error(error.kind,
                            cuda::spec_of(kernel).name + ", " + error.kind + ": " + error.what());
  }
}

}  // namespace stepwell::testing
