// The functions of NVRTC that we call; names as in its documentation, without the prefix.
#pragma once

#include <cstddef>
#include <string>

namespace stepwell::runtime {

using NvrtcProgram = void*;

enum NvrtcResult : int {
  kNvrtcSuccess = 0,
  kNvrtcInvalidOption = 5,
  kNvrtcCompilation = 6,
  kNvrtcBuiltinOperationFailure = 7,
};

struct Nvrtc {
  NvrtcResult (*version)(int* major, int* minor);
  NvrtcResult (*get_num_supported_archs)(int* count);
  NvrtcResult (*get_supported_archs)(int* archs);
  NvrtcResult (*create_program)(NvrtcProgram* program, const char* source, const char* name,
                                int header_count, const char* const* headers,
                                const char* const* header_names);
  NvrtcResult (*destroy_program)(NvrtcProgram* program);
  NvrtcResult (*compile_program)(NvrtcProgram program, int option_count,
                                 const char* const* options);
  NvrtcResult (*get_cubin_size)(NvrtcProgram program, std::size_t* size);
  NvrtcResult (*get_cubin)(NvrtcProgram program, char* cubin);
  NvrtcResult (*get_program_log_size)(NvrtcProgram program, std::size_t* size);
  NvrtcResult (*get_program_log)(NvrtcProgram program, char* log);
  const char* (*get_error_string)(NvrtcResult result);

  int major;
  int minor;
  std::string path;
};

/// Loaded at the first call; throws an Error that says how to get NVRTC where there is none.
const Nvrtc& nvrtc();

}  // namespace stepwell::runtime
