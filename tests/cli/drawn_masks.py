"""The element rule of every mask, written down a second time and pair by pair.

A token is what decides whether a pair is visible: its sample, half, view and position. Masks of one
sequence have tokens of half "clean" only.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """One row of the drawing; `sample` is None for padding."""

    sample: int | None
    half: str = "clean"
    view: int = 0
    position: int = 0
    index: int = 0  # inside its segment


@dataclass(frozen=True)
class Rule:
    """What all samples share; `origin` has one entry for each sample."""

    block_size: int = 1
    origin: tuple[int, ...] = (0,)
    clean: str = "block"  # or "causal", "full", "window"
    noisy: str = "bidirectional"
    clean_window: int = 0
    table: tuple[tuple[int, int], ...] | None = None
    window: tuple[int, int] = (0, 0)

    def piece(self, q: Token, k: Token) -> str | None:
        """ "own", "noisy_clean" or "clean" where the pair is visible, else None."""
        if q.sample is None or q.sample != k.sample:
            return None
        origin = self.origin[q.sample % len(self.origin)]
        block_q = (q.position - origin) // self.block_size
        block_k = (k.position - origin) // self.block_size
        if q.half == "clean":
            if k.half == "noisy":
                return None
            seen = {
                "block": block_k <= block_q,
                "causal": k.position <= q.position,
                "full": True,
                "window": q.position - self.window[0] <= k.position <= q.position + self.window[1],
            }[self.clean]
            return "clean" if seen else None
        if self.table is not None:
            block_q, block_k = q.index // self.block_size, k.index // self.block_size
        if k.half == "noisy":
            seen = q.view == k.view and block_q == block_k
            if self.noisy == "causal":
                seen = seen and k.position <= q.position
            return "own" if seen else None
        if self.table is not None:
            low, high = self.table[block_q] if block_q < len(self.table) else (0, 0)
            return "noisy_clean" if low <= k.position < high else None
        start = origin + block_q * self.block_size
        seen = k.position < start
        if self.clean_window > 0:
            seen = seen and k.position >= start - self.clean_window + 1
        return "noisy_clean" if seen else None


def segment(sample, half, count, used=None, view=0, position=0):
    """The rows of one half of one sample; those from `used` on are padding."""
    used = count if used is None else used
    return [
        Token(sample, half, view, position + i, i) if i < used else Token(None)
        for i in range(count)
    ]


def tiles_of(rows: list[Token], size: int) -> list[list[int]]:
    """Indices of the rows of each tile: no tile holds padding or two segments."""
    tiles, current, key = [], [], None
    for i, row in enumerate(rows):
        if row.sample is None:
            key = None
            continue
        row_key = (row.sample, row.half, row.view, row.index // size)
        if row_key != key:
            current = []
            tiles.append(current)
            key = row_key
        current.append(i)
    return tiles
