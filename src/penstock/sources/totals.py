"""Sums of lengths that are kept: mapped, looked at a few pages at a time, and only these compared
with checksums.

A file of them is 64-bit numbers in blocks of 4 KiB: one block that says the least length, how many
sums there are and how many make a run; the sums of the runs; the sums. So a process that finds 80
MB of them has opened them in a millisecond, and what a far question adds up are sums of runs and
the sums of one run.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ..engine.base.rows import bounds_of
from ..errors import DataError
from ..types import Ints
from . import sidecar, sums

_BLOCK = sums.BLOCK // 8  # numbers


class Added(NamedTuple):
    """Sums of the lengths of blocks of samples, for each of some columns, and the least of these
    lengths."""

    sums: Ints
    least: int


class Totals:
    """Sums in memory: `int64[blocks, columns]`, and those of every `run` blocks.

    >>> totals = Totals(Added(np.array([[5], [6], [2]]), 1), 2)
    >>> totals.before(3).tolist(), totals.holding(11), totals.some(1, 3).ravel().tolist()
    ([13], (2, 11), [6, 2])
    """

    def __init__(self, added: Added, run: int) -> None:
        self._begins = np.zeros((len(added.sums) + 1, added.sums.shape[1]), np.int64)
        np.cumsum(added.sums, axis=0, out=self._begins[1:])
        self._set(added.sums, _in_runs(added.sums, run), added.least, run)

    def _set(self, sums: Ints, runs: Ints, least: int, run: int) -> None:
        self._sums, self.runs, self.least, self.run = sums, runs, least, run
        self._starts = np.zeros((len(runs) + 1, runs.shape[1]), np.int64)
        np.cumsum(runs, axis=0, out=self._starts[1:])
        self._tokens = self._starts.sum(axis=1)

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def whole(self) -> Ints:
        """The sum of all, of each column."""
        return self._starts[-1]

    def some(self, start: int, stop: int) -> Ints:
        """Neighbouring sums."""
        return self._sums[start:stop]

    def before(self, block: int) -> Ints:
        """What all blocks before one hold, of each column."""
        return self._begins[block]

    def holding(self, token: int) -> tuple[int, int]:
        """The last block that begins at a token or before it, counted over all columns; the tokens
        before it."""
        run = min(
            max(int(np.searchsorted(self._tokens, token, side="right")) - 1, 0), len(self.runs) - 1
        )
        begins = bounds_of(self.some(run * self.run, (run + 1) * self.run).sum(axis=1)) + int(
            self._tokens[run]
        )
        block = max(int(np.searchsorted(begins, token, side="right")) - 1, 0)
        return run * self.run + block, int(begins[block])


class Mapped(Totals):
    """The same of a file. What is found damaged, now or later, is made again."""

    def __init__(self, target: Path, origin: Path, make: Callable[[], Added], run: int) -> None:
        self._place, self._make, self._each = (target, origin), make, run
        try:
            self._open(False)
        except DataError:
            self._open(True)

    def _open(self, rebuild: bool) -> None:
        target, origin = self._place

        def write(file: BinaryIO) -> None:
            _write(file, self._make(), self._each)

        sidecar.ensure_copy(target, sidecar.TOTALS, origin, write, rebuild=rebuild)
        _, checks = sidecar.read_body(sidecar.stamp_path(target), sidecar.TOTALS, origin)
        with sidecar.storage(target), target.open("rb") as file:
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._checks = np.frombuffer(checks, "<u4")
        self._seen = np.zeros(len(self._checks), np.bool_)
        numbers = np.frombuffer(self._bytes[: len(self._bytes) // 8 * 8], "<i8")
        self._compare(0, 1)
        least, many, run, begin = numbers[:4].tolist()
        self._compare(0, begin)
        runs = numbers[_BLOCK : _BLOCK - (-many // run)]
        self._first = begin
        self._set(numbers[begin : begin + many].reshape(-1, 1), runs.reshape(-1, 1), least, run)

    def before(self, block: int) -> Ints:
        run = min(block // self.run, len(self.runs))
        return self._starts[run] + self.some(run * self.run, block).sum(axis=0)

    def some(self, start: int, stop: int) -> Ints:
        try:
            self._compare(self._first + start, self._first + min(stop, len(self)))
        except DataError:
            self._open(True)
        return super().some(start, stop)

    def _compare(self, start: int, stop: int) -> None:
        """Compare the blocks of some numbers, those that were not looked at before."""
        first, last = start // _BLOCK, -(-stop // _BLOCK)
        if not self._seen[first:last].all():
            blocks = self._bytes[first * sums.BLOCK : last * sums.BLOCK]
            sums.compare(blocks, first * sums.BLOCK, self._checks, str(self._place[0]))
            self._seen[first:last] = True


def _in_runs(found: Ints, run: int) -> Ints:
    return np.add.reduceat(found, np.arange(0, len(found), run), axis=0)


def _write(file: BinaryIO, added: Added, run: int) -> None:
    runs = _in_runs(added.sums.reshape(-1), run)
    begin = _BLOCK * (1 - (-len(runs) // _BLOCK))
    head = np.zeros(begin, "<i8")
    head[:4] = added.least, added.sums.size, run, begin
    head[_BLOCK : _BLOCK + len(runs)] = runs
    file.write(head.tobytes())
    for part in np.array_split(added.sums.reshape(-1), 1 + added.sums.size // (1 << 20)):
        file.write(part.astype("<i8", copy=False).tobytes())
