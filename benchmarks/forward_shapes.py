"""Forward passes of one size whose masks, options or data differ, beside one usual call.

All have 32,768 tokens (37,440 with blocks of 4680), 16 heads of head dim 128 and bfloat16, and
take turns in every round: their visible-pair TFLOPS over those of "b=32" are what a mask, softcap,
dropout or large scores cost. At the end one call is launched 2000 times: all must give the same
bits.

Usage:
    python benchmarks/forward_shapes.py --output benchmarks/results/forward_shapes_cuda.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import statistics

import torch

import stepwell
from stepwell import masks
from stepwell.bench import report

HEADS, DIM, TOKENS = 16, 128, 32768
BASE = "b=32"


def batch(n: int) -> int:
    return round(TOKENS / (2 * n))


def tensors(n: int, sigma: float = 1.0, rising: bool = False) -> list[torch.Tensor]:
    """q, k, v of scores with this standard deviation; `rising`: keys see more and more of one
    direction that all queries have, so that scores grow from block to block."""
    q, k, v = torch.randn(3, batch(n), 2 * n, HEADS, DIM, device="cuda").bfloat16()
    q, k = (x * sigma**0.5 for x in (q, k))
    if rising:
        direction = torch.nn.functional.normalize(torch.randn(DIM, device="cuda"), dim=0)
        along = torch.linspace(0, 64, 2 * n, device="cuda")[:, None, None]
        q = q + (4 * direction).bfloat16()
        k = k + (along * direction).bfloat16()
    return [q, k, v]


def cases() -> dict:
    """Name: n, block size, tensors, options."""
    base = tensors(4096)
    blocks = {f"b={b}": (4096, b, base, {}) for b in (32, 3, 128, 1024)}
    return {
        **blocks,
        "n=9360 b=4680": (9360, 4680, tensors(9360), {}),
        "softcap": (4096, 32, base, {"softcap": 20.0}),
        "dropout": (4096, 32, base, {"dropout_p": 0.1, "dropout_seed": 1}),
        "sigma 4": (4096, 32, tensors(4096, sigma=4.0), {}),
        "sigma 16": (4096, 32, tensors(4096, sigma=16.0), {}),
        "rising": (4096, 32, tensors(4096, rising=True), {}),
        "n=2048 b=32": (2048, 32, tensors(2048), {}),
    }


def milliseconds(call, launches: int = 6) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(400_000)  # the host queues all launches meanwhile
    start.record()
    for _ in range(launches):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / launches


def repeats(call, count: int = 2000) -> dict:
    first, same, events = call(), True, []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = call()
        end.record()
        events.append((start, end))
        same = same and torch.equal(out, first)
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) for start, end in events)
    return {
        "launches": count,
        "same_bits": same,
        "largest_over_median": times[-1] / statistics.median(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    calls, pairs = {}, {}
    for name, (n, block, qkv, options) in cases().items():
        calls[name] = lambda block=block, qkv=qkv, options=options: stepwell.diffusion_attn_func(
            *qkv, block, **options
        )
        pairs[name] = batch(n) * stepwell.visible_pairs(2 * n, masks.Diffusion(block))
    times = {name: [] for name in calls}
    with torch.no_grad():
        for call in calls.values():
            milliseconds(call, 2)
        for _ in range(args.rounds):
            for name, call in calls.items():
                times[name].append(milliseconds(call))
        repeated = repeats(calls[BASE])
    result = {**report.environment("cuda", args.rounds), "date": datetime.date.today().isoformat()}
    result["cases"] = {}
    for name, of_rounds in times.items():
        ms = statistics.median(of_rounds)
        tflops = 4 * DIM * HEADS * pairs[name] / ms / 1e9
        result["cases"][name] = {"ms": ms, "tflops": tflops}
    base = result["cases"][BASE]["tflops"]
    for name, case in result["cases"].items():
        case["over_base"] = case["tflops"] / base
        print(f"{name:16}{case['ms']:9.3f} ms{case['tflops']:8.1f} TFLOPS{case['over_base']:8.3f}")
    result["repeated"] = repeated
    print(repeated)
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
