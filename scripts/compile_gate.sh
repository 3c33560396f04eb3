#!/usr/bin/env bash
# Compiles the CUDA kernels that the library can ask for, on a machine without a GPU, for every
# architecture it supports, and fails where one does not compile, spills, uses local memory, exceeds
# the shared memory of its architecture, or makes the compiler note that it serialised instructions.
#
#   scripts/compile_gate.sh [--full] [--nvrtc 13.0|12.9] [PROGRAM]
#
#   --full    every kernel; default: a part of them, a fifth, in which every two choices, such as
#             head dim and dropout, take all pairs of values
#   --nvrtc   version of the compiler, downloaded from PyPI; default: 13.0
#   PROGRAM   default: build/cpu/bin/stepwell
#
# Kernels that were compiled before from the same sources are not compiled again.
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

preset=pairwise
nvrtc=13.0
program=build/cpu/bin/stepwell
while (($#)); do
  case $1 in
    --full) preset=all ;;
    --nvrtc)
      nvrtc=${2:-}
      shift
      ;;
    -*) fail "$1 is not an argument of compile_gate.sh; accepted: --full, --nvrtc, PROGRAM" ;;
    *) program=$1 ;;
  esac
  shift
done

[[ -x $program ]] || fail "$program is missing: build it with \`cmake --preset cpu && cmake --build \
--preset cpu\`"
create_environment
install_cuda_compiler "$nvrtc"

say "Compiling kernels (preset $preset) with NVRTC $nvrtc"
STEPWELL_LIBRARY_DIRS=$cuda_compiler/nvidia/cu13/lib:$cuda_compiler/nvidia/cuda_nvrtc/lib \
  PATH=$cuda_compiler/nvidia/cu13/bin:$PATH \
  exec "$program" compile --preset "$preset" --arch sm_80,sm_89,sm_90a,sm_100,sm_120 --check \
  --output build/kernels
