"""What the package is compared with: masks from the visibility table, and dense attention.

Nothing here calls stepwell. Rows are described one by one (sample, half, view, index, position),
and visibility is decided from two descriptions.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

NOISY, CLEAN = 0, 1


@dataclasses.dataclass
class Rows:
    """One description per row of a tensor; `sample` is -1 for padding."""

    sample: np.ndarray
    half: np.ndarray
    view: np.ndarray
    index: np.ndarray
    position: np.ndarray

    @staticmethod
    def segment(sample, half, view, count, used=None, offset=0) -> Rows:
        index = np.arange(count)
        valid = index < (count if used is None else used)
        return Rows(
            np.where(valid, sample, -1),
            np.full(count, half),
            np.full(count, view),
            index,
            index + offset,
        )

    @staticmethod
    def padding(count) -> Rows:
        return Rows.segment(0, CLEAN, 0, count, used=0)

    @staticmethod
    def concatenate(parts: list[Rows]) -> Rows:
        parts = parts or [Rows.padding(0)]
        names = [field.name for field in dataclasses.fields(Rows)]
        return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.sample)


def visible(
    q: Rows,
    k: Rows,
    *,
    kind: str,
    block_size: int = 1,
    clean: str = "block",
    noisy: str = "bidirectional",
    clean_window: int | None = None,
    window: tuple[float, float] = (math.inf, math.inf),
    origins=None,
    block_ranges=None,
) -> np.ndarray:
    """bool (rows of q, rows of k). Per sample: origins, and block_ranges, lists of (lo, hi)."""
    qs, ks = q.sample[:, None], k.sample[None, :]
    pq, pk = q.position[:, None], k.position[None, :]
    same = (qs == ks) & (qs >= 0)
    origin = np.zeros(qs.shape, int)
    if origins is not None and len(origins):
        origin = np.where(qs >= 0, np.asarray(origins)[np.maximum(qs, 0)], 0)
    if kind == "full":
        return same
    if kind == "causal":
        return same & (pk <= pq)
    if kind == "window":
        return same & (pk >= pq - window[0]) & (pk <= pq + window[1])
    blk_q, blk_k = (pq - origin) // block_size, (pk - origin) // block_size
    if kind == "block_causal":
        return same & (blk_k <= blk_q)

    q_noisy, k_noisy = (q.half == NOISY)[:, None], (k.half == NOISY)[None, :]
    own_q, own_k = blk_q, blk_k
    if block_ranges is not None:  # noisy blocks count from the first noisy row
        own_q, own_k = (q.index // block_size)[:, None], (k.index // block_size)[None, :]
    noisy_noisy = (own_q == own_k) & (q.view[:, None] == k.view[None, :])
    if noisy == "causal":
        noisy_noisy &= pk <= pq
    noisy_clean = blk_k < blk_q
    if clean_window is not None:
        noisy_clean &= pk >= blk_q * block_size + origin - clean_window + 1
    if block_ranges is not None:
        noisy_clean = np.zeros(same.shape, bool)
        for row in range(len(q)):
            if q.half[row] == NOISY and q.sample[row] >= 0:
                lo, hi = block_ranges[q.sample[row]][q.index[row] // block_size]
                noisy_clean[row] = (lo <= k.index) & (k.index < hi)
    clean_clean = blk_k <= blk_q if clean == "block" else pk <= pq
    return same & np.where(
        q_noisy, np.where(k_noisy, noisy_noisy, noisy_clean), ~k_noisy & clean_clean
    )


def rounded_dropout(p):
    """As the library rounds it: 8 bits a pair."""
    return round(p * 2**8) / 2**8


def attention(q, k, v, mask, *, scale=None, softcap=0.0, keep=None, dropout_p=0.0):
    """(out, lse) of q (batch, rows, heads, dim) with a mask (batch, rows, keys), in q's dtype.

    keep: (batch, heads, rows, keys), pairs that dropout leaves.
    """
    group = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(group, dim=2)
    v = v.repeat_interleave(group, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (
        q.shape[-1] ** -0.5 if scale is None else scale
    )
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    mask = mask[:, None]
    sees = mask.any(-1, keepdim=True)
    scores = scores.masked_fill(~mask, -math.inf)
    lse = torch.logsumexp(scores.masked_fill(~sees, 0.0), -1).masked_fill(~sees[..., 0], -math.inf)
    weights = torch.softmax(scores.masked_fill(~sees, 0.0), -1).masked_fill(~mask, 0.0)
    if keep is not None:
        weights = weights * keep / (1.0 - rounded_dropout(dropout_p))
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse
