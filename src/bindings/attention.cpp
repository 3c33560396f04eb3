// The functions Python sees, in tvm-ffi's calling convention: a symbol `__tvm_ffi_<name>` each.
// Arguments are positional; read_attention_args lists those that all functions begin with.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/arguments.hpp"
#include "bindings/environment.hpp"
#include "runtime/library.hpp"
#include "runtime/log.hpp"

namespace stepwell::bindings {
namespace {

const char* python_exception(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kValue:
      return "ValueError";
    case ErrorKind::kType:
      return "TypeError";
    case ErrorKind::kNotImplemented:
      return "NotImplementedError";
    case ErrorKind::kRuntime:
      break;
  }
  return "RuntimeError";
}

/// Runs `body`; an exception becomes the error that tvm-ffi raises in the caller.
template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const Error& error) {
    TVMFFIErrorSetRaisedFromCStr(python_exception(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "stepwell: out of memory");
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
  } catch (...) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "stepwell: unknown error");
  }
  return -1;
}

/// The same where `body` yields the text that the function returns.
template <typename Body>
int guarded_text(TVMFFIAny* result, Body&& body) noexcept {
  int status = 0;
  const int error = guarded([&] {
    const std::string text = body();
    const TVMFFIByteArray bytes{text.data(), text.size()};
    status = TVMFFIStringFromByteArray(&bytes, result);
  });
  return error != 0 ? error : status;
}

std::size_t byte_count(const DLTensor& tensor) {
  std::size_t bytes = 1;
  for (int i = 0; i < tensor.ndim; ++i) bytes *= static_cast<std::size_t>(tensor.shape[i]);
  return bytes;
}

}  // namespace

// The convention's names.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
extern "C" {

// (arguments, out, lse, out_clean, lse_clean)
TVM_FFI_DLL_EXPORT int __tvm_ffi_attention_forward(void*, const TVMFFIAny* arguments, int32_t count,
                                                   TVMFFIAny*) {
  return guarded([&] {
    ArgumentReader reader("attention_forward", arguments, count);
    AttentionArgs args = read_attention_args(reader);
    const AttentionOutputs outputs = read_outputs(reader, args);
    reader.finish();
    const Environment environment(args);
    attention_forward(args, outputs);
  });
}

// (arguments, out, lse, dout, dlse, out_clean, lse_clean, dout_clean, dlse_clean, dq, dk, dv,
//  dq_clean, dk_clean, dv_clean)
TVM_FFI_DLL_EXPORT int __tvm_ffi_attention_backward(void*, const TVMFFIAny* arguments,
                                                    int32_t count, TVMFFIAny*) {
  return guarded([&] {
    ArgumentReader reader("attention_backward", arguments, count);
    AttentionArgs args = read_attention_args(reader);
    const AttentionGradients gradients = read_gradients(reader, args);
    reader.finish();
    const Environment environment(args);
    attention_backward(args, gradients);
  });
}

// The arguments of attention_forward -> str: what the plan of such a call says of itself.
TVM_FFI_DLL_EXPORT int __tvm_ffi_attention_forward_plan(void*, const TVMFFIAny* arguments,
                                                        int32_t count, TVMFFIAny* result) {
  return guarded_text(result, [&] {
    ArgumentReader reader("attention_forward_plan", arguments, count);
    const AttentionArgs args = read_attention_args(reader);
    const AttentionOutputs outputs = read_outputs(reader, args);
    reader.finish();
    return plan_attention_forward(args, outputs).describe();
  });
}

// The arguments of attention_backward -> str
TVM_FFI_DLL_EXPORT int __tvm_ffi_attention_backward_plan(void*, const TVMFFIAny* arguments,
                                                         int32_t count, TVMFFIAny* result) {
  return guarded_text(result, [&] {
    ArgumentReader reader("attention_backward_plan", arguments, count);
    const AttentionArgs args = read_attention_args(reader);
    const AttentionGradients gradients = read_gradients(reader, args);
    reader.finish();
    return plan_attention_backward(args, gradients).describe();
  });
}

// (arguments, visible)
TVM_FFI_DLL_EXPORT int __tvm_ffi_attention_mask(void*, const TVMFFIAny* arguments, int32_t count,
                                                TVMFFIAny*) {
  return guarded([&] {
    ArgumentReader reader("attention_mask", arguments, count);
    const AttentionArgs args = read_attention_args(reader);
    const DLTensor& visible = reader.bytes("visible");
    reader.finish();
    attention_mask(args, static_cast<unsigned char*>(visible.data) + visible.byte_offset,
                   byte_count(visible));
  });
}

// (arguments) -> int
TVM_FFI_DLL_EXPORT int __tvm_ffi_visible_pairs(void*, const TVMFFIAny* arguments, int32_t count,
                                               TVMFFIAny* result) {
  return guarded([&] {
    ArgumentReader reader("visible_pairs", arguments, count);
    const AttentionArgs args = read_attention_args(reader);
    reader.finish();
    const std::int64_t pairs = visible_pairs(args);
    result->type_index = kTVMFFIInt;
    result->zero_padding = 0;
    result->v_int64 = pairs;
  });
}

// (folders, separated by colons)
TVM_FFI_DLL_EXPORT int __tvm_ffi_set_library_dirs(void*, const TVMFFIAny* arguments, int32_t count,
                                                  TVMFFIAny*) {
  return guarded([&] {
    ArgumentReader reader("set_library_dirs", arguments, count);
    const std::string_view text = reader.text("folders");
    reader.finish();
    std::vector<std::filesystem::path> dirs;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find(':', begin), text.size());
      if (end > begin) dirs.emplace_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    runtime::set_library_dirs(std::move(dirs));
  });
}

// (function of level (0: information, 1: warning) and line)
TVM_FFI_DLL_EXPORT int __tvm_ffi_set_log_callback(void*, const TVMFFIAny* arguments, int32_t count,
                                                  TVMFFIAny*) {
  return guarded([&] {
    ArgumentReader reader("set_log_callback", arguments, count);
    const Callback callback(reader.function("callback"));
    reader.finish();
    runtime::set_log_callback([callback](runtime::LogLevel level, const std::string& line) {
      callback(static_cast<std::int64_t>(level), line);
    });
  });
}

// () -> str
TVM_FFI_DLL_EXPORT int __tvm_ffi_version(void*, const TVMFFIAny* arguments, int32_t count,
                                         TVMFFIAny* result) {
  return guarded_text(result, [&] {
    ArgumentReader("version", arguments, count).finish();
    return std::string(version());
  });
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

}  // namespace stepwell::bindings
