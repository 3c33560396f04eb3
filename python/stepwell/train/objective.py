"""The training objective and the bound that is reported: the NELBO of block diffusion.

With absorbing noise and the linear schedule, a block of b tokens has

    -log p(block | text before) <= E_{t ~ U(0, 1)} [ 1/t * sum_{i masked} -log p(x_i | ...) ],

each token masked with probability t (Sahoo et al. 2024, arXiv:2406.07524; per block in Arriola et
al. 2025, arXiv:2503.09573, eq. 8). Given that k of the b tokens are masked, the average of 1/t over
t weighs every such pattern by (b + 1)/k, and each k from 0 to b has probability 1/(b + 1). So the
same bound is

    E_{k ~ U{1..b}} [ b/k * sum_{i masked} -log p(x_i | ...) ],   k tokens masked at random,

which wastes no block without masked tokens and has no weights beyond b. Noise "count" draws levels
t = k/b this way; noise "time" draws t itself, optionally from a range (the paper's clipped
schedules, which lower the variance and shift the weights: no bound, but a training objective).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .config import MASK_TOKEN, NOISE_KINDS

_SMALLEST_LEVEL = 1e-3  # the paper's; keeps 1/t finite


@dataclass(frozen=True)
class Noise:
    """What a batch of windows is trained on.

    Attributes:
        masked: bool ``(batch, length)``, tokens replaced by the mask token.
        weight: float32 ``(batch, length)``, 1/t of each token's block.
    """

    masked: torch.Tensor
    weight: torch.Tensor


def draw_noise(
    batch: int,
    length: int,
    block_size: int,
    generator: torch.Generator,
    *,
    kind: str = "count",
    clip: tuple[float, float] = (0.0, 1.0),
) -> Noise:
    """Draws a noise level for each block, and masks at that level.

    The levels of a window are spread evenly over their range (one per stratum, in random order),
    which lowers the variance and keeps every block's level uniform. Windows are independent.

    Args:
        batch, length: windows and their bytes; block_size divides length.
        generator: on the host.
        kind: "count" or "time", see the module.
        clip: kind "time": range of the levels within [0, 1].

    Returns:
        Noise on the host.
    """
    blocks = length // block_size
    order = torch.rand(batch, blocks, generator=generator).argsort(-1)
    uniform = torch.rand(batch, blocks, block_size, generator=generator)
    if kind == "count":
        # A random start, so that a count is not preferred where b does not divide the blocks.
        start = torch.randint(block_size, (batch, 1), generator=generator)
        count = ((order + start) % block_size + 1)[..., None]
        masked = uniform.argsort(-1).argsort(-1) < count
        weight = block_size / count
    elif kind == "time":
        within = torch.rand(batch, 1, generator=generator)
        low, high = clip
        level = low + (high - low) * (order + within)[..., None] / blocks
        level = level.clamp_min(_SMALLEST_LEVEL)
        masked = uniform < level
        weight = 1 / level
    else:
        raise ValueError(f"kind is {kind!r}; accepted: {', '.join(NOISE_KINDS)}")
    return Noise(masked.flatten(1), weight.expand(masked.shape).flatten(1))


def noisy_clean(tokens: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """``[noisy | clean]``: int64 ``(batch, 2 * length)`` of tokens ``(batch, length)``."""
    return torch.cat((tokens.masked_fill(masked, MASK_TOKEN), tokens), 1)


def weighted_nll(logits: torch.Tensor, tokens: torch.Tensor, noise: Noise) -> torch.Tensor:
    """Terms of the bound, in nats: their sum is an estimate of the bound of all tokens.

    Args:
        logits: ``(masked tokens, vocabulary)`` in the order of ``tokens[noise.masked]``.
        tokens: int64 ``(batch, length)``, the clean text.
        noise: on the device of tokens.

    Returns:
        float32 ``(masked tokens,)``.
    """
    nll = F.cross_entropy(logits.float(), tokens[noise.masked], reduction="none")
    return nll * noise.weight[noise.masked]
