"""Sums of lengths by blocks of samples: in memory, or in the cache of a source."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...types import CachesIntegers, IdentifiesLengths, Ints, Json, Sizes
from ..base import machine, seams
from ..base.bounded_dict import BoundedDict
from ..base.progress import Progress
from ..base.rows import compute_bounds

MIN_CACHED_SAMPLES = 1 << 17  # samples of a source from which on sums are cached
_CHUNK = 1 << 20  # samples looked up at a time
_THREADS = 16
_PAGE = 512  # integers; the parts of cached sums begin at multiples of this

T = TypeVar("T")


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

    def _set(self, sums: Sizes, runs: Ints, least: int, run: int) -> None:
        self._sums, self.runs, self.least, self.run = sums, runs, least, run
        self._starts = np.zeros((len(runs) + 1, runs.shape[1]), np.int64)
        np.cumsum(runs, axis=0, out=self._starts[1:])
        self._tokens = self._starts.sum(axis=1)

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def total(self) -> Ints:
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


class CachedTotals(BlockTotals):
    """Sums in the cache of a source: the sums of the runs when opened, others when asked for.

    A process therefore opens a file of 80 MB in a millisecond, and a distant query adds sums of
    runs and the sums of one run.
    """

    def __init__(self, integers: Sizes) -> None:
        least, self._count, run, self._first = integers[:4].tolist()
        runs = integers[_PAGE : self._first][: -(-self._count // run)]
        self._set(integers, runs.reshape(-1, 1), least, run)

    def __len__(self) -> int:
        return self._count

    def before(self, block: int) -> Ints:
        run = min(block // self.run, len(self.runs))
        return self._starts[run] + self.some(run * self.run, block).sum(axis=0)

    def some(self, start: int, stop: int) -> Ints:
        stop = min(stop, self._count)
        return self._sums[self._first + start : self._first + stop].reshape(-1, 1)

    @staticmethod
    def encode(added: BlockSums, run: int) -> Ints:
        """Return the integers to cache: least sum, counts, sums of runs, sums."""
        sums, runs = added.sums.reshape(-1), _sum_runs(added.sums.reshape(-1), run)
        first = _PAGE * (1 - (-len(runs) // _PAGE))
        integers = np.zeros(first + len(sums), np.int64)
        integers[:4] = added.least, len(sums), run, first
        integers[_PAGE : _PAGE + len(runs)], integers[first:] = runs, sums
        return integers


def _sum_runs(sums_of_blocks: Ints, run: int) -> Ints:
    return np.add.reduceat(sums_of_blocks, np.arange(0, len(sums_of_blocks), run), axis=0)


_SHARED = BoundedDict[str, BlockTotals](256)


def load_or_make_totals(
    source: object, key: Mapping[str, Json], make: Callable[[], BlockSums], run: int = 1024
) -> BlockTotals:
    """Return sums from the cache of a large source, or make them.

    The sums of small sources are shared inside the process: a mixture file compiles its steps more
    than once, and two mixtures often have equal sources.

    Args:
        source: The source whose lengths are added up; `None` if there are several.
        key: Identifies the sums among those of the source.
        make: Adds up the lengths.
        run: Number of blocks in a run.
    """
    if isinstance(source, IdentifiesLengths) and len(source) < MIN_CACHED_SAMPLES:
        version = source.lengths_version()
        name = json.dumps([version, len(source), dict(key), run], sort_keys=True)
        totals = None if version is None else _SHARED.get(name)
        if totals is None:
            totals = BlockTotals(make(), run)
            if version is not None:
                _SHARED[name] = totals
        return totals
    made = list[BlockSums]()

    def encode() -> Ints:
        made[:] = [make()]
        return CachedTotals.encode(made[0], run)

    if isinstance(source, CachesIntegers) and len(source) >= MIN_CACHED_SAMPLES:
        if (integers := source.cached_integers(key, encode)) is not None:
            return CachedTotals(integers)
    return BlockTotals(made[0] if made else make(), run)


def in_order(
    what: str, many: int, work: Callable[[int, int], T], chunk: int = _CHUNK
) -> Iterator[T]:
    """The results of work on samples, a chunk after the other, on all cores, with progress."""
    chunks = [(start, min(start + chunk, many)) for start in range(0, many, chunk)]
    workers = min(machine.count_cores(), _THREADS, len(chunks))
    with Progress(what, many, "samples") as progress:
        if workers < 2:
            for start, stop in chunks:
                yield work(start, stop)
                progress.tell(stop)
            return
        hands, waiting = seams.world.sched.spawn(workers), deque[Any]()
        try:
            for start, stop in chunks:
                waiting.append((stop, hands.submit(lambda a=start, b=stop: work(a, b))))
                if len(waiting) > 2 * workers:
                    done, under_way = waiting.popleft()
                    yield under_way.result()
                    progress.tell(done)
            while waiting:
                done, under_way = waiting.popleft()
                yield under_way.result()
                progress.tell(done)
        finally:
            hands.close()
