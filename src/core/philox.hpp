// Counter-based random numbers for dropout: Philox4x32 of 7 rounds, the fewest that pass BigCrush
// (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). Includes nothing, for
// host and device code.
//
// A (query, key) pair owns one 8-bit number that depends on nothing but the seed, the offset and
// the pair's place in its sample, so that every tiling, layout, backend and pass agrees on it. A
// group of 32 pairs shares eight words of 32 bits, two counters' worth: word b has bit b of every
// number, so that all 32 are compared with the threshold at once. The groups are queries q and q +
// 8 of 16 and the 16 keys of 64 that one lane holds of a tensor core's accumulators.
//
//   key      seed and offset, mixed
//   counter  (4 (key / 64) + key % 8 / 2, sample * heads_q + head, 8 (query / 16) + query % 8,
//            4 * query segment + 2 * key half + {0 for bits 0 to 3, 1 for bits 4 to 7})
//   bit      16 (key % 2) + 8 (query / 8 % 2) + key / 8 % 8 of each word
//
// with the query segment the noisy view's number or num_views for clean rows, and the key half 0
// for noisy keys (of the row's own view) and 1 for clean keys. A pair is dropped when its number is
// below dropout_threshold(p). Of the first two rounds most depends on the key or the query alone.
#pragma once

namespace stepwell {

struct Philox4 {
  unsigned x[4];
};

inline constexpr int kPhiloxRounds = 7;

/// One round, with its own two keys.
constexpr Philox4 philox_round(const Philox4& x, unsigned key0, unsigned key1) {
  const unsigned long long a = 0xD2511F53ull * x.x[0];
  const unsigned long long b = 0xCD9E8D57ull * x.x[2];
  return {{static_cast<unsigned>(b >> 32) ^ x.x[1] ^ key0, static_cast<unsigned>(b),
           static_cast<unsigned>(a >> 32) ^ x.x[3] ^ key1, static_cast<unsigned>(a)}};
}

/// Round by round for all counters: their chains of dependent instructions run side by side.
template <int kRounds = kPhiloxRounds, int kCount = 1>
constexpr void philox4x32(Philox4 (&counters)[kCount], unsigned key0, unsigned key1) {
  for (int round = 0; round < kRounds; ++round) {
    for (Philox4& x : counters) x = philox_round(x, key0, key1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}
template <int kRounds = kPhiloxRounds>
constexpr Philox4 philox4x32(const Philox4& counter, unsigned key0, unsigned key1) {
  Philox4 counters[1] = {counter};
  philox4x32<kRounds>(counters, key0, key1);
  return counters[0];
}

/// The 64-bit Philox key of a (seed, offset): two rounds of SplitMix64's finaliser.
constexpr unsigned long long dropout_key(unsigned long long seed, unsigned long long offset) {
  unsigned long long z = offset;
  for (int round = 0; round < 2; ++round) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z = (z ^ (z >> 31)) ^ (round == 0 ? seed : 0ull);
  }
  return z;
}

/// Bits of a number.
inline constexpr int kDropoutBits = 8;

/// Numbers below this drop their pair; p in [0, 1) is rounded to a multiple of 2^-8, from 2^-8 to
/// 1 - 2^-8 where it is not 0.
constexpr unsigned dropout_threshold(double p) {
  constexpr unsigned kLargest = (1u << kDropoutBits) - 1;
  if (!(p > 0.0)) return 0;
  const unsigned nearest = (static_cast<unsigned>(p * (2u << kDropoutBits)) + 1) / 2;
  return nearest < 1 ? 1 : nearest > kLargest ? kLargest : nearest;
}

/// The factor of kept pairs: 1 / (1 - p), with p as rounded there, so that means stay as they were.
constexpr double dropout_keep_scale(double p) {
  constexpr double kAll = 1u << kDropoutBits;
  return kAll / (kAll - dropout_threshold(p));
}

/// The counter of bits 0 to 3 (part 0) or 4 to 7 (part 1) of a pair's group. `segment_pair`: twice
/// the query segment plus the key half.
constexpr Philox4 dropout_counter(unsigned key_index, unsigned query_index, unsigned sample_head,
                                  unsigned segment_pair, unsigned part) {
  return {{key_index / 64 * 4 + key_index % 8 / 2, sample_head,
           query_index / 16 * 8 + query_index % 8, 2 * segment_pair + part}};
}
/// The pair's bit in the words of its group.
constexpr unsigned dropout_bit(unsigned key_index, unsigned query_index) {
  return key_index % 2 * 16 + query_index / 8 % 2 * 8 + key_index / 8 % 8;
}

/// Which pairs of a group are dropped: their numbers are below the threshold, found from the lowest
/// bit up.
constexpr unsigned dropped_pairs(const Philox4& low, const Philox4& high, unsigned threshold) {
  unsigned below = 0;
  for (int bit = 0; bit < kDropoutBits; ++bit) {
    const unsigned word = bit < 4 ? low.x[bit & 3] : high.x[bit & 3];
    const unsigned ones = 0u - (threshold >> bit & 1u);
    below = (~word & (below | ones)) | (below & ones);
  }
  return below;
}

/// The pair's number.
constexpr unsigned dropout_number(unsigned long long key, unsigned key_index, unsigned query_index,
                                  unsigned sample_head, unsigned segment_pair) {
  const unsigned bit = dropout_bit(key_index, query_index);
  unsigned number = 0;
  for (unsigned part = 0; part < 2; ++part) {
    const Philox4 words =
        philox4x32(dropout_counter(key_index, query_index, sample_head, segment_pair, part),
                   static_cast<unsigned>(key), static_cast<unsigned>(key >> 32));
    for (unsigned i = 0; i < 4; ++i) number |= (words.x[i] >> bit & 1u) << (4 * part + i);
  }
  return number;
}

}  // namespace stepwell
