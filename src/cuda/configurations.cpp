// Which configuration a problem gets.
//
// Measured, on an H200 with bf16 and no option, at equal head dims of q and v. Everything else
// follows from shared memory and registers, and was compiled, not timed.
#include "cuda/configurations.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "core/check.hpp"
#include "cuda/forward_walk_sm90.hpp"

namespace stepwell::cuda {
namespace {

// Shared memory that the system takes of every CTA (CUDA C++ Programming Guide, 8.x and later).
constexpr int kReservedSharedBytes = 1024;

bool fits(int shared_bytes, int ctas_per_sm, const DeviceLimits& limits) {
  return shared_bytes <= limits.shared_bytes_per_cta &&
         ctas_per_sm * (shared_bytes + kReservedSharedBytes) <= limits.shared_bytes_per_sm;
}

/// The first of `list`, the best first, whose configuration, make(tiles), is `possible` and whose
/// plan, `bytes`, fits.
template <typename Tiles, std::size_t N, typename Make, typename Bytes, typename Possible>
auto first_that_fits(const Tiles (&list)[N], const KernelTraits& traits, const DeviceLimits& limits,
                     const char* pass, Make&& make, Bytes&& bytes, Possible&& possible) {
  for (const Tiles& tiles : list) {
    const auto config = make(tiles);
    if (possible(config, tiles) && fits(bytes(config), tiles.ctas_per_sm, limits)) return config;
  }
  throw Error(ErrorKind::kNotImplemented,
              fmt::format("head dims {} and {}: no {} kernel fits {} bytes of shared memory",
                          traits.head_dim, traits.head_dim_v, pass, limits.shared_bytes_per_cta));
}

// ---------------------------------------------------------------------------------------- forward

struct ForwardTiles {
  int warps;
  int rows_per_warp;
  int tile_kv;
  int ctas_per_sm;
};

// The best first. 8 warps on an SM, in one CTA or two, are what 255 registers a thread allow. With
// 32 rows a warp multiplies each fragment of K and V that it loads with twice as many rows.
constexpr ForwardTiles kForwardTiles[] = {
    {4, 32, 64, 3},                  // three CTAs of 168 registers: head dim 64
    {4, 32, 64, 2},                  // 128 x 64: fastest at head dims 64 and 128
    {4, 32, 32, 2},                  // where two CTAs with the former exceed shared memory
    {8, 16, 96, 1},                  // head dims past 128: fewer barriers
    {8, 16, 64, 1},                  // 128 x 64 in one CTA: fits wherever two halves would not
    {8, 16, 32, 1}, {6, 16, 32, 1},  // 96 rows: head dim 192 in 99 KB
    {4, 16, 32, 1}, {3, 16, 32, 1},  // 48 rows: head dim 256 in 99 KB
};

// O takes head_dim_v registers of a thread with 32 rows a warp, and half of that with 16; S takes
// tile_kv, and half. Past 128 + 64 the compiler spills; with dropout's counters past 64 + 32.
bool has_registers(const ForwardTiles& tiles, const KernelTraits& traits,
                   const DeviceLimits& limits) {
  const int head_dim = native_head_dim(traits.head_dim);
  const int head_dim_v = native_head_dim(traits.head_dim_v);
  if (tiles.rows_per_warp == 16) return tiles.tile_kv <= 64 || std::min(head_dim, head_dim_v) > 128;
  const bool plain = !traits.softcap && head_dim == head_dim_v;
  if (tiles.ctas_per_sm == 3) {
    return plain && !traits.dropout && head_dim == 64 && limits.major < 10;  // NVRTC 12.9 spills
  }
  const bool early = limits.major >= 10 || traits.softcap;  // spills a little earlier
  const int widest = limits.major >= 10 && traits.softcap ? 64 : 96;
  if (early && tiles.tile_kv == 64 && head_dim_v > widest && !plain) return false;
  if (traits.dropout) return head_dim_v <= 64 && tiles.tile_kv == 32;
  return head_dim_v <= 128;
}

// --------------------------------------------------------------------------------------- backward

/// Which kernels have the registers for a choice of tiles; measured by compiling all.
enum class Needs {
  kAny,
  kLean,      // no softcap and no dropout; head dims past 64, the smaller ones are faster below
  kLeanBf16,  // and bf16, for compute capabilities below 10
};

struct BackwardTiles {
  Needs needs;
  int warps;
  int tile_q;
  int tile_kv;
  int warps_q;
  int warps_key;
  int warps_dq;
  int stages;
  int ctas_per_sm;
};

// The best first.
constexpr BackwardTiles kBackwardTiles[] = {
    {Needs::kLeanBf16, 4, 64, 128, 0, 4, 2, 1, 2},  // by key: 1.3 times the next at head dim 64
    {Needs::kLean, 8, 64, 128, 2, 4, 2, 2, 1},      // fastest at 128
    {Needs::kLean, 8, 64, 128, 2, 4, 4, 2, 1},  // at 96: 16 columns of dQ divide half of it only
    {Needs::kLean, 8, 64, 96, 4, 2, 4, 2, 1},   // at 192: 1.13 times 64 keys
    {Needs::kAny, 4, 64, 64, 2, 2, 2, 2, 2},
    {Needs::kAny, 8, 64, 64, 4, 2, 4, 2, 1},  // dK and dV in half as many registers
    {Needs::kAny, 8, 64, 64, 4, 2, 4, 1, 1},
    {Needs::kAny, 4, 32, 64, 2, 2, 2, 1, 1},
    {Needs::kAny, 4, 32, 32, 2, 2, 2, 1, 1},  // head dim 256 in 99 KB
};

// A warp's keys of dK and dV, and its rows of dQ, lie in one piece of S: unseen pieces are not
// written, and are skipped whole.
bool stays_in_pieces(const BackwardConfig& c) {
  return c.tile_kv / c.warps_key <= c.score_keys() && c.tile_q / c.warps_dq <= c.score_rows();
}

// Every warp has whole fragments of 16 rows and 16 columns of each product.
bool divides(const BackwardConfig& c) {
  const int warps_dim = c.warps / c.warps_key;
  return c.tile_q % c.score_rows() == 0 && c.score_rows() % 16 == 0 && c.score_keys() % 16 == 0 &&
         c.tile_kv % (16 * c.warps_key) == 0 && c.head_dim % (16 * warps_dim) == 0 &&
         c.head_dim_v % (16 * warps_dim) == 0 && c.tile_q % (16 * c.warps_dq) == 0 &&
         c.head_dim % (16 * (c.warps / c.warps_dq)) == 0;
}

// dK and dV stay in registers; S, then dP beside the packed P, then a part of dQ come and go. What
// else a thread needs fits the 63 registers that remain.
bool has_registers(const BackwardConfig& c, Needs needs, const DeviceLimits& limits) {
  const bool lean = !c.softcap && !c.dropout;
  if (needs == Needs::kLean && (!lean || std::max(c.head_dim, c.head_dim_v) <= 64)) return false;
  if (needs == Needs::kLeanBf16 &&
      !(lean && c.element == Element::kBFloat16 && limits.major < 10)) {
    return false;
  }
  const int gradients = c.tile_kv * (c.head_dim + c.head_dim_v) / c.threads();
  const int scores = c.by_key() ? 32 * c.score_keys() / 32 : c.tile_q * c.tile_kv / c.threads();
  const int dq = c.tile_q * c.head_dim / c.threads();
  // The compilers for compute capabilities from 10 on spill a little earlier, in f16 earlier yet;
  // for 9.0 where q and k are wider than v, with both options, or in f16 with softcap alone.
  const bool early = limits.major >= 10;
  const bool wide_q = limits.major == 9 && c.tile_q == 64 && c.softcap &&
                      (c.dropout || c.element == Element::kFloat16) && c.head_dim > c.head_dim_v;
  const bool f16 = c.element == Element::kFloat16;
  const bool four_warps = c.warps == 4 && c.tile_kv == 64;
  const int most_scores = !four_warps || lean ? 184
                          : wide_q            ? 112
                          : early             ? (f16 ? 120 : 128)
                                              : 184;
  const int most_gradients = !early                                              ? 192
                             : c.tile_kv == 128                                  ? 168
                             : c.tile_kv == 96 && f16                            ? 184
                             : c.tile_kv == 64 && c.warps == 4 && c.tile_q == 32 ? 184
                                                                                 : 192;
  return gradients + scores + scores / 2 <= most_scores && gradients + dq <= most_gradients;
}

// ---------------------------------------------------------------------------------------------- dQ

// By query rows; compiled, not timed. The best first, for the reasons of the forward pass.
constexpr ForwardTiles kDqTiles[] = {
    {4, 32, 64, 2}, {4, 32, 32, 2}, {8, 16, 64, 1}, {8, 16, 32, 1}, {6, 16, 32, 1},
    {4, 16, 32, 1}, {4, 16, 16, 1}, {3, 16, 16, 1},  // 48 rows: head dim 256 in 99 KB
};

// dQ takes head_dim registers of a thread with 32 rows a warp, S or dP 32 and P 16. Past 128 + 48
// the compiler spills, with dropout's counters past 64 + 48.
bool has_dq_registers(const ForwardTiles& tiles, const KernelTraits& traits,
                      const DeviceLimits& limits) {
  if (tiles.rows_per_warp == 16) return true;
  const bool early = limits.major >= 10 && tiles.tile_kv == 64;  // spills a little earlier
  return native_head_dim(traits.head_dim) <= (traits.dropout ? 64 : early ? 96 : 128);
}

// ---------------------------------------------------------------------------------------- float32

struct F32Tiles {
  int rows;
  int columns;
  int ctas_per_sm;
};

// The best first; compiled, not timed. A thread's rows x columns scores take rows + columns loads
// for 4 x rows x columns multiply-adds, and two CTAs hide more than one.
constexpr F32Tiles kF32Tiles[] = {
    {4, 8, 2}, {4, 4, 2}, {2, 4, 2}, {4, 4, 1}, {2, 4, 1}, {2, 2, 1},  // head dim 256 in 99 KB
    {2, 1, 1},  // backward, head dim 256 in 99 KB
};

// Registers for results, which stay in them through the walk, and for what a product takes of each
// row beside them; past these the compilers spill.
constexpr int kF32ForwardRegisters = 192;
constexpr int kF32BackwardRegisters = 160;  // row values and dP are there too

constexpr int f32_registers(const F32Config& c, int columns) {
  return c.rows * columns / 8 + 16 * c.rows;
}

/// The first tiles for which `fits_registers` and whose plan, `bytes`, fits.
template <typename Bytes, typename FitsRegisters>
F32Config f32_config(const KernelTraits& traits, const DeviceLimits& limits, const char* pass,
                     Bytes&& bytes, FitsRegisters&& fits_registers) {
  const auto make = [&](const F32Tiles& tiles) {
    return F32Config{.head_dim = native_head_dim_f32(traits.head_dim),
                     .head_dim_v = native_head_dim_f32(traits.head_dim_v),
                     .rows = tiles.rows,
                     .columns = tiles.columns,
                     .ctas_per_sm = tiles.ctas_per_sm,
                     .softcap = traits.softcap,
                     .dropout = traits.dropout};
  };
  return first_that_fits(
      kF32Tiles, traits, limits, pass, make, bytes,
      [&](const F32Config& config, const F32Tiles&) { return fits_registers(config); });
}

/// Of a kernel whose CTAs own query rows.
template <typename Config>
Config query_rows_config(const KernelTraits& traits, const ForwardTiles& tiles) {
  return {.head_dim = native_head_dim(traits.head_dim),
          .head_dim_v = native_head_dim(traits.head_dim_v),
          .element = traits.element,
          .warps = tiles.warps,
          .rows_per_warp = tiles.rows_per_warp,
          .tile_kv = tiles.tile_kv,
          .ctas_per_sm = tiles.ctas_per_sm,
          .softcap = traits.softcap,
          .dropout = traits.dropout};
}

}  // namespace

ForwardConfig forward_config(const KernelTraits& traits, const DeviceLimits& limits) {
  return first_that_fits(
      kForwardTiles, traits, limits, "forward",
      [&](const ForwardTiles& tiles) { return query_rows_config<ForwardConfig>(traits, tiles); },
      [](const ForwardConfig& config) { return forward_plan(config).bytes; },
      [&](const ForwardConfig&, const ForwardTiles& tiles) {
        return has_registers(tiles, traits, limits);
      });
}

BackwardConfig backward_config(const KernelTraits& traits, const DeviceLimits& limits) {
  const auto make = [&](const BackwardTiles& tiles) {
    return BackwardConfig{.head_dim = native_head_dim(traits.head_dim),
                          .head_dim_v = native_head_dim(traits.head_dim_v),
                          .element = traits.element,
                          .warps = tiles.warps,
                          .tile_q = tiles.tile_q,
                          .tile_kv = tiles.tile_kv,
                          .warps_q = tiles.warps_q,
                          .warps_key = tiles.warps_key,
                          .warps_dq = tiles.warps_dq,
                          .stages = tiles.stages,
                          .ctas_per_sm = tiles.ctas_per_sm,
                          .stmatrix = limits.major >= 9,
                          .softcap = traits.softcap,
                          .dropout = traits.dropout,
                          .dq = !traits.deterministic};
  };
  return first_that_fits(
      kBackwardTiles, traits, limits, "backward", make,
      [](const BackwardConfig& config) { return backward_plan(config).bytes; },
      [&](const BackwardConfig& config, const BackwardTiles& tiles) {
        return divides(config) && stays_in_pieces(config) &&
               has_registers(config, tiles.needs, limits);
      });
}

BackwardDqConfig backward_dq_config(const KernelTraits& traits, const DeviceLimits& limits) {
  return first_that_fits(
      kDqTiles, traits, limits, "dQ",
      [&](const ForwardTiles& tiles) { return query_rows_config<BackwardDqConfig>(traits, tiles); },
      [](const BackwardDqConfig& config) { return backward_dq_plan(config).bytes; },
      [&](const BackwardDqConfig&, const ForwardTiles& tiles) {
        return has_dq_registers(tiles, traits, limits);
      });
}

RowsConfig prepare_config(const KernelTraits& traits) {
  return {.dim = native_head_dim(traits.head_dim_v), .element = traits.element};
}

RowsConfig finish_config(const KernelTraits& traits) {
  return {.dim = native_head_dim(traits.head_dim), .element = traits.element};
}

F32Config forward_f32_config(const KernelTraits& traits, const DeviceLimits& limits) {
  return f32_config(
      traits, limits, "forward", [](F32Config c) { return forward_f32_plan(c).bytes; },
      [](F32Config c) { return f32_registers(c, c.head_dim_v) <= kF32ForwardRegisters; });
}

F32Config backward_dq_f32_config(const KernelTraits& traits, const DeviceLimits& limits) {
  return f32_config(
      traits, limits, "backward", [](F32Config c) { return backward_dq_f32_plan(c).bytes; },
      [](F32Config c) { return f32_registers(c, c.head_dim) <= kF32BackwardRegisters; });
}

F32Config backward_dkv_f32_config(const KernelTraits& traits, const DeviceLimits& limits) {
  return f32_config(
      traits, limits, "backward", [](F32Config c) { return backward_dkv_f32_plan(c).bytes; },
      [](F32Config c) {
        const bool spills = c.dropout && c.columns == 8;
        return !spills && f32_registers(c, c.head_dim + c.head_dim_v) <= kF32BackwardRegisters;
      });
}

// ----------------------------------------------------------------------------------------- listing

std::vector<AttentionKernel> sm90_kernels() {
  std::vector<AttentionKernel> kernels;
  for (const Element element : {Element::kBFloat16, Element::kFloat16}) {
    for (const int head_dim : {64, 128, 192, 256}) {
      for (const bool softcap : {false, true}) {
        for (const bool dropout : {false, true}) {
          if (!has_forward_walk_sm90({head_dim, head_dim, element, softcap, dropout})) continue;
          kernels.emplace_back(ForwardWalkSm90Kernel{{head_dim, element, softcap, dropout}});
        }
      }
    }
    for (const int head_dim : {64, 128}) {
      for (const bool small_blocks : {false, true}) {
        for (const bool packed : {false, true}) {
          kernels.emplace_back(ForwardSm90Kernel{{head_dim, element, small_blocks, packed}});
        }
      }
      kernels.emplace_back(BackwardSm90Kernel{{head_dim, element}});
      for (const auto& [diagonal, grouped] :
           {std::pair{false, false}, {true, false}, {true, true}}) {
        kernels.emplace_back(BackwardRowsSm90Kernel{{head_dim, element, diagonal, grouped}});
      }
    }
  }
  return kernels;
}

std::vector<AttentionKernel> all_kernels(const DeviceLimits& limits) {
  std::vector<AttentionKernel> kernels;
  if (limits.warpgroups) kernels = sm90_kernels();
  for (const Element element : {Element::kBFloat16, Element::kFloat16}) {
    for (const int head_dim : kNativeHeadDims) {
      for (const int head_dim_v : kNativeHeadDims) {
        for (const bool softcap : {false, true}) {
          for (const bool dropout : {false, true}) {
            KernelTraits traits{head_dim, head_dim_v, element, softcap, dropout};
            kernels.emplace_back(ForwardKernel{forward_config(traits, limits)});
            kernels.emplace_back(BackwardKernel{backward_config(traits, limits)});
            traits.deterministic = true;
            kernels.emplace_back(BackwardKernel{backward_config(traits, limits)});
            kernels.emplace_back(BackwardDqKernel{backward_dq_config(traits, limits)});
          }
        }
      }
      kernels.emplace_back(PrepareKernel{{head_dim, element}});
      kernels.emplace_back(FinishKernel{{head_dim, element}});
    }
  }
  for (const int head_dim : kNativeHeadDimsF32) {
    for (const int head_dim_v : kNativeHeadDimsF32) {
      for (const bool softcap : {false, true}) {
        for (const bool dropout : {false, true}) {
          const KernelTraits traits{head_dim, head_dim_v, Element::kFloat32, softcap, dropout};
          kernels.emplace_back(ForwardF32Kernel{forward_f32_config(traits, limits)});
          kernels.emplace_back(BackwardDqF32Kernel{backward_dq_f32_config(traits, limits)});
          kernels.emplace_back(BackwardDkvF32Kernel{backward_dkv_f32_config(traits, limits)});
        }
      }
    }
  }
  return kernels;
}

std::vector<AttentionKernel> pairwise_kernels(const DeviceLimits& limits) {
  // Two factors with their values; the first factor is the family.
  using Factor = std::pair<std::string, std::string>;
  using FactorPair = std::pair<Factor, Factor>;
  struct Candidate {
    AttentionKernel kernel;
    std::vector<FactorPair> pairs;
  };
  std::vector<Candidate> candidates;
  std::set<FactorPair> uncovered;
  for (const AttentionKernel& kernel : all_kernels(limits)) {
    Candidate candidate{kernel, {}};
    std::vector<Factor> factors = spec_of(kernel).factors;
    // Families have nothing to do with one another: their factors are factors of their own.
    for (Factor& factor : factors) factor.first = factors[0].second + ' ' + factor.first;
    for (std::size_t i = 0; i < factors.size(); ++i) {
      for (std::size_t j = i + 1; j < factors.size(); ++j) {
        candidate.pairs.emplace_back(factors[i], factors[j]);
      }
    }
    uncovered.insert(candidate.pairs.begin(), candidate.pairs.end());
    candidates.push_back(std::move(candidate));
  }
  // Greedy: always the one that covers the most of what is left.
  std::vector<AttentionKernel> chosen;
  while (!uncovered.empty()) {
    const auto news = [&](const Candidate& candidate) {
      return std::count_if(candidate.pairs.begin(), candidate.pairs.end(),
                           [&](const FactorPair& pair) { return uncovered.contains(pair); });
    };
    const auto best =
        std::max_element(candidates.begin(), candidates.end(),
                         [&](const Candidate& a, const Candidate& b) { return news(a) < news(b); });
    for (const FactorPair& pair : best->pairs) uncovered.erase(pair);
    chosen.push_back(best->kernel);
  }
  return chosen;
}

}  // namespace stepwell::cuda
