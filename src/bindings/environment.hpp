// What the caller's framework has for a call on a GPU: its current stream and its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stepwell/attention.hpp"

namespace stepwell::bindings {

/// Sets stream and allocator of `args` for one call, and gives memory back at its end: the
/// framework reuses it for work that is queued later on the same stream.
class Environment {
 public:
  explicit Environment(AttentionArgs& args);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void* allocate(void* context, std::size_t bytes, Device device);

  std::vector<void*> tensors_;  // TVMFFIObjectHandle
};

/// A function of the caller's, kept for as long as any copy of this lives.
class Callback {
 public:
  /// `function` is a kTVMFFIFunction.
  explicit Callback(void* function);

  void operator()(std::int64_t number, const std::string& text) const;

 private:
  std::shared_ptr<void> function_;
};

}  // namespace stepwell::bindings
