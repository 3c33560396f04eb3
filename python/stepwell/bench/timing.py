"""How calls are timed: in interleaved rounds, so that what drifts meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[], object]

_SPAN_MS = 3.0  # least time between a pair of events, whose resolution is half a microsecond
_ATTEMPTS = 4


@dataclass(frozen=True)
class GpuTime:
    """Time between two events on the GPU.

    Attributes:
        ms: of one call.
        late: calls were still being queued when the GPU had come to the first event, so that it may
            have waited for the host.
    """

    ms: float
    late: bool


def _sleep_cycles_per_ms() -> float:
    """Clock cycles of torch.cuda._sleep in a millisecond, as the clock stands now."""
    cycles = 2_000_000
    torch.cuda._sleep(cycles)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / start.elapsed_time(end)


def gpu_time(call: Call, repeats: int, cycles_per_ms: float, sleep_ms: float = 2.0) -> GpuTime:
    """Time of a call on the GPU, without what the host takes to queue it.

    The GPU sleeps first, so that all calls are queued when it comes to the first event: an event on
    an idle GPU is passed at once, and the host's time for the first call would count. Where the
    host was not done in time, the GPU sleeps longer in another attempt.
    """
    for attempt in range(_ATTEMPTS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(round(cycles_per_ms * sleep_ms * 3**attempt))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        late = start.query()
        end.synchronize()
        if not late:
            break
    return GpuTime(start.elapsed_time(end) / repeats, late)


def gpu_medians(calls: dict[str, Call], rounds: int) -> tuple[dict[str, float], list[str]]:
    """Median milliseconds of each call on the GPU, and the calls whose host was late."""
    cycles_per_ms = _sleep_cycles_per_ms()
    repeats, late = {}, set()
    for name, call in calls.items():
        once = gpu_time(call, 2, cycles_per_ms).ms
        repeats[name] = max(2, round(_SPAN_MS / once))

    def measure(name: str) -> float:
        taken = gpu_time(calls[name], repeats[name], cycles_per_ms)
        if taken.late:
            late.add(name)
        return taken.ms

    return _interleaved(measure, list(calls), rounds), sorted(late)


def cpu_medians(calls: dict[str, Call], rounds: int) -> tuple[dict[str, float], list[str]]:
    """Median milliseconds of each call, of wall time; the list is empty."""

    def measure(name: str) -> float:
        start = time.perf_counter()
        calls[name]()
        return 1e3 * (time.perf_counter() - start)

    return _interleaved(measure, list(calls), rounds), []


def _interleaved(
    measure: Callable[[str], float], names: list[str], rounds: int
) -> dict[str, float]:
    """Medians; every round measures each name once, and begins with another one."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(measure(name))
    return {name: statistics.median(values) for name, values in times.items()}


def host_microseconds(call: Call) -> float:
    """Host time of a call that queues work on the GPU and does not wait for it.

    It is the least of many short runs: what other processes take of the host does not count.
    """
    calls = 50  # fewer than the launches that a GPU queues
    least = float("inf")
    for _ in range(400):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        least = min(least, time.perf_counter() - start)
        torch.cuda.synchronize()
    return 1e6 * least / calls
