// Device memory for a call's tensors.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "stepwell/attention.hpp"

namespace stepwell::testing {

/// Memory of a device, for tests.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Aligned to 64 bytes.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) = 0;
  virtual void copy_in(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  /// Waits for all work first.
  virtual void copy_out(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
};

/// Copies of the memory that tensors cover, gaps between rows and heads included. Tensors of one
/// allocation stay in one, and addresses keep their alignment.
class Mirror {
 public:
  /// Points `tensors` at the copies, as tensors of `device`.
  Mirror(DeviceMemory& memory, Device device, const std::vector<Tensor*>& tensors);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// Calls visit(first byte, bytes) for each copy.
  template <typename Visit>
  void for_each_piece(Visit&& visit) const {
    for (const Piece& piece : pieces_) visit(piece.device, piece.bytes);
  }

  /// Everything back to where it came from.
  void copy_back();

 private:
  struct Piece {
    std::byte* host;
    std::size_t bytes;
    std::byte* allocation;
    std::byte* device;
  };
  DeviceMemory& memory_;
  std::vector<Piece> pieces_;
};

/// The given tensors of the arguments and results.
std::vector<Tensor*> tensors_of(AttentionArgs& args);
std::vector<Tensor*> tensors_of(AttentionOutputs& outputs);
std::vector<Tensor*> tensors_of(AttentionGradients& gradients);

}  // namespace stepwell::testing
