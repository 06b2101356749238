"""What workers are given: large arrays, many small ones, and functions in pure Python. Measured by wall time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

MANY = 1_000_000_000  # passes are endless for who measures


class Rows:
    """A map-style source without end, of rows that are at hand."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, i: int) -> Any:
        return self.row


@dataclass(frozen=True)
class Large:
    """Batches of 64 MiB: 16 rows of 2**20 numbers of float32, stacked."""

    batch: int = 16

    @cached_property
    def data(self) -> Rows:
        return Rows(np.random.default_rng(1).random(1 << 20, np.float32))

    def floor(self) -> Iterator[np.ndarray]:
        """The bytes of a batch, copied to memory that is there."""
        source, target = np.ones((self.batch, 1 << 20), np.float32), np.zeros((self.batch, 1 << 20), np.float32)
        while True:
            np.copyto(target, source)
            yield target


def small(x: Any) -> dict[str, np.ndarray]:
    """A thousand small arrays."""
    return {f"a{i}": np.full(8, i) for i in range(1_000)}


@dataclass(frozen=True)
class Small:
    """Items of 1,000 arrays of 64 bytes, made by a function."""

    batch: int = 1

    @cached_property
    def data(self) -> Rows:
        return Rows(0)

    def floor(self) -> Iterator[Any]:
        """The function, here."""
        while True:
            yield small(0)


WORDS = {f"{a}{b}": 31 * i + j for i, a in enumerate("abcdefghij") for j, b in enumerate("abcdefghij")}
TEXT = " ".join(word * (i % 4 + 1) for i, word in enumerate(list(WORDS) * 4))


def tokens(text: str) -> np.ndarray:
    """Greedy pieces of two letters, in pure Python."""
    out = []
    for word in text.split():
        at = 0
        while at < len(word):
            out.append(WORDS.get(word[at : at + 2], 0))
            at += 2
    return np.asarray(out, np.int32)


@dataclass(frozen=True)
class Tokenised:
    """A text of 2 kB a sample, tokenised in pure Python, 32 a batch."""

    batch: int = 32

    @cached_property
    def data(self) -> Rows:
        return Rows(TEXT)

    def floor(self) -> Iterator[Any]:
        """The function and the stacking, here."""
        while True:
            yield np.stack([tokens(TEXT) for _ in range(self.batch)])


WORKS = {"move64": Large, "move1000": Small, "tokenise": Tokenised}
