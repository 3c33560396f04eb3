#!/usr/bin/env bash
# Installs what is missing, builds Stepwell and trains a small block diffusion language model.
# Arguments go to `python -m stepwell.train`; see `scripts/train.sh --help`.
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# The options need Python alone: they are shown before anything is installed.
for argument in "$@"; do
  case $argument in
    -h | --help)
      python=${STEPWELL_PYTHON:-python3}
      command -v "$python" >/dev/null || fail "$python is missing, which the help needs"
      PYTHONPATH=$root/python/stepwell exec "$python" -c '
from train.options import make_parser
make_parser("scripts/train.sh").print_help()'
      ;;
  esac
done

install_system_packages "${build_packages[@]}"
create_environment
say "Building and installing Stepwell"
pip_install '.[train]'
exec "$python" -m stepwell.train "$@"
