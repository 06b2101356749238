"""Exhaustion of sources: the positions of the first repeat and of the last sample."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from ...errors import ConfigError
from ...types import MAX_POSITION, Flags, Ints
from ..steps.op import UNKNOWN, Op
from ..steps.tally import Uncountable
from .records import Exhaustion

ENDLESS_HORIZON = MAX_POSITION >> 8
"""Samples of an endless plan that are searched: searches double it, and sum over sources.

A source with any weight is drawn again long before.
"""
_SOME = 1 << 10  # positions that tell how much one holds
_NEAR_END = 1 << 13  # samples around the end that are looked at for the last or first repeat
_TRIES = 4  # guesses before the middle is taken

_LOOKED_AT = (
    1 << 20
)  # samples that can only be counted one after the other: 256 short passes, or 8 long ones

SumsAt = Callable[[int, int | None], Ints]
"""Returns two rows, by leaf: the samples that begin before a position, and the samples or packed
tokens before it. Raises `Uncountable` if that needs more scanned samples than the limit.
"""


def compute_horizon(given: Callable[[int], Ints]) -> int:
    """Return a horizon for an endless plan, from the samples in its first positions: beyond any
    run, and countable.

    >>> compute_horizon(lambda position: np.full(2, 4 * position)) == ENDLESS_HORIZON // 8
    True
    """
    return ENDLESS_HORIZON // max(1, int(given(_SOME).sum()) // _SOME)


def find_exhaustions(
    op: Op, sums: SumsAt, once: Ints, horizon: int | None, names: Sequence[str]
) -> list[Exhaustion]:
    """Return the first repeat and the end of every leaf; `once` is the number of distinct samples
    of each.
    """
    size, known = op.size, _CachedSums(sums)
    stop, counted = (size, True) if size is not None else known.find_countable()
    if not counted and horizon is not None:
        stop = max(stop, horizon)
    begun, given = known(stop)
    on = known(2 * stop)[1] > given if size is None else np.zeros(len(given), np.bool_)
    late = [
        name
        for name, goes, count, n in zip(names, on, begun, once, strict=True)
        if goes and count <= n
    ]
    if late and not counted and horizon is None:
        raise ConfigError(
            f"plan.exhaustion(): {', '.join(map(repr, late[:5]))}: no repeat in the first {stop:,} "
            "positions, and later positions can only be counted one by one; give a limit, such "
            "as exhaustion(horizon=1_000_000)"
        )
    bound = stop if horizon is None else min(stop, horizon)

    def place(which: int, numbers: Ints) -> list[int | None]:
        """Return the position of a sample (or token) of each leaf by its number; None beyond the
        horizon.
        """
        asked = np.flatnonzero((numbers >= 0) & (numbers < (begun, given)[which]))
        found = np.full(len(numbers), bound)
        samples = begun - 1 if which else numbers  # the last token is one of the last sample
        placed = op.nth(asked, samples[asked], last=which == 1)
        found[asked] = np.minimum(placed, stop - 1)
        if which and size is not None:
            late = _find_near_end(op, size, found == UNKNOWN, int(begun.sum()))
            found = np.maximum(found, late)
        if which == 0 and size:  # rows before the end may hold a later sample than those begun
            near = (numbers >= begun) & (numbers < begun + _NEAR_END)
            for leaf in np.flatnonzero(near).tolist():
                first = op.find_first(len(numbers), leaf, int(numbers[leaf]), size - 1)
                found[leaf] = bound if first is None else first
        for leaf in np.flatnonzero(found == UNKNOWN).tolist():
            number = int(numbers[leaf])
            at = known.find(which, leaf, number, stop)
            first = None if which else op.find_first(len(numbers), leaf, number, at)
            found[leaf] = at if first is None else first
        return [position if position < bound else None for position in found.tolist()]

    repeats = place(0, np.where(once > 0, once, -1))
    last = place(1, np.where(on, -1, given - 1))
    ends = [None if position is None or position + 1 >= stop else position + 1 for position in last]
    return [Exhaustion(*both) for both in zip(repeats, ends, strict=True)]


def _find_near_end(step: Op, size: int, is_unknown: Flags, samples: int) -> Ints:
    """Return the last position of each unknown leaf, if it is near the end; else `UNKNOWN`.

    Rows beyond a limit hold a part of what its last rows share with them, so that no leaf's last
    row follows from its last sample.
    """
    latest = np.full(len(is_unknown), UNKNOWN)
    if is_unknown.any():
        start = max(size - max(_NEAR_END * size // max(samples, 1), 1), 0)
        rows = step.locate(np.arange(start, size))
        positions = start + np.repeat(np.arange(size - start), np.diff(rows.firsts()))
        np.maximum.at(latest, rows.leaf, positions)
        latest[~is_unknown] = UNKNOWN
    return latest


class _CachedSums:
    """Cached sums: positions that one leaf needed narrow the search for the others."""

    def __init__(self, sums: SumsAt) -> None:
        self._sums, self._at = sums, dict[int, Ints]()
        self._places = list[int]()
        self(0)

    def find_countable(self) -> tuple[int, bool]:
        """Return a position, and whether it exceeds any run. An endless plan can be counted up to
        twice this position.
        """
        try:
            self(
                2 * (stop := compute_horizon(lambda position: self(position, _LOOKED_AT)[1])),
                _LOOKED_AT,
            )
            return stop, True
        except Uncountable:
            stop = 1
        with suppress(Uncountable):
            while True:
                self(4 * stop, _LOOKED_AT)
                stop *= 2
        return stop, False

    def __call__(self, position: int, most: int | None = None) -> Ints:
        if position not in self._at:
            self._at[position] = self._sums(position, most)
            insort(self._places, position)
        return self._at[position]

    def find(self, which: int, leaf: int, number: int, stop: int) -> int:
        """Return the position of a sample number: the last one with no more of them before it."""
        after = bisect_left(self._places, number + 1, key=lambda at: int(self(at)[which, leaf]))
        low, high, tries = self._places[after - 1], self._places[after], 0
        while high - low > 1:
            fewer, more = int(self(low)[which, leaf]), int(self(high)[which, leaf])
            # Shares hardly change over a short stretch: a guess is near. Where that is not so,
            # halving gets there.
            guess = (
                low
                + (number + 1 - fewer) * (high - low) // max(1, more - fewer)
                + tries % 2 * 2
                - 1
            )
            middle = (
                (low + high) // 2
                if tries % (_TRIES + 1) == _TRIES
                else min(max(guess, low + 1), high - 1)
            )
            low, high = (middle, high) if self(middle)[which, leaf] <= number else (low, middle)
            tries += 1
        return low
