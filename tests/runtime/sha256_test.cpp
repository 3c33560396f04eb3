#include "runtime/sha256.hpp"

#include <gtest/gtest.h>

#include <string>

namespace stepwell::testing {
namespace {

using runtime::Sha256;
using runtime::sha256_hex;

// FIPS 180-4 examples; the lengths around a chunk's end from Python's hashlib.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(sha256_hex(std::string(55, 'a')),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(sha256_hex(std::string(56, 'a')),
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(sha256_hex(std::string(63, 'a')),
            "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(sha256_hex(std::string(64, 'a')),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(sha256_hex(std::string(65, 'a')),
            "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0");
}

TEST(Sha256, PiecesDoNotMatter) {
  const std::string text(1000, 'x');
  Sha256 hash;
  for (std::size_t at = 0, piece = 1; at < text.size(); at += piece++) {
    hash.add(std::string_view(text).substr(at, piece));
  }
  EXPECT_EQ(hash.hex_digest(), sha256_hex(text));
}

TEST(Sha256, FieldsKeepTheirBoundaries) {
  Sha256 first;
  first.add_field("ab");
  first.add_field("c");
  Sha256 second;
  second.add_field("a");
  second.add_field("bc");
  EXPECT_NE(first.hex_digest(), second.hex_digest());
}

}  // namespace
}  // namespace stepwell::testing
