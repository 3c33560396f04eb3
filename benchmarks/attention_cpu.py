"""Stepwell's CPU attention against torch's, in one process and in interleaved rounds.

Throughput counts visible pairs only (see docs/benchmarking.md), so that every figure is comparable:
4 * pairs * head_dim * heads floating-point operations forward, 2.5 times that backward.

Peers, both through torch.nn.functional.scaled_dot_product_attention:

* ``dense``: the boolean block diffusion mask over all 2n tokens;
* ``causal_halves``: causal attention on the 2B halves, as many visible pairs within n * b.

Usage:
    python benchmarks/attention_cpu.py --output benchmarks/results/attention_cpu.json
    python benchmarks/attention_cpu.py --quick            # one short case of each kind

The last part measures memory in processes of its own: what forward and backward of one sample of
2n = 40,960 tokens take beyond the inputs, as a multiple of the outputs, log-sum-exp and gradients.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

import stepwell

HEADS = 8
TOKENS = 4096  # B * n of every speed case


def cpu_name() -> str:
    """The processor's model name as Linux gives it."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def seconds(call) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(calls: dict, rounds: int) -> dict:
    """Median seconds of each call, after one warm-up, taking turns so that drift hits all alike."""
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return {name: statistics.median(values) for name, values in times.items()}


def inputs(batch: int, rows: int, head_dim: int, layout: str) -> list[torch.Tensor]:
    """q, k, v and dout, with gradients wanted of the first three; layout 'bshd' or 'bhsd'."""
    shape = (batch, rows, HEADS, head_dim) if layout == "bshd" else (batch, HEADS, rows, head_dim)
    tensors = [torch.randn(shape) for _ in range(4)]
    for tensor in tensors[:3]:
        tensor.requires_grad_()
    return tensors


def forward_and_step(attention, q, k, v, dout):
    """Two calls: the forward pass without autograd, and forward plus backward."""

    def forward():
        with torch.no_grad():
            attention(q, k, v)

    def step():
        q.grad = k.grad = v.grad = None
        attention(q, k, v).backward(dout)

    return forward, step


def speed_case(n: int, block_size: int, head_dim: int, peer: str, rounds: int) -> dict:
    """One shape against one peer; times, visible-pair throughputs and their ratio."""
    batch = max(1, TOKENS // n)
    ours = inputs(batch, 2 * n, head_dim, "bshd")
    our_forward, our_step = forward_and_step(
        lambda q, k, v: stepwell.diffusion_attn_func(q, k, v, block_size), *ours
    )
    pairs = batch * (n * n + sum(min(block_size, n - s) ** 2 for s in range(0, n, block_size)))
    if peer == "dense":
        mask = stepwell.diffusion_mask(2 * n, block_size)
        theirs = inputs(batch, 2 * n, head_dim, "bhsd")
        their_forward, their_step = forward_and_step(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), *theirs
        )
        their_pairs = pairs
    else:
        theirs = inputs(2 * batch, n, head_dim, "bhsd")
        their_forward, their_step = forward_and_step(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *theirs
        )
        their_pairs = batch * n * (n + 1)
    times = interleaved(
        {
            "ours_forward": our_forward,
            "peer_forward": their_forward,
            "ours_step": our_step,
            "peer_step": their_step,
        },
        rounds,
    )

    def gflops(pair_count: int, factor: float, time_: float) -> float:
        return factor * pair_count * head_dim * HEADS / time_ / 1e9

    result = {"n": n, "batch": batch, "block_size": block_size, "head_dim": head_dim, "peer": peer}
    for kind, factor in (("forward", 4.0), ("step", 14.0)):
        ours_rate = gflops(pairs, factor, times[f"ours_{kind}"])
        peer_rate = gflops(their_pairs, factor, times[f"peer_{kind}"])
        result[kind] = {
            "ours_ms": 1e3 * times[f"ours_{kind}"],
            "peer_ms": 1e3 * times[f"peer_{kind}"],
            "ours_gflops": ours_rate,
            "peer_gflops": peer_rate,
            "ratio": ours_rate / peer_rate,
        }
    return result


MEMORY_CODE = """
import json, sys, torch, stepwell
rows, heads, dim, threads = (int(x) for x in sys.argv[1:])

def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024

def run(rows):
    q, k, v = (torch.randn(1, rows, heads, dim, requires_grad=True) for _ in range(3))
    dout = torch.randn(1, rows, heads, dim)
    before = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    out = stepwell.diffusion_attn_func(q, k, v, 32)
    out.backward(dout)
    results = 4 * 4 * rows * heads * dim + 4 * rows * heads
    extra = (status("VmHWM") - before) / results
    print(json.dumps({"threads": torch.get_num_threads(), "extra_over_results": extra}))

torch.set_num_threads(threads)
run_small = stepwell.diffusion_attn_func(*(torch.randn(1, 64, heads, dim),) * 3, 32)
run(rows)
"""


def memory_case(rows: int, head_dim: int, threads: int) -> dict:
    """Peak memory of forward plus backward beyond the inputs over the bytes of all results."""
    output = subprocess.run(
        [sys.executable, "-c", MEMORY_CODE, *map(str, (rows, HEADS, head_dim, threads))],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {"rows": rows, "heads": HEADS, "head_dim": head_dim, **json.loads(output)}


def main() -> None:
    """Measures, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=2, help="threads of both sides")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; medians count")
    parser.add_argument("--quick", action="store_true", help="n = 1024, head dim 64, b = 4 only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    cases = [
        (n, block_size, head_dim, peer)
        for head_dim in (64, 128)
        for block_size in (4, 32)
        for n, peer in ((2048, "dense"), (1024, "causal_halves"), (4096, "causal_halves"))
    ]
    if arguments.quick:
        cases = [(1024, 4, 64, "dense"), (1024, 4, 64, "causal_halves")]
    report = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "threads": arguments.threads,
        "dtype": "float32",
        "heads": HEADS,
        "rounds": arguments.rounds,
        "torch": torch.__version__,
        "stepwell": stepwell.__version__,
        "speed": [],
        "memory": [],
    }
    print(
        f"{'n':>5} {'b':>3} {'dim':>4} {'peer':>14}  forward GFLOPS (ratio)   step GFLOPS (ratio)"
    )
    for case in cases:
        result = speed_case(*case, arguments.rounds)
        report["speed"].append(result)
        cells = [
            f"{result[kind]['ours_gflops']:6.0f} / {result[kind]['peer_gflops']:4.0f}"
            f" ({result[kind]['ratio']:5.2f})"
            for kind in ("forward", "step")
        ]
        n, block_size, head_dim, peer = case
        print(f"{n:>5} {block_size:>3} {head_dim:>4} {peer:>14}  {'    '.join(cells)}", flush=True)
    for rows in (10240,) if arguments.quick else (10240, 40960):
        result = memory_case(rows, 128, arguments.threads)
        report["memory"].append(result)
        print(f"2n = {rows}: extra memory / results = {result['extra_over_results']:.3f}")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
