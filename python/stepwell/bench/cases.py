"""The operator table of the benchmark: named problems, the same for Stepwell and its peers."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass

import numpy as np

import stepwell
from stepwell.masks import BlockCausal, Causal, Diffusion, Full, Mask, Window

CUDA_TOKENS = 32768  # rows of q of every batched case
CPU_TOKENS = 4096  # rows of one half


@dataclass(frozen=True)
class Case:
    """Attention of some samples.

    Attributes:
        mask: of every sample; of Diffusion only ``Diffusion(block_size)``.
        lengths: tokens of each sample; Diffusion: of one half of it.
        packed: samples lie one after the other, "interleaved", instead of in a batch.
        heads_q, heads_kv, head_dim: as in the attention functions.
        peers: those that are measured unless ``--peers`` names others.
        quick: measured with ``--quick``.
    """

    mask: Mask
    lengths: tuple[int, ...]
    packed: bool
    heads_q: int
    heads_kv: int
    head_dim: int
    peers: tuple[str, ...]
    quick: bool = False

    @property
    def is_diffusion(self) -> bool:
        return isinstance(self.mask, Diffusion)

    @property
    def block_size(self) -> int | None:
        return getattr(self.mask, "block_size", None)

    @property
    def mask_name(self) -> str:
        """Of the group: without the block size, over which the ratios are averaged."""
        if isinstance(self.mask, Window):
            return f"window-{self.mask.left}-{self.mask.right}"
        names = {Diffusion: "diffusion", BlockCausal: "block_causal", Causal: "causal"}
        return names.get(type(self.mask), "full")

    @property
    def group(self) -> str:
        """Cases whose ratios are averaged: one operator, one shape of heads."""
        what = ("packed " if self.packed else "") + self.mask_name
        return f"{what} {self.heads_q}/{self.heads_kv} x {self.head_dim}"

    @property
    def name(self) -> str:
        size = f"packed{len(self.lengths)}" if self.packed else f"n{self.lengths[0]}"
        block = "" if self.block_size is None else f"-b{self.block_size}"
        heads = f"h{self.heads_q}-{self.heads_kv}-d{self.head_dim}"
        return f"{self.mask_name}-{heads}-{size}{block}"

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of q of each sample."""
        return tuple(2 * n for n in self.lengths) if self.is_diffusion else self.lengths

    @property
    def cu_seqlens(self) -> list[int]:
        """Running counts of rows."""
        return [0, *np.cumsum(self.rows).tolist()]

    @property
    def sequences(self) -> tuple[int, ...]:
        """Rows of each sequence of the causal yardstick: halves of samples, or samples."""
        return tuple(n for n in self.lengths for _ in range(2 if self.is_diffusion else 1))

    def pairs(self) -> int:
        """Visible pairs of one head."""
        if self.packed:
            cu_seqlens = np.array(self.cu_seqlens, np.int32)
            return stepwell.visible_pairs(cu_seqlens[-1], self.mask, cu_seqlens=cu_seqlens)
        return stepwell.visible_pairs(self.rows[0], self.mask, batch=len(self.lengths))

    def causal_pairs(self) -> int:
        """Visible pairs of one head of causal attention on the sequences."""
        return sum(n * (n + 1) // 2 for n in self.sequences)


def log_uniform_lengths(samples: int, least: int, most: int) -> tuple[int, ...]:
    """Lengths of a packed batch, the same everywhere."""
    spread = np.random.default_rng(0).random(samples)
    return tuple(round(least * math.exp(x * math.log(most / least))) for x in spread.tolist())


def cuda_cases() -> list[Case]:
    """bfloat16, 32,768 rows, and packed batches of 64 samples."""

    def batched(mask, heads, dim, n, peers, quick=False):
        rows = 2 * n if isinstance(mask, Diffusion) else n
        return Case(mask, (n,) * (CUDA_TOKENS // rows), False, *heads, dim, peers, quick)

    cases = []
    for heads, dim in (((16, 16), 128), ((32, 8), 128), ((32, 32), 64)):
        for block_size in (4, 32):
            for n in (1024, 2048, 4096, 8192, 16384):
                # Peers other than the yardstick where they tell most: they take their time.
                peers = ("fa2", "fa4")
                if block_size == 4 or n in (1024, 8192):
                    peers = ("fa2", "cudnn", "fa4")
                if (heads, dim, block_size) == ((16, 16), 128, 4) and n in (2048, 8192):
                    peers += ("flex", "fa4_mask")
                quick = (n, block_size) == (2048, 4)
                cases.append(batched(Diffusion(block_size), heads, dim, n, peers, quick))
    for heads, dim in (((16, 16), 96), ((8, 8), 192), ((8, 8), 256)):
        for n in (1024, 2048, 4096, 8192, 16384):
            peers = ("fa2", "cudnn", "fa4") if n in (2048, 8192) else ("fa2", "fa4")
            cases.append(batched(Diffusion(4), heads, dim, n, peers))
    for heads, dim in (((16, 16), 128), ((32, 8), 128), ((32, 32), 64)):
        lengths = log_uniform_lengths(64, 128, 4096)
        quick = heads == (16, 16)
        cases.append(Case(Diffusion(4), lengths, True, *heads, dim, ("varlen", "fa4"), quick))
    for mask, peers in (
        (Full(), ("fa2", "cudnn", "fa4")),
        (Causal(), ("fa2", "cudnn", "fa4")),
        (Window(1023, 0), ("varlen", "fa4", "flex")),
        (BlockCausal(32), ("fa2", "fa4", "flex")),
    ):
        for n in (2048, 8192):
            cases.append(batched(mask, (16, 16), 128, n, peers))
    return cases


def cpu_cases() -> list[Case]:
    """float32, 4,096 tokens a half, and one short case of each kind."""

    def batched(n, block_size, dim, peers, quick=False):
        return Case(
            Diffusion(block_size), (n,) * max(1, CPU_TOKENS // n), False, 8, 8, dim, peers, quick
        )

    cases = []
    for dim in (64, 128):
        for block_size in (4, 32):
            quick = (dim, block_size) == (64, 4)
            peers = ("dense", "causal_halves") if quick else ("causal_halves",)
            cases.append(batched(1024, block_size, dim, peers, quick))
            cases.append(batched(2048, block_size, dim, ("dense",)))
            cases.append(batched(4096, block_size, dim, ("causal_halves",)))
    return cases


def select(cases: list[Case], patterns: list[str] | None, quick: bool) -> list[Case]:
    """The cases that the options leave, in their order.

    Raises:
        ValueError: a pattern that no case has.
    """
    left = [case for case in cases if case.quick or not quick]
    if patterns is None:
        return left
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in left):
            raise ValueError(
                f"--case is {pattern!r}, which is none of the {len(left)} cases here; accepted: "
                "the names that `stepwell bench --list` prints, such as "
                f"{left[0].name}, and patterns such as '{left[0].name.rsplit('-n', 1)[0]}-*'"
            )
    return [case for case in left if any(fnmatch.fnmatchcase(case.name, p) for p in patterns)]
