"""Sizes of the model and settings of a run; both are stored in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

VOCABULARY = 256  # bytes
MASK_TOKEN = 256  # the absorbing state: an input of the model, never predicted

ATTENTIONS = ("stepwell", "sdpa", "flex")
NOISE_KINDS = ("count", "time")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the transformer.

    Attributes:
        block_size: bytes of a diffusion block.
        length: bytes of a training window; a multiple of block_size. Positions end here.
        layers: transformer layers.
        width: features of the residual stream; a multiple of 8 * heads.
        heads: query heads.
        kv_heads: key and value heads; divides heads.
        hidden: features inside the feed-forward network.
    """

    block_size: int = 4
    length: int = 256
    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 352

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run.

    Attributes:
        batch: windows per step.
        minutes: wall time of the training loop; the learning rate follows the time used.
            None where steps counts.
        steps: number of steps; the run is then a function of its settings and its text alone.
            None where minutes counts.
        lr: learning rate of the weight matrices (Muon).
        embedding_lr: learning rate of embedding, head and norms (AdamW).
        weight_decay: decay of the weight matrices.
        warmup: fraction of the run in which the learning rate rises from 0.
        decay: last fraction of the run, in which it falls to 0.
        seed: seed of the initial weights, the order of the windows, and the masks.
        noise: how noise levels are drawn, "count" or "time"; see :mod:`stepwell.train.objective`.
        clip: range of the levels that are drawn with noise "time".
        precision: "float32", or "bfloat16" for autocast.
    """

    batch: int = 8
    minutes: float | None = 4.0
    steps: int | None = None
    lr: float = 0.004
    embedding_lr: float = 0.02
    weight_decay: float = 0.1
    warmup: float = 0.05
    decay: float = 0.5
    seed: int = 0
    noise: str = "count"
    clip: tuple[float, float] = (0.0, 1.0)
    precision: str = "float32"
