#include "bindings/environment.hpp"

#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <cstddef>

#include "core/check.hpp"

namespace stepwell::bindings {

Environment::Environment(AttentionArgs& args) {
  if (args.q.device.type != DeviceType::kCuda) return;
  args.stream = TVMFFIEnvGetStream(kDLCUDA, args.q.device.index);
  // torch's, and so the memory pool of a graph under capture. Without one the library allocates.
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() != nullptr) args.allocator = {&allocate, this};
}

Environment::~Environment() {
  for (void* tensor : tensors_) TVMFFIObjectDecRef(tensor);
}

void* Environment::allocate(void* context, std::size_t bytes, Device device) {
  std::int64_t size = static_cast<std::int64_t>(bytes);
  DLTensor prototype{};
  prototype.device = {kDLCUDA, device.index};
  prototype.ndim = 1;
  prototype.dtype = {kDLUInt, 8, 1};
  prototype.shape = &size;
  TVMFFIObjectHandle tensor = nullptr;
  if (TVMFFIEnvTensorAlloc(&prototype, &tensor) != 0) {
    TVMFFIObjectHandle error = nullptr;  // the caller gets ours instead
    TVMFFIErrorMoveFromRaised(&error);
    std::string reason;
    if (error != nullptr) {
      const TVMFFIByteArray message = TVMFFIErrorGetCellPtr(error)->message;
      reason.assign(message.data, message.size);
      reason.resize(std::min(reason.find('\n'), reason.size()));  // torch adds its C++ stack
      TVMFFIObjectDecRef(error);
    }
    throw Error(ErrorKind::kRuntime,
                fmt::format("no memory on cuda:{} for a workspace of {} bytes: {}", device.index,
                            bytes, reason));
  }
  static_cast<Environment*>(context)->tensors_.push_back(tensor);
  const DLTensor* memory = TVMFFITensorGetDLTensorPtr(tensor);
  return static_cast<char*>(memory->data) + memory->byte_offset;
}

Callback::Callback(void* function) : function_(function, &TVMFFIObjectDecRef) {
  TVMFFIObjectIncRef(function);
}

void Callback::operator()(std::int64_t number, const std::string& text) const {
  TVMFFIAny arguments[2] = {};
  arguments[0].type_index = kTVMFFIInt;
  arguments[0].v_int64 = number;
  arguments[1].type_index = kTVMFFIRawStr;
  arguments[1].v_c_str = text.c_str();
  TVMFFIAny result{};
  if (TVMFFIFunctionCall(function_.get(), arguments, 2, &result) == 0) {
    if (result.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(result.v_obj);
    return;
  }
  // What a log handler throws is no error of the call that logs.
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (error != nullptr) TVMFFIObjectDecRef(error);
}

}  // namespace stepwell::bindings
