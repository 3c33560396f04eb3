// Where operands of tensor copies and of wgmma lie in shared memory, for host and device code.
// Section names are those of the PTX ISA document.
#pragma once

#include "cuda/tensor_map.hpp"

namespace stepwell::cuda::ptx {

/// "Swizzling Modes": the bits of a 16-byte piece's number that are xored with address bits 7 and
/// up.
constexpr unsigned swizzle_mask(Swizzle swizzle) {
  return (1u << static_cast<unsigned>(swizzle)) - 1;
}

/// Where the byte at `address` lies after swizzling. The pattern goes by addresses: it starts anew
/// every 128 bytes times the pieces it changes, 1024 with k128.
constexpr unsigned swizzled(unsigned address, Swizzle swizzle) {
  return address ^ (address >> 7 & swizzle_mask(swizzle)) << 4;
}

/// "Matrix Descriptor Format" of an operand of wgmma that starts at shared address `start`.
///
///              rows                  next 16 bytes of a row   `leading_bytes`   `stride_bytes`
///   K-major    of K, kSpan apart     adjacent                 unused            next 8 rows
///   MN-major   of M or N, as above   adjacent, kSpan in all   next kSpan of MN  next 8 of K
///
/// where kSpan is what the swizzle spans. Without swizzle kSpan is 16; K-major's next 16 bytes are
/// then `leading_bytes` further, and MN-major's offsets change their roles.
constexpr unsigned long long matrix_descriptor(unsigned start, unsigned leading_bytes,
                                               unsigned stride_bytes, Swizzle swizzle) {
  const unsigned long long mode =
      swizzle == Swizzle::kNone ? 0 : 4u - static_cast<unsigned>(swizzle);
  return (start & 0x3ffffu) >> 4 | static_cast<unsigned long long>(leading_bytes >> 4) << 16 |
         static_cast<unsigned long long>(stride_bytes >> 4) << 32 | mode << 62;
}

/// The descriptor of what lies `bytes` (a multiple of 16) behind the start of another.
constexpr unsigned long long advance_descriptor(unsigned long long descriptor, unsigned bytes) {
  return descriptor + (bytes >> 4);
}

}  // namespace stepwell::cuda::ptx
