"""``stepwell bench``: chooses, measures, prints and writes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import stepwell

from . import process, report, timing
from .cases import Case, cpu_cases, cuda_cases, select
from .measure import measure_case
from .options import PARTS
from .peers import peers_of
from .plans import plans

_MEMORY_HEADS, _MEMORY_DIM = 8, 128
_COLD_SECONDS, _WARM_SECONDS = 5.0, 0.05  # what a first use may take


def main(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Args:
        arguments: as options.make_parser() parses them.

    Returns:
        The exit status: 0, 1 where there is nothing to draw, 2 where an argument is not accepted.
    """
    try:
        device = _device(arguments.device)
        peers = _of_device("--peers", arguments.peers, tuple(peers_of(device)), device)
        parts = _of_device("--parts", arguments.parts, PARTS[device], device) or PARTS[device]
        if arguments.plot is not None and "cases" not in parts:
            raise ValueError("--plot draws the ratios of cases, which --parts leaves out")
        _refuse_beside(
            "--list", arguments.list, arguments, ("explain", "peers", "parts", "output", "plot")
        )
        _refuse_beside(
            "--explain", arguments.explain, arguments, ("peers", "parts", "output", "plot")
        )
        if "cases" not in parts and (arguments.case or arguments.peers):
            raise ValueError("--case and --peers choose among cases, which --parts leaves out")
        table = cuda_cases() if device == "cuda" else cpu_cases()
        cases = select(table, arguments.case, arguments.quick)
    except ValueError as error:
        print(f"stepwell bench: error: {error}", file=sys.stderr)
        return 2
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.list:
        for case in cases:
            print(f"{case.name:<36} {', '.join(case.peers)}")
        return 0
    if arguments.explain:
        for case in cases:
            print(f"{case.name}: {case.pairs():,} visible pairs a head")
            for kind, description in plans(case, device).items():
                print(f"  {kind:<8} {description}")
        return 0
    result = report.environment(device, arguments.rounds)
    for _ in _measure(result, cases, device, peers, parts, arguments.rounds, arguments.quick):
        # After each figure, so that what ends a run does not take the others with it.
        if arguments.output is not None:
            _write(arguments.output, json.dumps(result, indent=1) + "\n")
    if arguments.plot is not None:
        if not result["summary"]:
            print("stepwell bench: --plot: no peer was measured, nothing to draw", file=sys.stderr)
            return 1
        from .plot import plot

        plot(arguments.plot, result["cases"])
    return 0


def _refuse_beside(
    name: str, given: bool, arguments: argparse.Namespace, others: tuple[str, ...]
) -> None:
    """Options that would have no effect beside one that measures nothing."""
    for other in others:
        if given and getattr(arguments, other):
            raise ValueError(f"--{other} has no effect beside {name}, which measures nothing")


def _device(name: str) -> str:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but torch has no GPU here; accepted: cpu, auto")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _of_device(
    option: str, names: tuple[str, ...] | None, accepted: tuple[str, ...], device: str
) -> tuple[str, ...] | None:
    for name in names or ():
        if name not in accepted:
            raise ValueError(
                f"{option} is {name}, which is not for device {device}; accepted there: "
                f"{', '.join(accepted)}"
            )
    return names


def _measure(
    result: dict[str, Any],
    cases: list[Case],
    device: str,
    peers: tuple[str, ...] | None,
    parts: tuple[str, ...],
    rounds: int,
    quick: bool,
) -> Iterator[None]:
    """Prints every figure and adds it to the result; yields after each."""
    torch.manual_seed(0)
    where = result["gpu"] if device == "cuda" else f"{result['cpu']}, {result['threads']} threads"
    print(f"stepwell {result['stepwell']}, torch {result['torch']}, {where}, {result['dtype']}")
    if "host" in parts:  # first: after FlexAttention's compiler the host was slower in every call
        q = torch.randn(1, 128, 4, 64, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            microseconds = timing.host_microseconds(
                lambda: stepwell.diffusion_attn_func(q, q, q, 4)
            )
        result["host_microseconds"] = microseconds
        print(f"host time of one eager forward call: {microseconds:.1f} us", flush=True)
        yield
    if "cases" in parts:
        if device == "cuda":
            result["clocks"] = {"before": report.gpu_state()}
        result["cases"] = []
        for case in cases:
            entry = measure_case(case, device, rounds, peers)
            result["cases"].append(entry)
            result["summary"] = report.summary(result["cases"])
            print(report.line(entry, device), flush=True)
            yield
        if device == "cuda":
            result["clocks"]["after"] = report.gpu_state()
            torch.cuda.empty_cache()  # for the processes of first_use
            yield
        lines = report.skipped_lines(result["cases"]) + report.summary_lines(result["summary"])
        print("\n".join(lines), flush=True)
    if "first_use" in parts:
        result["first_use"] = process.first_use(sorted({case.head_dim for case in cases}))
        for entry in result["first_use"]:
            print(_first_use_line(entry), flush=True)
        yield
    if "memory" in parts:
        result["memory"] = []
        for rows in (10240,) if quick else (10240, 40960):
            entry = process.memory(rows, _MEMORY_HEADS, _MEMORY_DIM, result["threads"])
            result["memory"].append(entry)
            print(f"2n = {rows}: extra memory / results = {entry['extra_over_results']:.3f}")
            yield


def _first_use_line(entry: dict[str, Any]) -> str:
    cells = []
    for kind in ("forward", "backward"):
        cold, warm = (entry[f"{kind}_{state}_seconds"] for state in ("cold", "warm"))
        slow = " (slow)" if cold > _COLD_SECONDS or warm > _WARM_SECONDS else ""
        cells.append(f"{kind} {cold:.2f} s cold, {1e3 * warm:.0f} ms warm{slow}")
    return f"first use, head dim {entry['dim']:>3}: {'; '.join(cells)}"


def _write(path: Path, text: str) -> None:
    """Writes a file under another name first, so that an old one is kept until the end."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
