#!/usr/bin/env bash
# Installs what is missing, builds Stepwell and trains a small block diffusion language model.
# Arguments go to `python -m stepwell.train`; see `scripts/train.sh --help`.
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

install_system_packages "${build_packages[@]}"
create_environment
say "Building and installing Stepwell"
pip_install '.[train]'
exec "$python" -m stepwell.train "$@"
