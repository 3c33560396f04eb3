#include "operators/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "support/random.hpp"

namespace stepwell::testing {

int Case::num_views() const {
  const auto* diffusion = std::get_if<DiffusionMask>(&mask);
  return diffusion != nullptr ? static_cast<int>(diffusion->num_views) : 0;
}

bool Case::is_packed() const {
  return layout == TokenLayout::kInterleaved || layout == TokenLayout::kHalves || packed;
}

namespace {

DiffusionMask blocks(std::int64_t size, CleanAttention clean = CleanAttention::kBlock,
                     NoisyAttention noisy = NoisyAttention::kBidirectional) {
  DiffusionMask mask;
  mask.block_size = size;
  mask.clean = clean;
  mask.noisy = noisy;
  return mask;
}

SequenceMask sequence(SequenceMask::Kind kind) {
  SequenceMask mask;
  mask.kind = kind;
  return mask;
}

SequenceMask block_causal(std::int64_t size) {
  SequenceMask mask = sequence(SequenceMask::Kind::kBlockCausal);
  mask.block_size = size;
  return mask;
}

SequenceMask window(std::int64_t left, std::int64_t right) {
  SequenceMask mask = sequence(SequenceMask::Kind::kWindow);
  mask.window_left = left;
  mask.window_right = right;
  return mask;
}

DiffusionMask& diffusion(Case& c) { return std::get<DiffusionMask>(c.mask); }

struct Flavour {
  const char* name;
  CleanAttention clean;
  NoisyAttention noisy;
};
constexpr Flavour kFlavours[] = {
    {"block", CleanAttention::kBlock, NoisyAttention::kBidirectional},
    {"clean_causal", CleanAttention::kCausal, NoisyAttention::kBidirectional},
    {"noisy_causal", CleanAttention::kBlock, NoisyAttention::kCausal},
    {"both_causal", CleanAttention::kCausal, NoisyAttention::kCausal},
};

struct Arrangement {
  const char* name;
  TokenLayout layout;
  bool packed;
};
constexpr Arrangement kArrangements[] = {
    {"batched", TokenLayout::kBatched, false},   {"interleaved", TokenLayout::kInterleaved, true},
    {"halves", TokenLayout::kHalves, true},      {"split", TokenLayout::kSplit, false},
    {"split_packed", TokenLayout::kSplit, true},
};

Case arranged(const Arrangement& arrangement, const std::string& what) {
  Case c;
  c.name = fmt::format("{}_{}", arrangement.name, what);
  c.layout = arrangement.layout;
  c.packed = arrangement.packed;
  c.mask = blocks(4);
  if (c.is_packed()) {
    c.lengths = {7, 0, 13, 6};
    c.tail = 3;
  } else {
    c.lengths = {13, 13};
  }
  return c;
}

Case batched(const std::string& name, Mask mask, int n, int batch = 1) {
  Case c;
  c.name = name;
  c.mask = mask;
  c.lengths.assign(batch, n);
  return c;
}

Case one_sequence(const std::string& name, Mask mask, int len_q, int len_kv, int batch = 2) {
  Case c = batched(name, mask, len_q, batch);
  c.layout = TokenLayout::kSequence;
  c.clean_lengths.assign(batch, len_kv);
  return c;
}

Case split(const std::string& name, Mask mask, std::vector<int> noisy, std::vector<int> clean) {
  Case c;
  c.name = name;
  c.mask = mask;
  c.layout = TokenLayout::kSplit;
  c.lengths = std::move(noisy);
  c.clean_lengths = std::move(clean);
  return c;
}

/// Every layout with every flavour, order and number of views.
void add_layouts(std::vector<Case>& cases) {
  for (const Arrangement& arrangement : kArrangements) {
    for (const Flavour& flavour : kFlavours) {
      for (int views = 1; views <= 3; ++views) {
        for (const Order order : {Order::kNoisyClean, Order::kCleanNoisy}) {
          if (order == Order::kCleanNoisy && arrangement.layout == TokenLayout::kSplit) continue;
          Case c = arranged(arrangement, flavour.name);
          diffusion(c).clean = flavour.clean;
          diffusion(c).noisy = flavour.noisy;
          diffusion(c).num_views = views;
          diffusion(c).order = order;
          if (views > 1) c.name += fmt::format("_views{}", views);
          if (order == Order::kCleanNoisy) c.name += "_clean_first";
          cases.push_back(c);
        }
      }
    }
  }
}

/// Per-sample arrays in every layout.
void add_sample_arrays(std::vector<Case>& cases) {
  for (const Arrangement& arrangement : kArrangements) {
    for (const int views : {1, 2}) {
      const std::string suffix = views > 1 ? "_views" : "";
      Case c = arranged(arrangement, "seqused" + suffix);
      diffusion(c).num_views = views;
      c.seqused = c.is_packed() ? std::vector<int>{4, 0, 13, 1} : std::vector<int>{9, 0};
      if (c.layout == TokenLayout::kSplit) c.seqused_clean = c.seqused;
      cases.push_back(c);

      c = arranged(arrangement, "prefix_lens" + suffix);
      diffusion(c).num_views = views;
      c.prefix_lens = c.is_packed() ? std::vector<int>{3, 1, 6, 50} : std::vector<int>{6, 1};
      cases.push_back(c);

      c.name = fmt::format("{}_prefix_lens_seqused{}", arrangement.name, suffix);
      diffusion(c).clean = CleanAttention::kCausal;
      c.seqused = c.is_packed() ? std::vector<int>{7, 0, 5, 3} : std::vector<int>{12, 5};
      cases.push_back(c);
    }
  }
}

void add_zero_lengths(std::vector<Case>& cases) {
  const std::pair<const char*, std::vector<int>> kLengths[] = {{"first", {0, 5, 9}},
                                                               {"middle", {5, 0, 0, 9}},
                                                               {"last", {5, 9, 0}},
                                                               {"all", {0, 0}},
                                                               {"no_sample", {}}};
  for (const Arrangement& arrangement : kArrangements) {
    if (!arrangement.packed) continue;
    for (const auto& [name, lengths] : kLengths) {
      for (const int tail : {0, 4}) {
        Case c = arranged(arrangement, fmt::format("empty_{}{}", name, tail > 0 ? "_tail" : ""));
        c.lengths = lengths;
        c.tail = tail;
        cases.push_back(c);
      }
    }
  }
  Case c = one_sequence("sequence_packed_empty", sequence(SequenceMask::Kind::kCausal), 0, 0);
  c.packed = true;
  c.lengths = {0, 5, 0, 0, 9, 0};
  c.clean_lengths = {4, 9, 0, 3, 9, 0};
  c.q_offsets = {0, 4, 0, 0, 0, 1};
  c.tail = 2;
  cases.push_back(c);
  cases.push_back(batched("batched_no_token", blocks(4), 0, 2));
  cases.push_back(batched("batched_no_sample", blocks(4), 0, 0));
  c = one_sequence("sequence_no_key", sequence(SequenceMask::Kind::kFull), 5, 0);
  cases.push_back(c);
  c = one_sequence("sequence_no_query", sequence(SequenceMask::Kind::kFull), 0, 5);
  cases.push_back(c);
}

void add_block_sizes(std::vector<Case>& cases) {
  for (const auto& [n, b] : std::initializer_list<std::pair<int, int>>{
           {1, 1}, {1, 4}, {5, 1}, {33, 1}, {10, 3}, {8, 16}, {30, 32}, {16, 16}, {140, 5}}) {
    for (const Flavour& flavour : kFlavours) {
      cases.push_back(batched(fmt::format("n{}_b{}_{}", n, b, flavour.name),
                              blocks(b, flavour.clean, flavour.noisy), n));
    }
  }
  Case c = batched("n8_b16_origin3", blocks(16), 8);
  c.prefix_lens = {3};
  cases.push_back(c);
  // Blocks of one video frame, shortened: larger than tiles and no multiple of them.
  c = batched("frames", blocks(156), 468);
  diffusion(c).order = Order::kCleanNoisy;
  c.heads_q = 1;
  cases.push_back(c);
}

/// Around the sizes of vectors and tiles.
void add_lengths(std::vector<Case>& cases) {
  for (const int n : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 257}) {
    cases.push_back(batched(fmt::format("length{}", n), blocks(n % 2 == 0 ? 32 : 4), n));
    Case c = one_sequence(
        fmt::format("sequence_length{}", n),
        sequence(n % 2 == 0 ? SequenceMask::Kind::kFull : SequenceMask::Kind::kCausal), n, n, 1);
    cases.push_back(c);
  }
  // All rows' intervals end one key before a tile does.
  Case c =
      one_sequence("sequence_short_of_a_tile", sequence(SequenceMask::Kind::kFull), 70, 127, 1);
  cases.push_back(c);
  c = batched("blocks_short_of_tiles", blocks(32), 200);
  c.prefix_lens = {31};
  cases.push_back(c);
  c = arranged(kArrangements[1], "long");
  c.lengths = {130, 1, 64, 33, 200};
  diffusion(c).block_size = 32;
  cases.push_back(c);
  c = batched("long", blocks(8), 520);
  c.heads_q = 1;
  c.head_dim = c.head_dim_v = 32;
  cases.push_back(c);
}

/// Strips of 64 query rows, key tiles of 128, and CTAs with several of them.
void add_strips(std::vector<Case>& cases) {
  for (const int b : {4, 64, 100, 5}) {
    for (const Flavour& flavour : kFlavours) {
      cases.push_back(batched(fmt::format("strips_b{}_{}", b, flavour.name),
                              blocks(b, flavour.clean, flavour.noisy), 330));
    }
  }
  // Blocks that reach over several key tiles, and samples that end inside of one.
  cases.push_back(batched("strips_of_one_block", blocks(1000), 450));
  Case c = batched("strips_seqused", blocks(8), 200, 6);
  c.seqused = {200, 0, 199, 64, 65, 130};
  cases.push_back(c);
  c = batched("strips_seqused_any_block", blocks(90), 290, 3);
  c.seqused = {260, 128, 7};
  diffusion(c).order = Order::kCleanNoisy;
  cases.push_back(c);
  c = batched("strips_dim128", blocks(16), 300, 2);
  c.heads_q = 4;
  c.heads_kv = 2;
  c.head_dim = c.head_dim_v = 128;
  cases.push_back(c);
  c.name = "strips_dim128_any_block";
  diffusion(c).block_size = 24;
  diffusion(c).clean = CleanAttention::kCausal;
  c.seqused = {300, 219};
  cases.push_back(c);
  // Head dims of a slab of 64 and a part of one.
  c.name = "strips_dim96_any_block";
  c.head_dim = 96;
  c.head_dim_v = 72;
  cases.push_back(c);
  c.name = "strips_dim96";
  diffusion(c).block_size = 8;
  c.head_dim_v = 96;
  cases.push_back(c);
  // Packed samples: strips that end inside of a sample's last one, rows of other samples behind it.
  Case packed;
  packed.name = "strips_packed";
  packed.layout = TokenLayout::kInterleaved;
  packed.mask = blocks(8);
  packed.lengths = {200, 0, 64, 130, 1, 65};
  packed.tail = 70;
  packed.heads_q = 2;
  cases.push_back(packed);
  c = packed;
  c.name = "strips_packed_seqused";
  c.layout = TokenLayout::kHalves;
  c.seqused = {150, 0, 64, 65, 0, 65};
  cases.push_back(c);
  c.name = "strips_packed_any_block";
  diffusion(c).block_size = 24;
  diffusion(c).clean = CleanAttention::kCausal;
  diffusion(c).order = Order::kCleanNoisy;
  c.head_dim = c.head_dim_v = 128;
  cases.push_back(c);
  c = packed;
  c.name = "strips_packed_dim96";
  c.head_dim = c.head_dim_v = 96;
  cases.push_back(c);
  c = packed;
  c.name = "strips_of_many_samples";
  c.heads_q = c.heads_kv = 3;  // an odd number of items
  c.lengths.resize(70);
  for (std::size_t i = 0; i < c.lengths.size(); ++i) c.lengths[i] = static_cast<int>(i * 37 % 71);
  cases.push_back(c);
  // Maxima that move from tile to tile.
  c = batched("strips_large_logits", blocks(4), 260);
  c.input_scale = 20.0;
  cases.push_back(c);
}

/// Items of 128 query rows that walk over tiles of 64 to 128 keys, and CTAs with several of them.
void add_walks(std::vector<Case>& cases) {
  const auto add = [&cases](Case c, int head_dim = 64) {
    c.head_dim = c.head_dim_v = head_dim;
    cases.push_back(c);
  };
  Case c = batched("walk_views", blocks(24), 300, 2);
  diffusion(c).num_views = 2;
  c.heads_q = 3;
  c.seqused = {300, 129};
  add(c);
  c = batched("walk_clean_window", blocks(24), 400);
  diffusion(c).clean_window = 72;
  add(c, 128);
  add(one_sequence("walk_full", sequence(SequenceMask::Kind::kFull), 300, 450));
  add(one_sequence("walk_causal", sequence(SequenceMask::Kind::kCausal), 400, 400), 128);
  add(one_sequence("walk_window", window(150, 10), 500, 500, 1));
  c = one_sequence("walk_packed", sequence(SequenceMask::Kind::kCausal), 0, 0, 4);
  c.packed = true;
  c.lengths = c.clean_lengths = {200, 0, 65, 130};
  c.tail = 140;
  add(c, 128);
  c = split("walk_split", blocks(20), {300, 0, 129}, {150, 64, 200});
  c.packed = true;
  c.heads_q = 2;
  add(c);
  // Rows that see nothing, between others.
  c = one_sequence("walk_rows_without_keys", window(40, 0), 300, 300);
  c.q_offset = 200;
  c.seqused_kv = {300, 90};
  add(c);
  c = one_sequence("walk_softcap", sequence(SequenceMask::Kind::kCausal), 260, 260, 1);
  c.softcap = 3.0;
  add(c, 128);
  // Tiles with a mask before and after others, and rows whose first keys are in a tile that needs
  // none.
  c = one_sequence("walk_softcap_window", window(350, 200), 400, 600, 1);
  c.softcap = 30.0;
  add(c, 128);
  c = one_sequence("walk_softcap_blocks", block_causal(64), 140, 256, 1);
  c.q_offset = 64;
  c.softcap = 30.0;
  add(c, 128);
  c = batched("walk_dropout", blocks(8), 200);
  c.dropout_p = 0.3;
  c.softcap = 3.0;
  c.dropout_seed = 11;
  add(c);
  // Several items of head dims with other tiles, gaps between the tiles, and rows that see nothing.
  c = batched("walk_dropout_dim192", blocks(24), 300);
  diffusion(c).clean_window = 72;
  c.dropout_p = 0.3;
  c.dropout_seed = 12;
  add(c, 192);
  c = one_sequence("walk_dropout_rows_without_keys", window(40, 0), 300, 300);
  c.q_offset = 200;
  c.seqused_kv = {300, 90};
  c.dropout_p = 0.3;
  c.dropout_seed = 13;
  add(c, 128);
  c = one_sequence("walk_dropout_packed", sequence(SequenceMask::Kind::kCausal), 0, 0, 4);
  c.packed = true;
  c.lengths = c.clean_lengths = {200, 0, 65, 130};
  c.dropout_p = 0.3;
  c.dropout_seed = 14;
  add(c, 128);
  c = one_sequence("walk_large_logits", sequence(SequenceMask::Kind::kFull), 200, 400, 1);
  c.input_scale = 20.0;
  add(c);
  add(one_sequence("walk_dim256", sequence(SequenceMask::Kind::kCausal), 300, 300, 2), 256);
  // Rows of the output that are no multiple of 64 wide, one head beside the other.
  c = one_sequence("walk_narrow", sequence(SequenceMask::Kind::kFull), 200, 150, 2);
  c.heads_q = 3;
  c.head_dim = 40;
  c.head_dim_v = 24;
  cases.push_back(c);
}

/// Items of 128 keys, tiles of 64 query rows, at head dim 128.
void add_key_items(std::vector<Case>& cases) {
  const auto add = [&cases](Case c) {
    c.head_dim = c.head_dim_v = 128;
    cases.push_back(c);
  };
  Case c = batched("keys_seqused", blocks(8), 140, 3);
  c.seqused = {140, 0, 67};
  c.heads_q = c.heads_kv = 2;
  add(c);
  // Tiles of rows that end inside of a block.
  c = batched("keys_b72_both_causal", blocks(72, CleanAttention::kCausal, NoisyAttention::kCausal),
              200);
  diffusion(c).order = Order::kCleanNoisy;
  c.heads_q = 3;
  add(c);
  add(batched("keys_of_one_block", blocks(1000), 140));
}

void add_heads_and_dims(std::vector<Case>& cases) {
  for (const auto& [q, kv] : std::initializer_list<std::pair<int, int>>{{1, 1},
                                                                        {3, 3},
                                                                        {4, 2},
                                                                        {4, 1},
                                                                        {5, 1},
                                                                        {10, 2},
                                                                        {6, 1},
                                                                        {7, 1},
                                                                        {14, 2},
                                                                        {8, 1},
                                                                        {16, 1}}) {
    Case c = batched(fmt::format("heads{}_{}", q, kv), blocks(4), 21, 2);
    c.heads_q = q;
    c.heads_kv = kv;
    cases.push_back(c);
  }
  for (const auto& [qk, v] : std::initializer_list<std::pair<int, int>>{{8, 8},
                                                                        {24, 24},
                                                                        {64, 64},
                                                                        {72, 72},
                                                                        {96, 96},
                                                                        {128, 128},
                                                                        {192, 192},
                                                                        {256, 256},
                                                                        {64, 128},
                                                                        {128, 64},
                                                                        {192, 128},
                                                                        {8, 256},
                                                                        {256, 8},
                                                                        {40, 56},
                                                                        {120, 136}}) {
    Case c = batched(fmt::format("dim{}_{}", qk, v), blocks(8), 71);
    c.head_dim = qk;
    c.head_dim_v = v;
    cases.push_back(c);
  }
}

void add_options(std::vector<Case>& cases) {
  const auto add = [&cases](const std::string& name, auto change) {
    Case c = batched(name, blocks(4), 45, 2);
    c.head_dim = c.head_dim_v = 32;
    change(c);
    cases.push_back(c);
    c.name += "_sequence";
    c.mask = sequence(SequenceMask::Kind::kCausal);
    c.layout = TokenLayout::kSequence;
    cases.push_back(c);
  };
  add("softcap", [](Case& c) { c.softcap = 2.0; });
  add("softcap_large_logits", [](Case& c) { c.softcap = 30.0, c.input_scale = 10.0; });
  add("dropout", [](Case& c) { c.dropout_p = 0.3, c.dropout_seed = 1234; });
  add("dropout_most", [](Case& c) { c.dropout_p = 0.95, c.dropout_offset = 1ull << 40; });
  add("dropout_tensor", [](Case& c) {
    c.dropout_p = 0.5, c.dropout_seed = 9876543210123ull, c.dropout_offset = 77;
    c.dropout_tensor = true;
  });
  add("dropout_softcap_gqa",
      [](Case& c) { c.dropout_p = 0.2, c.softcap = 1.5, c.heads_q = 6, c.heads_kv = 2; });
  add("scale", [](Case& c) { c.softmax_scale = 0.7; });
  add("scale_zero", [](Case& c) { c.softmax_scale = 0.0; });
  add("scale_negative", [](Case& c) { c.softmax_scale = -0.3; });
  add("no_dlse", [](Case& c) { c.with_dlse = false; });
  add("large_logits", [](Case& c) { c.input_scale = 10.0; });
  add("small_logits", [](Case& c) { c.input_scale = 1e-3; });
  add("deterministic_gqa", [](Case& c) { c.deterministic = true, c.heads_q = 4; });
  Case c = arranged(kArrangements[2], "dropout_views");
  diffusion(c).num_views = 3;
  c.dropout_p = 0.4;
  c.dropout_seed = 5;
  cases.push_back(c);
}

void add_memory(std::vector<Case>& cases) {
  const std::pair<const char*, Memory> kMemories[] = {
      {"fused", Memory::kFusedQkv},         {"padded", Memory::kPaddedHeads},
      {"heads_first", Memory::kHeadsFirst}, {"unaligned", Memory::kUnaligned},
      {"odd_strides", Memory::kOddStrides},
  };
  for (const auto& [name, memory] : kMemories) {
    for (const Arrangement& arrangement : kArrangements) {
      Case c = arranged(arrangement, name);
      c.memory = memory;
      c.expanded_dout = memory == Memory::kPaddedHeads;
      c.heads_q = 4;
      c.heads_kv = 2;
      c.head_dim_v = 24;
      if (memory == Memory::kOddStrides) {
        c.heads_q = c.heads_kv = 1;
        if (!c.is_packed()) c.lengths = {13};
      }
      cases.push_back(c);
    }
    Case c = one_sequence(fmt::format("sequence_{}", name), block_causal(4), 9, 14);
    c.memory = memory;
    c.q_offset = 5;
    cases.push_back(c);
  }
}

void add_windows(std::vector<Case>& cases) {
  for (const int w : {1, 2, 6, 16, 1000}) {
    for (const Flavour& flavour : kFlavours) {
      Case c = batched(fmt::format("clean_window{}_{}", w, flavour.name),
                       blocks(4, flavour.clean, flavour.noisy), 23, 2);
      diffusion(c).clean_window = w;
      if (w == 6) c.prefix_lens = {0, 3};
      cases.push_back(c);
    }
  }
  Case c = batched("clean_window_long", blocks(32), 300);
  diffusion(c).clean_window = 70;
  cases.push_back(c);
}

void add_split(std::vector<Case>& cases) {
  // [prompt, clean response, noisy response]: blocks start at the end of the prompt.
  for (const Flavour& flavour : kFlavours) {
    Case c = split(fmt::format("prompt_clean_noisy_{}", flavour.name),
                   blocks(4, flavour.clean, flavour.noisy), {9, 9}, {15, 15});
    c.noisy_offset = 6;
    c.prefix_lens = {6, 6};
    cases.push_back(c);
  }
  Case c = split("prompts_of_their_own", blocks(4, CleanAttention::kCausal), {10, 3, 0, 12},
                 {16, 5, 9, 12});
  c.packed = true;
  c.noisy_offsets = {6, 2, 9, 0};
  c.prefix_lens = {6, 2, 9, 0};
  c.tail = 2;
  cases.push_back(c);
  c = split("noisy_offset_inside_block", blocks(5), {9, 9}, {20, 20});
  c.noisy_offset = 7;
  cases.push_back(c);
  c = split("noisy_past_clean", blocks(4), {8}, {6});
  c.noisy_offset = 20;
  cases.push_back(c);
  c = split("no_clean_query", blocks(4), {12, 12}, {12, 12});
  c.clean_queries = false;
  cases.push_back(c);
  c = split("no_clean_query_packed", blocks(4), {7, 0, 9}, {7, 3, 9});
  c.clean_queries = false;
  c.packed = true;
  cases.push_back(c);
  c = split("no_noisy_row", blocks(4), {0, 0}, {11, 11});
  cases.push_back(c);
  c = split("no_clean_row", blocks(4), {11, 11}, {0, 0});
  cases.push_back(c);
  // A shard of the clean queries.
  c = split("clean_q_offset", blocks(4), {12, 12}, {20, 20});
  c.clean_q_lengths = {7, 7};
  c.q_offset = 9;
  cases.push_back(c);
  c = split("clean_q_offsets_packed", blocks(4, CleanAttention::kCausal), {12, 4}, {20, 8});
  c.packed = true;
  c.clean_q_lengths = {7, 3};
  c.q_offsets = {9, 2};
  c.tail = 1;
  cases.push_back(c);
  c = split("seqused_with_clean_q_offset", blocks(4), {12, 12}, {20, 20});
  c.clean_q_lengths = {7, 7};
  c.q_offset = 9;
  c.seqused = {5, 12};
  c.seqused_clean = {12, 4};
  cases.push_back(c);
  c = split("halves_with_lengths_of_their_own", blocks(3), {10, 10}, {14, 14});
  c.seqused = {10, 4};
  c.seqused_clean = {3, 14};
  cases.push_back(c);

  // Tables: anchors with [0, anchor); any order, empty entries; one for each sample.
  c = split("anchors", blocks(4), {8}, {12});
  c.clean_queries = false;
  c.block_ranges = {0, 3, 0, 7};
  c.num_blocks = 2;
  cases.push_back(c);
  c = split("unsorted_ranges", blocks(3), {14, 14}, {25, 25});
  c.block_ranges = {20, 25, 0, 0, 3, 17, 0, 4, 9, 9};
  c.num_blocks = 5;
  cases.push_back(c);
  c.name = "unsorted_ranges_noisy_causal";
  diffusion(c).noisy = NoisyAttention::kCausal;
  c.clean_queries = false;
  cases.push_back(c);
  c = split("ranges_per_sample", blocks(4), {7, 12, 0, 1}, {9, 20, 4, 3});
  c.packed = true;
  c.block_ranges = {2,  9,  0,  5,  -7, -7, 11, 20, 0,  0,  4,  12,
                    -7, -7, -7, -7, -7, -7, 1,  2,  -7, -7, -7, -7};
  c.num_blocks = 3;
  c.tail = 2;
  cases.push_back(c);
  c = split("many_anchors", blocks(16), {320}, {200});
  c.clean_queries = false;
  for (int j = 0; j < 20; ++j) c.block_ranges.insert(c.block_ranges.end(), {0, j * 67 % 200});
  c.num_blocks = 20;
  cases.push_back(c);
  // Tiles that no row of a tile sees, between two that some rows see.
  c = split("ranges_with_gaps", blocks(32), {160}, {400});
  c.block_ranges = {0, 1, 390, 400, 150, 160, 64, 65, 3, 5};
  c.num_blocks = 5;
  cases.push_back(c);
  c = split("sliding_ranges", blocks(8, CleanAttention::kCausal), {96}, {96});
  for (int j = 0; j < 12; ++j)
    c.block_ranges.insert(c.block_ranges.end(), {std::max(0, 8 * j - 20), 8 * j});
  c.num_blocks = 12;
  cases.push_back(c);
}

void add_sequences(std::vector<Case>& cases) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  struct Named {
    const char* name;
    SequenceMask mask;
  };
  const Named kMasks[] = {
      {"full", sequence(SequenceMask::Kind::kFull)},
      {"causal", sequence(SequenceMask::Kind::kCausal)},
      {"window", window(5, 2)},
      {"window_left", window(4, kNone)},
      {"window_right", window(kNone, 3)},
      {"window_self", window(0, 0)},
      {"block_causal", block_causal(4)},
      {"block_causal3", block_causal(3)},
      {"block_causal_long", block_causal(50)},
  };
  for (const auto& [name, mask] : kMasks) {
    const std::string prefix = fmt::format("sequence_{}", name);
    cases.push_back(one_sequence(prefix, mask, 19, 19));
    Case c = one_sequence(prefix + "_q_offset", mask, 6, 30);
    c.q_offset = 11;
    cases.push_back(c);
    c = one_sequence(prefix + "_more_queries", mask, 30, 8);
    cases.push_back(c);
    c = one_sequence(prefix + "_packed", mask, 0, 0);
    c.packed = true;
    c.lengths = {7, 0, 13, 6};
    c.clean_lengths.clear();
    c.tail = 3;
    cases.push_back(c);
    c.name = prefix + "_packed_kv";
    c.clean_lengths = {9, 4, 13, 20};
    c.q_offsets = {2, 0, 0, 14};
    cases.push_back(c);
    c = one_sequence(prefix + "_seqused", mask, 17, 17);
    c.seqused = {9, 17};
    c.seqused_kv = {12, 0};
    cases.push_back(c);
  }
  Case c = one_sequence("sequence_prefix_lens", block_causal(4), 17, 21, 3);
  c.prefix_lens = {0, 3, 5};
  c.q_offset = 4;
  cases.push_back(c);
  c = one_sequence("sequence_window_long", window(90, 40), 300, 300, 1);
  cases.push_back(c);
  c = one_sequence("sequence_block_causal_long_offset", block_causal(24), 150, 400, 1);
  c.q_offset = 250;
  cases.push_back(c);
}

}  // namespace

std::vector<Case> operator_cases() {
  std::vector<Case> cases;
  add_layouts(cases);
  add_sample_arrays(cases);
  add_zero_lengths(cases);
  add_block_sizes(cases);
  add_lengths(cases);
  add_strips(cases);
  add_walks(cases);
  add_key_items(cases);
  add_heads_and_dims(cases);
  add_options(cases);
  add_memory(cases);
  add_windows(cases);
  add_split(cases);
  add_sequences(cases);
  return cases;
}

std::vector<Case> benchmark_cases() {
  std::vector<Case> cases;
  for (const int n : {1024, 2048, 4096}) {
    for (const int dim : {64, 128}) {
      for (const int b : {4, 32}) {
        Case c = batched(fmt::format("n{}_d{}_b{}", n, dim, b), blocks(b), n);
        c.heads_q = c.heads_kv = 8;
        c.head_dim = c.head_dim_v = dim;
        cases.push_back(c);
      }
    }
  }
  Case c = batched("packed_interleaved", blocks(4), 0);
  c.layout = TokenLayout::kInterleaved;
  c.lengths = {1531, 87, 402, 1200, 876};
  c.heads_q = 8;
  c.heads_kv = 2;
  c.head_dim = c.head_dim_v = 128;
  cases.push_back(c);
  c = one_sequence("causal_n2048", sequence(SequenceMask::Kind::kCausal), 2048, 2048, 1);
  c.heads_q = c.heads_kv = 8;
  c.head_dim = c.head_dim_v = 64;
  cases.push_back(c);
  for (Case& timed : cases) timed.with_dlse = false;
  return cases;
}

}  // namespace stepwell::testing
