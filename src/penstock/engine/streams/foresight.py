"""The order is known before it is read: sources that fetch from afar are told which of their rows
come next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from ...types import DataLocation, Ints
from .feed import Positions
from .step import Leaf


@runtime_checkable
class Foresighted(Protocol):
    """A source that can begin to fetch rows before they are asked for. `prefetch_capacity` tells how many it
    may hold at a time; `ahead` whether there was room.
    """

    def prefetch_capacity(self, reach: DataLocation, /) -> int: ...
    def prefetch(self, indices: Ints, /) -> bool: ...


class FarSource(NamedTuple):
    """A source that is told of what comes, and how many rows it may hold."""

    source: Foresighted
    rows: int


@cache
def _foresighted(kind: type) -> bool:
    """Whether sources of this type are: by type, because protocols are slow to ask."""
    return issubclass(kind, Foresighted)


def foreseeing(leaves: Sequence[Leaf], reach: DataLocation) -> dict[int, FarSource]:
    """The sources that fetch from afar, by leaf, in a way that is of use to those who read."""
    found = {
        leaf.number: cast(Foresighted, leaf.source)
        for leaf in leaves
        if _foresighted(type(leaf.source))
    }
    return {
        n: FarSource(source, rows)
        for n, source in found.items()
        if (rows := source.prefetch_capacity(reach))
    }


def foretell(feed: Positions, told: Mapping[int, FarSource]) -> None:
    """Tell the sources of what comes, until they have enough to do: rows, and with them their
    neighbours that are wanted soon too, which the same request fetches.
    """
    while len(rows := feed.coming()):
        planned = feed.planned()
        for leaf in np.unique(rows.leaf).tolist():
            if (one := told.get(leaf)) is not None:
                soon = planned.index[planned.leaf == leaf][: one.rows]
                if not one.source.prefetch(with_neighbours(rows.index[rows.leaf == leaf], soon)):
                    return feed.untold(len(rows))
    return None


def with_neighbours(indices: Ints, soon: Ints) -> Ints:
    """Some rows, and of those that are wanted soon all that lie next to them without a gap, in
    ascending order.

    >>> with_neighbours(np.array([9, 3]), np.array([4, 8, 1, 2, 6])).tolist()
    [1, 2, 3, 4, 8, 9]
    """
    rows = np.union1d(indices, soon)
    run = np.cumsum(np.diff(rows, prepend=rows[:1]) != 1)
    return rows[np.isin(run, run[np.searchsorted(rows, indices)])]
