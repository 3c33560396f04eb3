// Dropout numbers of whole tiles: core/philox.hpp on vectors.

#if defined(STEPWELL_CPU_DROPOUT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_CPU_DROPOUT_INL_HPP
#undef STEPWELL_CPU_DROPOUT_INL_HPP
#else
#define STEPWELL_CPU_DROPOUT_INL_HPP
#endif

#include <cstddef>
#include <cstdint>

#include "core/philox.hpp"
#include "cpu/gemm-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stepwell::cpu::HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVec = hn::Vec<WordTag>;

/// The numbers of a tile depend on these beside the key and query indices.
struct DropoutStream {
  std::uint64_t key;
  std::uint32_t sample_head;
  std::uint32_t segment_pair;
};

/// high and low halves of the 64-bit products a * b, lane by lane.
HWY_INLINE void multiply_words(WordVec a, WordVec b, WordVec& high, WordVec& low) {
  const WordTag d;
#if HWY_TARGET == HWY_SCALAR  // has no wider lanes
  const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * hn::GetLane(b);
  low = hn::Set(d, static_cast<std::uint32_t>(product));
  high = hn::Set(d, static_cast<std::uint32_t>(product >> 32));
#else
  const hn::RepartitionToWide<WordTag> wide;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))),
                               hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, b))));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
#endif
}

HWY_INLINE void philox_words(WordVec (&x)[4], std::uint64_t key) {
  const WordTag d;
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    WordVec a_high, a_low, b_high, b_low;
    multiply_words(x[0], hn::Set(d, 0xD2511F53u), a_high, a_low);
    multiply_words(x[2], hn::Set(d, 0xCD9E8D57u), b_high, b_low);
    x[0] = hn::Xor(hn::Xor(b_high, x[1]), hn::Set(d, key0));
    x[1] = b_low;
    x[2] = hn::Xor(hn::Xor(a_high, x[3]), hn::Set(d, key1));
    x[3] = a_low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/// numbers[(k - key_begin) * queries + i] for keys [key_begin, key_end) and queries query_begin +
/// i, i in [0, queries), a multiple of the vector length.
inline void dropout_by_key(const DropoutStream& stream, std::int32_t key_begin,
                           std::int32_t key_end, std::int32_t query_begin, std::size_t queries,
                           std::uint32_t* numbers) {
  const WordTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::int32_t group = key_begin & ~3; group < key_end; group += 4) {
    for (std::size_t i = 0; i < queries; i += lanes) {
      WordVec x[4] = {
          hn::Set(d, static_cast<std::uint32_t>(group) >> 2),
          hn::Iota(d, static_cast<std::uint32_t>(query_begin) + static_cast<std::uint32_t>(i)),
          hn::Set(d, stream.sample_head), hn::Set(d, stream.segment_pair)};
      philox_words(x, stream.key);
      for (std::int32_t w = 0; w < 4; ++w) {
        const std::int32_t k = group + w;
        if (k < key_begin || k >= key_end) continue;
        hn::StoreU(x[w], d, numbers + static_cast<std::size_t>(k - key_begin) * queries + i);
      }
    }
  }
}

/// numbers[q * stride + k - key_begin] for queries query_begin + q, q in [0, queries), and keys
/// from key_begin, a multiple of 4, on; writes up to a multiple of 4 * (vector length) keys.
inline void dropout_by_query(const DropoutStream& stream, std::int32_t key_begin, std::size_t keys,
                             std::int32_t query_begin, std::size_t queries, std::uint32_t* numbers,
                             std::size_t stride) {
  const WordTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t q = 0; q < queries; ++q) {
    for (std::size_t k = 0; k < keys; k += 4 * lanes) {
      WordVec x[4] = {
          hn::Iota(d, (static_cast<std::uint32_t>(key_begin) + static_cast<std::uint32_t>(k)) >> 2),
          hn::Set(d, static_cast<std::uint32_t>(query_begin) + static_cast<std::uint32_t>(q)),
          hn::Set(d, stream.sample_head), hn::Set(d, stream.segment_pair)};
      philox_words(x, stream.key);
      hn::StoreInterleaved4(x[0], x[1], x[2], x[3], d, numbers + q * stride + k);
    }
  }
}

/// core/philox.hpp's `sample_head` and `segment_pair` of a query segment and a key half.
inline DropoutStream dropout_stream(std::uint64_t key, std::int32_t sample_index,
                                    std::int32_t heads_q, std::int32_t head,
                                    std::int32_t query_segment, bool clean_keys) {
  return {key, static_cast<std::uint32_t>(sample_index * heads_q + head),
          static_cast<std::uint32_t>(2 * query_segment + (clean_keys ? 1 : 0))};
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
