# shellcheck shell=bash
# Sourced by train.sh and test.sh: everything that building and running needs.
#
#   install_system_packages PACKAGE...   Debian's packages, those that are missing
#   create_environment                   $python: a Python with torch
#   install_cuda_compiler VERSION        $cuda_compiler: a folder with NVRTC and nvdisasm from PyPI
#
# Environment variables:
#   STEPWELL_PYTHON   the Python to start from; default: python3
#   STEPWELL_TORCH    a pip requirement for torch, installed from pip's own index instead of the
#                     index of CPU builds, such as torch==2.13.0
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

readonly torch_index=https://download.pytorch.org/whl/cpu
# shellcheck disable=SC2034  # used by those who source this
readonly build_packages=(cmake g++ ninja-build python3 python3-venv libcli11-dev libfmt-dev
  libhwy-dev libstb-dev nlohmann-json3-dev)

say() { printf '\n== %s\n' "$*"; }

fail() {
  printf '\nerror: %s\n' "$*" >&2
  exit 1
}

install_system_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "No apt here: assuming that the equivalents of these are installed: $*"
    return
  fi
  local missing=() package
  for package in "$@"; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null |
      grep -q 'ok installed' || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then return; fi
  say "Installing ${missing[*]}"
  local root_prefix=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "not root and no sudo: as root, run: apt-get install ${missing[*]}"
    root_prefix=(sudo)
  fi
  "${root_prefix[@]}" apt-get -qq update
  "${root_prefix[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}"
}

has_torch() {
  "$1" -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)' \
    2>/dev/null
}

pip_install() { "$python" -m pip --disable-pip-version-check install --quiet "$@"; }

# The active environment where it has torch, else .venv in this folder.
create_environment() {
  local base=${STEPWELL_PYTHON:-python3}
  if [[ -n ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]] && has_torch "$base"; then
    python=$base
    say "Using the active Python environment, which has torch"
    return
  fi
  if [[ ! -x .venv/bin/python ]]; then
    say "Creating .venv"
    local options=()
    if has_torch "$base"; then options=(--system-site-packages); fi
    "$base" -m venv "${options[@]}" .venv || fail "$base cannot create a virtual environment"
  fi
  python=$root/.venv/bin/python
  if has_torch "$python"; then return; fi
  if [[ -n ${STEPWELL_TORCH:-} ]]; then
    say "Installing $STEPWELL_TORCH"
    pip_install "$STEPWELL_TORCH" || fail "pip could not install STEPWELL_TORCH=$STEPWELL_TORCH"
  else
    say "Installing the CPU build of torch"
    pip_install 'torch>=2.11' --index-url "$torch_index" || fail "could not install torch from \
$torch_index. If that index cannot be reached from here, activate a Python environment that has \
torch >= 2.11, or set STEPWELL_TORCH to a requirement that pip can install, such as \
STEPWELL_TORCH='torch>=2.11' (PyPI's builds bring the CUDA libraries)"
  fi
}

# NVRTC compiles without a GPU, a driver or the CUDA toolkit.
install_cuda_compiler() {
  local packages=(nvidia-cuda-nvdisasm==13.5.37)
  case $1 in
    13.0) packages+=(nvidia-cuda-nvrtc==13.0.88) ;;
    12.9) packages+=(nvidia-cuda-nvrtc-cu12==12.9.86) ;;
    *) fail "there is no recipe for NVRTC $1; accepted: 13.0, 12.9" ;;
  esac
  cuda_compiler=$root/build/nvrtc-$1
  if [[ -e $cuda_compiler/complete ]]; then return; fi
  say "Installing ${packages[*]} in $cuda_compiler"
  rm -rf "$cuda_compiler"
  pip_install --no-deps --target "$cuda_compiler" "${packages[@]}"
  touch "$cuda_compiler/complete"
}
