// Counter-based random numbers for dropout: Philox4x32-10 (Salmon et al., "Parallel Random Numbers:
// As Easy as 1, 2, 3", SC 2011). Includes nothing, for host and device code.
//
// A (query, key) pair owns one 32-bit number that depends on nothing but the seed, the offset and
// the pair's place in its sample, so that every tiling, layout, backend and pass agrees on it:
//
//   key      seed and offset, mixed
//   counter  (key index / 4, query index, sample * heads_q + head, 2 * query segment + key half)
//   word     key index mod 4
//
// with the query segment the noisy view's number or num_views for clean rows, and the key half 0
// for noisy keys (of the row's own view) and 1 for clean keys. A pair is kept when its number is at
// least dropout_threshold(p).
#pragma once

namespace stepwell {

struct Philox4 {
  unsigned x[4];
};

constexpr Philox4 philox4x32(Philox4 counter, unsigned key0, unsigned key1) {
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = 0xD2511F53ull * counter.x[0];
    const unsigned long long b = 0xCD9E8D57ull * counter.x[2];
    counter = {static_cast<unsigned>(b >> 32) ^ counter.x[1] ^ key0, static_cast<unsigned>(b),
               static_cast<unsigned>(a >> 32) ^ counter.x[3] ^ key1, static_cast<unsigned>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
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

/// Numbers below this drop their pair; p in [0, 1).
constexpr unsigned dropout_threshold(double p) { return static_cast<unsigned>(p * 4294967296.0); }

/// The pair's number.
constexpr unsigned dropout_number(unsigned long long key, unsigned key_index, unsigned query_index,
                                  unsigned sample_head, unsigned segment_pair) {
  return philox4x32({{key_index >> 2, query_index, sample_head, segment_pair}},
                    static_cast<unsigned>(key), static_cast<unsigned>(key >> 32))
      .x[key_index & 3];
}

}  // namespace stepwell
