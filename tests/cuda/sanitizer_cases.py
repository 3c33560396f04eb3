"""Small calls of every kernel family and feature on a GPU, to run under compute-sanitizer.

Every case runs forward and backward, with tiles that are partial in each direction, and fails where
a result is not finite. Compile first, without the sanitizer: its own process then loads kernels
from the cache. Without torch's caching of memory each tensor has an allocation of its own, whose
bounds memcheck knows, and only kernels named "kernel", which ours are, are looked at:

    python tests/cuda/sanitizer_cases.py
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck --kernel-name kernel_name=kernel --error-exitcode 1 \
        python tests/cuda/sanitizer_cases.py
    compute-sanitizer --tool racecheck --kernel-name kernel_name=kernel --error-exitcode 1 \
        python tests/cuda/sanitizer_cases.py --only bf16

racecheck does not see the order that an mbarrier with expected bytes makes, and reports what
producer warps hand over beside such bytes: of attention_backward_sm90 row values (cp.async.bulk)
and the numbers of each step, of attention_forward_walk_sm90 the numbers of each tile, and rows'
intervals that its key producer reads where a mask leaves gaps. FlashAttention found the same of
such copies (AI/RACECHECK_TMA_HAZARD.md there). Run it with STEPWELL_SM90_KERNELS=0, and once more
without: then nothing else may be reported. The host model checks these kernels for races.

`--list` shows the names; `--only` takes those that hold a text.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch

import stepwell
from stepwell import masks

BF16, F16 = torch.bfloat16, torch.float16
ROWS = 150  # past two key tiles of 64 and one query tile of 128, a multiple of none


def randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """On the host first: torch's generators on the GPU would be slow under the sanitizer."""
    return torch.randn(*shape).to(dtype).cuda().requires_grad_()


def ints(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).cuda()


def backward(outputs, tensors) -> list[torch.Tensor]:
    """Gradients for all outputs; those of lse, where it is one, too."""
    outputs = [x for x in outputs if x is not None]
    douts = [torch.randn(x.shape).to(x.dtype).cuda() for x in outputs]
    return [*outputs, *torch.autograd.grad(outputs, tensors, douts)]


def batched(
    dim: int,
    dim_v: int | None = None,
    dtype: torch.dtype = BF16,
    heads=(2, 1),
    batch=1,
    block=20,
    **options,
):
    """diffusion_attn_func on random tensors."""
    rows = ROWS * (options.get("num_views", 1) + 1)
    q = randn(batch, rows, heads[0], dim, dtype=dtype)
    k = randn(batch, rows, heads[1], dim, dtype=dtype)
    v = randn(batch, rows, heads[1], dim_v or dim, dtype=dtype)
    outputs = stepwell.diffusion_attn_func(q, k, v, block, return_lse=True, **options)
    return backward(outputs, (q, k, v))


def packed(layout: str):
    counts = [0, 70, 70, 71, 140]  # an empty sample, and rows of padding at the end
    factor = 2 if layout == "interleaved" else 1
    q, k, v = (randn(320, heads, 64) for heads in (2, 1, 1))
    outputs = stepwell.diffusion_attn_varlen_func(
        q, k, v, ints(*(factor * count for count in counts)), 70, 16, layout=layout,
        return_lse=True,
    )  # fmt: skip
    return backward(outputs, (q, k, v))


def split(**options):
    q, k, v = (randn(1, 96, heads, 64) for heads in (2, 1, 1))
    q_clean, k_clean, v_clean = (randn(1, 200, heads, 64) for heads in (2, 1, 1))
    outputs = stepwell.diffusion_attn_split_func(
        q, k, v, k_clean, v_clean, 32, q_clean=q_clean, return_lse=True, **options
    )
    return backward(outputs, (q, k, v, q_clean, k_clean, v_clean))


def sequence(mask, **options):
    q, k, v = randn(1, ROWS, 2, 64), randn(1, 300, 1, 64), randn(1, 300, 1, 64)
    outputs = stepwell.attention(q, k, v, mask, return_lse=True, **options)
    return backward(outputs, (q, k, v))


def strided():
    """Views into a fused tensor, heads before rows, and rows that are copied first."""
    qkv = randn(2, 130, 3, 2, 64)
    fused = list(qkv.unbind(2))
    first = [x.transpose(1, 2) for x in (randn(2, 2, 130, 64) for _ in range(3))]
    odd = [x[..., 3:67] for x in (randn(2, 130, 2, 73) for _ in range(3))]
    results = []
    for q, k, v in (fused, first, odd):
        results += backward([stepwell.diffusion_attn_func(q, k, v, 7)], (q, k, v))
    return results


def wild_lengths():
    """Lengths on the device past every bound: kernels must stay inside the tensors."""
    results = []
    for counts in ([0, 1 << 30, 1 << 30], [-(1 << 31), 50, 40], [5, 3, 700]):
        q, k, v = (randn(256, heads, 64) for heads in (2, 1, 1))
        out = stepwell.diffusion_attn_varlen_func(q, k, v, ints(*counts), 128, 16)
        backward([out], (q, k, v))  # values are undefined, addresses are not
    return results


# Kernels: what NVRTC compiles differs in these.
KERNELS: dict[str, Callable] = {
    **{f"bf16 dim {dim}": lambda dim=dim: batched(dim) for dim in (64, 96, 128, 192, 256)},
    "bf16 dim 40": lambda: batched(40),
    # On Hopper: kernels for blocks that divide 64.
    **{
        f"bf16 small blocks dim {dim} heads {heads}": lambda dim=dim, heads=heads: batched(
            dim, heads=heads, batch=2, block=16, seqused=ints(ROWS, 70)
        )
        for dim in (64, 128)
        for heads in ((2, 1), (2, 2))
    },
    "bf16 dims 192 and 128": lambda: batched(192, 128),
    "bf16 softcap dim 64": lambda: batched(64, softcap=3.0),
    "bf16 softcap dim 128": lambda: batched(128, softcap=3.0),
    "bf16 dropout dim 64": lambda: batched(64, dropout_p=0.2, dropout_seed=3),
    "bf16 dropout dim 192": lambda: batched(192, dropout_p=0.2, dropout_seed=3),
    "bf16 softcap dropout dim 128": lambda: batched(
        128, softcap=3.0, dropout_p=0.2, dropout_seed=3
    ),
    **{
        f"bf16 deterministic dim {dim}": lambda dim=dim: batched(dim, deterministic=True)
        for dim in (64, 128, 256)
    },
    "bf16 deterministic softcap dropout dim 128": lambda: batched(
        128, softcap=3.0, dropout_p=0.2, dropout_seed=3, deterministic=True
    ),
    "f16 dim 64": lambda: batched(64, dtype=F16),
    "f16 dim 128": lambda: batched(128, dtype=F16),
}

# Features of the kernels for head dim 64.
FEATURES: dict[str, Callable] = {
    "feature causal halves": lambda: batched(64, clean="causal", noisy="causal"),
    "feature clean first, views": lambda: batched(64, order="clean_noisy", num_views=2),
    "feature window": lambda: batched(64, clean_window=9),
    "feature negative scale": lambda: batched(64, softmax_scale=-0.1),
    "feature heads, used, prefixes": lambda: batched(
        64, heads=(6, 2), batch=2, seqused=ints(ROWS, 33), prefix_lens=ints(0, 7)
    ),
    "feature dropout state": lambda: batched(
        64, dropout_p=0.2, dropout_seed=torch.tensor([3, 4]).cuda()
    ),
    "feature interleaved": lambda: packed("interleaved"),
    "feature halves": lambda: packed("halves"),
    "feature split": lambda: split(noisy_offset=100, clean_q_offset=0),
    "feature table": lambda: split(block_ranges=ints((0, 1), (150, 200), (30, 31))),
    "feature full": lambda: sequence(masks.Full(), seqused_kv=ints(65)),
    "feature causal": lambda: sequence(masks.Causal(), q_offset=150),
    "feature sliding window": lambda: sequence(masks.Window(70, 3)),
    "feature block causal": lambda: sequence(masks.BlockCausal(32), q_offset=100),
    "feature strides": strided,
    "feature wild lengths": wild_lengths,
}

CASES = {**KERNELS, **FEATURES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="TEXT", help="names that hold TEXT")
    parser.add_argument("--list", action="store_true", help="show the names")
    args = parser.parse_args()
    names = [n for n in CASES if args.only is None or any(text in n for text in args.only)]
    if args.list or not names:
        print("\n".join(CASES))
        return 0 if args.list else 2
    if not torch.cuda.is_available():
        print("no NVIDIA GPU", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    failed = 0
    for name in names:
        start = time.perf_counter()
        results = [x.detach().cpu() for x in CASES[name]()]
        # Rows that see nothing have lse -inf.
        fine = all((x.isfinite() | x.isneginf()).all() for x in results)
        failed += not fine
        seconds = time.perf_counter() - start
        print(f"{name:32}{seconds:8.2f} s{'' if fine else '  NOT FINITE'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
