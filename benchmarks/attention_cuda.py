"""Stepwell's attention on an NVIDIA GPU against torch's, in one process and in interleaved rounds.

Throughput counts visible pairs only (see docs/benchmarking.md). Peers:

* ``fa2``: causal attention on the 2B halves by torch's FLASH_ATTENTION backend (FlashAttention-2),
  as many visible pairs within n * b;
* ``cudnn``: the same by its CUDNN_ATTENTION backend;
* ``flex``: FlexAttention with the block diffusion mask itself, compiled;
* ``varlen``: of the packed batch, torch.nn.attention.varlen on each sample's two halves, causal.

A card's clocks move with its temperature: only ratios of one run count.

Usage:
    python benchmarks/attention_cuda.py --output benchmarks/results/attention_cuda.json
    python benchmarks/attention_cuda.py --quick
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import stepwell

TOKENS = 32768  # 2 B n of every case
BACKENDS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def event_ms(call, repeats: int) -> float:
    """Milliseconds of one call on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def interleaved(calls: dict, rounds: int) -> dict:
    """Median milliseconds of each call; the calls take turns."""
    repeats = {}
    for name, call in calls.items():
        call()
        call()
        repeats[name] = max(2, round(3.0 / event_ms(call, 2)))
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(event_ms(call, repeats[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def forward_and_step(attention, tensors, dout):
    """Two calls: the forward pass without autograd, and forward plus backward."""
    tensors = [x.detach().requires_grad_() for x in tensors]

    def forward():
        with torch.no_grad():
            attention(*tensors)

    def step():
        torch.autograd.grad(attention(*tensors), tensors, dout)

    return forward, step


def flex_attention(n: int, block_size: int):
    """FlexAttention with the block diffusion mask over [noisy | clean]."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def mask(batch, head, q, k):
        q_clean, k_clean = q >= n, k >= n
        q_block = torch.where(q_clean, q - n, q) // block_size
        k_block = torch.where(k_clean, k - n, k) // block_size
        own = ~q_clean & ~k_clean & (q_block == k_block)
        before = ~q_clean & k_clean & (k_block < q_block)
        return own | before | (q_clean & k_clean & (k_block <= q_block))

    block_mask = create_block_mask(mask, None, None, 2 * n, 2 * n, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask, enable_gqa=True)


def batched_case(heads: tuple[int, int], head_dim: int, n: int, block_size: int, peers, rounds):
    """One shape against some peers."""
    batch = TOKENS // (2 * n)
    heads_q, heads_kv = heads

    def randn(count):
        return torch.randn(batch, 2 * n, count, head_dim, device="cuda", dtype=torch.bfloat16)

    q, k, v, dout = randn(heads_q), randn(heads_kv), randn(heads_kv), randn(heads_q)
    calls = {}
    calls["ours_forward"], calls["ours_step"] = forward_and_step(
        lambda q, k, v: stepwell.diffusion_attn_func(q, k, v, block_size), (q, k, v), dout
    )
    pairs = {"ours": batch * n * (n + block_size)}
    for peer in peers:
        if peer == "flex":
            pairs[peer] = pairs["ours"]
            tensors = [x.transpose(1, 2) for x in (q, k, v)]
            attention = flex_attention(n, block_size)
            their_dout = dout.transpose(1, 2)
        else:
            pairs[peer] = batch * n * (n + 1)
            halves = [x.view(2 * batch, n, -1, head_dim).transpose(1, 2) for x in (q, k, v, dout)]
            *tensors, their_dout = halves

            def attention(q, k, v, backend=BACKENDS[peer]):
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=heads_q != heads_kv
                    )

        calls[f"{peer}_forward"], calls[f"{peer}_step"] = forward_and_step(
            attention, tensors, their_dout
        )
    times = interleaved(calls, rounds)
    result = {"n": n, "batch": batch, "block_size": block_size, "heads": heads, "dim": head_dim}
    for kind, factor in (("forward", 4.0), ("step", 14.0)):
        rate = {
            name: factor * pairs[name] * head_dim * heads_q / times[f"{name}_{kind}"] / 1e9
            for name in pairs
        }
        result[kind] = {
            "ms": {name: times[f"{name}_{kind}"] for name in pairs},
            "tflops": rate,
            "ratio": {name: rate["ours"] / rate[name] for name in pairs if name != "ours"},
        }
    return result


def packed_case(heads: tuple[int, int], head_dim: int, block_size: int, rounds: int) -> dict:
    """64 samples of log-uniform lengths 128 to 4096, interleaved, against varlen_attn."""
    from torch.nn.attention.varlen import varlen_attn

    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(64, generator=generator, dtype=torch.float64) * math.log(4096 / 128)
    lengths = (128 * spread.exp()).round().int().tolist()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    cu_ours = (2 * offsets).int().cuda()
    cu_halves = torch.tensor([0, *(n for n in lengths for _ in range(2))]).cumsum(0).int().cuda()
    total, longest = 2 * sum(lengths), max(lengths)

    def randn(count):
        return torch.randn(total, count, head_dim, device="cuda", dtype=torch.bfloat16)

    q, k, v, dout = randn(heads[0]), randn(heads[1]), randn(heads[1]), randn(heads[0])
    calls = {}
    calls["ours_forward"], calls["ours_step"] = forward_and_step(
        lambda q, k, v: stepwell.diffusion_attn_varlen_func(
            q, k, v, cu_ours, 2 * longest, block_size
        ),
        (q, k, v),
        dout,
    )
    calls["varlen_forward"], calls["varlen_step"] = forward_and_step(
        lambda q, k, v: varlen_attn(
            q, k, v, cu_halves, cu_halves, longest, longest, window_size=(-1, 0)
        ),
        (q, k, v),
        dout,
    )
    times = interleaved(calls, rounds)
    blocks = [divmod(n, block_size) for n in lengths]
    ours = sum(
        n * n + whole * block_size**2 + rest**2
        for n, (whole, rest) in zip(lengths, blocks, strict=True)
    )
    theirs = sum(n * (n + 1) for n in lengths)
    result = {"lengths": lengths, "block_size": block_size, "heads": heads, "dim": head_dim}
    for kind in ("forward", "step"):
        ratio = times[f"varlen_{kind}"] / times[f"ours_{kind}"] * ours / theirs
        result[kind] = {"ms": times, "ratio": {"varlen": ratio}}
    return result


def host_microseconds() -> float:
    """Host time of one eager forward call of a small shape."""
    q = torch.randn(1, 128, 4, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(50):
            stepwell.diffusion_attn_func(q, q, q, 4)
        torch.cuda.synchronize()
        times = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(50):
                stepwell.diffusion_attn_func(q, q, q, 4)
            times.append((time.perf_counter() - start) / 50)
            torch.cuda.synchronize()
    return 1e6 * statistics.median(times)


def describe(case: dict) -> str:
    """A line of the table."""
    what = f"n {case['n']:6d}" if "n" in case else f"packed {len(case['lengths'])}"
    heads_q, heads_kv = case["heads"]
    ratios = "   ".join(
        f"{kind} " + " ".join(f"{peer} {x:.3f}" for peer, x in case[kind]["ratio"].items())
        for kind in ("forward", "step")
    )
    return f"{what}  b {case['block_size']:3d}  {heads_q}/{heads_kv} x {case['dim']}   {ratios}"


def main() -> None:
    """Measures, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; medians count")
    parser.add_argument("--quick", action="store_true", help="a few shapes only")
    parser.add_argument("--no-flex", action="store_true", help="leave FlexAttention out")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    report = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "stepwell": stepwell.__version__,
        "dtype": "bfloat16",
        "tokens": TOKENS,
        "rounds": arguments.rounds,
        "cases": [],
    }
    with contextlib.suppress(OSError):
        report["driver"] = pathlib.Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    cases = [
        ((heads, dim, n, block_size), ["fa2", "cudnn"] if n in (1024, 8192) else ["fa2"])
        for heads, dim in (((16, 16), 128), ((32, 8), 128), ((32, 32), 64))
        for block_size in (4, 32)
        for n in (1024, 2048, 4096, 8192, 16384)
    ]
    cases += [
        ((heads, dim, n, 4), ["fa2"])
        for heads, dim in (((16, 16), 96), ((8, 8), 192), ((8, 8), 256))
        for n in (1024, 4096, 16384)
    ]
    if arguments.quick:
        cases = [(shape, peers) for shape, peers in cases if shape[2:] == (2048, 4)]
    if not arguments.no_flex:
        cases += [((((16, 16), 128, n, 4)), ["flex"]) for n in (2048, 8192)]
    for shape, peers in cases:
        case = batched_case(*shape, peers, arguments.rounds)
        report["cases"].append(case)
        print(describe(case), flush=True)
    for heads, dim in (((16, 16), 128), ((32, 32), 64)):
        case = packed_case(heads, dim, 4, arguments.rounds)
        report["cases"].append(case)
        print(describe(case), flush=True)
    report["host_microseconds"] = host_microseconds()
    print(f"host time of one call: {report['host_microseconds']:.1f} us")
    groups = {}
    for case in report["cases"]:
        if "fa2" in case["forward"]["ratio"]:
            key = f"{case['heads'][0]}/{case['heads'][1]} x {case['dim']}"
            groups.setdefault(key, []).append(case)
    for key, group in groups.items():
        for kind in ("forward", "step"):
            ratios = [case[kind]["ratio"]["fa2"] for case in group]
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            report.setdefault("geometric_mean_fa2", {}).setdefault(key, {})[kind] = mean
            print(f"{key} {kind}: geometric mean {mean:.3f} x fa2, least {min(ratios):.3f}")
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
