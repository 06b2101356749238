"""A function on every sample: one result for each, or as many as it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...types import Ints, Json
from ..base.rows import ProvenanceRows
from ..streams.barren import EndlessSearch
from ..streams.feed import Upstream
from ..streams.opening import Opening
from ..streams.reader import Laps
from ..streams.step import Step
from ..streams.stream import Stream
from ..streams.work import Work
from .op import OneInput, Op
from .tokens import At, Lengths


class EachOp(OneInput):
    """A step at work. `node` numbers it among the ops that leave marks; `search` makes what a lane
    of so many notes where the step drops samples of a flow that never ends.
    """

    def __init__(
        self, flow: Op, step: Step, node: int, search: Callable[[int], EndlessSearch] | None = None
    ) -> None:
        super().__init__(flow)
        self.step, self.node, self.search = step, node, search
        self.indexed = flow.indexed and not step.drops

    @property
    def plain(self) -> bool:
        """Whether a position of it is the same position below, and nothing is noted of it."""
        return self.indexed and self.step.kind != "index"

    @property
    def tail(self) -> bool:
        return self.step.kind in ("map", "random", "source") and self.flow.tail

    def stream(self, opening: Opening, laps: Laps) -> Stream:
        if self.indexed and (opening.lane or not self.tail):
            return opening.positions(self, laps)
        below = opening.open(self.flow, laps)
        joins = isinstance(below, Work)
        work = (
            below.then(self.step)
            if joins
            else Work(Upstream(below), None, [self.step], opening.hired)
        )
        if self.search is not None:
            work.search = self.search(opening.share.lanes)
        if self.step.kind == "flat" and not joins:
            for place, drawn in opening.drawn.items():
                opening.drawn[place] = lambda epoch, drawn=drawn: drawn(epoch) + work.inside
        return work

    def locate(self, positions: Ints) -> ProvenanceRows:
        rows = self.flow.locate(positions)
        if self.step.kind == "index":
            place = positions % self.size if self.size else positions
            rows.marks = {**rows.marks, self.node: np.repeat(place, np.diff(rows.firsts()))}
        return rows

    # Asked only where the function makes as many tokens of a row as are known of it.
    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        self.flow.tokens(position, lengths, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        return self.flow.holding(token, lengths)

    def known(self) -> tuple[object, Json] | None:
        return self.flow.known()

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        index = rows.marks[self.node][rows.firsts()[:-1]] if self.step.kind == "index" else None
        return self.step.apply(self.flow.values(rows), rows, index)
