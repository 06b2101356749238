"""The passes of an order that ends: where each begins, and how many positions it has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...types import Ints


class PassSpan(NamedTuple):
    """Pass `epoch`: positions `start` to `stop - 1`."""

    epoch: int
    start: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True)
class Passes:
    """From pass `epochs[i]` on, each pass has `sizes[i]` positions.

    A change of a run may alter the length of its pass, and of the later passes.

    >>> passes = Passes((0, 2, 3), (10, 4, 6))
    >>> [passes.start(epoch) for epoch in range(5)]
    [0, 10, 20, 24, 30]
    >>> passes.at(25)
    PassSpan(epoch=3, start=24, size=6)
    """

    epochs: tuple[int, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def uniform(size: int) -> Passes:
        """Return passes of one size."""
        return Passes((0,), (size,))

    @staticmethod
    def of(sizes: Iterable[tuple[int, int]]) -> Passes:
        """Return passes with these sizes, each from an epoch on. Equal neighbours become one."""
        found = list[tuple[int, int]]()
        for epoch, size in sizes:
            if not found or found[-1][1] != size:
                found.append((epoch, size))
        epochs, every = zip(*found, strict=True)
        return Passes(epochs, every)

    def to_json(self) -> list[list[int]]:
        """Return pairs of a pass and the number of positions from there on."""
        return [[*each] for each in zip(self.epochs, self.sizes, strict=True)]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first position of each of `epochs`."""
        starts = [0]
        for i, epoch in enumerate(self.epochs[1:]):
            starts.append(starts[i] + (epoch - self.epochs[i]) * self.sizes[i])
        return tuple(starts)

    def size(self, epoch: int) -> int:
        """Return the number of positions of a pass."""
        return self.sizes[bisect_right(self.epochs, epoch) - 1]

    def start(self, epoch: int) -> int:
        """Return the first position of a pass."""
        i = bisect_right(self.epochs, epoch) - 1
        return self.starts[i] + (epoch - self.epochs[i]) * self.sizes[i]

    def is_equal_before(self, other: Passes, epoch: int) -> bool:
        """Return whether the passes before one have the same sizes in both."""
        edges = {0, *self.epochs, *other.epochs}
        return all(self.size(each) == other.size(each) for each in edges if each < epoch)

    def at(self, position: int) -> PassSpan:
        """Return the pass that holds a position."""
        i = bisect_right(self.starts, position) - 1
        passes = (position - self.starts[i]) // max(self.sizes[i], 1)
        start = self.starts[i] + passes * self.sizes[i]
        return PassSpan(self.epochs[i] + passes, start, self.sizes[i])

    def within(self, start: int, stop: int) -> Iterator[PassSpan]:
        """Yield the passes that hold the positions of a range."""
        while start < stop:
            yield (found := self.at(start))
            start = found.stop if found.size else stop

    def split(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the passes of positions, and their positions in the pass."""
        if len(self.epochs) == 1:
            return np.divmod(positions, max(self.sizes[0], 1))
        i = np.searchsorted(self.starts[1:], positions, side="right")
        sizes = np.maximum(self.sizes, 1)[i]
        passes, offsets = np.divmod(positions - np.asarray(self.starts)[i], sizes)
        return passes + np.asarray(self.epochs)[i], offsets

    def starts_of(self, epochs: Ints) -> Ints:
        """Return the first positions of passes."""
        if len(self.epochs) == 1:
            return epochs * self.sizes[0]
        i = np.searchsorted(self.epochs[1:], epochs, side="right")
        return (
            np.asarray(self.starts)[i]
            + (epochs - np.asarray(self.epochs)[i]) * np.asarray(self.sizes)[i]
        )

    def sizes_of(self, epochs: Ints) -> Ints:
        """Return the numbers of positions of passes."""
        return np.asarray(self.sizes)[np.searchsorted(self.epochs[1:], epochs, side="right")]
