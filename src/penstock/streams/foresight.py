"""The order is known before it is read: sources that fetch from afar are told which of their rows come next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol, cast, runtime_checkable

import numpy as np

from ..stores import Reach
from ..types import Ints
from .feed import Positions
from .step import Leaf


@runtime_checkable
class Foresighted(Protocol):
    """A source that can begin to fetch rows before they are asked for."""

    def foresees(self, reach: Reach, /) -> bool: ...
    def ahead(self, indices: Ints, /) -> bool: ...


@cache
def _foresighted(kind: type) -> bool:
    """Whether sources of this type are: by type, because protocols are slow to ask."""
    return issubclass(kind, Foresighted)


def foreseeing(leaves: Sequence[Leaf], reach: Reach) -> dict[int, Foresighted]:
    """The sources that fetch from afar, by leaf, in a way that is of use to those who read."""
    found = {leaf.number: cast(Foresighted, leaf.source) for leaf in leaves if _foresighted(type(leaf.source))}
    return {n: source for n, source in found.items() if source.foresees(reach)}


def foretell(feed: Positions, sources: Mapping[int, Foresighted]) -> None:
    """Tell the sources of what comes, until they have enough to do."""
    while len(rows := feed.coming()):
        for leaf in np.unique(rows.leaf).tolist():
            source = sources.get(leaf)
            if source is not None and not source.ahead(rows.index[rows.leaf == leaf]):
                return feed.untold(len(rows))
    return None
