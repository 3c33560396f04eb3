// Every configuration that can be asked for fits its GPU, and is a kernel of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cuda/configurations.hpp"

namespace stepwell::cuda {
namespace {

constexpr std::pair<int, int> kCapabilities[] = {{8, 0}, {8, 6},  {8, 7},  {8, 9},
                                                 {9, 0}, {10, 0}, {12, 0}, {13, 0}};

TEST(Limits, OfEachCapability) {
  EXPECT_EQ(limits_of(8, 0).shared_bytes_per_cta, 166912);
  EXPECT_EQ(limits_of(8, 6).shared_bytes_per_cta, 101376);
  EXPECT_EQ(limits_of(8, 7).shared_bytes_per_cta, 166912);
  EXPECT_EQ(limits_of(8, 9).shared_bytes_per_cta, 101376);
  EXPECT_EQ(limits_of(9, 0).shared_bytes_per_cta, 232448);
  EXPECT_EQ(limits_of(10, 0).shared_bytes_per_cta, 232448);
  EXPECT_EQ(limits_of(12, 0).shared_bytes_per_cta, 101376);
  EXPECT_EQ(limits_of(13, 0).shared_bytes_per_cta, 101376);
}

TEST(Configurations, NativeHeadDims) {
  for (int dim = 8; dim <= 256; dim += 8) {
    const int native = native_head_dim(dim);
    EXPECT_GE(native, dim);
    for (const int smaller : kNativeHeadDims) {
      EXPECT_TRUE(smaller >= native || smaller < dim) << dim;
    }
  }
  EXPECT_EQ(native_head_dim(8), 64);
  EXPECT_EQ(native_head_dim(72), 96);
  EXPECT_EQ(native_head_dim(136), 192);
  EXPECT_EQ(native_head_dim(256), 256);
}

TEST(Configurations, NativeHeadDimsOfFloat32) {
  for (int dim = 8; dim <= 256; dim += 8) {
    const int native = native_head_dim_f32(dim);
    EXPECT_GE(native, dim);
    for (const int smaller : kNativeHeadDimsF32) {
      EXPECT_TRUE(smaller >= native || smaller < dim) << dim;
    }
  }
}

TEST(Configurations, FitSharedMemoryAndRegisters) {
  for (const auto& [major, minor] : kCapabilities) {
    const DeviceLimits limits = limits_of(major, minor);
    for (const AttentionKernel& kernel : all_kernels(limits)) {
      const int ctas = std::visit(
          [](const auto& k) {
            if constexpr (requires { k.config.ctas_per_sm; }) {
              return k.config.ctas_per_sm;
            } else if constexpr (requires { k.config.ctas_per_sm(); }) {
              return k.config.ctas_per_sm();
            } else {
              return 1;
            }
          },
          kernel);
      SCOPED_TRACE(spec_of(kernel).name);
      EXPECT_LE(shared_bytes_of(kernel), limits.shared_bytes_per_cta);
      EXPECT_LE(ctas * (shared_bytes_of(kernel) + 1024), limits.shared_bytes_per_sm);
      // 168 or 255 registers a thread; warps of Hopper's kernels share theirs out anew.
      const bool shares = std::holds_alternative<ForwardSm90Kernel>(kernel) ||
                          std::holds_alternative<ForwardWalkSm90Kernel>(kernel) ||
                          std::holds_alternative<BackwardSm90Kernel>(kernel);
      EXPECT_LE(ctas * threads_of(kernel), shares ? 512 : ctas > 2 ? 384 : 256);
      EXPECT_EQ(threads_of(kernel) % 32, 0);
    }
  }
}

TEST(Configurations, FragmentsAreWhole) {
  for (const auto& [major, minor] : kCapabilities) {
    for (const AttentionKernel& kernel : all_kernels(limits_of(major, minor))) {
      SCOPED_TRACE(spec_of(kernel).name);
      if (is_f32(kernel)) {
        std::visit(
            [](const auto& k) {
              if constexpr (std::is_same_v<decltype(k.config), F32Config>) {
                const F32Config& c = k.config;
                EXPECT_EQ(c.threads() % 32, 0);
                EXPECT_LE(c.warp_rows(), 32);              // a lane each looks at a row's interval
                EXPECT_LE(c.tile_columns(), c.threads());  // a thread each for queries' intervals
                EXPECT_LE(c.rows * c.columns, 32);         // bits of dropped pairs
              }
            },
            kernel);
      } else if (const auto* forward = std::get_if<ForwardKernel>(&kernel)) {
        const ForwardConfig& c = forward->config;
        EXPECT_EQ(c.tile_kv % 32, 0);  // masked tiles go by 32 keys
        EXPECT_TRUE(c.rows_per_warp == 16 || c.rows_per_warp == 32);
        EXPECT_GE(c.warps, 2);  // warp 1 keeps the result pointers
      } else if (const auto* dq = std::get_if<BackwardDqKernel>(&kernel)) {
        const BackwardDqConfig& c = dq->config;
        EXPECT_EQ(c.step_keys() % 16, 0);
        EXPECT_EQ(c.tile_kv % c.step_keys(), 0);
        EXPECT_TRUE(c.rows_per_warp == 16 || c.rows_per_warp == 32);
      } else if (const auto* backward = std::get_if<BackwardKernel>(&kernel)) {
        const BackwardConfig& c = backward->config;
        const auto whole = [](int extent, int parts) {
          return extent % parts == 0 && extent / parts % 16 == 0;
        };
        EXPECT_TRUE(whole(c.tile_q, c.tile_q / c.score_rows()));
        EXPECT_TRUE(whole(c.tile_kv, c.tile_kv / c.score_keys()));
        EXPECT_TRUE(!c.by_key() || c.warps_key == c.warps);
        EXPECT_EQ(c.stmatrix, major >= 9);
        EXPECT_TRUE(whole(c.tile_kv, c.warps_key));
        EXPECT_TRUE(whole(c.head_dim, c.warps / c.warps_key));
        EXPECT_TRUE(whole(c.head_dim_v, c.warps / c.warps_key));
        EXPECT_TRUE(whole(c.tile_q, c.warps_dq));
        EXPECT_TRUE(whole(c.head_dim, c.warps / c.warps_dq));
        // Pieces of S that nobody sees are not written, and must not be read.
        EXPECT_LE(c.tile_kv / c.warps_key, c.score_keys());
        EXPECT_LE(c.tile_q / c.warps_dq, c.score_rows());
        EXPECT_LE(c.tile_q, c.threads());  // a thread each for the rows' intervals
      }
    }
  }
}

TEST(Configurations, FollowTheTraits) {
  const KernelTraits traits{72, 136, Element::kFloat16, true, false};
  const DeviceLimits limits = limits_of(8, 6);
  const ForwardConfig forward = forward_config(traits, limits);
  EXPECT_EQ(forward.head_dim, 96);
  EXPECT_EQ(forward.head_dim_v, 192);
  EXPECT_EQ(forward.element, Element::kFloat16);
  EXPECT_TRUE(forward.softcap);
  EXPECT_FALSE(forward.dropout);
  const BackwardConfig backward = backward_config(traits, limits);
  EXPECT_EQ(backward.head_dim, 96);
  EXPECT_EQ(backward.head_dim_v, 192);
  EXPECT_EQ(backward.element, Element::kFloat16);
  EXPECT_TRUE(backward.softcap);
  EXPECT_FALSE(backward.dropout);
  EXPECT_TRUE(backward.dq);
  KernelTraits deterministic = traits;
  deterministic.deterministic = true;
  EXPECT_FALSE(backward_config(deterministic, limits).dq);
  const BackwardDqConfig dq = backward_dq_config(deterministic, limits);
  EXPECT_EQ(dq.head_dim, 96);
  EXPECT_EQ(dq.head_dim_v, 192);
  EXPECT_EQ(dq.element, Element::kFloat16);
  EXPECT_TRUE(dq.softcap);
  EXPECT_FALSE(dq.dropout);
  EXPECT_EQ(prepare_config(traits).dim, 192);
  EXPECT_EQ(finish_config(traits).dim, 96);
}

// The configurations that were fastest where they were measured.
TEST(Configurations, Measured) {
  for (const int dim : {64, 128}) {
    const KernelTraits traits{dim, dim, Element::kBFloat16, false, false};
    const ForwardConfig forward = forward_config(traits, limits_of(9, 0));
    EXPECT_EQ(forward.warps, 4);
    EXPECT_EQ(forward.rows_per_warp, 32);
    EXPECT_EQ(forward.tile_kv, 64);
    EXPECT_EQ(forward.ctas_per_sm, dim == 64 ? 3 : 2);
    const BackwardConfig backward = backward_config(traits, limits_of(9, 0));
    EXPECT_EQ(backward.by_key(), dim == 64);
    EXPECT_EQ(backward.warps, dim == 64 ? 4 : 8);
    EXPECT_EQ(backward.tile_q, 64);
    EXPECT_EQ(backward.tile_kv, 128);
    EXPECT_EQ(backward.stages, dim == 64 ? 1 : 2);
  }
}

TEST(Kernels, OnesOfTheirOwn) {
  std::unordered_set<KernelKey, KernelKeyHash> keys;
  std::set<std::string> sources;
  std::size_t count = 0;
  for (const DeviceLimits limits : {limits_of(8, 0), limits_of(8, 6), limits_of(9, 0)}) {
    for (const AttentionKernel& kernel : all_kernels(limits)) {
      const runtime::KernelSpec spec = spec_of(kernel);
      // The same key if and only if the same text.
      EXPECT_EQ(keys.insert(key_of(kernel)).second, sources.insert(spec.source).second);
      EXPECT_EQ(spec.threads, threads_of(kernel));
      EXPECT_EQ(spec.shared_bytes, shared_bytes_of(kernel));
      ++count;
    }
  }
  EXPECT_GT(keys.size(), count / 2);
}

/// Adds the keys of a kernel, and of those that differ from it in one field.
template <typename Kernel, typename Config>
void expect_every_field_counts(const Config& config,
                               std::unordered_set<KernelKey, KernelKeyHash>& keys) {
  std::vector<Config> configs(10, config);
  configs[0].head_dim = 64;
  configs[1].head_dim_v = 64;
  configs[2].element = Element::kFloat16;
  configs[3].warps *= 2;
  configs[4].rows_per_warp = 48;
  configs[5].tile_kv *= 2;
  configs[6].ctas_per_sm += 1;
  configs[7].softcap = true;
  configs[8].dropout = true;
  for (const Config& each : configs) EXPECT_TRUE(keys.insert(key_of(Kernel{each})).second);
}

TEST(Kernels, EveryFieldCounts) {
  std::unordered_set<KernelKey, KernelKeyHash> keys;
  expect_every_field_counts<ForwardKernel>(forward_config({128, 128}, limits_of(9, 0)), keys);
  expect_every_field_counts<BackwardDqKernel>(backward_dq_config({128, 128}, limits_of(9, 0)),
                                              keys);
  BackwardConfig backward = backward_config({128, 128}, limits_of(9, 0));
  EXPECT_TRUE(keys.insert(key_of(BackwardKernel{backward})).second);
  backward.dq = false;
  EXPECT_TRUE(keys.insert(key_of(BackwardKernel{backward})).second);
  EXPECT_FALSE(key_of(PrepareKernel{{64, Element::kBFloat16}}) ==
               key_of(FinishKernel{{64, Element::kBFloat16}}));
}

TEST(Configurations, OfFloat32FollowTheTraits) {
  const KernelTraits traits{72, 136, Element::kFloat32, true, false};
  for (const auto config_of :
       {forward_f32_config, backward_dq_f32_config, backward_dkv_f32_config}) {
    const F32Config config = config_of(traits, limits_of(8, 6));
    EXPECT_EQ(config.head_dim, 128);
    EXPECT_EQ(config.head_dim_v, 256);
    EXPECT_TRUE(config.softcap);
    EXPECT_FALSE(config.dropout);
  }
}

TEST(Kernels, EveryFieldOfFloat32Counts) {
  const F32Config config = forward_f32_config({128, 128, Element::kFloat32}, limits_of(9, 0));
  std::vector<F32Config> changed(7, config);
  changed[0].head_dim = 64;
  changed[1].head_dim_v = 64;
  changed[2].rows *= 2;
  changed[3].columns *= 2;
  changed[4].ctas_per_sm += 1;
  changed[5].softcap = true;
  changed[6].dropout = true;
  std::unordered_set<KernelKey, KernelKeyHash> keys{key_of(ForwardF32Kernel{config})};
  for (const F32Config& other : changed) {
    EXPECT_TRUE(keys.insert(key_of(ForwardF32Kernel{other})).second);
  }
  EXPECT_FALSE(key_of(BackwardDqF32Kernel{config}) == key_of(BackwardDkvF32Kernel{config}));
}

TEST(Kernels, SourceOfFloat32) {
  const F32Config config{.head_dim = 128,
                         .head_dim_v = 64,
                         .rows = 4,
                         .columns = 8,
                         .ctas_per_sm = 2,
                         .softcap = true,
                         .dropout = false};
  EXPECT_EQ(
      spec_of(BackwardDqF32Kernel{config}).source,
      "#include \"cuda/attention/backward_dq_f32.cuh\"\n"
      "namespace stepwell::cuda { constexpr F32Config kConfig{128, 64, 4, 8, 2, true, false}; "
      "}\n"
      "extern \"C\" __global__ void __launch_bounds__(128, 2)\n"
      "kernel(const __grid_constant__ stepwell::cuda::BackwardParamsF32 p) {\n"
      "  stepwell::cuda::attention_backward_dq_f32<stepwell::cuda::kConfig>(p);\n"
      "}\n");
}

TEST(Kernels, Source) {
  const ForwardConfig config{.head_dim = 128,
                             .head_dim_v = 64,
                             .element = Element::kFloat16,
                             .warps = 4,
                             .rows_per_warp = 32,
                             .tile_kv = 64,
                             .ctas_per_sm = 2,
                             .softcap = true,
                             .dropout = false};
  EXPECT_EQ(spec_of(ForwardKernel{config}).source,
            "#include \"cuda/attention/forward_sm80.cuh\"\n"
            "namespace stepwell::cuda { constexpr ForwardConfig kConfig{128, 64, "
            "Element::kFloat16, 4, 32, 64, 2, true, false}; }\n"
            "extern \"C\" __global__ void __launch_bounds__(128, 2)\n"
            "kernel(const __grid_constant__ stepwell::cuda::ForwardParams p) {\n"
            "  stepwell::cuda::attention_forward_sm80<stepwell::cuda::kConfig>(p);\n"
            "}\n");
}

using Factors = std::vector<std::pair<std::string, std::string>>;

TEST(Kernels, PairwiseSetCoversEveryTwoFactors) {
  const DeviceLimits limits = limits_of(8, 6);
  const auto pairs_of = [](const std::vector<AttentionKernel>& kernels) {
    std::set<Factors> pairs;
    for (const AttentionKernel& kernel : kernels) {
      const Factors factors = spec_of(kernel).factors;
      for (std::size_t i = 1; i < factors.size(); ++i) {
        for (std::size_t j = i; j < factors.size(); ++j) {
          pairs.insert({factors[0], factors[i], factors[j]});
        }
      }
    }
    return pairs;
  };
  const std::vector<AttentionKernel> chosen = pairwise_kernels(limits);
  EXPECT_EQ(pairs_of(chosen), pairs_of(all_kernels(limits)));
  EXPECT_LT(chosen.size(), all_kernels(limits).size() / 4);
}

}  // namespace
}  // namespace stepwell::cuda
