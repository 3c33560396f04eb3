// Online softmax against the maximum so far, on accumulators of wgmma: s[column / 8][4], where a
// lane holds columns 8 i + 2 (lane % 4) + {0, 1} of rows lane / 4 (values 0 and 1) and lane / 4 + 8
// (values 2 and 3).
//
// As a rule a tile's own maximum is not computed. Exponentials are taken against the row's
// reference from earlier tiles; their sum, which is needed anyway, bounds the largest of them, and
// only where it passes a limit is the maximum found and the tile computed again. That takes the
// maxima, their shuffles and most rescales of O out of the loop: 330 instructions a tile instead of
// 530 at head dim 128, and 8 to 16 % of the forward pass (one H200, bf16).
#pragma once

#include "cuda/ptx/sm80.cuh"
#include "cuda/tile/softmax.cuh"

namespace stepwell::cuda {

/// A row's running state.
struct RunningRow {
  /// P is exp2(scale_log2 * S - reference). -inf: there is no such number yet, or scores are too
  /// large for it; P is then exp2(scale_log2 * (S - base)), with the base in shared memory (-inf
  /// before the row has seen a key).
  float reference;
  float sum;  // of this lane's own columns
};

/// Where the bases of every thread's two rows are. Few tiles need them, and the address is worked
/// out there.
struct RowBases {
  u32 first;  // of thread 0

  __device__ __forceinline__ u32 mine() const { return first + ptx::thread_index_again() * 8; }
};

/// What sums of P may reach before a row's reference moves. bf16 has the exponents of float32: with
/// 2^49 |v| may be 2^60 and O stays finite. In f16 P itself must stay below 65504.
template <Element kElement>
__device__ __forceinline__ float sum_limit() {
  return kElement == Element::kBFloat16 ? 562949953421312.0f : 32768.0f;
}
/// How far above the row's maximum a reference is put, in units of log 2: this and the limit
/// together are what later keys may exceed it by. A first tile may show a row 4 keys only, whose
/// maximum says little where scores are large. More would round the exponents of small scores more
/// coarsely, and with them the log-sum-exp; in f16 small P would be denormal.
template <Element kElement>
__device__ __forceinline__ float headroom() {
  return kElement == Element::kBFloat16 ? 7.0f : 0.0f;
}

/// The tile's maximum of row r, 0 or 1 of the lane's two; -inf where nothing is visible.
template <int kPieces>
__device__ __forceinline__ float tile_maximum(const float (&s)[kPieces][4], int r) {
  float even = s[0][2 * r];
  float odd = s[0][2 * r + 1];
#pragma unroll
  for (int i = 1; i < kPieces; ++i) {
    even = ptx::max_f32(even, s[i][2 * r]);
    odd = ptx::max_f32(odd, s[i][2 * r + 1]);
  }
  float top = ptx::max_f32(even, odd);
  top = ptx::max_f32(top, ptx::shfl_xor_f32(top, 1));
  return ptx::max_f32(top, ptx::shfl_xor_f32(top, 2));
}

/// Moves references of rows above their maxima so far, this tile's included, where `moves` is set;
/// it is for rows whose reference is -inf. `rescale` is what O is multiplied with (the sums are
/// multiplied here), `subtract` what exponents of this tile take off: the reference, or 0 where S
/// has lost its base here. kFirst: the rows have seen nothing yet.
template <Element kElement, bool kFirst, int kPieces>
__device__ __forceinline__ void move_references(float (&s)[kPieces][4], RunningRow (&rows)[2],
                                                const bool (&moves)[2], float scale_log2,
                                                RowBases bases, float (&rescale)[2],
                                                float (&subtract)[2]) {
  float top[2];
  float old_base[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
  for (int r = 0; r < 2; ++r) top[r] = tile_maximum(s, r);
  bool based[2] = {true, true};
  if constexpr (!kFirst) {
    for (int r = 0; r < 2; ++r) based[r] = rows[r].reference == minus_infinity();
    if (ptx::ballot(based[0] || based[1]) != 0)
      ptx::ld_shared_v2(bases.mine(), old_base[0], old_base[1]);
  }
  bool large[2];
  bool nothing[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (based[r]) top[r] = ptx::max_f32(top[r], old_base[r]);
    const float product = ptx::mul_rn_f32(top[r], scale_log2);
    const float before = rows[r].reference;
    const float target = product + headroom<kElement>();
    const float reference = !moves[r] ? before : based[r] ? target : ptx::max_f32(before, target);
    nothing[r] = reference == minus_infinity();
    large[r] = !nothing[r] && (reference > kLargestReference || reference < -kLargestReference);
    if constexpr (!kFirst) {
      // What exponents took off less what they will; exactly 0 where nothing changes.
      const float shift =
          based[r] ? ptx::fma_f32(old_base[r], scale_log2, -reference) : before - reference;
      const bool stays = nothing[r] || before == reference;
      rescale[r] = stays ? 1.0f : ptx::ex2_approx(shift);
    }
    rows[r].reference = large[r] ? minus_infinity() : reference;
    subtract[r] = large[r] || nothing[r] ? 0.0f : reference;
    if constexpr (!kFirst) {
      if (large[r]) {
        const float shift = based[r] ? (old_base[r] - top[r]) * scale_log2
                                     : ptx::fma_f32(-top[r], scale_log2, before);
        rescale[r] = based[r] && old_base[r] == top[r] ? 1.0f : ptx::ex2_approx(shift);
      }
    }
  }
  if (ptx::ballot(large[0] || large[1] || nothing[0] || nothing[1]) != 0) {
    // Differences first: past kLargestReference the rounding of a product counts.
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      base[r] = large[r] ? top[r] : minus_infinity();
      const float taken = large[r] ? top[r] : 0.0f;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        s[i][2 * r] -= taken;
        s[i][2 * r + 1] -= taken;
      }
    }
    ptx::st_shared_v2(bases.mine(), static_cast<int>(ptx::bits_of(base[0])),
                      static_cast<int>(ptx::bits_of(base[1])));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows[r].sum = kFirst ? 0.0f : rows[r].sum * rescale[r];
}

/// s becomes P against the rows' maxima so far. For the tiles that need a mask, which come first.
template <Element kElement, bool kFirst, int kPieces>
__device__ __forceinline__ void softmax_of_masked(float (&s)[kPieces][4], RunningRow (&rows)[2],
                                                  float scale_log2, RowBases bases,
                                                  float (&rescale)[2]) {
  float subtract[2];
  move_references<kElement, kFirst>(s, rows, {true, true}, scale_log2, bases, rescale, subtract);
  float even[2] = {0.0f, 0.0f};
  float odd[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      s[i][2 * r] = ptx::ex2_approx(ptx::fma_f32(s[i][2 * r], scale_log2, -subtract[r]));
      s[i][2 * r + 1] = ptx::ex2_approx(ptx::fma_f32(s[i][2 * r + 1], scale_log2, -subtract[r]));
      even[r] += s[i][2 * r];
      odd[r] += s[i][2 * r + 1];
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows[r].sum += even[r] + odd[r];
}

/// P of a tile without a mask, packed, against the rows' references. Returns whether these have
/// moved; O must then be multiplied with `rescale`.
template <Element kElement, int kPieces>
__device__ __forceinline__ bool softmax_ahead(u32 (&p)[kPieces / 2][4], float (&s)[kPieces][4],
                                              RunningRow (&rows)[2], float scale_log2,
                                              RowBases bases, float (&rescale)[2]) {
  float subtract[2] = {rows[0].reference, rows[1].reference};
  float sum[2];
  bool moved = false;
  while (true) {
    float even[2] = {0.0f, 0.0f};
    float odd[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float low = ptx::ex2_approx(ptx::fma_f32(s[i][2 * r], scale_log2, -subtract[r]));
        const float high = ptx::ex2_approx(ptx::fma_f32(s[i][2 * r + 1], scale_log2, -subtract[r]));
        p[i / 2][i % 2 * 2 + r] = ptx::cvt_x2_f32<kElement>(low, high);
        even[r] += low;
        odd[r] += high;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = even[r] + odd[r];
    // NaN, which a reference of -inf may make, counts as too much.
    bool moves[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) moves[r] = !(sum[r] <= sum_limit<kElement>());
    if (moved || ptx::ballot(moves[0] || moves[1]) == 0) break;
    moved = true;
    // A row moves if one of its four lanes says so, and with no other row: what a row does not see
    // must not change a bit of it.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      u32 any = moves[r] ? 1 : 0;
      any |= ptx::shfl_xor_u32(any, 1);
      any |= ptx::shfl_xor_u32(any, 2);
      moves[r] = any != 0;
    }
    move_references<kElement, false>(s, rows, moves, scale_log2, bases, rescale, subtract);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows[r].sum += sum[r];
  return moved;
}

/// References of rows that have a base, in the end: in units of log 2, as the others are.
__device__ __forceinline__ void settle_references(RunningRow (&rows)[2], float scale_log2,
                                                  RowBases bases) {
  const bool based = rows[0].reference == minus_infinity() || rows[1].reference == minus_infinity();
  if (ptx::ballot(based) == 0) return;
  float base[2];
  ptx::ld_shared_v2(bases.mine(), base[0], base[1]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (rows[r].reference == minus_infinity()) rows[r].reference = base[r] * scale_log2;
  }
}

/// The two rows' factor of O and natural log-sum-exp (-inf for a row that saw nothing), from
/// settled references.
__device__ __forceinline__ void finish_rows(const RunningRow (&rows)[2], float (&inverse)[2],
                                            float (&lse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows[r].sum;
    sum += ptx::shfl_xor_f32(sum, 1);
    sum += ptx::shfl_xor_f32(sum, 2);
    const bool sees_nothing = sum == 0.0f;  // a NaN sum is not 0 and passes on
    inverse[r] = sees_nothing ? 0.0f : ptx::rcp_approx(sum);
    // The sum's exponent goes to the reference, which headroom() has moved: exact, and lg2.approx
    // is best near 1.
    const u32 bits = ptx::bits_of(sum);
    const float exponent = static_cast<float>(static_cast<int>(bits >> 23 & 255) - 127);
    const float mantissa = ptx::float_of((bits & 0x007fffffu) | 0x3f800000u);
    const float log2_sum = rows[r].reference + exponent + ptx::lg2_approx(mantissa);
    const float poison = sum - sum;  // 0, or NaN for a sum that is no number
    lse[r] = sees_nothing ? minus_infinity() : (log2_sum + poison) * 0.6931471805599453f;
  }
}

/// P as the operand A of the next product: two pieces of eight columns are a step of 16 keys.
template <Element kElement, int kPieces, int kSteps>
__device__ __forceinline__ void pack(u32 (&p)[kSteps][4], const float (&s)[kPieces][4]) {
  static_assert(kPieces <= 2 * kSteps);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      p[i / 2][i % 2 * 2 + r] = ptx::cvt_x2_f32<kElement>(s[i][2 * r], s[i][2 * r + 1]);
    }
  }
}

}  // namespace stepwell::cuda
