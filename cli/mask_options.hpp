// What `stepwell mask` is asked for.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace stepwell::cli {

/// An argument that is not accepted, found after parsing.
class UsageError : public CLI::ValidationError {
 public:
  UsageError(const std::string& option, const std::string& message)
      : CLI::ValidationError(option, message) {}
};

struct MaskOptions {
  std::string kind = "diffusion";
  std::string layout;  // empty: batched, or interleaved with several lengths
  std::vector<int> length;
  int block_size = 0;
  std::string order = "noisy_clean";
  std::string clean = "block";
  std::string noisy = "bidirectional";
  int clean_window = 0;
  int num_views = 1;
  std::vector<int> prefix_lens;
  std::vector<int> seqused;

  std::vector<int> clean_length;
  std::vector<int> clean_queries;
  std::vector<int> seqused_clean;
  std::vector<int> noisy_offset;
  std::vector<int> clean_q_offset;
  std::vector<std::pair<int, int>> block_ranges;  // [begin, end) of clean tokens

  std::vector<int> length_kv;
  std::vector<int> q_offset;
  std::vector<int> seqused_kv;
  int window_left = -1;
  int window_right = -1;

  int total = 0;
  int tile_q = 0;
  int tile_kv = 0;
  int cell = 0;
  std::string title;
  std::vector<std::string> output;
  bool json = false;
};

/// Tile sizes to choose from where none is given: about six along a segment show a mask well, and
/// real kernels have at most 128.
inline constexpr std::array<int, 5> kTiles{8, 16, 32, 64, 128};

bool is_diffusion(const MaskOptions& options);
/// Adds the options to `app`, which calls `run` with them once they are parsed and each of them
/// applies to the mask. What their values mean for lengths and rows, `run` checks.
void add_mask_options(CLI::App& app, void (*run)(const MaskOptions&));

}  // namespace stepwell::cli
