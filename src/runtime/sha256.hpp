#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace stepwell::runtime {

/// SHA-256 (FIPS 180-4) of bytes that come piece by piece.
class Sha256 {
 public:
  void add(std::string_view bytes);

  /// The same, after the number of bytes, so that ("ab", "c") and ("a", "bc") differ.
  void add_field(std::string_view bytes);

  /// 64 hexadecimal digits. Nothing may be added afterwards.
  std::string hex_digest();

 private:
  void add_chunk(const unsigned char* chunk);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_{};
  std::uint64_t size_ = 0;
};

std::string sha256_hex(std::string_view bytes);

}  // namespace stepwell::runtime
