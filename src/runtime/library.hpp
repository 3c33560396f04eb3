// The CUDA driver and NVRTC: found and loaded at first use, since neither is needed to build or
// import the library.
//
// Search order of NVRTC (version 12 or 13) and of libcuda:
//   1. the folders of the environment variable STEPWELL_LIBRARY_DIRS, separated by colons
//   2. what the process has loaded already, such as torch's
//   3. the folders of set_library_dirs: the Python package gives those of NVIDIA's wheels
//   4. the system's search path, $CUDA_HOME/lib64 and /usr/local/cuda/lib64
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepwell::runtime {

/// Folders to search; call it before the first use of a GPU.
void set_library_dirs(std::vector<std::filesystem::path> dirs);

/// What was found of a library, without throwing; for `stepwell doctor`.
struct LibraryReport {
  bool found = false;
  std::string path;     ///< of the loaded file
  std::string version;  ///< such as "13.0"
  std::string problem;  ///< what is missing and how to get it
};

LibraryReport report_driver();
LibraryReport report_nvrtc();

}  // namespace stepwell::runtime
