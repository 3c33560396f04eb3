// Counter-based random numbers for dropout: Philox4x32 of 7 rounds, the fewest that pass BigCrush
// (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). Includes nothing, for
// host and device code.
//
// A (query, key) pair owns one 15-bit number that depends on nothing but the seed, the offset and
// the pair's place in its sample, so that every tiling, layout, backend and pass agrees on it.
// Eight pairs share one counter: queries q and q + 8, and keys k, k + 1, k + 8 and k + 9 of blocks
// of 16, which are what one lane holds of a tensor core's 16 x 16 accumulators.
//
//   key      seed and offset, mixed
//   counter  (4 (key / 16) + key % 8 / 2, 8 (query / 16) + query % 8, sample * heads_q + head,
//            2 * query segment + key half)
//   word     2 (query / 8 % 2) + key / 8 % 2
//   bits     0 to 14 for even keys, 16 to 30 for odd ones
//
// with the query segment the noisy view's number or num_views for clean rows, and the key half 0
// for noisy keys (of the row's own view) and 1 for clean keys. A pair is kept when its number is at
// least dropout_threshold(p).
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

/// Bits of a number, and where the odd key's begins in its word.
inline constexpr int kDropoutBits = 15;
inline constexpr int kDropoutShift = 16;
inline constexpr unsigned kDropoutMask = (1u << kDropoutBits) - 1;

/// Numbers below this drop their pair; p in [0, 1) is rounded to a multiple of 2^-15, from 2^-15 to
/// 1 - 2^-15 where it is not 0.
constexpr unsigned dropout_threshold(double p) {
  if (!(p > 0.0)) return 0;
  const unsigned nearest = (static_cast<unsigned>(p * (2u << kDropoutBits)) + 1) / 2;
  return nearest < 1 ? 1 : nearest > kDropoutMask ? kDropoutMask : nearest;
}

/// The factor of kept pairs: 1 / (1 - p), with p as rounded there, so that means stay as they were.
constexpr double dropout_keep_scale(double p) {
  constexpr double kAll = 1u << kDropoutBits;
  return kAll / (kAll - dropout_threshold(p));
}

/// The counter of a pair.
constexpr Philox4 dropout_counter(unsigned key_index, unsigned query_index, unsigned sample_head,
                                  unsigned segment_pair) {
  return {{key_index / 16 * 4 + key_index % 8 / 2, query_index / 16 * 8 + query_index % 8,
           sample_head, segment_pair}};
}
/// The word of a pair among its counter's four.
constexpr unsigned dropout_word(unsigned key_index, unsigned query_index) {
  return query_index / 8 % 2 * 2 + key_index / 8 % 2;
}

/// The pair's number.
constexpr unsigned dropout_number(unsigned long long key, unsigned key_index, unsigned query_index,
                                  unsigned sample_head, unsigned segment_pair) {
  const Philox4 words =
      philox4x32(dropout_counter(key_index, query_index, sample_head, segment_pair),
                 static_cast<unsigned>(key), static_cast<unsigned>(key >> 32));
  return words.x[dropout_word(key_index, query_index)] >> (key_index % 2 * kDropoutShift) &
         kDropoutMask;
}

}  // namespace stepwell
