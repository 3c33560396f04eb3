"""The trainer's options. ``scripts/train.sh --help`` shows them where nothing is installed yet.

So this module needs Python alone, and it is imported both as ``stepwell.train.options`` and, with
``python/stepwell`` as a folder of packages, as ``train.options``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from .config import ATTENTIONS, NOISE_KINDS, PRECISIONS, ModelConfig, TrainConfig


def _number(
    kind: Callable[[str], Any], accepted: str, allowed: Callable[[Any], bool]
) -> Callable[[str], Any]:
    """A type for argparse, whose errors say what is accepted."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not math.isfinite(value) or not allowed(value):
            raise argparse.ArgumentTypeError(f"{text!r}; accepted: {accepted}")
        return value

    return convert


def make_parser(prog: str = "python -m stepwell.train") -> argparse.ArgumentParser:
    model, settings = ModelConfig(), TrainConfig()
    count = _number(int, "an integer >= 1", lambda n: n >= 1)
    size = _number(int, "an integer >= 0", lambda n: n >= 0)
    positive = _number(float, "a number > 0", lambda x: x > 0)
    not_negative = _number(float, "a number >= 0", lambda x: x >= 0)
    fraction = _number(float, "a number in [0, 1]", lambda x: 0 <= x <= 1)
    probability = _number(float, "a number in (0, 1]", lambda x: 0 < x <= 1)

    parser = argparse.ArgumentParser(
        prog=prog,
        description="Trains a small block diffusion language model (BD3-LM, arXiv:2503.09573) on "
        "text, byte by byte, and reports its bits per byte of held-out text.",
        allow_abbrev=False,
    )
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--text", nargs="+", metavar="FILE", help="files to learn (default: the sources of this "
        "Python's standard library)")  # fmt: skip
    add("--output", metavar="DIR", help="folder of the run (default: runs/DATE-TIME)")
    add("--resume", metavar="DIR", help="continue the run of this folder")
    budget = group.add_mutually_exclusive_group()
    budget.add_argument(
        "--minutes", type=positive, help=f"time to train for (default: {settings.minutes:g})"
    )
    budget.add_argument(
        "--steps", type=count, help="steps to train for, instead of a time; reproducible"
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto: a GPU where the attention runs on it (default)")  # fmt: skip
    add("--attention", choices=ATTENTIONS, default="stepwell", help="default: stepwell")
    add("--threads", type=count, help="CPU threads (default: all)")  # fmt: skip
    add("--precision", choices=PRECISIONS, help="bfloat16: autocast "
        "(default: float32 on a CPU, bfloat16 on a GPU)")  # fmt: skip
    add("--checkpoint-every", type=positive, default=60.0, metavar="SECONDS", help="default: 60")

    add = parser.add_argument_group("model").add_argument
    for name, kind, text in (
        ("block-size", count, "bytes of a diffusion block"),
        ("length", count, "bytes of a training window"),
        ("layers", count, "transformer layers"),
        ("width", count, "features"),
        ("heads", count, "query heads"),
        ("kv-heads", count, "key and value heads"),
        ("hidden", count, "features inside the feed-forward network"),
    ):
        default = getattr(model, name.replace("-", "_"))
        add(f"--{name}", type=kind, metavar="N", help=f"{text} (default: {default})")

    add = parser.add_argument_group("training").add_argument
    for name, kind, text in (
        ("batch", count, "windows per step"),
        ("lr", positive, "learning rate of the weight matrices (Muon)"),
        ("embedding-lr", positive, "learning rate of embedding, head and norms (AdamW)"),
        ("weight-decay", not_negative, "of the weight matrices"),
        ("warmup", fraction, "fraction of the run in which the rates rise"),
        ("decay", fraction, "last fraction of the run, in which they fall to 0"),
        ("seed", size, "of weights, order of windows, and masks"),
    ):
        default = getattr(settings, name.replace("-", "_"))
        metavar = "N" if isinstance(default, int) else "X"
        add(f"--{name}", type=kind, metavar=metavar, help=f"{text} (default: {default:g})")
    add("--noise", choices=NOISE_KINDS, help="draw the number of masked bytes of a block, or its "
        "noise level t (default: count)")  # fmt: skip
    add("--clip", type=fraction, nargs=2, metavar=("LOW", "HIGH"), help="range of t with --noise "
        "time (default: 0 1)")  # fmt: skip

    add = parser.add_argument_group("report").add_argument
    add("--eval-bytes", type=count, default=2**19,
        metavar="N", help="held-out bytes to evaluate, at most (default: 524288)")  # fmt: skip
    add("--prompt", default="def ", metavar="TEXT", help='start of the sample (default: "def ")')
    add(
        "--sample-bytes", type=size, metavar="N", help="bytes to generate (default: up to --length)"
    )
    add("--sample-steps", type=count, metavar="N",
        help="denoising steps per block (default: one for each byte)")  # fmt: skip
    add("--temperature", type=not_negative, default=1.0, metavar="X", help="default: 1")
    add("--top-p", type=probability, default=0.9, metavar="X", help="default: 0.9")
    add("--no-table", dest="table", action="store_false",
        help="do not measure the step time and memory of the attentions")  # fmt: skip
    return parser
