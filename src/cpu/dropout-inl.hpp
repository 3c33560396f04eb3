// What dropout drops of whole tiles: core/philox.hpp on vectors.

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

/// The numbers of a tile depend on these beside the key and query indices.
struct DropoutStream {
  std::uint64_t key;
  std::uint32_t sample_head;
  std::uint32_t segment_pair;
};

/// high and low halves of the 64-bit products a * b, lane by lane.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void multiply_words(D d, V a, V b, V& high, V& low) {
#if HWY_TARGET == HWY_SCALAR  // has no wider lanes
  const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * hn::GetLane(b);
  low = hn::Set(d, static_cast<std::uint32_t>(product));
  high = hn::Set(d, static_cast<std::uint32_t>(product >> 32));
#else
  const hn::RepartitionToWide<D> wide;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))),
                               hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, b))));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
#endif
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE void philox_words(D d, V (&x)[4], std::uint64_t key) {
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    V a_high, a_low, b_high, b_low;
    multiply_words(d, x[0], hn::Set(d, 0xD2511F53u), a_high, a_low);
    multiply_words(d, x[2], hn::Set(d, 0xCD9E8D57u), b_high, b_low);
    x[0] = hn::Xor(hn::Xor(b_high, x[1]), hn::Set(d, key0));
    x[1] = b_low;
    x[2] = hn::Xor(hn::Xor(a_high, x[3]), hn::Set(d, key1));
    x[3] = a_low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/// Queries q and q + 8 of a block of 16 and a block of 64 keys: words[8 * pair + q] are what is
/// dropped of the group of keys 2 pair + {0, 1, 8, 9, ...}, bits as dropout_bit() says.
struct DroppedBlock {
  HWY_ALIGN std::uint32_t words[32];
};
HWY_INLINE void draw_dropped(const DropoutStream& stream, std::uint32_t key_block,
                             std::uint32_t query_block, std::uint32_t threshold,
                             DroppedBlock& block) {
  const hn::CappedTag<std::uint32_t, 8> d;  // lanes are queries side by side
  const std::uint32_t lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  for (std::uint32_t i = 0; i < 32; i += lanes) {
    auto below = hn::Zero(d);
    for (std::uint32_t part = 0; part < 2; ++part) {
      hn::Vec<decltype(d)> x[4] = {
          hn::Set(d, 4 * key_block + i / 8), hn::Set(d, stream.sample_head),
          hn::Iota(d, 8 * query_block + i % 8), hn::Set(d, 2 * stream.segment_pair + part)};
      philox_words(d, x, stream.key);
      for (std::uint32_t bit = 0; bit < 4; ++bit) {
        const auto ones = hn::Set(d, 0u - (threshold >> (4 * part + bit) & 1u));
        below = hn::Or(hn::AndNot(x[bit], hn::Or(below, ones)), hn::And(below, ones));
      }
    }
    hn::Store(below, d, block.words + i);
  }
}

/// Which lanes of what dropout_by_key() and dropout_by_query() leave are dropped.
HWY_INLINE hn::Mask<FloatTag> dropped_lanes(const std::uint32_t* dropped) {
  const hn::RebindToUnsigned<FloatTag> d;
  return hn::RebindMask(FloatTag(), hn::Ne(hn::LoadU(d, dropped), hn::Zero(d)));
}

/// dropped[(k - key_begin) * queries + i] is not 0 where the pair of key k in [key_begin, key_end)
/// and query query_begin + i, i in [0, queries), is dropped.
inline void dropout_by_key(const DropoutStream& stream, std::uint32_t threshold,
                           std::int32_t key_begin, std::int32_t key_end, std::int32_t query_begin,
                           std::int32_t queries, std::uint32_t* dropped) {
  const hn::CappedTag<std::uint32_t, 8> d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  DroppedBlock block;
  HWY_ALIGN std::uint32_t row[8];
  for (std::int32_t query = query_begin & ~15; query < query_begin + queries; query += 16) {
    for (std::int32_t key = key_begin & ~63; key < key_end; key += 64) {
      draw_dropped(stream, static_cast<std::uint32_t>(key / 64),
                   static_cast<std::uint32_t>(query / 16), threshold, block);
      const std::int32_t first = key < key_begin ? key_begin : key;
      const std::int32_t end = key + 64 < key_end ? key + 64 : key_end;
      for (std::int32_t k = first; k < end; ++k) {
        std::uint32_t* const to = dropped + static_cast<std::ptrdiff_t>(k - key_begin) * queries;
        const std::uint32_t* const words = block.words + k % 8 / 2 * 8;
        for (std::int32_t half = 0; half < 2; ++half) {
          const std::int32_t begin = query + 8 * half - query_begin;
          if (begin + 8 <= 0 || begin >= queries) continue;
          const auto bit = hn::Set(d, 1u << dropout_bit(static_cast<std::uint32_t>(k),
                                                        static_cast<std::uint32_t>(8 * half)));
          const bool whole = begin >= 0 && begin + 8 <= queries;
          std::uint32_t* const at = whole ? to + begin : row;
          for (std::int32_t i = 0; i < 8; i += lanes) {
            hn::StoreU(hn::And(hn::Load(d, words + i), bit), d, at + i);
          }
          if (whole) continue;
          for (std::int32_t i = 0; i < 8; ++i) {
            if (begin + i >= 0 && begin + i < queries) to[begin + i] = row[i];
          }
        }
      }
    }
  }
}

/// dropped[q * stride + k - key_begin] of queries query_begin + q, q in [0, queries), and keys
/// key_begin + [0, keys), both multiples of 8: not 0 for dropped pairs.
inline void dropout_by_query(const DropoutStream& stream, std::uint32_t threshold,
                             std::int32_t key_begin, std::int32_t keys, std::int32_t query_begin,
                             std::int32_t queries, std::uint32_t* dropped, std::size_t stride) {
  const hn::CappedTag<std::uint32_t, 8> d;  // lanes are keys side by side
  const std::int32_t lanes = static_cast<std::int32_t>(hn::Lanes(d));
  DroppedBlock block;
  for (std::int32_t query = query_begin & ~15; query < query_begin + queries; query += 16) {
    for (std::int32_t key = key_begin & ~63; key < key_begin + keys; key += 64) {
      draw_dropped(stream, static_cast<std::uint32_t>(key / 64),
                   static_cast<std::uint32_t>(query / 16), threshold, block);
      const std::int32_t first = key < key_begin ? key_begin : key;
      const std::int32_t end = key + 64 < key_begin + keys ? key + 64 : key_begin + keys;
      for (std::int32_t half = 0; half < 16; ++half) {
        const std::int32_t q = query + half - query_begin;
        if (q < 0 || q >= queries) continue;
        HWY_ALIGN std::uint32_t words[8];
        HWY_ALIGN std::uint32_t bits[8];
        for (std::int32_t i = 0; i < 8; ++i) {
          words[i] = block.words[i / 2 * 8 + half % 8];
          bits[i] =
              1u << dropout_bit(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(half));
        }
        std::uint32_t* const to = dropped + static_cast<std::size_t>(q) * stride - key_begin;
        for (std::int32_t i = 0; i < 8; i += lanes) {
          const auto of_lanes = hn::Load(d, words + i);
          const auto lowest = hn::Load(d, bits + i);
          for (std::int32_t k = first; k < end; k += 8) {
            const auto bit = hn::ShiftLeftSame(lowest, k / 8 % 8);
            hn::StoreU(hn::And(of_lanes, bit), d, to + k + i);
          }
        }
      }
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
