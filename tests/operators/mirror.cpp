#include "operators/mirror.hpp"

#include <algorithm>
#include <cstdint>

#include "api/names.hpp"

namespace stepwell::testing {
namespace {

constexpr std::size_t kAlignment = 64;

/// Bytes from a tensor's first element to past its last one.
std::size_t span_bytes(const Tensor& tensor) {
  if (!tensor.given() || tensor.size() == 0) return 0;
  std::int64_t last = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] > 1) last += (tensor.shape[i] - 1) * tensor.stride[i];
  }
  return static_cast<std::size_t>(last + 1) * static_cast<std::size_t>(size_of(tensor.dtype));
}

std::byte* data_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data); }

template <typename Struct, std::size_t N>
void append(Struct& given, const Field<Struct> (&fields)[N], std::vector<Tensor*>& tensors) {
  for (const Field<Struct>& field : fields) {
    if ((given.*field.tensor).given()) tensors.push_back(&(given.*field.tensor));
  }
}

}  // namespace

Mirror::Mirror(DeviceMemory& memory, Device device, const std::vector<Tensor*>& tensors)
    : memory_(memory) {
  std::vector<Tensor*> sorted = tensors;
  std::sort(sorted.begin(), sorted.end(),
            [](const Tensor* a, const Tensor* b) { return data_of(*a) < data_of(*b); });
  for (const Tensor* tensor : sorted) {
    const std::size_t bytes = span_bytes(*tensor);
    if (bytes == 0) continue;
    std::byte* begin = data_of(*tensor);
    if (!pieces_.empty() && begin < pieces_.back().host + pieces_.back().bytes) {
      Piece& last = pieces_.back();
      last.bytes = std::max<std::size_t>(last.bytes, begin + bytes - last.host);
    } else {
      pieces_.push_back({begin, bytes, nullptr, nullptr});
    }
  }
  for (Piece& piece : pieces_) {
    const std::size_t skip = reinterpret_cast<std::uintptr_t>(piece.host) % kAlignment;
    piece.allocation = memory_.allocate(skip + piece.bytes);
    piece.device = piece.allocation + skip;
    memory_.copy_in(piece.device, piece.host, piece.bytes);
  }
  for (Tensor* tensor : tensors) {
    tensor->device = device;
    if (span_bytes(*tensor) == 0) continue;
    for (const Piece& piece : pieces_) {
      if (data_of(*tensor) >= piece.host && data_of(*tensor) < piece.host + piece.bytes) {
        tensor->data = piece.device + (data_of(*tensor) - piece.host);
        break;
      }
    }
  }
}

Mirror::~Mirror() {
  for (const Piece& piece : pieces_) memory_.free(piece.allocation);
}

void Mirror::copy_back() {
  for (const Piece& piece : pieces_) memory_.copy_out(piece.host, piece.device, piece.bytes);
}

std::vector<Tensor*> tensors_of(AttentionArgs& args) {
  std::vector<Tensor*> tensors;
  append(args, kTensorFields, tensors);
  append(args, kArrayFields, tensors);
  return tensors;
}

std::vector<Tensor*> tensors_of(AttentionOutputs& outputs) {
  std::vector<Tensor*> tensors;
  append(outputs, kOutputFields, tensors);
  return tensors;
}

std::vector<Tensor*> tensors_of(AttentionGradients& gradients) {
  std::vector<Tensor*> tensors;
  append(gradients, kGradientFields, tensors);
  return tensors;
}

}  // namespace stepwell::testing
