"""Command line: ``python -m stepwell.train --help``."""

from __future__ import annotations

import sys

_NEEDED = ("torch", "safetensors", "tqdm", "matplotlib")


def _check_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"stepwell.train needs {', '.join(missing)}; install them with: "
            "pip install 'stepwell[train]'"
        )


if __name__ == "__main__":
    _check_packages()
    from .cli import main

    sys.exit(main())
