"""Command line: ``stepwell bench --help``."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def _check_packages(arguments) -> None:
    """Ends the program where a package is missing, before anything is measured."""
    if find_spec("torch") is None:
        sys.exit(
            f"stepwell bench needs torch 2.11 or later, which {sys.executable} does not have; "
            "install it with: pip install 'stepwell[bench]'"
        )
    if arguments.plot is not None and find_spec("matplotlib") is None:
        sys.exit(
            f"stepwell bench: --plot is {arguments.plot}, but it needs matplotlib, which "
            f"{sys.executable} does not have; install it with: pip install 'stepwell[bench]', or "
            "leave --plot out"
        )


if __name__ == "__main__":
    from .options import make_parser

    arguments = make_parser().parse_args()
    _check_packages(arguments)
    from .cli import main

    sys.exit(main(arguments))
