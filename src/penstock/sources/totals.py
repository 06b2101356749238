"""Stored sums of lengths: memory-mapped, and checked page by page.

The file consists of 64-bit numbers in blocks of 4 KiB. One block stores the smallest length, the
number of sums, and the number of sums per run. The sums of the runs follow, then the sums. A
process therefore opens a file of 80 MB in a millisecond, and a distant query adds sums of runs and
the sums of one run.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ..engine.base.rows import compute_bounds
from ..errors import DataError
from ..types import Ints
from . import sidecar, sums

_NUMBERS_PER_BLOCK = sums.BLOCK_BYTES // 8  # numbers


class BlockSums(NamedTuple):
    """Sums of the lengths of blocks of samples, per column, and the smallest length."""

    sums: Ints
    least: int


class BlockTotals:
    """Sums in memory: `int64[blocks, columns]`, and the sums of every `run` blocks.

    >>> totals = BlockTotals(BlockSums(np.array([[5], [6], [2]]), 1), 2)
    >>> totals.before(3).tolist(), totals.holding(11), totals.some(1, 3).ravel().tolist()
    ([13], (2, 11), [6, 2])
    """

    def __init__(self, added: BlockSums, run: int) -> None:
        self._begins = np.zeros((len(added.sums) + 1, added.sums.shape[1]), np.int64)
        np.cumsum(added.sums, axis=0, out=self._begins[1:])
        self._set(added.sums, _sum_runs(added.sums, run), added.least, run)

    def _set(self, sums: Ints, runs: Ints, least: int, run: int) -> None:
        self._sums, self.runs, self.least, self.run = sums, runs, least, run
        self._starts = np.zeros((len(runs) + 1, runs.shape[1]), np.int64)
        np.cumsum(runs, axis=0, out=self._starts[1:])
        self._tokens = self._starts.sum(axis=1)

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def whole(self) -> Ints:
        """The total of each column."""
        return self._starts[-1]

    def some(self, start: int, stop: int) -> Ints:
        """Return a range of sums."""
        return self._sums[start:stop]

    def before(self, block: int) -> Ints:
        """Return the total of all blocks before one, per column."""
        return self._begins[block]

    def holding(self, token: int) -> tuple[int, int]:
        """Return the block that contains a token, and the number of tokens before the block.

        Tokens are counted over all columns.
        """
        run = min(
            max(int(np.searchsorted(self._tokens, token, side="right")) - 1, 0), len(self.runs) - 1
        )
        begins = compute_bounds(self.some(run * self.run, (run + 1) * self.run).sum(axis=1)) + int(
            self._tokens[run]
        )
        block = max(int(np.searchsorted(begins, token, side="right")) - 1, 0)
        return run * self.run + block, int(begins[block])


class MappedBlockTotals(BlockTotals):
    """Sums in a file; damage found now or later causes a rebuild."""

    def __init__(self, target: Path, origin: Path, make: Callable[[], BlockSums], run: int) -> None:
        self._place, self._make, self._run_length = (target, origin), make, run
        try:
            self._open(False)
        except DataError:
            self._open(True)

    def _open(self, rebuild: bool) -> None:
        target, origin = self._place

        def write(file: BinaryIO) -> None:
            _write_totals(file, self._make(), self._run_length)

        sidecar.ensure_copy(target, sidecar.TOTALS, origin, write, rebuild=rebuild)
        _, checks = sidecar.read_body(sidecar.stamp_path(target), sidecar.TOTALS, origin)
        with sidecar.convert_storage_errors(target), target.open("rb") as file:
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._checks = np.frombuffer(checks, "<u4")
        self._seen = np.zeros(len(self._checks), np.bool_)
        numbers = np.frombuffer(self._bytes[: len(self._bytes) // 8 * 8], "<i8")
        self._compare(0, 1)
        least, count, run, first = numbers[:4].tolist()
        self._compare(0, first)
        runs = numbers[_NUMBERS_PER_BLOCK : _NUMBERS_PER_BLOCK - (-count // run)]
        self._first = first
        self._set(numbers[first : first + count].reshape(-1, 1), runs.reshape(-1, 1), least, run)

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
        """Compare the blocks of some numbers with their checksums, each block once."""
        first, last = start // _NUMBERS_PER_BLOCK, -(-stop // _NUMBERS_PER_BLOCK)
        if not self._seen[first:last].all():
            blocks = self._bytes[first * sums.BLOCK_BYTES : last * sums.BLOCK_BYTES]
            sums.require_equal_checksums(
                blocks, first * sums.BLOCK_BYTES, self._checks, str(self._place[0])
            )
            self._seen[first:last] = True


def _sum_runs(sums_of_blocks: Ints, run: int) -> Ints:
    return np.add.reduceat(sums_of_blocks, np.arange(0, len(sums_of_blocks), run), axis=0)


def _write_totals(file: BinaryIO, added: BlockSums, run: int) -> None:
    runs = _sum_runs(added.sums.reshape(-1), run)
    first = _NUMBERS_PER_BLOCK * (1 - (-len(runs) // _NUMBERS_PER_BLOCK))
    head = np.zeros(first, "<i8")
    head[:4] = added.least, added.sums.size, run, first
    head[_NUMBERS_PER_BLOCK : _NUMBERS_PER_BLOCK + len(runs)] = runs
    file.write(head.tobytes())
    for part in np.array_split(added.sums.reshape(-1), 1 + added.sums.size // (1 << 20)):
        file.write(part.astype("<i8", copy=False).tobytes())
