"""Prefetch hints: remote sources learn which of their rows the order needs next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from ...types import DataLocation, Ints
from .feed import PositionFeed
from .function_call import Leaf


@runtime_checkable
class PrefetchingSource(Protocol):
    """A source that fetches rows before they are read.

    `prefetch_capacity` returns how many it may hold, and `prefetch` whether there was room.
    """

    def prefetch_capacity(self, reach: DataLocation, /) -> int: ...
    def prefetch(self, indices: Ints, /) -> bool: ...


class Prefetcher(NamedTuple):
    """A source that receives hints, and the number of rows that it may hold."""

    source: PrefetchingSource
    capacity: int


@cache
def _prefetches(kind: type) -> bool:
    """Return whether sources of a type prefetch; cached, as protocols are slow to check."""
    return issubclass(kind, PrefetchingSource)


def find_prefetchers(leaves: Sequence[Leaf], reach: DataLocation) -> dict[int, Prefetcher]:
    """Return the sources, by leaf, whose prefetched rows the readers can use."""
    sources = {
        leaf.number: cast(PrefetchingSource, leaf.source)
        for leaf in leaves
        if _prefetches(type(leaf.source))
    }
    return {
        number: Prefetcher(source, capacity)
        for number, source in sources.items()
        if (capacity := source.prefetch_capacity(reach))
    }


def send_hints(feed: PositionFeed, prefetchers: Mapping[int, Prefetcher]) -> None:
    """Hint the next rows to the sources, until one has no room.

    Their neighbours that are needed soon are part of the hint, as one request fetches both.
    """
    while len(rows := feed.next_hint()):
        planned = feed.planned_rows()
        for leaf in np.unique(rows.leaf).tolist():
            if (prefetcher := prefetchers.get(leaf)) is not None:
                soon = planned.index[planned.leaf == leaf][: prefetcher.capacity]
                indices = with_neighbours(rows.index[rows.leaf == leaf], soon)
                if not prefetcher.source.prefetch(indices):
                    return feed.retract_hint(len(rows))
    return None


def with_neighbours(indices: Ints, soon: Ints) -> Ints:
    """Return some rows and, of those needed soon, the ones next to them without a gap, sorted.

    >>> with_neighbours(np.array([9, 3]), np.array([4, 8, 1, 2, 6])).tolist()
    [1, 2, 3, 4, 8, 9]
    """
    rows = np.union1d(indices, soon)
    run = np.cumsum(np.diff(rows, prepend=rows[:1]) != 1)
    return rows[np.isin(run, run[np.searchsorted(rows, indices)])]
