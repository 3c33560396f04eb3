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
  for (int round = 0; round < kPhiloxRounds; ++round) {
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

/// The two numbers of each word: of even keys and of odd ones.
struct DropoutNumbers {
  WordVec even;
  WordVec odd;
};
HWY_INLINE DropoutNumbers dropout_numbers(WordVec word) {
  const WordTag d;
  const WordVec mask = hn::Set(d, kDropoutMask);
  return {hn::And(word, mask), hn::And(hn::ShiftRight<kDropoutShift>(word), mask)};
}

/// numbers[(k - key_begin) * queries + i] for keys [key_begin, key_end) and queries query_begin +
/// i, i in [0, queries). Lanes are counters of neighbouring queries: of 8 in each block of 16.
inline void dropout_by_key(const DropoutStream& stream, std::int32_t key_begin,
                           std::int32_t key_end, std::int32_t query_begin, std::int32_t queries,
                           std::uint32_t* numbers) {
  const WordTag d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const std::int32_t run = lanes < 8 ? lanes : 8;  // queries side by side
  HWY_ALIGN std::uint32_t row[hn::MaxLanes(d)];
  const auto store = [&](WordVec of_lanes, std::int32_t k, std::int32_t first, std::int32_t upper) {
    if (k < key_begin || k >= key_end) return;
    hn::Store(of_lanes, d, row);
    std::uint32_t* const to = numbers + static_cast<std::ptrdiff_t>(k - key_begin) * queries;
    for (std::int32_t lane = 0; lane < lanes; lane += run) {
      const std::int32_t counter = first + lane;
      const std::int32_t i = counter / 8 * 16 + counter % 8 + 8 * upper - query_begin;
      const std::int32_t from = i < 0 ? -i : 0;
      const std::int32_t end = queries - i < run ? queries - i : run;
      for (std::int32_t j = from; j < end; ++j) to[i + j] = row[lane + j];
    }
  };
  const std::int32_t first_counter = query_begin / 16 * 8;
  const std::int32_t end_counter = (query_begin + queries + 15) / 16 * 8;
  for (std::int32_t block = key_begin & ~15; block < key_end; block += 16) {
    for (std::int32_t k = block; k < block + 8; k += 2) {
      if (k + 9 < key_begin || k >= key_end) continue;
      for (std::int32_t q = first_counter; q < end_counter; q += lanes) {
        WordVec x[4] = {hn::Set(d, static_cast<std::uint32_t>(block / 4 + k % 8 / 2)),
                        hn::Iota(d, static_cast<std::uint32_t>(q)), hn::Set(d, stream.sample_head),
                        hn::Set(d, stream.segment_pair)};
        philox_words(x, stream.key);
        for (std::int32_t w = 0; w < 4; ++w) {
          const DropoutNumbers of = dropout_numbers(x[w]);
          store(of.even, k + w % 2 * 8, q, w / 2);
          store(of.odd, k + w % 2 * 8 + 1, q, w / 2);
        }
      }
    }
  }
}

/// numbers[q * stride + k - key_begin] for queries query_begin + q, q in [0, queries), and keys
/// key_begin + [0, keys), both multiples of 16. Lanes are counters of neighbouring keys: of 4 in
/// each block of 16.
inline void dropout_by_query(const DropoutStream& stream, std::int32_t key_begin, std::int32_t keys,
                             std::int32_t query_begin, std::int32_t queries, std::uint32_t* numbers,
                             std::size_t stride) {
  const WordTag d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const std::int32_t run = lanes < 4 ? lanes : 4;  // counters of keys side by side
  HWY_ALIGN std::uint32_t row[2 * hn::MaxLanes(d)];
  const std::int32_t first_counter = query_begin / 16 * 8;
  const std::int32_t end_counter = (query_begin + queries + 15) / 16 * 8;
  for (std::int32_t counter = first_counter; counter < end_counter; ++counter) {
    const std::int32_t lower = counter / 8 * 16 + counter % 8 - query_begin;
    for (std::int32_t k = 0; k < keys / 4; k += lanes) {
      WordVec x[4] = {hn::Iota(d, static_cast<std::uint32_t>(key_begin / 4 + k)),
                      hn::Set(d, static_cast<std::uint32_t>(counter)),
                      hn::Set(d, stream.sample_head), hn::Set(d, stream.segment_pair)};
      philox_words(x, stream.key);
      for (std::int32_t w = 0; w < 4; ++w) {
        const std::int32_t q = lower + 8 * (w / 2);
        if (q < 0 || q >= queries) continue;
        const DropoutNumbers of = dropout_numbers(x[w]);
        hn::StoreInterleaved2(of.even, of.odd, d, row);
        std::uint32_t* const to = numbers + static_cast<std::size_t>(q) * stride;
        for (std::int32_t lane = 0; lane < lanes && k + lane < keys / 4; lane += run) {
          const std::int32_t at = (k + lane) / 4 * 16 + (k + lane) % 4 * 2 + w % 2 * 8;
          for (std::int32_t j = 0; j < 2 * run; ++j) to[at + j] = row[2 * lane + j];
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
