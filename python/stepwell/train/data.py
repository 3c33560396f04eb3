"""Text as bytes: which files, which of them are held out, and windows of training text."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

# Packages of third parties, compiled files, and test suites: distributions ship those apart or not
# at all, and what is learnt should not depend on how Python was packaged.
_SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "idle_test",
    "site-packages",
    "test",
    "tests",
}
HELD_OUT_FRACTION = 0.05


@dataclass(frozen=True)
class Corpus:
    """Training text and held-out text.

    Attributes:
        source: one line that says where the text is from.
        train: uint8 ``(bytes,)``.
        held_out: uint8 ``(bytes,)``; of files (or the end of a file) that train has nothing of.
        train_files, held_out_files: names, in the order in which they were joined.
    """

    source: str
    train: torch.Tensor
    held_out: torch.Tensor
    train_files: list[str]
    held_out_files: list[str]

    def fingerprint(self) -> str:
        """Hexadecimal digest of the text and its split: a resumed run must see the same."""
        digest = hashlib.sha256(self.train.numpy().tobytes())
        digest.update(b"|held-out|")
        digest.update(self.held_out.numpy().tobytes())
        return digest.hexdigest()[:16]


def standard_library() -> tuple[str, dict[str, bytes]]:
    """The sources of this Python's standard library: a description, and contents by name.

    Names are paths relative to the library's folder, sorted, with "/" on every system. Folders of
    third-party packages and of test suites are left out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _SKIPPED_FOLDERS and not name.startswith("config-")
        ]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    files = {path.relative_to(root).as_posix(): path for path in paths}
    contents = {name: files[name].read_bytes() for name in sorted(files)}
    version = sysconfig.get_python_version()
    return f"standard library of Python {version} ({root})", contents


def text_files(paths: Iterable[str]) -> tuple[str, dict[str, bytes]]:
    """Contents of the given files by absolute path, in the order given.

    What is held out follows the names, so a resumed run must see those that the first one saw,
    wherever it is started and however its files are written.

    Raises:
        ValueError: a path that is not a readable file, or is given twice.
    """
    contents: dict[str, bytes] = {}
    for path in paths:
        name = os.path.abspath(path)
        if name in contents:
            raise ValueError(f"--text: {path} is given twice")
        try:
            contents[name] = Path(name).read_bytes()
        except OSError as error:
            raise ValueError(
                f"--text: cannot read {path} ({error.strerror}); accepted: files"
            ) from None
    return f"{len(contents)} file(s): {', '.join(list(contents)[:3])}" + (
        ", ..." if len(contents) > 3 else ""
    ), contents


def _held_out_names(sizes: dict[str, int]) -> set[str]:
    """Names in the order of a hash of theirs, until they hold the fraction that is wanted.

    The order of a hash neither follows the alphabet nor changes when files are added. Files that
    would make up more than a quarter of the held-out text are taken only where the others are too
    few, and those that would make up more than twice of it never.
    """
    wanted = HELD_OUT_FRACTION * sum(sizes.values())
    names = sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest())
    taken: set[str] = set()
    held = 0
    for limit in (wanted / 4, 2 * wanted):
        for name in names:
            if held < wanted and name not in taken and sizes[name] <= limit:
                taken.add(name)
                held += sizes[name]
    return taken


def split(source: str, contents: dict[str, bytes], length: int) -> Corpus:
    """Splits files into training text and held-out text of about 5 %, by a hash of their names.

    Empty files and repeated contents are dropped first, so no held-out file has a copy in the
    training text. Where all files are too big to be held out whole, the end of the biggest is held
    out instead, 10 % of the text.

    Args:
        source: description of the text, kept.
        contents: bytes by file name.
        length: bytes of a training window.

    Raises:
        ValueError: less than one window of training text or of held-out text.
    """
    unique: dict[bytes, str] = {}
    for name, data in contents.items():
        if data:
            unique.setdefault(hashlib.sha256(data).digest(), name)
    contents = {name: contents[name] for name in unique.values()}
    held_names = _held_out_names({name: len(data) for name, data in contents.items()})
    train = {name: data for name, data in contents.items() if name not in held_names}
    held = {name: data for name, data in contents.items() if name in held_names}
    total = sum(len(data) for data in contents.values())
    if contents and not held:
        biggest = max(contents, key=lambda name: len(contents[name]))
        data = contents[biggest]
        cut = len(data) - max(length, int(2 * HELD_OUT_FRACTION * total))
        train[biggest] = data[: max(cut, 0)]
        held[f"{biggest} from byte {max(cut, 0)}"] = data[max(cut, 0) :]
    train_text, held_text = b"".join(train.values()), b"".join(held.values())
    for part, text in (("training", train_text), ("held-out", held_text)):
        if len(text) < 2 * length:
            raise ValueError(
                f"--text: {len(text)} bytes of {part} text; accepted: at least two windows of "
                f"--length {length} (held out are {len(held_text)} of {total} bytes, "
                f"{len(held_text) / max(total, 1):.0%})"
            )
    return Corpus(source, _bytes(train_text), _bytes(held_text), list(train), list(held))


def seeded(*key: int) -> torch.Generator:
    """A generator for one purpose: (seed, purpose, step, ...).

    Random numbers depend on where they are used, not on what was drawn before, so a resumed run
    needs no saved state of a generator.
    """
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


class Windows:
    """Batches of windows of the training text: each epoch visits every window once.

    An epoch cuts the text into windows from an offset of its own and shuffles them.
    """

    def __init__(self, text: torch.Tensor, length: int, batch: int, seed: int) -> None:
        self._text, self._length, self._batch, self._seed = text, length, batch, seed
        self._per_epoch = len(text) // length - 1
        self._epoch = -1
        self._starts = torch.empty(0, dtype=torch.int64)

    def batch(self, step: int) -> torch.Tensor:
        """The windows of a step (from 0): int64 ``(batch, length)``."""
        first = step * self._batch
        starts = torch.stack([self._start(index) for index in range(first, first + self._batch)])
        return windows_at(self._text, starts, self._length)

    def _start(self, index: int) -> torch.Tensor:
        epoch, place = divmod(index, self._per_epoch)
        if epoch != self._epoch:
            generator = seeded(self._seed, 1, epoch)
            offset = torch.randint(self._length, (1,), generator=generator)
            order = torch.randperm(self._per_epoch, generator=generator)
            self._epoch, self._starts = epoch, offset + order * self._length
        return self._starts[place]


def even_windows(text: torch.Tensor, length: int, limit: int) -> torch.Tensor:
    """About limit bytes of text as whole windows, evenly spread: int64 ``(windows, length)``."""
    available = len(text) // length
    count = min(available, max(2, limit // length))  # two have a standard error
    starts = (torch.arange(count) * available // count) * length
    return windows_at(text, starts, length)


def windows_at(text: torch.Tensor, starts: torch.Tensor, length: int) -> torch.Tensor:
    return text[starts[:, None] + torch.arange(length)].long()


def _bytes(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
