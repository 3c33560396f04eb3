// Non-owning tensor views.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

namespace stepwell {

enum class DType { kFloat32, kFloat16, kBFloat16, kInt32, kInt64, kOther };

/// Bytes of one element; 0 for kOther.
constexpr int size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt64:
      return 8;
    case DType::kOther:
      return 0;
  }
  return 0;
}

enum class DeviceType { kCpu, kCuda, kHip, kOther };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// A strided view of memory that the caller owns. A default-made view stands for "not given".
struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Device device{};
  int rank = -1;  // -1: not given
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};  // in elements

  bool given() const { return rank >= 0; }

  std::int64_t size() const {
    std::int64_t elements = 1;
    for (int i = 0; i < rank; ++i) elements *= shape[i];
    return elements;
  }

  /// A view of contiguous row-major memory.
  static Tensor contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                           Device device = {}) {
    Tensor tensor{data, dtype, device, static_cast<int>(shape.size()), {}, {}};
    int i = 0;
    for (const std::int64_t extent : shape) tensor.shape[i++] = extent;
    std::int64_t stride = 1;
    for (i = tensor.rank - 1; i >= 0; --i) {
      tensor.stride[i] = stride;
      stride *= tensor.shape[i];
    }
    return tensor;
  }
};

}  // namespace stepwell
