"""Lengths of samples, stored in memory or computed at access."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...types import Flags, Ints, Sizes

LENGTHS_PER_CHUNK = 1 << 18  # samples looked up at a time


@dataclass(frozen=True)
class LengthsByIndex:
    """Lengths as a function of the indices of `many` samples; nothing is stored.

    >>> LengthsByIndex(lambda index: index % 3 + 1, 1 << 40)[5:8].tolist()
    [3, 1, 2]
    """

    length_of: Callable[[Ints], Ints]
    many: int

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, indices: Any, /) -> Any:
        index = np.arange(*indices.indices(self.many)) if isinstance(indices, slice) else indices
        return np.asarray(self.length_of(index))


@dataclass(frozen=True)
class OffsetLengths:
    """Lengths as differences of `n + 1` offsets, which are not copied.

    >>> OffsetLengths(np.asarray([0, 4, 4, 9]))[np.asarray([2, 0])].tolist()
    [5, 4]
    """

    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, indices: Any, /) -> Any:
        if isinstance(indices, slice):
            start, stop, step = indices.indices(len(self))
            if step == 1:
                return np.diff(self.offsets[start : max(start, stop) + 1]).astype(
                    np.int64, copy=False
                )
            indices = np.arange(start, stop, step)
        return (self.offsets[indices + 1] - self.offsets[indices]).astype(np.int64, copy=False)


@dataclass(frozen=True)
class EndOffsetLengths:
    """Lengths as differences of end offsets, which a function returns; the first starts at 0."""

    ends: Callable[[], Ints]
    many: int

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, indices: Any, /) -> Any:
        ends = self.ends()
        if isinstance(indices, slice):
            start, stop, step = indices.indices(self.many)
            if step == 1:
                return np.diff(ends[start:stop], prepend=ends[start - 1] if start else 0)
            indices = np.arange(start, stop, step)
        return ends[indices] - np.where(indices > 0, ends[indices - 1], 0)


@dataclass(frozen=True)
class ConcatenatedLengths:
    """Concatenated lengths of several parts."""

    parts: tuple[Sizes, ...]

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, indices: Any, /) -> Any:
        if isinstance(indices, slice):
            start, stop, step = indices.indices(len(self))
            if step == 1:
                parts = zip(self._starts.tolist(), self.parts, strict=False)
                slices = [
                    part[max(start - at, 0) : max(stop - at, 0)] for at, part in parts if at < stop
                ]
                return np.concatenate([np.zeros(0, np.int64), *slices])
            indices = np.arange(start, stop, step)
        index: Ints = np.atleast_1d(indices)
        if np.ndim(indices) == 0:
            return self[index][0]
        part = np.searchsorted(self._starts, index, side="right") - 1
        out = np.empty(len(index), np.int64)
        for i in np.flatnonzero(np.bincount(part, minlength=1)).tolist():
            members = part == i
            out[members] = self.parts[i][index[members] - self._starts[i]]
        return out


@dataclass(frozen=True)
class DerivedLengths:
    """Lengths computed from other lengths at access.

    >>> DerivedLengths(np.arange(5), lambda lengths: lengths * 2)[1:3].tolist()
    [2, 4]
    """

    sizes: Sizes
    make: Callable[[Ints], Ints]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, indices: Any, /) -> Any:
        return self.make(self.sizes[indices])


@dataclass(frozen=True)
class KeptLengths:
    """Lengths in which those of some samples are 0.

    >>> KeptLengths(np.array([5, 6, 7]), np.array([False, True, False]))[1:].tolist()
    [0, 7]
    """

    sizes: Sizes
    left_out: Flags

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, indices: Any, /) -> Any:
        return np.where(self.left_out[indices], 0, self.sizes[indices])


def iter_chunks(sizes: Sizes) -> Iterator[Ints]:
    """Iterate over all lengths in chunks."""
    for start in range(0, len(sizes), LENGTHS_PER_CHUNK):
        yield sizes[start : start + LENGTHS_PER_CHUNK]


def sum_lengths(sizes: Sizes) -> int:
    """Return the sum of all lengths."""
    return sum(int(part.sum(dtype=np.int64)) for part in iter_chunks(sizes))
