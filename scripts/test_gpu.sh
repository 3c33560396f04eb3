#!/usr/bin/env bash
# Runs what only a GPU can show, with what is built: the operator table, probes and random cases of
# the C++ tests, instruction wrappers against the host model, the Python tests, and small calls of
# every kernel under compute-sanitizer. Kernels are compiled on the way and kept in the cache.
#
#   scripts/test_gpu.sh [--jobs N] [--limit SECONDS] [PART...]
#
#   --jobs N          processes at a time; default: one a core
#   --limit SECONDS   of each part, after which it fails; default: 1800
#   PART              operators, wrappers, python, sanitizers; default: all, in this order
#
# Environment variables:
#   STEPWELL_PYTHON           a Python with torch for the GPU and the package; default: python3
#   STEPWELL_TEST_OPERATORS   default: build/cpu/tests/test_operators
#   STEPWELL_TEST_FILTER      --gtest_filter of the operators; default: all
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

jobs=$(nproc)
limit=1800
parts=()
while (($#)); do
  case $1 in
    --jobs | --limit)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "$1 is '${2:-}'; accepted: a whole number from 1 on"
      if [[ $1 == --jobs ]]; then jobs=$2; else limit=$2; fi
      shift
      ;;
    operators | wrappers | python | sanitizers) parts+=("$1") ;;
    *) fail "$1 is not an argument of test_gpu.sh; accepted: --jobs, --limit, operators, \
wrappers, python, sanitizers" ;;
  esac
  shift
done
((${#parts[@]})) || parts=(operators wrappers python sanitizers)

python=${STEPWELL_PYTHON:-python3}
operators=${STEPWELL_TEST_OPERATORS:-build/cpu/tests/test_operators}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# The tests of one program, spread over processes.
run_operators() {
  [[ -x $operators ]] || fail "$operators is missing: build it, or name it in \
STEPWELL_TEST_OPERATORS"
  local shard pids=() failed=0
  for ((shard = 0; shard < jobs; ++shard)); do
    GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$shard timeout "$limit" "$operators" --device=cuda \
      --gtest_filter="${STEPWELL_TEST_FILTER:-*}" >"$logs/$shard" 2>&1 &
    pids+=($!)
  done
  for shard in "${!pids[@]}"; do
    wait "${pids[$shard]}" && continue
    failed=1
    echo "shard $shard of $jobs ended with status $?; the end of what it said:"
    grep -B12 -F '[  FAILED  ]' "$logs/$shard" | head -60
    tail -3 "$logs/$shard"
  done
  cat "$logs"/* | awk '/\[  PASSED  \]/ { passed += $4 } /\[  FAILED  \].*ms\)/ { failed += 1 }
    END { printf "operators: %d passed, %d failed\n", passed, failed }'
  return "$failed"
}

run_wrappers() { timeout "$limit" "$python" tests/host_model/compare_with_gpu.py; }

# With pytest-xdist where it is installed.
run_python() {
  local spread=()
  if "$python" -c 'import xdist' 2>/dev/null; then spread=(-n "$jobs"); fi
  OMP_NUM_THREADS=2 timeout "$limit" "$python" -m pytest -q -p no:cacheprovider "${spread[@]}" \
    tests/python/test_cuda.py tests/python/train/test_train_cuda.py
}

# racecheck does not know all that orders what Hopper's producer warps do: sanitizer_cases.py says
# what. So it sees the other kernels here.
run_sanitizers() {
  local cases=tests/cuda/sanitizer_cases.py failed=0 tool pids=()
  command -v compute-sanitizer >/dev/null || fail "compute-sanitizer is not on the PATH"
  timeout "$limit" "$python" "$cases" >"$logs/first" 2>&1 || { tail -5 "$logs/first" && return 1; }
  STEPWELL_SM90_KERNELS=0 timeout "$limit" "$python" "$cases" >"$logs/first" 2>&1 ||
    { tail -5 "$logs/first" && return 1; }
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  local tools=(memcheck synccheck racecheck)
  for tool in "${tools[@]}"; do
    local only=() hopper=()
    if [[ $tool == racecheck ]]; then
      only=(--only bf16)
      hopper=(env STEPWELL_SM90_KERNELS=0)
    fi
    "${hopper[@]}" timeout "$limit" compute-sanitizer --tool "$tool" \
      --kernel-name kernel_name=kernel --error-exitcode 1 "$python" "$cases" "${only[@]}" \
      >"$logs/$tool" 2>&1 &
    pids+=($!)
  done
  for tool in "${!tools[@]}"; do
    wait "${pids[$tool]}" || failed=1
    echo "${tools[$tool]}: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/${tools[$tool]}" ||
      tail -3 "$logs/${tools[$tool]}")"
  done
  return "$failed"
}

status=0
for part in "${parts[@]}"; do
  started=$SECONDS
  case $part in
    operators) run_operators ;;
    wrappers) run_wrappers ;;
    python) run_python ;;
    sanitizers) run_sanitizers ;;
  esac || { status=1 && echo "$part: FAILED"; }
  echo "$part: $((SECONDS - started)) s"
done
exit "$status"
