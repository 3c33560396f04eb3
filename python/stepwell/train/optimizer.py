"""Muon for the matrices, AdamW for the rest, and the learning rate over a run."""

from __future__ import annotations

import torch

from .config import TrainConfig
from .model import DiffusionTransformer


def make_optimizers(
    model: DiffusionTransformer, config: TrainConfig
) -> dict[str, torch.optim.Optimizer]:
    """Optimizers by name.

    Muon (torch.optim.Muon) is for matrices between features; embedding and head, whose rows are
    bytes, and the gains of the norms are AdamW's. On this task Muon needs about half the steps.
    """
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    taken = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in taken]
    return {
        "muon": torch.optim.Muon(
            matrices,
            lr=config.lr,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        "adamw": torch.optim.AdamW(
            others, lr=config.embedding_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        ),
    }


def lr_factor(progress: float, warmup: float, decay: float) -> float:
    """Factor of the learning rates at a fraction of the run: up, constant, down to 0.

    Args:
        progress: fraction of the run that is done, in [0, 1).
        warmup: fraction in which the rate rises; at its start the factor is small, not 0.
        decay: last fraction, in which it falls.
    """
    rising = min(1.0, (progress + 1e-3) / warmup) if warmup > 0 else 1.0
    falling = min(1.0, (1.0 - progress) / decay) if decay > 0 else 1.0
    return rising * falling


def set_lr(
    optimizers: dict[str, torch.optim.Optimizer], config: TrainConfig, factor: float
) -> None:
    for name, optimizer in optimizers.items():
        base = config.lr if name == "muon" else config.embedding_lr
        for group in optimizer.param_groups:
            group["lr"] = base * factor
