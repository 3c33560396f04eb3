"""Checkpoints: weights and optimizer state as safetensors, the rest as JSON.

A checkpoint is a folder ``checkpoints/step-00001234`` of a run's folder. It is written under
another name and renamed when complete, and older ones are removed afterwards: whenever a run is
killed, the newest folder of that name is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from .config import ModelConfig, TrainConfig
from .loop import Run, new_run

_FORMAT = 1


def save(folder: Path, run: Run, extra: dict[str, Any]) -> Path:
    """Saves a run, and removes its older checkpoints.

    Args:
        folder: of the run; made where it does not exist.
        run: what to save.
        extra: JSON-serializable, returned by load.

    Returns:
        The checkpoint's folder.
    """
    final = folder / "checkpoints" / f"step-{run.step:08d}"
    partial = final.with_name(f".{final.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(_on_host(run.model.state_dict()), partial / "model.safetensors")
    save_file(_on_host(_optimizer_tensors(run)), partial / "optimizer.safetensors")
    state = {
        "format": _FORMAT,
        "model": dataclasses.asdict(run.model_config),
        "train": dataclasses.asdict(run.train_config),
        "step": run.step,
        "elapsed": run.elapsed,
        "history": run.history,
        "extra": extra,
    }
    with open(partial / "state.json", "w", encoding="utf-8") as file:
        json.dump(state, file)
    if final.exists():  # the same step: a resumed run that had nothing left to do
        shutil.rmtree(final)
    partial.rename(final)
    for other in _complete(folder):
        if other != final:
            shutil.rmtree(other)
    return final


def exists(folder: Path) -> bool:
    """Whether a folder holds a checkpoint."""
    return bool(_complete(folder))


def load(folder: Path, device: torch.device, **changes: Any) -> tuple[Run, dict[str, Any]]:
    """The newest checkpoint of a run's folder.

    Args:
        folder: of the run.
        device: where the model goes.
        changes: fields of TrainConfig to replace.

    Returns:
        The run, and what save was given as extra.

    Raises:
        ValueError: no checkpoint, or one that cannot be read.
    """
    newest, state = _newest(folder)
    try:
        settings = {**state["train"], "clip": tuple(state["train"]["clip"])}
        train_config = dataclasses.replace(TrainConfig(**settings), **changes)
        run = new_run(ModelConfig(**state["model"]), train_config, device)
        run.model.load_state_dict(load_file(newest / "model.safetensors"))
        _load_optimizers(run, load_file(newest / "optimizer.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"--resume: cannot read {newest}: {error}") from error
    run.step, run.elapsed = state["step"], state["elapsed"]
    run.history = [tuple(entry) for entry in state["history"]]
    return run, state["extra"]


def precision(folder: Path) -> str:
    """The precision of the run of a folder; raises as load does."""
    return _newest(folder)[1]["train"]["precision"]


def _newest(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint and its state."""
    checkpoints = _complete(folder)
    if not checkpoints:
        raise ValueError(f"--resume: {folder} holds no checkpoint; accepted: the folder of a run")
    newest = checkpoints[-1]
    try:
        state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
        if state["format"] != _FORMAT:
            raise ValueError(f"format {state['format']}; accepted: {_FORMAT}")
        state["train"]["precision"]  # read before the rest
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--resume: cannot read {newest}: {error}") from error
    return newest, state


def _complete(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step-????????"))


def _on_host(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _optimizer_tensors(run: Run) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{index}.{key}": value
        for name, optimizer in run.optimizers.items()
        for index, entry in optimizer.state_dict()["state"].items()
        for key, value in entry.items()
    }


def _load_optimizers(run: Run, tensors: dict[str, torch.Tensor]) -> None:
    for name, optimizer in run.optimizers.items():
        state = optimizer.state_dict()
        for key, value in tensors.items():
            owner, index, field = key.split(".", 2)
            if owner == name:
                state["state"].setdefault(int(index), {})[field] = value
        optimizer.load_state_dict(state)
