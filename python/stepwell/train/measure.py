"""Step time and peak memory of training with each attention, on the machine at hand.

Time: the attentions take turns in one process, and the median over the rounds is kept, so that a
busy moment of the machine meets all of them. Memory: the highest use during training steps beyond
what was in use before them (weights, text), optimizer state included. On a GPU that is what torch
allocated; on a CPU each attention runs in a process of its own, whose resident memory is read from
Linux (VmRSS before, VmHWM after), or elsewhere from getrusage.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from .attention import failure, make_attention, why_not
from .config import ATTENTIONS, ModelConfig, TrainConfig
from .data import seeded
from .loop import Run, new_run, noise_of_step, train_step
from .objective import Noise

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_MEMORY_STEPS = 2
_MIB = 2**20


@dataclass(frozen=True)
class Measurement:
    """One row of the table.

    Attributes:
        attention: "stepwell", "sdpa" or "flex".
        length: bytes of a window (half the rows of a sequence).
        batch: windows per step.
        step_ms: milliseconds of a training step, median over the rounds; None: did not run.
        tokens_per_second: bytes of text that such steps take in a second; None: did not run.
        peak_mib: peak memory in MiB; None: did not run.
        why_not: reason for not running; None: it ran.
    """

    attention: str
    length: int
    batch: int
    step_ms: float | None
    tokens_per_second: float | None
    peak_mib: float | None
    why_not: str | None = None


def measure(
    model_config: ModelConfig,
    train_config: TrainConfig,
    device: torch.device,
    shapes: list[tuple[int, int]],
    rounds: int = 5,
) -> list[Measurement]:
    """Measures every attention at every shape ``(length, batch)``."""
    precision = train_config.precision
    missing = {name: why_not(name, device, precision) for name in ATTENTIONS}
    rows = []
    for length, batch in shapes:
        model = dataclasses.replace(model_config, length=length)
        train = dataclasses.replace(train_config, batch=batch)
        here = dict(missing)  # this shape may fail where the trial ran
        times = _step_times(model, train, device, here, rounds)
        for name in ATTENTIONS:
            if name in times:
                seconds = times[name]
                peak = _peak_memory(model, train, device, name) / _MIB
                row = Measurement(
                    name, length, batch, 1e3 * seconds, batch * length / seconds, peak
                )
            else:
                row = Measurement(name, length, batch, None, None, None, here[name])
            rows.append(row)
    return rows


def _random_step(run: Run, device: torch.device, name: str) -> None:
    shape = (run.train_config.batch, run.model_config.length)
    tokens = torch.randint(256, shape, generator=seeded(run.step)).to(device)
    noise = noise_of_step(run, run.step)
    noise = Noise(noise.masked.to(device), noise.weight.to(device))
    train_step(run, tokens, noise, make_attention(name))  # reads the loss, so the device is done
    run.step += 1


def _step_times(model, train, device, missing, rounds) -> dict[str, float]:
    """Seconds of a step by attention; adds to `missing` why one failed."""
    run = new_run(model, train, device)
    for name in ATTENTIONS:  # the first steps allocate and compile
        if missing[name] is None:
            try:
                _random_step(run, device, name)
            except Exception as error:
                missing[name] = failure(name, error)
                run = new_run(model, train, device)
    names = [name for name in ATTENTIONS if missing[name] is None]
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            _random_step(run, device, name)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _peak_memory(model, train, device, name) -> float:
    """Bytes."""
    if device.type == "cuda":
        run = new_run(model, train, device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        for _ in range(_MEMORY_STEPS):
            _random_step(run, device, name)
        return torch.cuda.max_memory_allocated(device) - before
    settings = {
        "model": dataclasses.asdict(model),
        "train": dataclasses.asdict(train),
        "attention": name,
        "threads": torch.get_num_threads(),
    }
    # Freed memory goes back at once, so that the peak is of live tensors and not of a heap's past.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "stepwell.train.measure", json.dumps(settings)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"measuring the memory of {name} failed:\n{result.stderr.strip()}")
    return float(result.stdout.splitlines()[-1])


def _peak_of_this_process(settings: dict) -> float:
    """Bytes of resident memory that training steps add at their peak to this process."""
    torch.set_num_threads(settings["threads"])
    train = {**settings["train"], "clip": tuple(settings["train"]["clip"])}
    device = torch.device("cpu")
    run = new_run(ModelConfig(**settings["model"]), TrainConfig(**train), device)
    before = _resident("VmRSS")
    try:
        _CLEAR_REFS.write_text("5")  # sets the peak back to the present
    except OSError:
        before = max(before, _resident("VmHWM"))
    for _ in range(_MEMORY_STEPS):
        _random_step(run, device, settings["attention"])
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    """Bytes of resident memory now (VmRSS) or at the peak (VmHWM)."""
    try:
        values = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return 1024.0 * int(values[field].split()[0])
    except (OSError, KeyError):  # not Linux, or a sandbox that keeps no peak
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1.0 if sys.platform == "darwin" else 1024.0)


if __name__ == "__main__":
    print(_peak_of_this_process(json.loads(sys.argv[1])))
