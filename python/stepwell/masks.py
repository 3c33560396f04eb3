"""Masks as values: frozen, hashable, for :func:`stepwell.attention` and the mask functions.

``docs/masks.md`` gives the formulas. A mask says nothing about lengths, offsets or layouts: those
are arguments of the functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._arguments import (
    CLEAN,
    NOISY,
    ORDER,
    check_choice,
    check_integer,
    check_length,
    clean_window_number,
)

__all__ = ["BlockCausal", "Causal", "Diffusion", "Full", "Mask", "Window"]


def _keep(mask: Any, name: str, value: Any) -> None:
    """Keeps a checked number where it is another object than the one given, such as NumPy's."""
    if value is not getattr(mask, name):
        object.__setattr__(mask, name, value)


@dataclass(frozen=True)
class Full:
    """Every query row sees every key."""


@dataclass(frozen=True)
class Causal:
    """A query row sees the keys up to its own position."""


@dataclass(frozen=True)
class Window:
    """A query row at position p sees the keys at [p - left, p + right].

    Args:
        left: keys before the row, >= 0; None: no bound.
        right: keys after the row, >= 0; None: no bound.
    """

    left: int | None = None
    right: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("left", self.left), ("right", self.right)):
            if value is None:
                continue
            number = check_integer(name, value)
            if number < 0:
                raise ValueError(f"{name} is {value}; accepted: 0 or more, or None for no bound")
            _keep(self, name, number)


@dataclass(frozen=True)
class BlockCausal:
    """A query row sees the keys up to the end of its own block.

    Args:
        block_size: tokens of a block, >= 1.
    """

    block_size: int

    def __post_init__(self) -> None:
        _keep(self, "block_size", check_length("block_size", self.block_size))


@dataclass(frozen=True)
class Diffusion:
    """Block diffusion training on noisy and clean copies of the same tokens (arXiv:2503.09573).

    A noisy row sees its own block among the noisy tokens and the clean tokens before its block; a
    clean row sees clean tokens only.

    Args:
        block_size: tokens of a diffusion block, >= 1.
        order: which half comes first, "noisy_clean" or "clean_noisy".
        clean: clean rows see clean tokens up to the end of their block ("block") or up to
            themselves ("causal").
        noisy: noisy rows see all of their block ("bidirectional") or the part up to themselves
            ("causal").
        clean_window: noisy rows see only the clean tokens [start - clean_window + 1, start) before
            the start of their block, >= 1; None: all of them.
        num_views: noisy copies that share one clean half, >= 1.
    """

    block_size: int
    order: str = "noisy_clean"
    clean: str = "block"
    noisy: str = "bidirectional"
    clean_window: int | None = None
    num_views: int = 1

    def __post_init__(self) -> None:
        _keep(self, "block_size", check_length("block_size", self.block_size))
        check_choice("order", self.order, ORDER)
        check_choice("clean", self.clean, CLEAN)
        check_choice("noisy", self.noisy, NOISY)
        if self.clean_window is not None:
            _keep(self, "clean_window", clean_window_number(self.clean_window))
        _keep(self, "num_views", check_length("num_views", self.num_views))


Mask = Full | Causal | Window | BlockCausal | Diffusion
# For isinstance: torch's compiler knows no unions there.
MASKS = (Full, Causal, Window, BlockCausal, Diffusion)


def as_mask(mask: Mask | str) -> Mask:
    """The mask object for a mask object or one of the strings "full" and "causal"."""
    if isinstance(mask, str):
        if mask == "full":
            return Full()
        if mask == "causal":
            return Causal()
        raise ValueError(
            f'mask is "{mask}"; accepted: "full", "causal", or an object of stepwell.masks'
        )
    if not isinstance(mask, MASKS):
        raise TypeError(
            f'mask is of type {type(mask).__name__}; accepted: "full", "causal", or an object of '
            "stepwell.masks"
        )
    return mask


def sequence_numbers(mask: Mask) -> tuple[str, int, int, int]:
    """Kind, block size and window (left, right; -1: no bound) of a mask of one sequence."""
    if isinstance(mask, Full):
        return "full", 1, -1, -1
    if isinstance(mask, Causal):
        return "causal", 1, -1, -1
    if isinstance(mask, BlockCausal):
        return "block_causal", mask.block_size, -1, -1
    left = -1 if mask.left is None else mask.left
    right = -1 if mask.right is None else mask.right
    return "window", 1, left, right
