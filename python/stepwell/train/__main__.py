"""Command line: ``python -m stepwell.train --help``."""

from __future__ import annotations

import os
import sys

_NEEDED = ("torch", "safetensors", "tqdm", "matplotlib")
_WAIT_POLICY = "OMP_WAIT_POLICY"


def _check_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"stepwell.train needs {', '.join(missing)}; install them with: "
            "pip install 'stepwell[train]'"
        )


def _wait_without_spinning() -> None:
    """Starts Python again where threads would spin while they wait for each other.

    Beside other programs spinning threads starve the ones they wait for: on two cores shared with
    five processes a step took 1.2 s of CPU time spinning, 0.16 s not. OpenMP reads the variable
    when torch is imported, which was before this module.
    """
    if _WAIT_POLICY not in os.environ:
        os.environ[_WAIT_POLICY] = "passive"
        os.execv(sys.executable, sys.orig_argv)


def _show_help() -> None:
    """Shows the help where it is asked for: it needs none of the packages."""
    from .options import make_parser

    if {"-h", "--help"} & set(sys.argv[1:]):
        make_parser().parse_args()


if __name__ == "__main__":
    _show_help()
    _check_packages()
    _wait_without_spinning()
    from .cli import main

    sys.exit(main())
