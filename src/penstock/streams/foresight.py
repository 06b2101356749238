"""The order is known before it is read: sources that fetch from afar are told which of their rows come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

import numpy as np

from ..types import Ints
from .feed import Positions
from .step import Leaf

_ROWS = 512  # told of before they are read
_STEP = 32  # told at a time, so that one that needs much does not stop the others


@runtime_checkable
class Foresighted(Protocol):
    """A source that can begin to fetch rows before they are asked for."""

    @property
    def distant(self) -> bool: ...
    def ahead(self, indices: Ints, /) -> bool: ...


def foresees(leaves: Sequence[Leaf]) -> bool:
    """Whether any source lies afar."""
    sources: list[object] = [leaf.source for leaf in leaves]
    return any(isinstance(source, Foresighted) and source.distant for source in sources)


def foretell(feed: Positions, leaves: Sequence[Leaf]) -> None:
    """Tell the sources of what comes, until they have enough to do."""
    while len(rows := feed.coming(_ROWS, _STEP)):
        for leaf in np.unique(rows.leaf).tolist():
            source, index = cast(object, leaves[leaf].source), rows.index[rows.leaf == leaf]
            if isinstance(source, Foresighted) and source.distant and not source.ahead(index):
                return feed.untold(len(rows))
    return None
