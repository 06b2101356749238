"""Packing by arithmetic: a window takes the documents that begin in a fixed number of tokens.

Sums of lengths locate any row, so random access needs no earlier row, and an endless input is
packed like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...arguments import check_position
from ...types import Flags, Ints, Sizer
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.passes import Passes
from ..base.random import derive_pass_key
from ..base.rows import ROW_LENGTH, ProvenanceRows, compute_bounds, join_rows, make_empty_rows
from ..packing import Apart, BestFit, ConcatSplit, GroupLayout, PassCuts, RowLengths, WindowPlanner
from .op import Op
from .packed import PackedOp
from .seek import BEFORE, At, Metered
from .tally import Tally
from .tokens import Lengths

_MOST = 1 << 18  # documents located at a time
_SAMPLED = 256  # rows
_CACHED_RUNS = 4  # threads look at neighbouring rows
_CACHED_WINDOWS = 4  # threads look at a window and the next
_TOGETHER = 8  # windows whose documents are looked up together
_APART = 16  # rows left out between two that are looked up together


class DocumentRun(NamedTuple):
    """Documents `first, first+1, ...` and the tokens at which they begin, and the last ends."""

    first: int
    rows: ProvenanceRows
    begins: Ints

    @property
    def sizes(self) -> Ints:
        """The tokens of each document."""
        return np.diff(self.begins)

    def holding(self, token: int) -> At | None:
        """Return the document that holds a token, if it is one of these."""
        if not self.begins[0] <= token < self.begins[-1]:
            return None
        i = int(np.searchsorted(self.begins, token, side="right")) - 1
        return At(self.first + i, int(self.begins[i]))


class Window(NamedTuple):
    """Documents from `first` on, and the rows that their parts make."""

    first: int
    documents: ProvenanceRows
    layout: GroupLayout


class WindowPackOp(PackedOp):
    """Rows of windows. Tokens are counted over all passes; a pass of an input that ends begins a
    window. Such an input gives the same samples in every pass.
    """

    def __init__(
        self,
        input: Op,
        fold: ConcatSplit | BestFit | Apart,
        key: int,
        lengths: Lengths,
        sizer: Sizer | None,
        node: int,
        names: Sequence[str],
        left_out: Sequence[Flags | None],
    ) -> None:
        super().__init__(input, fold, lengths, sizer, node, names, left_out)
        self.windows = WindowPlanner(fold, self.multiple, self.group_count)
        self.length = self.row_length = length = self.windows.length
        self.truncates = self.windows.long == "truncate"
        if self.truncates:
            self.lengths = self.lengths.derive(
                f"up to {length}", lambda sizes: np.minimum(sizes, length)
            )
        self.meter = Metered(input, self.lengths)
        self.key, self.together = key, self.windows.together
        self._cached = list[DocumentRun]()
        self._packed_windows = BoundedDict[tuple[int, int], Window](_CACHED_WINDOWS)

    @cached_property
    def _pass(self) -> int:
        """The tokens of a pass."""
        assert self.input.size is not None
        return self.meter.tokens(self.input.size)

    @property
    def size(self) -> int | None:
        return None if self.passes is None else self.passes.sizes[0]

    @property
    def passes(self) -> Passes | None:
        return self._passes

    @cached_property
    def _passes(self) -> Passes | None:
        if self.input.size is None:
            return None
        if self.windows.in_order:
            return self._cuts.passes
        size = (self._many - 1) * self.windows.rows + self._last if self._pass else 0
        return Passes.uniform(size)

    @cached_property
    def _cuts(self) -> PassCuts:
        """The row lengths of passes, where rows are cut one after the other."""
        tokens = None if self.input.size is None else self._pass
        return PassCuts(self.length, self.windows.earlier, tokens)

    @cached_property
    def _many(self) -> int:
        """The windows of a pass, if rows depend on each other."""
        return self.windows.many(self._pass)

    @cached_property
    def _last(self) -> int:
        """The rows of the last window of a pass."""
        return self.windows.last(self._pass, self._least)

    def _least(self) -> int:
        documents = self._between(0, self._pass)
        return self.windows.least(documents.sizes, self.groups_of(documents.rows))

    def rows_together(self, row: int) -> tuple[int, ProvenanceRows, GroupLayout]:
        epoch, number, place = self._locate_row(row)
        _, documents, layout = self._window(epoch, number)
        return row - place, documents, layout

    def sampled(self) -> ProvenanceRows:
        many = self.together or _SAMPLED
        return self.locate(np.arange(many if self.size is None else min(many, self.size)))

    def _locate_row(self, row: int) -> tuple[int, int, int]:
        """Return the pass of a row, its window in that, and its place in the window."""
        check_position(row, self.length)
        epoch, window, place = self._locate_rows(np.asarray([row]))
        return int(epoch[0]), int(window[0]), int(place[0])

    def _locate_rows(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the passes of rows, their windows in those, and their places in the windows."""
        passes = self.passes
        epoch, place = (np.zeros_like(rows), rows) if passes is None else passes.split(rows)
        if self.windows.in_order:
            return epoch, place, np.zeros_like(place)
        window = place // self.windows.rows
        if self.input.size is not None:
            window = np.minimum(window, self._many - 1)
        return epoch, window, place - window * self.windows.rows

    def _edge(self, epoch: int, window: int) -> int:
        """The token at which a window begins."""
        in_order = self.windows.in_order
        if self.passes is not None:
            many = self.passes.size(epoch) if in_order else self._many
            if window == many:
                epoch, window = epoch + 1, 0
        before = epoch * self._pass if epoch else 0
        if in_order:
            return before + int(self._cuts.of(epoch).begins(np.asarray([window]))[0])
        return before + window * self.windows.span

    def _start(self, row: int) -> int:
        """The token from which on documents are needed for a row; all before are in rows before."""
        return self._edge(*self._locate_row(row)[:2])

    def _needed(self, row: int) -> int:
        """The token before which all lie that were looked at for the rows before one."""
        epoch, window, place = self._locate_row(row)
        return self._edge(epoch, window + (place > 0))

    def _first(self, row: int) -> int:
        """The first of the rows that are packed together with a row."""
        return row - self._locate_row(row)[2]

    def _until(self, token: int, at: At) -> int:
        """Up to which token what was begun before a token goes, where a document holds it."""
        if not self.windows.whole:
            return token
        size = int(self._some(at.document, 1)[1][0])
        return at.token + min(size, -(-(token - at.token) // self.length) * self.length)

    # ------------------------------------------------------------ rows

    def _window(self, epoch: int, number: int) -> Window:
        """A window of a pass, packed."""
        if (found := self._packed_windows.get((epoch, number))) is None:
            found = self._packed_windows[epoch, number] = self._pack(epoch, number, number + 1)
        return found

    def _pack(self, epoch: int, number: int, stop: int) -> Window:
        """Pack a window of a pass, or several if they are rows of one length in order."""
        begin, end = self._edge(epoch, number), self._edge(epoch, stop)
        found = self._between(begin, end)
        pieces = self.windows.pieces(found.sizes, int(found.begins[0]), begin, end)
        if self.windows.in_order:
            length = int(self._cuts.of(epoch).of(np.asarray([number]))[0])
            return Window(found.first, found.rows, self.windows.cut(pieces, length))
        last = self.input.size is not None and number == self._many - 1
        rows = self._last if last else self.windows.rows
        key, of = derive_pass_key(self.key, epoch), self.groups_of(found.rows)
        layout = self.windows.packed(pieces, rows, key, number, of)
        return Window(found.first, found.rows, layout)

    def locate(self, positions: Ints) -> ProvenanceRows:
        if not len(positions):
            return make_empty_rows(self.depth)
        check_position(int(positions.max()), self.length)
        if not self.together:
            return self._locate_single_row_windows(positions)
        epoch, number, place = self._locate_rows(positions)
        parts = list[ProvenanceRows]()
        starts = [0, *(np.flatnonzero((np.diff(epoch) != 0) | (np.diff(number) != 0)) + 1).tolist()]
        for i, (a, b) in enumerate(pairwise([*starts, len(place)])):
            if i % _TOGETHER == 0:
                some = starts[i : i + _TOGETHER]
                self._load_windows(epoch[some], number[some])
            parts.append(self._rows(self._window(int(epoch[a]), int(number[a])), place[a:b]))
        return join_rows(parts)

    def _locate_single_row_windows(self, positions: Ints) -> ProvenanceRows:
        """Locate rows that are windows of their own: those that lie close together at once."""
        rows = find_distinct_values(positions)
        epoch, number, _ = self._locate_rows(rows)
        is_edge = (np.diff(epoch) != 0) | (np.diff(number) > _APART)
        lengths = RowLengths(self.length, self.windows.earlier)
        if lengths.earlier:
            is_edge |= np.diff(lengths.spans(rows)) != 0
        parts = list[ProvenanceRows]()
        for a, b in pairwise([0, *(np.flatnonzero(is_edge) + 1).tolist(), len(rows)]):
            window = self._pack(int(epoch[a]), int(number[a]), int(number[b - 1]) + 1)
            part = self._rows(window, number[a:b] - number[a])
            if lengths.earlier:
                length = lengths.of(rows[a : a + 1])
                part.marks = {**part.marks, ROW_LENGTH: np.repeat(length, len(part.leaf))}
            parts.append(part)
        found = join_rows(parts)
        if not np.array_equal(rows, positions):
            found = found.take(np.searchsorted(rows, positions))
        return found

    def _rows(self, window: Window, numbers: Ints) -> ProvenanceRows:
        """Return some rows of a window."""
        layout, (bounds, pieces) = window.layout, window.layout.pieces(numbers)
        documents = window.documents.take(layout.item[pieces])
        return self.parts(documents, layout.start[pieces], layout.stop[pieces], bounds)

    def _load_windows(self, epoch: Ints, number: Ints) -> None:
        """Look up together what a few neighbouring windows are made of."""
        if epoch[0] == epoch[-1] and 1 < number[-1] - number[0] < _TOGETHER:
            first, last = (
                self._edge(int(epoch[0]), int(window)) for window in (number[0], number[-1] + 1)
            )
            self._between(first, last)

    # ------------------------------------------------------------ where a token is

    def _holding(self, token: int) -> At:
        """The document that holds a token."""
        near: At | None = None
        for run in self._cached:
            if (found := run.holding(token)) is not None:
                return found
            if token == run.begins[-1]:
                near = At(run.first + len(run.begins) - 1, token)
        run = self._load(near or self.meter.near(token), token + 1, 4 * BEFORE)
        found = run.holding(token)
        assert found is not None
        return found

    def _load(self, at: At, stop: int, many: int = 0) -> DocumentRun:
        """Look up the documents from one on up to a token, at least so many at a time.

        They are cached, because the next question is usually close.
        """
        parts, sizes, document, begins = list[ProvenanceRows](), list[Ints](), at.document, at.token
        while begins < stop:
            expected = int((stop - begins) / self.meter.mean) + 16
            part, size = self._some(document, min(many or expected, _MOST))
            parts.append(part)
            sizes.append(size)
            document, begins = document + len(size), begins + int(size.sum())
        edges = at.token + compute_bounds(np.concatenate(sizes))
        run = DocumentRun(at.document, join_rows(parts), edges)
        self._cached = [run, *self._cached[: _CACHED_RUNS - 1]]
        return run

    def _between(self, start: int, stop: int) -> DocumentRun:
        """The documents, of one pass, that hold the tokens from one to before another."""
        at = self._holding(start)
        for run in self._cached:
            first, rows, begins = run
            # Empty documents begin where others do.
            if first <= at.document and begins[0] <= at.token and stop <= begins[-1]:
                break
        else:
            first, rows, begins = self._load(at, stop)
        a, b = at.document - first, int(np.searchsorted(begins, stop))
        return DocumentRun(at.document, rows.slice(a, b), begins[a : b + 1])

    def _where(self, document: int) -> tuple[int, int]:
        """The token at which a document begins, and its tokens."""
        for run in self._cached:
            if 0 <= (i := document - run.first) < len(run.begins) - 1:
                return int(run.begins[i]), int(run.begins[i + 1] - run.begins[i])
        return self.meter.tokens(document), int(self._some(document, 1)[1][0])

    def _some(self, first: int, many: int) -> tuple[ProvenanceRows, Ints]:
        """Some documents from one on, within its pass: what they are, and their tokens."""
        if n := self.input.size:
            many = min(many, n - first % n)
        return self.meter.some(first, first + many)

    # ------------------------------------------------------------ questions

    def drawn(self, position: int) -> int:
        if self._begins(position):
            return self._before(position)
        return self._holding(self._needed(position) - 1).document + 1

    def find_first_held(self, position: int) -> int:
        if self._begins(position):
            return self._before(position)
        return self._holding(self._start(position)).document

    def _begins(self, row: int) -> bool:
        """Return whether a pass begins with a row."""
        return row == (0 if self.passes is None else self.passes.at(row).start)

    def _before(self, row: int) -> int:
        """The documents before the pass that begins with a row."""
        if self.passes is None or self.input.size is None:
            return 0
        return self.passes.at(row).epoch * self.input.size

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        if self.empty is not None:
            return super().nth(leaf, number, last)
        found = self.input.nth(leaf, number)
        in_order = np.argsort(found, kind="stable")  # neighbours share windows
        for i in in_order[found[in_order] >= 0].tolist():
            document = int(found[i])
            token, size = self._where(document)
            rows = self._rows_with_part(At(document, token), size)
            row = int(rows[-1] if last else rows[0])
            if self.together:  # in no order within a window
                epoch, window, place = self._locate_row(row)
                first, documents, layout = self._window(epoch, window)
                is_asked = documents.leaf[layout.item] == leaf[i]
                if not last:
                    is_asked &= layout.item >= document - first
                pieces = np.flatnonzero(is_asked)
                row += layout.find_group(int(pieces[-1 if last else 0])) - place
            found[i] = row
        return found

    def find_row(self, document: int) -> int | None:
        size = self.input.size
        if size is not None and document >= size:
            return None
        token = self._where(document)[0]
        if size is not None and token >= self._pass:
            return None
        if not self.together:
            return int(self._rows_with_part(At(document, token), 1)[0])
        number = token // self.windows.span
        while size is None or number < self._many:
            first, _, layout = self._window(0, number)
            pieces = np.flatnonzero(layout.item >= document - first)
            if len(pieces):
                return number * self.windows.rows + layout.find_group(int(pieces[0]))
            number += 1
        return None

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        index = self.with_tokens(leaf, index)
        found = [index[:0]]
        documents = self.input.find(leaf, index, self.find_first_held(low), self.drawn(high))
        for document in documents.tolist():
            token, size = self._where(document)
            if size:
                found.append(self._rows_with_part(At(document, token), size))
        rows = find_distinct_values(np.concatenate(found))
        return rows[(rows >= low) & (rows < high)]

    def _add(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """Add the contents of a range of rows to a tally. Everything begun before either end was
        delivered.

        A document counts in the row in which it begins, its tokens where they are.
        """
        with tally.limited():
            first, last = self._begun(start), self._begun(stop)
            self.input.count(tally, first, last, times)
            tally.tokens += (self._taken(stop) - self._taken(start)) * times
            if self.empty is not None:
                self.input.tokens(last, self.empty, tally.samples, -times)
                self.input.tokens(first, self.empty, tally.samples, times)

    def _begun(self, row: int) -> int:
        """Return the number of documents that begin before a row."""
        if self._begins(row):
            return self._before(row)
        token = self._start(row)
        at = self._holding(token)
        return at.document + (at.token < token)

    def _taken(self, row: int) -> Ints:
        """The tokens of each leaf before a row."""
        if self._begins(row):
            return self.meter.by_leaf(self._before(row))
        token = self._start(row)
        at = self._holding(token)
        out = self.meter.by_leaf(at.document)
        out[self._some(at.document, 1)[0].leaf[0]] += self._until(token, at) - at.token
        return out

    def _rows_with_part(self, at: At, size: int) -> Ints:
        """The rows that hold a part of a document."""
        epoch = at.document // self.input.size if self.input.size else 0
        token = at.token - (epoch * self._pass if epoch else 0)
        start = 0 if self.passes is None else self.passes.start(epoch)
        if not self.together:
            ends = np.asarray([token, token + size - 1])
            first, last = self._cuts.of(epoch).holding(ends)
            return np.arange(int(first), int(last) + 1) + start
        step = self.length if self.windows.whole else self.multiple
        begins = np.arange(token, token + size, step) // self.windows.span
        if self.input.size is not None:
            begins = np.minimum(begins, self._many - 1)
        found = list[Ints]()
        for number in find_distinct_values(begins).tolist():
            first, _, layout = self._window(epoch, number)
            pieces = np.flatnonzero(layout.item == at.document - first)
            rows = np.searchsorted(layout.bounds, pieces, side="right") - 1
            found.append(rows + number * self.windows.rows + start)
        return np.concatenate(found)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """Whole windows by sums, those that are cut by what lies in their rows."""
        self._add(tally, self._first(start), self._first(stop), times)
        for row, sign in ((start, -times), (stop, times)):
            epoch, number, place = self._locate_row(row)
            if place:
                _, documents, layout = self._window(epoch, number)
                pieces = slice(0, int(layout.bounds[place]))
                leaf, begins = documents.leaf[layout.item[pieces]], layout.start[pieces]
                tally.samples += np.bincount(leaf[begins == 0], minlength=len(tally.samples)) * sign
                np.add.at(tally.tokens, leaf, (layout.stop[pieces] - begins) * sign)
