// What callers call the arguments: the Python functions' names, which differ from the fields' names
// where one field serves several layouts.
#pragma once

#include "stepwell/attention.hpp"

namespace stepwell {

struct ArgumentNames {
  const char* q = "q";
  const char* k = "k";
  const char* v = "v";
  const char* q_clean = "q_clean";
  const char* k_clean = "k_clean";
  const char* v_clean = "v_clean";
  const char* cu_seqlens = "cu_seqlens";
  const char* cu_seqlens_clean = "cu_seqlens_clean";
  const char* cu_seqlens_clean_q = "cu_seqlens_clean_q";
  const char* cu_seqlens_kv = "cu_seqlens_kv";
  const char* prefix_lens = "prefix_lens";
  const char* seqused = "seqused";
  const char* seqused_clean = "seqused_clean";
  const char* seqused_kv = "seqused_kv";
  const char* block_ranges = "block_ranges";
  const char* noisy_offset = "noisy_offset";  // the number or the tensor
  const char* q_offset = "q_offset";
  const char* dropout_state = "dropout_seed";
  const char* out = "out";
  const char* lse = "lse";
  const char* dout = "dout";
  const char* dlse = "dlse";
  const char* out_clean = "out_clean";
  const char* lse_clean = "lse_clean";
  const char* dout_clean = "dout_clean";
  const char* dlse_clean = "dlse_clean";
  const char* dq = "dq";
  const char* dk = "dk";
  const char* dv = "dv";
  const char* dq_clean = "dq_clean";
  const char* dk_clean = "dk_clean";
  const char* dv_clean = "dv_clean";
};

inline constexpr ArgumentNames kPlainNames{};

inline constexpr ArgumentNames kSplitNames = [] {
  ArgumentNames names;
  names.q = "q_noisy";
  names.k = "k_noisy";
  names.v = "v_noisy";
  names.cu_seqlens = "cu_seqlens_noisy";
  names.seqused = "seqused_noisy";
  names.q_offset = "clean_q_offset";
  names.out = "out_noisy";
  names.lse = "lse_noisy";
  names.dout = "dout_noisy";
  names.dlse = "dlse_noisy";
  names.dq = "dq_noisy";
  names.dk = "dk_noisy";
  names.dv = "dv_noisy";
  return names;
}();

constexpr const ArgumentNames& names_of(TokenLayout layout) {
  return layout == TokenLayout::kSplit ? kSplitNames : kPlainNames;
}

/// A tensor of an argument struct and its name.
template <typename Struct>
struct Field {
  Tensor Struct::*tensor;
  const char* ArgumentNames::*name;
};

inline constexpr Field<AttentionArgs> kTensorFields[] = {
    {&AttentionArgs::q, &ArgumentNames::q},
    {&AttentionArgs::k, &ArgumentNames::k},
    {&AttentionArgs::v, &ArgumentNames::v},
    {&AttentionArgs::q_clean, &ArgumentNames::q_clean},
    {&AttentionArgs::k_clean, &ArgumentNames::k_clean},
    {&AttentionArgs::v_clean, &ArgumentNames::v_clean},
};

inline constexpr Field<AttentionArgs> kArrayFields[] = {
    {&AttentionArgs::cu_seqlens, &ArgumentNames::cu_seqlens},
    {&AttentionArgs::cu_seqlens_clean, &ArgumentNames::cu_seqlens_clean},
    {&AttentionArgs::cu_seqlens_clean_q, &ArgumentNames::cu_seqlens_clean_q},
    {&AttentionArgs::cu_seqlens_kv, &ArgumentNames::cu_seqlens_kv},
    {&AttentionArgs::prefix_lens, &ArgumentNames::prefix_lens},
    {&AttentionArgs::seqused, &ArgumentNames::seqused},
    {&AttentionArgs::seqused_clean, &ArgumentNames::seqused_clean},
    {&AttentionArgs::seqused_kv, &ArgumentNames::seqused_kv},
    {&AttentionArgs::block_ranges, &ArgumentNames::block_ranges},
    {&AttentionArgs::noisy_offsets, &ArgumentNames::noisy_offset},
    {&AttentionArgs::q_offsets, &ArgumentNames::q_offset},
    {&AttentionArgs::dropout_state, &ArgumentNames::dropout_state},
};

inline constexpr Field<AttentionOutputs> kOutputFields[] = {
    {&AttentionOutputs::out, &ArgumentNames::out},
    {&AttentionOutputs::lse, &ArgumentNames::lse},
    {&AttentionOutputs::out_clean, &ArgumentNames::out_clean},
    {&AttentionOutputs::lse_clean, &ArgumentNames::lse_clean},
};

inline constexpr Field<AttentionGradients> kGradientFields[] = {
    {&AttentionGradients::out, &ArgumentNames::out},
    {&AttentionGradients::lse, &ArgumentNames::lse},
    {&AttentionGradients::dout, &ArgumentNames::dout},
    {&AttentionGradients::dlse, &ArgumentNames::dlse},
    {&AttentionGradients::out_clean, &ArgumentNames::out_clean},
    {&AttentionGradients::lse_clean, &ArgumentNames::lse_clean},
    {&AttentionGradients::dout_clean, &ArgumentNames::dout_clean},
    {&AttentionGradients::dlse_clean, &ArgumentNames::dlse_clean},
    {&AttentionGradients::dq, &ArgumentNames::dq},
    {&AttentionGradients::dk, &ArgumentNames::dk},
    {&AttentionGradients::dv, &ArgumentNames::dv},
    {&AttentionGradients::dq_clean, &ArgumentNames::dq_clean},
    {&AttentionGradients::dk_clean, &ArgumentNames::dk_clean},
    {&AttentionGradients::dv_clean, &ArgumentNames::dv_clean},
};

}  // namespace stepwell
