"""Bits per byte of held-out text: the model's bound, and figures to compare it with."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass

import numpy as np
import torch

from .attention import Attention
from .config import VOCABULARY
from .data import seeded
from .loop import autocast
from .model import DiffusionTransformer
from .objective import Noise, draw_noise, noisy_clean, weighted_nll

_MASK_SEED = 20250312  # the same masks for every model, whatever its own seed


@dataclass(frozen=True)
class Bound:
    """Held-out bits per byte of a model.

    Attributes:
        bits: mean over windows of the bound (NELBO) in bits per byte: the text cannot take more
            than this in expectation, it may take less.
        standard_error: of that mean, from the spread between windows; it covers the choice of text
            and of masks.
        windows: windows evaluated.
    """

    bits: float
    standard_error: float
    windows: int


@torch.no_grad()
def held_out_bound(
    model: DiffusionTransformer,
    windows: torch.Tensor,
    attention: Attention,
    precision: str = "float32",
    batch: int = 32,
) -> Bound:
    """The bound on fixed masks: each window's text is predicted from that window alone.

    Noise is of kind "count": within a window every number of masked tokens occurs equally often
    (to within one block), so little of the error is due to the masks.

    Args:
        model: the model.
        windows: int64 ``(windows, length)``, at least two.
        attention: how to compute the attention.
        precision: "float32" or "bfloat16".
        batch: windows at a time.
    """
    device = next(model.parameters()).device
    per_window = []
    for index, tokens in enumerate(windows.split(batch)):
        noise = draw_noise(*tokens.shape, model.config.block_size, seeded(_MASK_SEED, index))
        noise = Noise(noise.masked.to(device), noise.weight.to(device))
        tokens = tokens.to(device)
        with autocast(device, precision):
            logits = model.masked_logits(noisy_clean(tokens, noise.masked), noise.masked, attention)
        terms = torch.zeros(tokens.shape, device=device)
        terms[noise.masked] = weighted_nll(logits, tokens, noise)
        per_window.append(terms.double().mean(1).cpu() / math.log(2))
    bits = torch.cat(per_window)
    return Bound(bits.mean().item(), bits.std().item() / math.sqrt(len(bits)), len(bits))


def unigram_bits(train: torch.Tensor, held_out: torch.Tensor) -> float:
    """Bits per byte of held-out text under byte frequencies of the training text.

    Args:
        train, held_out: integers ``(bytes,)``. Counts start at 1.
    """
    probability = _frequencies(train)
    return float(-np.log2(probability[held_out.numpy()]).mean())


def bigram_bits(train: torch.Tensor, held_out: torch.Tensor) -> float:
    """Bits per byte of held-out text, each byte given the one before it.

    Counts of pairs are smoothed with one pseudo-count spread like the byte frequencies; the first
    byte, which has none before it, is not counted.
    """
    first = train[:-1].numpy().astype(np.int64)
    pairs = np.bincount(first * VOCABULARY + train[1:].numpy(), minlength=VOCABULARY**2)
    pairs = pairs.reshape(VOCABULARY, VOCABULARY)
    probability = (pairs + _frequencies(train)) / (pairs.sum(1, keepdims=True) + 1)
    text = held_out.numpy()
    return float(-np.log2(probability[text[:-1], text[1:]]).mean())


def gzip_bits(held_out: torch.Tensor) -> float:
    """Bits per byte of held-out text after gzip -9, which sees all of it and no other text."""
    data = held_out.numpy().astype(np.uint8).tobytes()
    return 8 * len(gzip.compress(data, 9)) / len(data)


def _frequencies(text: torch.Tensor) -> np.ndarray:
    counts = np.bincount(text.numpy(), minlength=VOCABULARY) + 1.0
    return counts / counts.sum()
