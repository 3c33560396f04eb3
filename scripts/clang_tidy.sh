#!/usr/bin/env bash
# clang-tidy over the host sources: clang_tidy.sh BUILD_FOLDER JOBS
set -euo pipefail
build=$1
jobs=$2
# Without cpu/kernels.cpp, which is compiled once for each instruction set with features that
# clang-tidy's parser does not know. Files with a compile command: others (of options that are off) have no flags to be parsed with.
git ls-files '*.cpp' ':!src/cpu/kernels.cpp' |
  while read -r file; do
    if grep -q "\"file\": \".*/$file\"" "$build/compile_commands.json"; then echo "$file"; fi
  done |
  xargs -P "$jobs" -n 1 clang-tidy --quiet -p "$build" 2> >(grep -v 'warnings generated' >&2)
