"""The options of ``stepwell bench``; they need no torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

# Peers of each kind of device, in the order of the tables; peers.py has what they do.
PEERS = {
    "cuda": ("fa2", "cudnn", "flex", "varlen", "fa4", "fa4_mask"),
    "cpu": ("dense", "causal_halves"),
}
# What is measured.
PARTS = {"cuda": ("cases", "host", "first_use"), "cpu": ("cases", "memory")}

_EPILOG = """\
Peers on a GPU:
  fa2, cudnn     scaled_dot_product_attention's FLASH and CUDNN backends: for block diffusion,
                 causal attention on the halves
  varlen         torch.nn.attention.varlen, the same on packed samples; and windows
  flex           FlexAttention with the mask itself, compiled
  fa4, fa4_mask  the package flash-attn-4: as fa2 and varlen, and with the mask as its mask_mod
Peers on a CPU:
  causal_halves  scaled_dot_product_attention: for block diffusion, causal attention on the halves
  dense          scaled_dot_product_attention with the mask as a boolean tensor

Only visible pairs count as work, on both sides. docs/benchmarking.md has the rules.
"""


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: an integer >= 1")
    return value


def _names(accepted: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """A type for argparse: NAME[,NAME...]."""

    def convert(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in accepted:
                raise argparse.ArgumentTypeError(f"{name!r}; accepted: {', '.join(accepted)}")
        return names

    return convert


def _file(*suffixes: str) -> Callable[[str], Path]:
    """A type for argparse: a file that can be written, in a folder that exists."""

    def convert(text: str) -> Path:
        path = Path(text)
        if path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(
                f"{text!r}; accepted: names that end in {' or '.join(suffixes)}"
            )
        if path.is_dir() or not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r}; accepted: a file in a folder that exists")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"{text!r}; accepted: a file that can be written")
        return path

    return convert


def make_parser() -> argparse.ArgumentParser:
    """The parser, whose errors name the argument, what was given and what is accepted."""
    parser = argparse.ArgumentParser(
        prog="stepwell bench",
        description="Measures attention, forward and forward + backward, against its peers in one "
        "process and in interleaved rounds.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    every_peer = tuple(name for names in PEERS.values() for name in names)
    every_part = tuple(dict.fromkeys(name for names in PARTS.values() for name in names))
    add = parser.add_argument
    add("--device", choices=("auto", "cuda", "cpu"), default="auto",
        help="auto: the GPU where torch has one (default)")  # fmt: skip
    add("--list", action="store_true", help="print the names of the cases and their peers, and end")
    add("--explain", action="store_true",
        help="print the kernels that each case runs and why, and end")  # fmt: skip
    add("--case", action="append", metavar="NAME",
        help="measure this case; * stands for anything; repeatable (default: all)")  # fmt: skip
    add("--quick", action="store_true", help="a few cases only")
    add("--peers", type=_names(every_peer), metavar="NAME,...",
        help="measure these on all cases that they can do (default: a selection)")  # fmt: skip
    add("--parts", type=_names(every_part), metavar="NAME,...",
        help="of: cases; host (time of a call, GPU), first_use (of a kernel, GPU), memory (CPU) "
        "(default: all)")  # fmt: skip
    add("--rounds", type=_count, default=5, metavar="N", help="medians of N rounds (default: 5)")
    add("--threads", type=_count, metavar="N",
        help="CPU threads of both sides (default: torch's)")  # fmt: skip
    add("--output", type=_file(".json"), metavar="FILE.json", help="write all figures")
    add("--plot", type=_file(".png", ".svg"), metavar="FILE.png",
        help="draw the ratios, as PNG or SVG (needs matplotlib)")  # fmt: skip
    return parser
