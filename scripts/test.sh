#!/usr/bin/env bash
# Installs what is missing, builds Stepwell and runs all tests.
#
#   --static    check formatting and lints too (as CI does; needs clang-format and clang-tidy 14)
#   --kernels   compile the CUDA kernels too (as CI does; downloads NVRTC, needs no GPU)
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

static=0
kernels=0
for argument in "$@"; do
  case $argument in
    --static) static=1 ;;
    --kernels) kernels=1 ;;
    *) fail "$argument is not an argument of test.sh; accepted: --static, --kernels" ;;
  esac
done

jobs=$(nproc)
started=$SECONDS
step() { say "$* ($((SECONDS - started)) s so far)"; }

packages=("${build_packages[@]}" libgtest-dev libbenchmark-dev)
if ((static)); then packages+=(clang-format clang-tidy libomp-dev shellcheck); fi
install_system_packages "${packages[@]}"
create_environment

if ((static)); then
  step "Formatting and lints"
  shellcheck -x .ci/run scripts/*.sh
  pip_install 'ruff==0.17.6'
  mapfile -t cpp_files < <(git ls-files '*.cpp' '*.hpp' '*.cuh')
  clang-format --dry-run -Werror "${cpp_files[@]}"
  "$python" -m ruff check .
  "$python" -m ruff format --check .
fi

step "Building with warnings as errors"
cmake --preset cpu -D STEPWELL_BUILD_BENCHMARKS=ON >/dev/null
cmake --build --preset cpu -j "$jobs"

if ((static)); then
  step "clang-tidy"
  scripts/clang_tidy.sh build/cpu "$jobs"
fi

if ((kernels)); then
  install_cuda_compiler 13.0
  # Tests of the compiler itself are skipped without it.
  export STEPWELL_LIBRARY_DIRS=$cuda_compiler/nvidia/cu13/lib
fi

# Waiting threads that spin would keep the other tests from their cores.
export OMP_WAIT_POLICY=passive
step "C++ tests"
ctest --preset cpu -j "$jobs" | tee build/cpu/ctest.log

step "C++ tests with AddressSanitizer and UndefinedBehaviorSanitizer"
cmake --preset cpu-asan >/dev/null
cmake --build --preset cpu-asan -j "$jobs"
# Other instruction sets run the same code on other vectors.
ctest --preset cpu-asan -j "$jobs" --exclude-regex '_(AVX2|SSE4|SCALAR)$' | tee build/cpu-asan/ctest.log

step "The wheel in an environment without torch"
rm -rf build/dist build/clean-environment
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir build/dist .
wheel=$(echo build/dist/stepwell-*.whl)
"$python" -m venv build/clean-environment
build/clean-environment/bin/python -m pip --disable-pip-version-check install --quiet "$wheel"
(cd tests/wheel && "$root/build/clean-environment/bin/python" check_wheel.py)

step "Python tests"
pip_install --force-reinstall --no-deps "$wheel"
pip_install "${wheel}[train,test]"
export STEPWELL_CLI=$root/build/cpu/bin/stepwell STEPWELL_BUILD_DIR=$root/build/cpu
status=0
"$python" -m pytest -q tests/python tests/cli tests/docs || status=$?

if ((kernels)); then
  step "CUDA kernels for every architecture"
  scripts/compile_gate.sh build/cpu/bin/stepwell || status=$?
fi

# The closing lines of all runners together.
step "Summary"
grep -h 'tests passed' build/cpu/ctest.log build/cpu-asan/ctest.log
exit "$status"
