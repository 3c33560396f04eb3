// Tensor maps: what a tensor copy (cp.async.bulk.tensor) knows of its tensor, for host and device
// code.
#pragma once

namespace stepwell::cuda {

/// 128 opaque bytes. On the device a CUtensorMap; in the host model an encoding of its own
/// (encode_tensor_map).
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

/// Which of the 16-byte pieces of 32, 64 or 128 bytes change places; numbers of CUtensorMapSwizzle.
enum class Swizzle { kNone = 0, k32 = 1, k64 = 2, k128 = 3 };

/// What a tensor map is made from: the arguments of cuTensorMapEncodeTiled, for 16-bit elements.
/// Dim 0 is contiguous. Elements of a box outside of the tensor are read as zero and not written.
struct TiledTensor {
  const void* data = nullptr;          // aligned to 16 bytes
  int rank = 0;                        // 1 to 5
  unsigned long long dims[5] = {};     // elements, each at least 1
  unsigned long long strides[4] = {};  // bytes, of dims 1, 2, ...; multiples of 16
  unsigned box[5] = {};                // elements of one copy, each at most 256
  Swizzle swizzle = Swizzle::kNone;    // spans at least the bytes of box[0]

  friend bool operator==(const TiledTensor&, const TiledTensor&) = default;
};

}  // namespace stepwell::cuda
