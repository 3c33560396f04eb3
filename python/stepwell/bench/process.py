"""Figures that need a process of their own: first use of kernels, and peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

# Times of the first forward and the first backward pass of each head dim in a process of its own,
# with CUDA and autograd ready before. The processes fork from one that has imported what takes
# long.
_FIRST_USE = """
import json, multiprocessing, os, sys, time, torch

def seconds(call):
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    return result, time.perf_counter() - start

def product(device):
    x = torch.ones(8, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    y = x @ x
    torch.autograd.grad(y, x, torch.ones_like(y))

def measure(dim, cache, results):
    import stepwell  # not before the fork: it asks for GPUs

    os.environ["STEPWELL_CACHE_DIR"] = cache
    product("cuda")
    q, k, v = (torch.randn(1, 256, 4, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    out, forward = seconds(lambda: stepwell.diffusion_attn_func(q, k, v, 4))
    _, backward = seconds(lambda: torch.autograd.grad(out, (q, k, v), torch.ones_like(out)))
    results.put({"forward": forward, "backward": backward})

import sympy  # autograd imports it at its first use of given gradients
torch.set_num_threads(1)
fork = multiprocessing.get_context("fork")
times = []
for dim, cache in json.loads(sys.argv[1]):
    results = fork.SimpleQueue()
    process = fork.Process(target=measure, args=(dim, cache, results))
    process.start()
    process.join()
    if process.exitcode != 0:
        sys.exit(f"head dim {dim}: the process ended with status {process.exitcode}")
    times.append(results.get())
print(json.dumps(times))
"""

_MEMORY = """
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
# Threads and library are there before memory is read.
stepwell.diffusion_attn_func(*(torch.randn(1, 64, heads, dim),) * 3, 32)
run(rows)
"""


def _run(code: str, *arguments: str, **environment: str) -> Any:
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    if result.returncode:
        raise RuntimeError(f"a process of the benchmark failed:\n{result.stderr.strip()}")
    return json.loads(result.stdout.splitlines()[-1])


def first_use(head_dims: list[int]) -> list[dict[str, Any]]:
    """Seconds until the first call of each kernel returns its result, on a GPU.

    For each head dim two processes use the kernels once: *cold* with an empty cache, which compiles
    them, and *warm* with the cache that the first has left, which loads them. What loads NVRTC and
    the driver is in the times.
    """
    with tempfile.TemporaryDirectory() as folder:
        caches = [(dim, os.path.join(folder, str(dim))) for dim in head_dims]
        cold, warm = (
            _run(
                _FIRST_USE,
                json.dumps(caches),
                STEPWELL_PACKAGED_CUBINS="",
                CUDA_CACHE_DISABLE="1",  # NVRTC keeps what it has compiled, too
            )
            for _ in range(2)
        )
    return [
        {
            "dim": dim,
            **{
                f"{kind}_{state}_seconds": times[kind]
                for kind in ("forward", "backward")
                for state, times in (("cold", cold[i]), ("warm", warm[i]))
            },
        }
        for i, dim in enumerate(head_dims)
    ]


def memory(rows: int, heads: int, head_dim: int, threads: int) -> dict[str, Any]:
    """Peak memory of forward plus backward on a CPU, beyond the inputs, over the bytes of results.

    Results are outputs, log-sum-exp and gradients of one sample of `rows` rows; Linux only.
    """
    result = _run(_MEMORY, *map(str, (rows, heads, head_dim, threads)))
    return {"rows": rows, "heads": heads, "head_dim": head_dim, **result}
