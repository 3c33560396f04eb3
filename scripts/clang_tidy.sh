#!/usr/bin/env bash
# clang-tidy over the host sources: clang_tidy.sh BUILD_FOLDER JOBS
set -euo pipefail
build=$1
jobs=$2
# Files with a compile command: others (of options that are off) have no flags to be parsed with.
git ls-files '*.cpp' |
  while read -r file; do
    if grep -q "\"file\": \".*/$file\"" "$build/compile_commands.json"; then echo "$file"; fi
  done |
  xargs -P "$jobs" -n 1 clang-tidy --quiet -p "$build" 2> >(grep -v 'warnings generated' >&2)
