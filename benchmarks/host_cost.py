"""What one eager call of a small attention takes on the host, and which part takes it.

The device's work is left out: on a CPU the batch is empty; on a GPU calls follow one another
without waiting, and the kernels of these shapes take less time than the calls. Each figure is the
least of many short runs, so that other processes do not count. "dispatcher" has the same calls with
every operator through torch's dispatcher, as under a mode or a profiler.

Usage:
    python benchmarks/host_cost.py
    python benchmarks/host_cost.py --device cuda --output benchmarks/results/host_cost_cuda.json
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import pathlib
import platform
import time
from unittest import mock

import torch

import stepwell
from stepwell import _binding, _eager, _torch, functional

CALLS = 50  # of one run; fewer than the launches that a GPU queues
BLOCK_SIZE = 4


def best_us(call, device: str, rounds: int) -> float:
    """Microseconds of one call on the host."""
    best = float("inf")
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    return round(1e6 * best / CALLS, 2)


def whole_calls(q: torch.Tensor) -> dict:
    """Calls of the public functions."""
    q, k, v = (q.clone().requires_grad_() for _ in range(3))
    plain = q.detach()
    out = stepwell.diffusion_attn_func(q, k, v, BLOCK_SIZE)
    dout = torch.zeros_like(out)

    def forward():
        stepwell.diffusion_attn_func(plain, plain, plain, BLOCK_SIZE)

    def forward_with_grad():
        stepwell.diffusion_attn_func(q, k, v, BLOCK_SIZE)

    def forward_in_autocast():
        with torch.autocast(q.device.type, torch.bfloat16):
            stepwell.diffusion_attn_func(q, k, v, BLOCK_SIZE)

    def backward():
        torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    return {
        "forward": forward,
        "forward, gradients wanted": forward_with_grad,
        "forward, gradients wanted, autocast": forward_in_autocast,
        "backward": backward,
    }


def parts_of_forward(q: torch.Tensor) -> dict:
    """The parts of a forward call without gradients."""
    settings = (
        "batched", BLOCK_SIZE, "noisy_clean", "block", "bidirectional", None, 1, None,
        None, 0.0, 0.0, None, False,
    )  # fmt: skip

    def arguments():
        return functional._joint(_torch, q, q, q, None, None, None, *settings)

    args = arguments()
    out, lse = _torch._outputs(q, q)
    prefix = _binding.joint_prefix(*args, 1)
    gradients = [torch.empty_like(q) for _ in range(3)]
    last = (None, None, None)
    return {
        "arguments": arguments,
        "whether the dispatcher is needed": lambda: _eager.device_of(args[:7]),
        "alignment": lambda: [_torch._is_aligned(x) for x in args[:3]],
        "out": lambda: _torch._outputs(q, q, lse=False),
        "out and lse": lambda: _torch._outputs(q, q),
        "prefix": lambda: _binding.joint_prefix(*args, 1),
        "library, forward": lambda: _binding.attention_forward(*prefix, out, None, None, None),
        "library, backward": lambda: _binding.attention_backward(
            *prefix, out, lse, out, None, None, *last, *gradients, *last
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    batch = 1 if args.device == "cuda" else 0
    q = torch.zeros(batch, 128, 4, 64, dtype=torch.bfloat16, device=args.device)
    result = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "stepwell": stepwell.__version__,
        "unit": "us",
    }
    for kind in ("direct", "dispatcher"):
        states = _eager._PLAIN_STATES if kind == "direct" else frozenset()
        with mock.patch.object(_eager, "_PLAIN_STATES", states):
            result[kind] = {
                name: best_us(call, args.device, args.rounds)
                for name, call in whole_calls(q).items()
            }
    result["parts"] = {
        name: best_us(call, args.device, args.rounds) for name, call in parts_of_forward(q).items()
    }
    for name, us in result["direct"].items():
        print(f"{name:38}{us:8.2f} us  (dispatcher: {result['dispatcher'][name]:.2f})")
    for name, us in result["parts"].items():
        print(f"    {name:34}{us:8.2f} us")
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
