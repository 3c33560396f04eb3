"""The report: where it was measured, the lines of the table, and the averages."""

from __future__ import annotations

import contextlib
import datetime
import math
import platform
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import stepwell

from .measure import PASSES
from .peers import fa4_version

_GPU_STATE = {
    "sm_mhz": "clocks.sm",
    "sm_max_mhz": "clocks.max.sm",
    "memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
}


def environment(device: str, rounds: int) -> dict[str, Any]:
    """Date, machine and versions."""
    found: dict[str, Any] = {
        "format": 2,
        "date": datetime.date.today().isoformat(),
        "device": device,
        "rounds": rounds,
        "dtype": "bfloat16" if device == "cuda" else "float32",
        "stepwell": stepwell.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if device == "cpu":
        return found | {"cpu": _cpu_name(), "threads": torch.get_num_threads()}
    return found | {
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "flash_attn_4": fa4_version(),
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _query_gpu(fields: Sequence[str]) -> list[str] | None:
    """What nvidia-smi says of torch's current GPU; None: there is no nvidia-smi, or no answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        line = subprocess.run(
            [program, f"--id={uuid}", f"--query-gpu={','.join(fields)}",
             "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True, timeout=20,
        ).stdout  # fmt: skip
        values = [value.strip() for value in line.strip().split(",")]
        if len(values) == len(fields):
            return values
    return None


def _driver() -> str | None:
    answer = _query_gpu(["driver_version"])
    if answer is not None:
        return answer[0]
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    return None


def gpu_state() -> dict[str, float] | None:
    """Clocks, temperature and power of the GPU now; None where they cannot be read."""
    answer = _query_gpu(list(_GPU_STATE.values()))
    if answer is None:
        return None
    state = {}
    for name, value in zip(_GPU_STATE, answer, strict=True):
        with contextlib.suppress(ValueError):  # "[N/A]"
            state[name] = float(value)
    return state or None


def line(entry: dict[str, Any], device: str) -> str:
    """A case as a line of the table."""
    unit, factor = ("TFLOPS", 1.0) if device == "cuda" else ("GFLOPS", 1e3)
    cells = []
    for kind in PASSES:
        ours = factor * entry[kind]["tflops"]["ours"]
        ratios = "".join(f"  {x:.3f} x {peer}" for peer, x in entry[kind]["ratio"].items())
        cells.append(f"{kind} {ours:6.1f} {unit}{ratios}")
    skipped = f"   (without {', '.join(entry['skipped'])})" if entry["skipped"] else ""
    lines = [f"{entry['name']:<36} {'   '.join(cells)}{skipped}"]
    if "host_late" in entry:
        lines.append(f"    times hold some of the host's: {', '.join(entry['host_late'])}")
    return "\n".join(lines)


def summary(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each group, peer and pass: the geometric mean of the ratios, the least, and how many."""
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for entry in cases:
        for kind in PASSES:
            for peer, ratio in entry[kind]["ratio"].items():
                ratios.setdefault((entry["group"], peer, kind), []).append(ratio)
    result: dict[str, Any] = {}
    for (group, peer, kind), values in ratios.items():
        result.setdefault(group, {}).setdefault(peer, {})[kind] = {
            "geometric_mean": math.exp(statistics.fmean(map(math.log, values))),
            "least": min(values),
            "cases": len(values),
        }
    return result


def summary_lines(averages: dict[str, Any]) -> list[str]:
    """The averages as a table."""
    if not averages:
        return []
    width = max(map(len, averages))
    lines = [f"{'group':<{width}}  peer           ratio: geometric mean, least (of cases)"]
    for group, peers in averages.items():
        for peer, kinds in peers.items():
            cells = "   ".join(
                f"{kind} {x['geometric_mean']:.3f}, {x['least']:.3f} ({x['cases']})"
                for kind, x in kinds.items()
            )
            lines.append(f"{group:<{width}}  {peer:<13}  {cells}")
    return lines


def skipped_lines(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Which peers were not measured, in which cases, and why."""
    names: dict[tuple[str, str], list[str]] = {}
    for entry in cases:
        for peer, reason in entry["skipped"].items():
            names.setdefault((peer, reason), []).append(entry["name"])
    return [
        f"without {peer} in {', '.join(where) if len(where) <= 3 else f'{len(where)} cases'}: "
        f"{reason}"
        for (peer, reason), where in names.items()
    ]
