#include "host_model/kernel_list.hpp"

#include <algorithm>
#include <utility>

#include "cuda/forward_walk_sm90.hpp"

namespace stepwell::testing {
namespace {

using cuda::Element;
using cuda::KernelTraits;

struct Modelled {
  KernelTraits traits;
  bool small;  // on 8.6 too
};

/// Every pair of head dims in the operator table, every feature and both element types.
std::vector<Modelled> modelled() {
  std::vector<Modelled> list;
  constexpr std::pair<int, int> kDims[] = {{64, 64},   {96, 96},  {128, 128}, {192, 192},
                                           {256, 256}, {64, 128}, {128, 64},  {192, 128},
                                           {64, 256},  {256, 64}, {128, 192}};
  for (const auto& [head_dim, head_dim_v] : kDims) {
    list.push_back({{head_dim, head_dim_v, Element::kBFloat16, false, false}, true});
  }
  for (const int dim : {64, 128}) {
    list.push_back({{dim, dim, Element::kFloat16, false, false}, dim == 64});
  }
  for (const Element element : {Element::kBFloat16, Element::kFloat16}) {
    list.push_back({{64, 64, element, true, false}, false});
    list.push_back({{64, 64, element, false, true}, false});
    list.push_back({{64, 64, element, true, true}, false});
    list.push_back({{64, 64, element, false, false, true}, true});
  }
  for (const auto& [head_dim, head_dim_v] : kDims) {
    if (head_dim != head_dim_v || head_dim == 64) continue;
    list.push_back({{head_dim, head_dim_v, Element::kBFloat16, false, false, true}, true});
  }
  // Tiles of 128 and of 96 keys, and one stage of queries.
  list.push_back({{128, 128, Element::kBFloat16, true, false}, false});
  list.push_back({{128, 128, Element::kBFloat16, false, true}, false});
  list.push_back({{192, 192, Element::kBFloat16, false, true}, false});
  list.push_back({{64, 64, Element::kBFloat16, true, false, true}, false});
  list.push_back({{64, 64, Element::kBFloat16, false, true, true}, false});
  list.push_back({{64, 64, Element::kBFloat16, true, true, true}, false});
  for (const int head_dim : cuda::kNativeHeadDimsF32) {
    for (const int head_dim_v : cuda::kNativeHeadDimsF32) {
      list.push_back({{head_dim, head_dim_v, Element::kFloat32, false, false}, true});
    }
  }
  for (const auto& [softcap, dropout] : {std::pair{true, false}, {false, true}, {true, true}}) {
    list.push_back({{64, 64, Element::kFloat32, softcap, dropout}, true});
  }
  // The tiles of the least shared memory draw dropout's numbers in their own way.
  list.push_back({{256, 256, Element::kFloat32, false, true}, true});
  return list;
}

bool same(const KernelTraits& a, const KernelTraits& b) {
  const auto native = [&a](int dim) {
    return a.element == Element::kFloat32 ? cuda::native_head_dim_f32(dim)
                                          : cuda::native_head_dim(dim);
  };
  return native(a.head_dim) == native(b.head_dim) && native(a.head_dim_v) == native(b.head_dim_v) &&
         a.element == b.element && a.softcap == b.softcap && a.dropout == b.dropout &&
         a.deterministic == b.deterministic;
}

bool is_small(const cuda::DeviceLimits& limits) {
  return limits.shared_bytes_per_cta < cuda::limits_of(9, 0).shared_bytes_per_cta;
}

}  // namespace

std::vector<cuda::DeviceLimits> modelled_limits() {
  return {cuda::limits_of(9, 0), cuda::limits_of(8, 6)};
}

bool is_modelled(const KernelTraits& traits, const cuda::DeviceLimits& limits) {
  const std::vector<Modelled> list = modelled();
  return std::any_of(list.begin(), list.end(), [&](const Modelled& m) {
    return same(m.traits, traits) && (m.small || !is_small(limits));
  });
}

std::vector<cuda::AttentionKernel> modelled_kernels() {
  std::vector<cuda::AttentionKernel> kernels;
  const auto add = [&kernels](const cuda::AttentionKernel& kernel) {
    const auto known = std::find_if(kernels.begin(), kernels.end(), [&](const auto& other) {
      return cuda::key_of(other) == cuda::key_of(kernel);
    });
    if (known == kernels.end()) kernels.push_back(kernel);
  };
  for (const cuda::DeviceLimits& limits : modelled_limits()) {
    for (const Modelled& m : modelled()) {
      if (!is_modelled(m.traits, limits)) continue;
      if (m.traits.element == Element::kFloat32) {
        add(cuda::ForwardF32Kernel{cuda::forward_f32_config(m.traits, limits)});
        add(cuda::BackwardDqF32Kernel{cuda::backward_dq_f32_config(m.traits, limits)});
        add(cuda::BackwardDkvF32Kernel{cuda::backward_dkv_f32_config(m.traits, limits)});
        continue;
      }
      add(cuda::ForwardKernel{cuda::forward_config(m.traits, limits)});
      if (limits.warpgroups && cuda::has_forward_walk_sm90(m.traits))
        add(cuda::ForwardWalkSm90Kernel{cuda::forward_walk_sm90_config(m.traits)});
      add(cuda::BackwardKernel{cuda::backward_config(m.traits, limits)});
      add(cuda::PrepareKernel{cuda::prepare_config(m.traits)});
      if (m.traits.deterministic) {
        add(cuda::BackwardDqKernel{cuda::backward_dq_config(m.traits, limits)});
      } else {
        add(cuda::FinishKernel{cuda::finish_config(m.traits)});
      }
    }
  }
  for (const cuda::AttentionKernel& kernel : cuda::sm90_kernels()) {
    // Of those that the other architectures have too, the same ones.
    if (!std::holds_alternative<cuda::ForwardWalkSm90Kernel>(kernel)) add(kernel);
  }
  return kernels;
}

std::vector<cuda::AttentionKernel> probed_kernels(const std::string& family) {
  std::vector<cuda::AttentionKernel> kernels;
  if (family == "forward_sm90") {
    for (const int head_dim : {64, 128}) {
      for (const bool small_blocks : {false, true}) {
        for (const bool packed : {false, true}) {
          kernels.emplace_back(
              cuda::ForwardSm90Kernel{{head_dim, Element::kBFloat16, small_blocks, packed}});
        }
      }
    }
    return kernels;
  }
  if (family == "forward_walk_sm90") {
    for (const int head_dim : {64, 128, 256}) {
      kernels.emplace_back(
          cuda::ForwardWalkSm90Kernel{{head_dim, Element::kBFloat16, false, false}});
    }
    kernels.emplace_back(cuda::ForwardWalkSm90Kernel{{64, Element::kBFloat16, true, true}});
    kernels.emplace_back(cuda::ForwardWalkSm90Kernel{{128, Element::kBFloat16, true, false}});
    kernels.emplace_back(cuda::ForwardWalkSm90Kernel{{192, Element::kBFloat16, false, true}});
    return kernels;
  }
  if (family == "backward_sm90") {
    for (const int head_dim : {64, 128}) {
      kernels.emplace_back(cuda::BackwardSm90Kernel{{head_dim, Element::kBFloat16}});
    }
    for (const auto& [diagonal, grouped] : {std::pair{false, false}, {true, false}, {true, true}}) {
      kernels.emplace_back(
          cuda::BackwardRowsSm90Kernel{{128, Element::kBFloat16, diagonal, grouped}});
    }
    return kernels;
  }
  if (family == "f32") {
    const cuda::DeviceLimits limits = cuda::limits_of(9, 0);
    for (const KernelTraits& traits : {KernelTraits{64, 64, Element::kFloat32, false, false},
                                       KernelTraits{64, 64, Element::kFloat32, true, true},
                                       KernelTraits{128, 128, Element::kFloat32, false, false}}) {
      kernels.emplace_back(cuda::ForwardF32Kernel{cuda::forward_f32_config(traits, limits)});
      kernels.emplace_back(cuda::BackwardDqF32Kernel{cuda::backward_dq_f32_config(traits, limits)});
      kernels.emplace_back(
          cuda::BackwardDkvF32Kernel{cuda::backward_dkv_f32_config(traits, limits)});
    }
    return kernels;
  }
  for (const cuda::DeviceLimits& limits : modelled_limits()) {
    for (const KernelTraits& traits : {KernelTraits{64, 64, Element::kBFloat16, false, false},
                                       KernelTraits{64, 64, Element::kBFloat16, true, true},
                                       KernelTraits{128, 128, Element::kBFloat16, false, false}}) {
      if (family == "forward") {
        // Bugs of the forward pass show on the larger GPU.
        if (is_small(limits)) continue;
        kernels.emplace_back(cuda::ForwardKernel{cuda::forward_config(traits, limits)});
        continue;
      }
      if (is_small(limits) && traits.softcap) continue;
      if (family == "deterministic") {
        KernelTraits deterministic = traits;
        deterministic.deterministic = true;
        if (!is_modelled(deterministic, limits)) continue;
        kernels.emplace_back(cuda::BackwardKernel{cuda::backward_config(deterministic, limits)});
        kernels.emplace_back(
            cuda::BackwardDqKernel{cuda::backward_dq_config(deterministic, limits)});
        continue;
      }
      kernels.emplace_back(cuda::BackwardKernel{cuda::backward_config(traits, limits)});
      if (traits.softcap || is_small(limits)) continue;  // the others have no such options
      kernels.emplace_back(cuda::PrepareKernel{cuda::prepare_config(traits)});
      kernels.emplace_back(cuda::FinishKernel{cuda::finish_config(traits)});
    }
  }
  return kernels;
}

}  // namespace stepwell::testing
