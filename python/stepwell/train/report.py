"""The end of a run: report.json, report.md, loss.png, sample.txt."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .measure import Measurement

_TITLES = {
    "stepwell": "Stepwell",
    "sdpa": "SDPA, dense boolean mask",
    "flex": "FlexAttention",
}


def write_text(path: Path, text: str) -> None:
    """Writes a file under another name first, so that no reader sees half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write(folder: Path, report: dict[str, Any]) -> str:
    """Writes report.json and report.md into a folder.

    Args:
        folder: of the run.
        report: JSON-serializable; its keys are what :func:`markdown` reads.

    Returns:
        The text of report.md.
    """
    write_text(folder / "report.json", json.dumps(report, indent=2) + "\n")
    text = markdown(report)
    write_text(folder / "report.md", text)
    return text


def markdown(report: dict[str, Any]) -> str:
    """The report as text that reads well in a terminal too."""
    bound, text, training = report["held_out"], report["text"], report["training"]
    lines = [
        "# Training report",
        "",
        f"Text: {text['source']}; {text['train_bytes']:,} bytes of {text['train_files']} files "
        f"to train on, {text['held_out_bytes']:,} bytes of {text['held_out_files']} files held "
        "out.",
        "",
        f"Model: {report['parameters']:,} parameters, block size {report['model']['block_size']}, "
        f"windows of {report['model']['length']} bytes.",
        "",
        f"Training: {training['steps']:,} steps in {training['seconds']:.0f} s, "
        f"{training['tokens']:,} bytes, {training['tokens_per_second']:,.0f} tokens/s "
        f"({report['device']}, {training['threads']} threads, {training['precision']}, attention: "
        f"{report['attention']}).",
        "",
        "## Held-out bits per byte",
        "",
        *_table(
            ("", "bits/byte"),
            [
                (
                    "**block diffusion model** (upper bound)",
                    f"**{bound['bits']:.3f}** ± {bound['standard_error']:.3f}",
                ),
                ("bigram", f"{bound['bigram']:.3f}"),
                ("unigram", f"{bound['unigram']:.3f}"),
                ("gzip -9, the whole text at once", f"{bound['gzip']:.3f}"),
            ],
        ),
        "",
        f"All of the same {bound['bytes']:,} bytes. ± is the standard error over "
        f"{bound['windows']:,} windows, each predicted from itself alone.",
        "",
        "## Sample",
        "",
        *("    " + line for line in report["sample"]["text"].splitlines()),
        "",
    ]
    if report["measurements"]:
        lines += ["## Training step", "", *_measurements(report["measurements"]), ""]
    return "\n".join(lines)


def _measurements(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells, reasons = [], []
    for entry in rows:
        row = Measurement(**entry)
        shape, title = f"{row.batch} × 2 × {row.length}", _TITLES[row.attention]
        if row.why_not is None:
            speed = f"{row.step_ms:.1f} ms", f"{row.tokens_per_second:,.0f}"
            cells.append((shape, title, *speed, f"{row.peak_mib:.0f} MiB"))
        else:
            cells.append((shape, title, "does not run", "", ""))
            reason = f"{title} does not run here: {row.why_not}"
            if reason not in reasons:
                reasons += ["", reason]
    head = ("windows × halves × bytes", "attention", "step", "tokens/s", "peak memory")
    return _table(head, cells) + reasons


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    return [line(head), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)]


def plot_loss(
    path: Path,
    history: Sequence[tuple[float, float]],
    held_out: dict[str, float],
) -> None:
    """Draws bits per byte over the training time, with the held-out figures as lines.

    Args:
        path: PNG file.
        history: seconds and bits per byte of each step.
        held_out: "bits", "standard_error", "bigram", "unigram", "gzip".
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seconds = [entry[0] for entry in history]
    bits = [entry[1] for entry in history]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(seconds, bits, color="#b8cbe0", linewidth=0.6, label="batch")
    smooth = _running_mean(bits, max(1, len(bits) // 50))
    axes.plot(seconds, smooth, color="#1f4e79", linewidth=1.6, label="running mean")
    for name, colour in (("unigram", "#999999"), ("bigram", "#c0504d"), ("gzip", "#77933c")):
        axes.axhline(held_out[name], color=colour, linestyle="--", linewidth=1, label=name)
    axes.errorbar(
        [seconds[-1]],
        [held_out["bits"]],
        yerr=[held_out["standard_error"]],
        fmt="o",
        color="#e08a00",
        label=f"held-out, {held_out['bits']:.3f}",
    )
    axes.set_xlabel("training time, s")
    axes.set_ylabel("bits per byte (bound)")
    axes.set_ylim(0, 8.5)
    axes.legend(loc="upper right", fontsize=8)
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    figure.savefig(partial, dpi=120)
    pyplot.close(figure)
    partial.replace(path)


def _running_mean(values: Sequence[float], width: int) -> list[float]:
    means, total = [], 0.0
    for index, value in enumerate(values):
        total += value - (values[index - width] if index >= width else 0.0)
        means.append(total / min(index + 1, width))
    return means
