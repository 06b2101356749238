"""Documents kept whole, window by window: a window takes what begins in a fixed number of tokens,
and packs it into a fixed number of rows. So any row is known without those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...arguments import check_position
from ...types import Ints
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.random import derive_pass_key
from ..base.rows import ProvenanceRows, join_rows, make_empty_rows
from ..packing import Apart, BestFit, GroupLayout, WindowPlanner
from .joined import At, JoinedOp
from .op import Op
from .packed import Counted, ranks
from .tally import Tally

_CACHED_WINDOWS = 4  # threads look at a window and the next
_TOGETHER = 8  # whose documents are looked up together


class Window(NamedTuple):
    """Documents from `first` on, and the rows that their parts make."""

    first: int
    documents: ProvenanceRows
    layout: GroupLayout


class FitOp(JoinedOp):
    """Rows of whole documents; those over a row are cut at multiples of its length first."""

    def __init__(
        self,
        flow: Op,
        fold: BestFit | Apart,
        key: int,
        counted: Counted,
        node: int,
        names: Sequence[str],
    ) -> None:
        self._groups = ranks(flow, names) if isinstance(fold, Apart) else None
        self.windows = WindowPlanner(
            fold, counted.multiple, 1 if self._groups is None else len(flow.leaves)
        )
        if self.windows.long == "truncate":
            counted = counted._replace(
                lengths=counted.lengths.cut(self.windows.length - counted.extra)
            )
        super().__init__(flow, self.windows.length, counted, node)
        self.key, self.together = key, self.windows.rows
        self._packed_windows = BoundedDict[tuple[int, int], Window](_CACHED_WINDOWS)

    @property
    def size(self) -> int | None:
        if self.flow.size is None:
            return None
        return (self._many - 1) * self.windows.rows + self._last if self._pass else 0

    @cached_property
    def _many(self) -> int:
        """The windows of a pass."""
        return self.windows.many(self._pass)

    @cached_property
    def _last(self) -> int:
        """The rows of the last window of a pass."""
        return self.windows.last(self._pass, self._least)

    def _least(self) -> int:
        _, documents, sizes = self._between(0, self._pass)
        return self.windows.least(sizes, self._of(documents))

    def _of(self, documents: ProvenanceRows) -> Ints | None:
        """The group of each document, where they are packed apart."""
        return None if self._groups is None else self._groups[documents.leaf]

    def around(self, row: int) -> range:
        """The rows of the window in which a row is."""
        (_, number, _), first = self._place(row), self._first(row)
        last = self.flow.size is not None and number == self._many - 1
        return range(first, first + (self._last if last else self.windows.rows))

    def sampled(self) -> ProvenanceRows:
        many = self.windows.rows if self.size is None else min(self.windows.rows, self.size)
        return self.locate(np.arange(many))

    def _place(self, row: int) -> tuple[int, int, int]:
        """The pass of a row, its window in that, and the place in the window."""
        check_position(row, self.length)
        epoch, window, place = self._places(np.asarray([row]))
        return int(epoch[0]), int(window[0]), int(place[0])

    def _places(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """The same of many."""
        epoch, place = np.divmod(rows, self.size) if self.size else (np.zeros_like(rows), rows)
        window = place // self.windows.rows
        if self.flow.size is not None:
            window = np.minimum(window, self._many - 1)
        return epoch, window, place - window * self.windows.rows

    def _edge(self, epoch: int, window: int) -> int:
        """The token at which a window begins."""
        if self.flow.size is not None and window == self._many:
            epoch, window = epoch + 1, 0
        return (epoch * self._pass if epoch else 0) + window * self.windows.span

    def _start(self, row: int) -> int:
        return self._edge(*self._place(row)[:2])

    def _needed(self, row: int) -> int:
        epoch, window, place = self._place(row)
        return self._edge(epoch, window + (place > 0))

    def _until(self, token: int, at: At) -> int:
        if not self.windows.whole:
            return token
        size = int(self._some(at.document, 1)[1][0])
        return at.token + min(size, -(-(token - at.token) // self.length) * self.length)

    # ------------------------------------------------------------ rows

    def _window(self, epoch: int, number: int) -> Window:
        """A window of a pass, packed."""
        if (found := self._packed_windows.get((epoch, number))) is None:
            self._packed_windows[epoch, number] = found = self._packed(epoch, number)
        return found

    def _packed(self, epoch: int, number: int) -> Window:
        begin, end = self._edge(epoch, number), self._edge(epoch, number + 1)
        at, documents, sizes = self._between(begin, end)
        last = self.flow.size is not None and number == self._many - 1
        pieces = self.windows.pieces(sizes, at.token, begin, end)
        rows = self._last if last else self.windows.rows
        key, of = derive_pass_key(self.key, epoch), self._of(documents)
        return Window(at.document, documents, self.windows.packed(pieces, rows, key, number, of))

    def locate(self, positions: Ints) -> ProvenanceRows:
        if not len(positions):
            return make_empty_rows(self.depth)
        check_position(int(positions.max()), self.length)
        epoch, number, place = self._places(positions)
        parts, edges = (
            list[ProvenanceRows](),
            np.flatnonzero((np.diff(epoch) != 0) | (np.diff(number) != 0)) + 1,
        )
        starts = [0, *edges.tolist()]
        for i, (a, b) in enumerate(pairwise([*starts, len(place)])):
            if i % _TOGETHER == 0:
                self._ahead(epoch[starts[i : i + _TOGETHER]], number[starts[i : i + _TOGETHER]])
            window = self._window(int(epoch[a]), int(number[a]))
            layout, bounds, pieces = window.layout, *window.layout.pieces(place[a:b])
            documents = window.documents.take(layout.item[pieces])
            parts.append(self.parts(documents, layout.start[pieces], layout.stop[pieces], bounds))
        return join_rows(parts)

    def _ahead(self, epoch: Ints, number: Ints) -> None:
        """Look up together what a few neighbouring windows are made of."""
        if epoch[0] == epoch[-1] and 1 < number[-1] - number[0] < _TOGETHER:
            first, last = (
                self._edge(int(epoch[0]), int(window)) for window in (number[0], number[-1] + 1)
            )
            self._look(first, last)

    # ------------------------------------------------------------ questions

    def under_way(self, position: int) -> bool:
        return self._place(position)[2] > 0

    def _rows_of(self, at: At, size: int) -> Ints:
        epoch = at.document // self.flow.size if self.flow.size else 0
        token = at.token - (epoch * self._pass if epoch else 0)
        step = self.length if self.windows.whole else self.multiple
        begins = np.arange(token, token + size, step) // self.windows.span
        if self.flow.size is not None:
            begins = np.minimum(begins, self._many - 1)
        found = list[Ints]()
        for number in find_distinct_values(begins).tolist():
            first, _, layout = self._window(epoch, number)
            pieces = np.flatnonzero(layout.item == at.document - first)
            rows = np.searchsorted(layout.bounds, pieces, side="right") - 1
            found.append(rows + number * self.windows.rows + epoch * (self.size or 0))
        return np.concatenate(found)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """Whole windows by sums, those that are cut by what lies in their rows."""
        self._add(tally, self._first(start), self._first(stop), times)
        for row, sign in ((start, -times), (stop, times)):
            epoch, number, place = self._place(row)
            if place:
                _, documents, layout = self._window(epoch, number)
                pieces = slice(0, int(layout.bounds[place]))
                leaf, begins = documents.leaf[layout.item[pieces]], layout.start[pieces]
                tally.samples += np.bincount(leaf[begins == 0], minlength=len(tally.samples)) * sign
                np.add.at(tally.tokens, leaf, (layout.stop[pieces] - begins) * sign)

    def _first(self, row: int) -> int:
        """The row with which the window of a row begins."""
        return row - self._place(row)[2]
