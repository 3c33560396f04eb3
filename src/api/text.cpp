#include "api/text.hpp"

#include <fmt/format.h>

namespace stepwell {

const char* to_text(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kOther:
      break;
  }
  return "of another dtype";
}

const char* to_text(TokenLayout layout) {
  switch (layout) {
    case TokenLayout::kBatched:
      return "batched";
    case TokenLayout::kInterleaved:
      return "interleaved";
    case TokenLayout::kHalves:
      return "halves";
    case TokenLayout::kSplit:
      return "split";
    case TokenLayout::kSequence:
      return "sequence";
  }
  return "unknown";
}

const char* to_text(SequenceMask::Kind kind) {
  switch (kind) {
    case SequenceMask::Kind::kFull:
      return "full";
    case SequenceMask::Kind::kCausal:
      return "causal";
    case SequenceMask::Kind::kWindow:
      return "window";
    case SequenceMask::Kind::kBlockCausal:
      return "block-causal";
  }
  return "unknown";
}

std::string to_text(Device device) {
  switch (device.type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return fmt::format("cuda:{}", device.index);
    case DeviceType::kHip:
      return fmt::format("hip:{}", device.index);
    case DeviceType::kOther:
      break;
  }
  return fmt::format("another device (index {})", device.index);
}

std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (int i = 0; i < tensor.rank && i < Tensor::kMaxRank; ++i) {
    text += fmt::format("{}{}", i > 0 ? ", " : "", tensor.shape[i]);
  }
  return text + (tensor.rank > Tensor::kMaxRank ? ", ...]" : "]");
}

}  // namespace stepwell
