#include "cuda/kernels.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <type_traits>

namespace stepwell::cuda {
namespace {

const char* element_text(Element element) { return element == Element::kBFloat16 ? "bf16" : "f16"; }

const char* element_code(Element element) {
  return element == Element::kBFloat16 ? "Element::kBFloat16" : "Element::kFloat16";
}

/// What differs between the families.
struct Description {
  std::string name;
  std::string header;  // that has the function
  std::string function;
  std::string config_type;
  std::string config_values;  // in the order of the fields
  std::string params_type;
  int ctas_per_sm = 1;
  std::vector<std::pair<std::string, std::string>> factors;
};

std::string on_off(bool on) { return on ? "on" : "off"; }

std::string option_text(bool softcap, bool dropout) {
  return fmt::format("{}{}", softcap ? " softcap" : "", dropout ? " dropout" : "");
}

Description describe(const ForwardKernel& kernel) {
  const auto& [head_dim, head_dim_v, element, warps, rows_per_warp, tile_kv, ctas_per_sm, softcap,
               dropout] = kernel.config;
  return {.name = fmt::format("attention_forward_sm80 dim={} dim_v={} {} {}x{}{}", head_dim,
                              head_dim_v, element_text(element), warps * rows_per_warp, tile_kv,
                              option_text(softcap, dropout)),
          .header = "cuda/attention/forward_sm80.cuh",
          .function = "attention_forward_sm80",
          .config_type = "ForwardConfig",
          .config_values = fmt::format("{}, {}, {}, {}, {}, {}, {}, {}, {}", head_dim, head_dim_v,
                                       element_code(element), warps, rows_per_warp, tile_kv,
                                       ctas_per_sm, softcap, dropout),
          .params_type = "ForwardParams",
          .ctas_per_sm = ctas_per_sm,
          .factors = {{"kernel", "forward"},
                      {"head_dim", std::to_string(head_dim)},
                      {"head_dim_v", std::to_string(head_dim_v)},
                      {"element", element_text(element)},
                      {"softcap", on_off(softcap)},
                      {"dropout", on_off(dropout)}}};
}

Description describe(const ForwardSm90Kernel& kernel) {
  const auto& [head_dim, element, small_blocks, packed] = kernel.config;
  return {.name = fmt::format("attention_forward_sm90 dim={} {} 2x{}x{}{}{}", head_dim,
                              element_text(element), kStripRows, kSm90TileKeys,
                              small_blocks ? " small blocks" : "", packed ? " packed" : ""),
          .header = "cuda/attention/forward_sm90.cuh",
          .function = "attention_forward_sm90",
          .config_type = "ForwardSm90Config",
          .config_values =
              fmt::format("{}, {}, {}, {}", head_dim, element_code(element), small_blocks, packed),
          .params_type = "ForwardSm90Params",
          .ctas_per_sm = 1,
          .factors = {{"kernel", "forward_sm90"},
                      {"head_dim", std::to_string(head_dim)},
                      {"element", element_text(element)},
                      {"small_blocks", on_off(small_blocks)},
                      {"packed", on_off(packed)}}};
}

Description describe(const ForwardWalkSm90Kernel& kernel) {
  const auto& [head_dim, element, softcap, dropout] = kernel.config;
  return {.name = fmt::format("attention_forward_walk_sm90 dim={} {} {}x{}{}", head_dim,
                              element_text(element), kWalkRows, kernel.config.tile_keys(),
                              option_text(softcap, dropout)),
          .header = "cuda/attention/forward_walk_sm90.cuh",
          .function = "attention_forward_walk_sm90",
          .config_type = "ForwardWalkSm90Config",
          .config_values =
              fmt::format("{}, {}, {}, {}", head_dim, element_code(element), softcap, dropout),
          .params_type = "ForwardWalkSm90Params",
          .ctas_per_sm = 1,
          .factors = {{"kernel", "forward_walk_sm90"},
                      {"head_dim", std::to_string(head_dim)},
                      {"element", element_text(element)},
                      {"softcap", on_off(softcap)},
                      {"dropout", on_off(dropout)}}};
}

Description describe(const BackwardSm90Kernel& kernel) {
  const auto& [head_dim, element] = kernel.config;
  return {.name = fmt::format("attention_backward_sm90 dim={} {} {}x{}", head_dim,
                              element_text(element), kSm90BackwardRows, kSm90BackwardKeys),
          .header = "cuda/attention/backward_sm90.cuh",
          .function = "attention_backward_sm90",
          .config_type = "BackwardSm90Config",
          .config_values = fmt::format("{}, {}", head_dim, element_code(element)),
          .params_type = "BackwardSm90Params",
          .ctas_per_sm = 1,
          .factors = {{"kernel", "backward_sm90"},
                      {"head_dim", std::to_string(head_dim)},
                      {"element", element_text(element)}}};
}

Description describe(const BackwardRowsSm90Kernel& kernel) {
  const auto& [head_dim, element, diagonal, grouped] = kernel.config;
  return {.name = fmt::format("attention_backward_rows_sm90 dim={} {}{}{}", head_dim,
                              element_text(element), diagonal ? " diagonal" : "",
                              grouped ? " grouped" : ""),
          .header = "cuda/attention/backward_rows_sm90.cuh",
          .function = "attention_backward_rows_sm90",
          .config_type = "BackwardRowsSm90Config",
          .config_values =
              fmt::format("{}, {}, {}, {}", head_dim, element_code(element), diagonal, grouped),
          .params_type = "BackwardSm90Params",
          .ctas_per_sm = kernel.config.ctas_per_sm(),
          .factors = {{"kernel", "backward_rows_sm90"},
                      {"head_dim", std::to_string(head_dim)},
                      {"element", element_text(element)},
                      {"diagonal", grouped ? "grouped" : on_off(diagonal)}}};
}

Description describe(const BackwardKernel& kernel) {
  const auto& [head_dim, head_dim_v, element, warps, tile_q, tile_kv, warps_q, warps_key, warps_dq,
               stages, ctas_per_sm, stmatrix, softcap, dropout, dq] = kernel.config;
  return {.name = fmt::format("attention_backward_sm80 dim={} dim_v={} {} {}x{}{}{}", head_dim,
                              head_dim_v, element_text(element), tile_q, tile_kv,
                              option_text(softcap, dropout), dq ? "" : " no-dq"),
          .header = "cuda/attention/backward_sm80.cuh",
          .function = "attention_backward_sm80",
          .config_type = "BackwardConfig",
          .config_values =
              fmt::format("{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}", head_dim,
                          head_dim_v, element_code(element), warps, tile_q, tile_kv, warps_q,
                          warps_key, warps_dq, stages, ctas_per_sm, stmatrix, softcap, dropout, dq),
          .params_type = "BackwardParams",
          .ctas_per_sm = ctas_per_sm,
          .factors = {{"kernel", "backward"},
                      {"head_dim", std::to_string(head_dim)},
                      {"head_dim_v", std::to_string(head_dim_v)},
                      {"element", element_text(element)},
                      {"softcap", on_off(softcap)},
                      {"dropout", on_off(dropout)},
                      {"deterministic", on_off(!dq)}}};
}

Description describe(const BackwardDqKernel& kernel) {
  const auto& [head_dim, head_dim_v, element, warps, rows_per_warp, tile_kv, ctas_per_sm, softcap,
               dropout] = kernel.config;
  return {.name = fmt::format("attention_backward_dq_sm80 dim={} dim_v={} {} {}x{}{}", head_dim,
                              head_dim_v, element_text(element), warps * rows_per_warp, tile_kv,
                              option_text(softcap, dropout)),
          .header = "cuda/attention/backward_dq_sm80.cuh",
          .function = "attention_backward_dq_sm80",
          .config_type = "BackwardDqConfig",
          .config_values = fmt::format("{}, {}, {}, {}, {}, {}, {}, {}, {}", head_dim, head_dim_v,
                                       element_code(element), warps, rows_per_warp, tile_kv,
                                       ctas_per_sm, softcap, dropout),
          .params_type = "BackwardParams",
          .ctas_per_sm = ctas_per_sm,
          .factors = {{"kernel", "backward_dq"},
                      {"head_dim", std::to_string(head_dim)},
                      {"head_dim_v", std::to_string(head_dim_v)},
                      {"element", element_text(element)},
                      {"softcap", on_off(softcap)},
                      {"dropout", on_off(dropout)},
                      {"deterministic", on_off(true)}}};
}

Description describe_rows(const RowsConfig& config, const char* pass) {
  const auto& [dim, element] = config;
  return {
      .name = fmt::format("attention_backward_{} dim={} {}", pass, dim, element_text(element)),
      .header = "cuda/attention/backward_rows.cuh",
      .function = fmt::format("attention_backward_{}", pass),
      .config_type = "RowsConfig",
      .config_values = fmt::format("{}, {}", dim, element_code(element)),
      .params_type = "BackwardParams",
      .ctas_per_sm = 1,
      .factors = {
          {"kernel", pass}, {"head_dim", std::to_string(dim)}, {"element", element_text(element)}}};
}

Description describe(const PrepareKernel& kernel) {
  return describe_rows(kernel.config, "prepare");
}

Description describe(const FinishKernel& kernel) { return describe_rows(kernel.config, "finish"); }

Description describe_f32(const F32Config& config, const char* pass, const char* params_type) {
  const auto& [head_dim, head_dim_v, rows, columns, ctas_per_sm, softcap, dropout] = config;
  return {
      .name = fmt::format("attention_{}_f32 dim={} dim_v={} {}x{}{}", pass, head_dim, head_dim_v,
                          config.tile_rows(), config.tile_columns(), option_text(softcap, dropout)),
      .header = fmt::format("cuda/attention/{}_f32.cuh", pass),
      .function = fmt::format("attention_{}_f32", pass),
      .config_type = "F32Config",
      .config_values = fmt::format("{}, {}, {}, {}, {}, {}, {}", head_dim, head_dim_v, rows,
                                   columns, ctas_per_sm, softcap, dropout),
      .params_type = params_type,
      .ctas_per_sm = ctas_per_sm,
      .factors = {{"kernel", fmt::format("{}_f32", pass)},
                  {"head_dim", std::to_string(head_dim)},
                  {"head_dim_v", std::to_string(head_dim_v)},
                  {"element", "f32"},
                  {"softcap", on_off(softcap)},
                  {"dropout", on_off(dropout)}}};
}

Description describe(const ForwardF32Kernel& kernel) {
  return describe_f32(kernel.config, "forward", "ForwardParamsF32");
}

Description describe(const BackwardDqF32Kernel& kernel) {
  return describe_f32(kernel.config, "backward_dq", "BackwardParamsF32");
}

Description describe(const BackwardDkvF32Kernel& kernel) {
  return describe_f32(kernel.config, "backward_dkv", "BackwardParamsF32");
}

KernelKey make_key(int family, std::initializer_list<int> values) {
  KernelKey key;
  std::size_t at = 0;
  key.values[at++] = static_cast<std::int16_t>(family);
  for (const int value : values) key.values[at++] = static_cast<std::int16_t>(value);
  return key;
}

// Structured bindings name every field: a new one does not compile until it is part of the key.
KernelKey key(int family, const ForwardKernel& kernel) {
  const auto& [head_dim, head_dim_v, element, warps, rows_per_warp, tile_kv, ctas_per_sm, softcap,
               dropout] = kernel.config;
  return make_key(family, {head_dim, head_dim_v, static_cast<int>(element), warps, rows_per_warp,
                           tile_kv, ctas_per_sm, softcap, dropout});
}

KernelKey key(int family, const ForwardSm90Kernel& kernel) {
  const auto& [head_dim, element, small_blocks, packed] = kernel.config;
  return make_key(family, {head_dim, static_cast<int>(element), small_blocks, packed});
}

KernelKey key(int family, const ForwardWalkSm90Kernel& kernel) {
  const auto& [head_dim, element, softcap, dropout] = kernel.config;
  return make_key(family, {head_dim, static_cast<int>(element), softcap, dropout});
}

KernelKey key(int family, const BackwardSm90Kernel& kernel) {
  const auto& [head_dim, element] = kernel.config;
  return make_key(family, {head_dim, static_cast<int>(element)});
}

KernelKey key(int family, const BackwardRowsSm90Kernel& kernel) {
  const auto& [head_dim, element, diagonal, grouped] = kernel.config;
  return make_key(family, {head_dim, static_cast<int>(element), diagonal, grouped});
}

KernelKey key(int family, const BackwardKernel& kernel) {
  const auto& [head_dim, head_dim_v, element, warps, tile_q, tile_kv, warps_q, warps_key, warps_dq,
               stages, ctas_per_sm, stmatrix, softcap, dropout, dq] = kernel.config;
  return make_key(family,
                  {head_dim, head_dim_v, static_cast<int>(element), warps, tile_q, tile_kv, warps_q,
                   warps_key, warps_dq, stages, ctas_per_sm, stmatrix, softcap, dropout, dq});
}

KernelKey key(int family, const BackwardDqKernel& kernel) {
  const auto& [head_dim, head_dim_v, element, warps, rows_per_warp, tile_kv, ctas_per_sm, softcap,
               dropout] = kernel.config;
  return make_key(family, {head_dim, head_dim_v, static_cast<int>(element), warps, rows_per_warp,
                           tile_kv, ctas_per_sm, softcap, dropout});
}

KernelKey key(int family, const RowsConfig& config) {
  const auto& [dim, element] = config;
  return make_key(family, {dim, static_cast<int>(element)});
}

KernelKey key(int family, const F32Config& config) {
  const auto& [head_dim, head_dim_v, rows, columns, ctas_per_sm, softcap, dropout] = config;
  return make_key(family, {head_dim, head_dim_v, rows, columns, ctas_per_sm, softcap, dropout});
}

template <typename Kernel>
KernelKey key(int family, const Kernel& kernel) {
  return key(family, kernel.config);
}

int shared_bytes(const ForwardKernel& kernel) { return forward_plan(kernel.config).bytes; }
int shared_bytes(const ForwardSm90Kernel& kernel) { return forward_sm90_plan(kernel.config).bytes; }
int shared_bytes(const ForwardWalkSm90Kernel& kernel) {
  return forward_walk_sm90_plan(kernel.config).bytes;
}
int shared_bytes(const BackwardSm90Kernel& kernel) {
  return backward_sm90_plan(kernel.config).bytes;
}
int shared_bytes(const BackwardRowsSm90Kernel& kernel) {
  return backward_rows_sm90_plan(kernel.config).bytes;
}
int shared_bytes(const BackwardKernel& kernel) { return backward_plan(kernel.config).bytes; }
int shared_bytes(const BackwardDqKernel& kernel) { return backward_dq_plan(kernel.config).bytes; }
int shared_bytes(const PrepareKernel&) { return 0; }
int shared_bytes(const FinishKernel&) { return 0; }
int shared_bytes(const ForwardF32Kernel& kernel) { return forward_f32_plan(kernel.config).bytes; }
int shared_bytes(const BackwardDqF32Kernel& kernel) {
  return backward_dq_f32_plan(kernel.config).bytes;
}
int shared_bytes(const BackwardDkvF32Kernel& kernel) {
  return backward_dkv_f32_plan(kernel.config).bytes;
}

}  // namespace

bool is_f32(const AttentionKernel& kernel) {
  return std::visit([](const auto& k) { return std::is_same_v<decltype(k.config), F32Config>; },
                    kernel);
}

int threads_of(const AttentionKernel& kernel) {
  return std::visit([](const auto& k) { return k.config.threads(); }, kernel);
}

int shared_bytes_of(const AttentionKernel& kernel) {
  return std::visit([](const auto& k) { return shared_bytes(k); }, kernel);
}

KernelKey key_of(const AttentionKernel& kernel) {
  const int family = static_cast<int>(kernel.index());
  return std::visit([&](const auto& k) { return key(family, k); }, kernel);
}

std::size_t KernelKeyHash::operator()(const KernelKey& key) const {
  std::size_t hash = 14695981039346656037u;  // FNV-1a
  for (const std::int16_t value : key.values) {
    hash = (hash ^ static_cast<std::uint16_t>(value)) * 1099511628211u;
  }
  return hash;
}

runtime::KernelSpec spec_of(const AttentionKernel& kernel) {
  const Description d = std::visit([](const auto& k) { return describe(k); }, kernel);
  runtime::KernelSpec spec;
  spec.name = d.name;
  spec.source = fmt::format(
      "#include \"{}\"\n"
      "namespace stepwell::cuda {{ constexpr {} kConfig{{{}}}; }}\n"
      "extern \"C\" __global__ void __launch_bounds__({}, {})\n"
      "kernel(const __grid_constant__ stepwell::cuda::{} p) {{\n"
      "  stepwell::cuda::{}<stepwell::cuda::kConfig>(p);\n"
      "}}\n",
      d.header, d.config_type, d.config_values, threads_of(kernel), d.ctas_per_sm, d.params_type,
      d.function);
  spec.threads = threads_of(kernel);
  spec.shared_bytes = shared_bytes_of(kernel);
  // A few registers of the prologue that the main loop never touches.
  spec.accepted_spill_bytes = 32;
  spec.factors = d.factors;
  return spec;
}

}  // namespace stepwell::cuda
