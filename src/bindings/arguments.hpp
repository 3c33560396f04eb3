// Positional arguments of the Python boundary: reads tvm-ffi's C ABI into the library's types.
//
// Only c_api.h (plain C) is used, since tvm-ffi's C++ classes have moved between patch releases.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <string_view>

#include "stepwell/stepwell.hpp"

namespace stepwell::bindings {

/// What a tensor's dtype may be, for the message where it is none that the library knows.
enum class Elements { kFloat, kFloat32, kInt32, kInt64 };

/// Reads arguments in order; each call names the argument it takes.
class ArgumentReader {
 public:
  ArgumentReader(const char* function, const TVMFFIAny* arguments, int count)
      : function_(function), arguments_(arguments), count_(count) {}

  std::int64_t integer(const char* name);
  int small_integer(const char* name);
  bool boolean(const char* name);
  double number(const char* name);
  std::optional<double> optional_number(const char* name);
  /// A view of the caller's string.
  std::string_view text(const char* name);
  /// A kTVMFFIFunction, owned by the caller.
  void* function(const char* name);
  /// A default-made Tensor for None.
  Tensor tensor(const char* name, Elements elements);
  /// uint8 or bool, contiguous, in host memory.
  const DLTensor& bytes(const char* name);
  /// Throws unless every argument was taken.
  void finish() const;

 private:
  const TVMFFIAny& next(const char* name);

  const char* function_;
  const TVMFFIAny* arguments_;
  int count_;
  int next_ = 0;
};

/// The arguments that all attention functions begin with.
AttentionArgs read_attention_args(ArgumentReader& reader);
AttentionOutputs read_outputs(ArgumentReader& reader, const AttentionArgs& args);
AttentionGradients read_gradients(ArgumentReader& reader, const AttentionArgs& args);

}  // namespace stepwell::bindings
