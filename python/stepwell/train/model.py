"""The transformer. It knows no mask: what rows see is the business of the function it is given."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .attention import Attention
from .config import VOCABULARY, ModelConfig
from .data import seeded

_NORM_EPS = 1e-6
_ROPE_BASE = 10000.0

# attend(layer, q, k, v): q (batch, rows, heads, head_dim), k and v with kv_heads -> like q
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) in complex numbers."""

    def __init__(self, length: int, head_dim: int) -> None:
        super().__init__()
        frequency = _ROPE_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
        turns = torch.stack((angle.cos(), angle.sin()), -1).float()
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotates x, float32 ``(batch, rows, heads, head_dim)``, by positions ``(rows,)``."""
        turns = torch.view_as_complex(self.turns[positions])[:, None]
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2)


class AttentionLayer(nn.Module):
    """Grouped-query attention with normed, rotated queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_dim = config.head_dim
        all_heads = config.heads + 2 * config.kv_heads
        self.qkv = nn.Linear(config.width, all_heads * config.head_dim, bias=False)
        self.scale = nn.Parameter(torch.ones(config.head_dim))
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x, positions, rotary, attend, layer, keep):
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), 2)
        qk = F.layer_norm(qk.float(), (self.head_dim,), eps=_NORM_EPS)
        q, k = rotary(qk, positions).split((self.heads, self.kv_heads), 2)
        q = q * self.scale
        out = attend(layer, q.to(v.dtype), k.to(v.dtype), v)
        return self.out(out[:, :keep].flatten(2))


class Layer(nn.Module):
    """Attention, then a SwiGLU feed-forward network (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # LayerNorm without bias: torch fuses it on CPUs, where its RMSNorm is several operators.
        self.attention_norm = nn.LayerNorm(config.width, eps=_NORM_EPS, bias=False)
        self.attention = AttentionLayer(config)
        self.mlp_norm = nn.LayerNorm(config.width, eps=_NORM_EPS, bias=False)
        self.up = nn.Linear(config.width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x, positions, rotary, attend, layer, keep):
        mixed = self.attention(self.attention_norm(x), positions, rotary, attend, layer, keep)
        x = x[:, :keep] + mixed
        gate, value = self.up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class DiffusionTransformer(nn.Module):
    """Predicts bytes from bytes, some of which are masked."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(VOCABULARY + 1, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=_NORM_EPS, bias=False)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        self.rotary = Rotary(config.length, config.head_dim)

    def initialize(self, seed: int) -> DiffusionTransformer:
        """Sets every weight from a seed; the first predictions are uniform."""
        generator = seeded(seed, 0)
        with torch.no_grad():
            for layer in self.layers:
                for linear in (layer.attention.qkv, layer.up):
                    linear.weight.normal_(0, self.config.width**-0.5, generator=generator)
                for linear in (layer.attention.out, layer.down):
                    std = (2 * self.config.layers * linear.in_features) ** -0.5
                    linear.weight.normal_(0, std, generator=generator)
            self.embedding.weight.normal_(0, 0.5, generator=generator)
            self.head.weight.zero_()
        return self

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        keep: int | None = None,
    ) -> torch.Tensor:
        """Final features of the first rows.

        Args:
            tokens: int64 ``(batch, rows)``, bytes or the mask token.
            positions: int64 ``(rows,)``, below config.length.
            attend: attention of layer i: ``attend(i, q, k, v)``.
            keep: rows whose features are wanted, the first ones; None: all. The last layer is
                not computed for the others, except for their keys and values.

        Returns:
            ``(batch, keep, width)``; :meth:`logits` takes rows of it.
        """
        x = self.embedding(tokens)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            rows = keep if index == last else None
            x = layer(x, positions, self.rotary, attend, index, rows)
        return x

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """``(..., vocabulary)`` of features ``(..., width)``."""
        return self.head(self.norm(features))

    def masked_logits(
        self, noisy_clean: torch.Tensor, masked: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """Logits of the masked tokens of ``[noisy | clean]`` windows.

        Args:
            noisy_clean: int64 ``(batch, 2 * length)``.
            masked: bool ``(batch, length)``.
            attention: how to compute the attention.

        Returns:
            ``(masked tokens, vocabulary)`` in the order of ``tokens[masked]``.
        """
        length = masked.shape[1]
        positions = torch.arange(length, device=masked.device).repeat(2)  # per half

        def attend(layer, q, k, v):
            return attention.training(q, k, v, self.config.block_size)

        features = self(noisy_clean, positions, attend, keep=length)
        return self.logits(features[masked])

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def uniform_bits() -> float:
    """Bits per byte of the untrained model: its predictions are uniform over the bytes."""
    return math.log2(VOCABULARY)
