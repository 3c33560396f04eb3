"""The training loop."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from tqdm import tqdm

from .attention import Attention
from .config import ModelConfig, TrainConfig
from .data import Windows, seeded
from .model import DiffusionTransformer
from .objective import Noise, draw_noise, noisy_clean, weighted_nll
from .optimizer import lr_factor, make_optimizers, set_lr

_GRADIENT_NORM = 1.0
_LOSS_MEAN = 50  # steps of the running mean in the progress bar


@dataclass
class Run:
    """A training run: everything that a checkpoint holds.

    Attributes:
        step: steps taken.
        elapsed: seconds of training so far, over all resumptions.
        history: for each step, seconds since the start and bits per byte of the batch.
    """

    model_config: ModelConfig
    train_config: TrainConfig
    model: DiffusionTransformer
    optimizers: dict[str, torch.optim.Optimizer]
    step: int = 0
    elapsed: float = 0.0
    history: list[tuple[float, float]] = field(default_factory=list)

    def progress(self) -> float:
        """Fraction of the run that is done."""
        config = self.train_config
        if config.steps is not None:
            return self.step / config.steps
        return self.elapsed / (60 * config.minutes)

    def tokens(self) -> int:
        """Bytes of text seen, repetitions included."""
        return self.step * self.train_config.batch * self.model_config.length


def new_run(model_config: ModelConfig, train_config: TrainConfig, device: torch.device) -> Run:
    # Initialised on the host, so that weights of a seed are the same on every device.
    model = DiffusionTransformer(model_config).initialize(train_config.seed).to(device)
    return Run(model_config, train_config, model, make_optimizers(model, train_config))


def autocast(device: torch.device, precision: str) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def noise_of_step(run: Run, step: int) -> Noise:
    config = run.train_config
    return draw_noise(
        config.batch,
        run.model_config.length,
        run.model_config.block_size,
        seeded(config.seed, 2, step),
        kind=config.noise,
        clip=config.clip,
    )


def train_step(run: Run, tokens: torch.Tensor, noise: Noise, attention: Attention) -> float:
    """One update of the weights.

    Args:
        run: its model, optimizers and learning rate; step and elapsed are the caller's.
        tokens: int64 ``(batch, length)`` on the model's device.
        noise: on the model's device.

    Returns:
        The batch's estimate of the bound, in bits per byte.
    """
    with autocast(tokens.device, run.train_config.precision):
        inputs = noisy_clean(tokens, noise.masked)
        logits = run.model.masked_logits(inputs, noise.masked, attention)
    loss = weighted_nll(logits, tokens, noise).sum() / tokens.numel()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), _GRADIENT_NORM)
    for optimizer in run.optimizers.values():
        optimizer.step()
        optimizer.zero_grad()
    return loss.item() / math.log(2)


def train(
    run: Run,
    text: torch.Tensor,
    attention: Attention,
    *,
    save: Callable[[Run], None],
    save_every: float = 60.0,
    show: bool = True,
) -> bool:
    """Trains until the run's steps or minutes are used up, or a signal asks to stop.

    Args:
        run: continued from run.step; changed in place.
        text: uint8 ``(bytes,)``, the training text on the host.
        attention: how to compute the attention.
        save: called every save_every seconds and at the end.
        show: draw a progress bar.

    Returns:
        Whether the run is complete; False after SIGINT or SIGTERM, with the run saved.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    device = next(run.model.parameters()).device
    config = run.train_config
    windows = Windows(text, run.model_config.length, config.batch, config.seed)
    before = run.elapsed
    start = saved = time.perf_counter()
    with _StopFlag() as stop, _ProgressBar(run, show) as bar:
        while run.progress() < 1 and not stop.is_set:
            factor = lr_factor(run.progress(), config.warmup, config.decay)
            set_lr(run.optimizers, config, factor)
            tokens = windows.batch(run.step).to(device)
            noise = noise_of_step(run, run.step)
            noise = Noise(noise.masked.to(device), noise.weight.to(device))
            bits = train_step(run, tokens, noise, attention)
            if not math.isfinite(bits):
                raise FloatingPointError(
                    f"the loss is {bits} at step {run.step}; try a smaller --lr (it is {config.lr})"
                )
            now = time.perf_counter()
            run.step += 1
            run.elapsed = before + now - start
            run.history.append((round(run.elapsed, 3), bits))
            bar.update(run)
            if now - saved >= save_every:
                save(run)
                saved = time.perf_counter()
    save(run)
    return run.progress() >= 1


class _StopFlag:
    """Set by SIGINT and SIGTERM, so that a step is never torn apart."""

    def __init__(self) -> None:
        self.is_set = False

    def __enter__(self) -> _StopFlag:
        def handle(number, frame):
            self.is_set = True

        self._old = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)


class _ProgressBar:
    """Loss, speed and the fraction of the steps or minutes that is used."""

    def __init__(self, run: Run, show: bool) -> None:
        by_steps = run.train_config.steps is not None
        terminal = sys.stderr.isatty()
        counts = "{n_fmt}/{total_fmt} steps" if by_steps else "{n:.0f}/{total:.0f} s"
        self._by_steps = by_steps
        self._first = (run.step, run.elapsed)
        self._bar = tqdm(
            total=run.train_config.steps if by_steps else 60 * run.train_config.minutes,
            initial=run.step if by_steps else run.elapsed,
            desc="training",
            disable=not show,
            mininterval=0.2 if terminal else 10.0,  # a log file needs no animation
            bar_format="{desc} {percentage:3.0f}% |{bar:30}| " + counts + "{postfix}",
        )

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *error) -> None:
        self._bar.close()

    def update(self, run: Run) -> None:
        recent = [bits for _, bits in run.history[-_LOSS_MEAN:]]
        steps, seconds = run.step - self._first[0], run.elapsed - self._first[1]
        speed = steps * run.train_config.batch * run.model_config.length / seconds
        self._bar.set_postfix_str(
            f"step {run.step}, {sum(recent) / len(recent):.3f} bits/byte, {speed:,.0f} tokens/s",
            refresh=False,
        )
        done = run.step if self._by_steps else run.elapsed
        self._bar.update(min(done, self._bar.total) - self._bar.n)
