"""The picture: ratios to each peer over the length of a sequence."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TITLES = {"forward": "forward", "step": "forward + backward"}
_MARKERS = "osD^vP*X"


def plot(path: Path, cases: Sequence[dict[str, Any]]) -> None:
    """Draws a row of axes for each peer: the forward pass on the left, a step on the right.

    Args:
        path: PNG or SVG file.
        cases: ``cases`` of the JSON, at least one of them with a peer.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    peers = list(dict.fromkeys(peer for entry in cases for peer in entry["forward"]["ratio"]))
    groups = list(dict.fromkeys(entry["group"] for entry in cases if entry["forward"]["ratio"]))
    palette = pyplot.get_cmap("tab20").colors
    palette = palette[::2] + palette[1::2]  # the strong colours first
    figure, grid = pyplot.subplots(
        len(peers), 2, figsize=(10, 1.5 + 2.6 * len(peers) + 0.1 * len(groups)),
        squeeze=False, sharex=True, sharey="row", layout="constrained",
    )  # fmt: skip
    legend = {}
    for peer, row in zip(peers, grid, strict=True):
        for kind, axes in zip(_TITLES, row, strict=True):
            axes.axhline(1.0, color="black", linewidth=0.9)
            for i, group in enumerate(groups):
                block_sizes = [e["block_size"] for e in cases if e["group"] == group]
                for block_size, points in _series(cases, group, peer, kind).items():
                    dashed = block_size != block_sizes[0]
                    label = group if block_size is None else f"{group}, blocks of {block_size}"
                    (legend[label],) = axes.plot(
                        *zip(*points, strict=True),
                        color=palette[i % len(palette)],
                        marker=_MARKERS[i % len(_MARKERS)],
                        markersize=5,
                        linewidth=1.4,
                        linestyle="--" if dashed else "-",
                        markerfacecolor="white" if dashed else None,
                    )
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
        row[0].set_ylabel(f"throughput / {peer}'s")
    for kind, axes in zip(_TITLES, grid[0], strict=True):
        axes.set_title(_TITLES[kind], fontsize=11)
    lengths = sorted({entry["n"] for entry in cases if "n" in entry} or map(_length, cases))
    for axes in grid[-1]:
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [_short(n) for n in lengths])
        axes.minorticks_off()
        axes.set_xlabel("tokens of a sequence (of one half; packed: on average)")
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=2, fontsize=8)
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    figure.savefig(partial, dpi=120)
    pyplot.close(figure)
    partial.replace(path)


def _length(entry: dict[str, Any]) -> float:
    return entry["n"] if "n" in entry else statistics.fmean(entry["lengths"])


def _short(n: float) -> str:
    return f"{n / 1024:g}K" if n % 1024 == 0 else f"{n:g}"


def _series(
    cases: Sequence[dict[str, Any]], group: str, peer: str, kind: str
) -> dict[int | None, list[tuple[float, float]]]:
    """Points (length, ratio) of a group, by block size."""
    series: dict[int | None, list[tuple[float, float]]] = {}
    for entry in cases:
        if entry["group"] == group and peer in entry[kind]["ratio"]:
            point = (_length(entry), entry[kind]["ratio"][peer])
            series.setdefault(entry["block_size"], []).append(point)
    return {block_size: sorted(points) for block_size, points in series.items()}
