"""A model and a text that are small enough for tests."""

import torch

from stepwell.train.config import ModelConfig, TrainConfig
from stepwell.train.loop import new_run

CPU = torch.device("cpu")
MODEL = ModelConfig(block_size=4, length=32, layers=2, width=32, heads=4, kv_heads=2, hidden=48)


def random_model(config=MODEL, seed=0):
    """A model whose predictions depend on all that it sees: also the head is random."""
    run = new_run(config, TrainConfig(steps=1, minutes=None, seed=seed), CPU)
    with torch.no_grad():
        run.model.head.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(seed))
    return run.model


def random_tokens(batch, length, seed=0):
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(seed))
