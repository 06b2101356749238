"""Documents end to end: which of them holds a token, by arithmetic, however far it is.

What begins at a token is a question about sums of lengths: nothing is planned before another, in
any pass, and what never ends is asked like anything else.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...arguments import check_position
from ...types import Ints
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.rows import ProvenanceRows, compute_bounds, join_rows
from ..base.sizes import EmptyIndicator
from .op import Op
from .packed import Counted, PackedOp
from .seek import BEFORE, At, Metered
from .tally import Tally
from .tokens import Lengths

_MOST = 1 << 18  # documents located at a time
_SAMPLED = 256  # rows
_CACHED_TOKENS = 16  # threads look at neighbouring rows
_LOOKED = 4  # stretches of documents that are


class Documents(NamedTuple):
    """Documents that follow one another: the first and where it begins, what they are, their
    tokens."""

    at: At
    rows: ProvenanceRows
    sizes: Ints


class JoinedOp(PackedOp):
    """Rows that follow from where tokens lie. Tokens are counted over all passes. A flow that ends
    gives the same samples in every pass, and every pass begins a row.
    """

    def __init__(self, flow: Op, length: int, counted: Counted, node: int) -> None:
        super().__init__(flow, counted, node)
        self.length = self.row_length = length
        self.meter = Metered(flow, self.lengths, self.extra)
        self._document_at = BoundedDict[int, At](_CACHED_TOKENS)
        self._looked = list[tuple[int, ProvenanceRows, Ints]]()

    def sampled(self) -> ProvenanceRows:
        many = _SAMPLED if self.size is None else min(_SAMPLED, self.size)
        return self.locate(np.arange(many))

    def _start(self, row: int) -> int:
        """The token from which on documents are needed for a row; all before are in rows before."""
        raise NotImplementedError

    def _until(self, token: int, at: At) -> int:
        """Up to which token what was begun before a token goes, where a document holds it."""
        raise NotImplementedError

    @cached_property
    def _pass(self) -> int:
        """The tokens of a pass."""
        assert self.flow.size is not None
        return self.meter.tokens(self.flow.size)

    def _in_pass(self, row: int) -> tuple[int, int]:
        """The pass of a row, and its place in it."""
        check_position(row, self.length)
        return divmod(row, self.size) if self.size else (0, row)

    # ------------------------------------------------------------ where a token is

    def _holding(self, token: int) -> At:
        """The document that holds a token."""
        if (found := self._document_at.get(token)) is not None:
            return found
        there = (
            (first, begins) for first, _, begins in self._looked if begins[0] <= token < begins[-1]
        )
        first, begins = next(there, None) or self._looked_at(self.meter.near(token), token)
        i = int(np.searchsorted(begins, token, side="right")) - 1
        found = At(first + i, int(begins[i]))
        self._document_at[token] = found
        return found

    def _looked_at(self, near: At, token: int) -> tuple[int, Ints]:
        """Return the first of several neighbours, and their start tokens; one of them holds a
        token.

        They are cached, because the next question is usually close.
        """
        while True:
            rows, sizes = self._some(near.document, 4 * BEFORE)
            begins = near.token + compute_bounds(sizes)
            if begins[-1] > token:
                self._looked = [(near.document, rows, begins), *self._looked[: _LOOKED - 1]]
                return near.document, begins
            near = At(near.document + len(sizes), int(begins[-1]))

    def _look(self, start: int, stop: int) -> None:
        """Remember the documents of one pass between two tokens, which are asked for next."""
        at, rows, sizes = self._between(start, stop)
        self._looked = [
            (at.document, rows, at.token + compute_bounds(sizes)),
            *self._looked[: _LOOKED - 1],
        ]

    def _where(self, document: int) -> tuple[int, int]:
        """The token at which a document begins, and its tokens."""
        for first, _, begins in self._looked:
            if 0 <= (i := document - first) < len(begins) - 1:
                return int(begins[i]), int(begins[i + 1] - begins[i])
        return self.meter.tokens(document), int(self._some(document, 1)[1][0])

    def _some(self, first: int, many: int) -> tuple[ProvenanceRows, Ints]:
        """Some documents from one on, within its pass: what they are, and their tokens."""
        if n := self.flow.size:
            many = min(many, n - first % n)
        return self.meter.some(first, first + many)

    def _between(self, start: int, stop: int) -> Documents:
        """The documents, of one pass, that hold the tokens from one to before another."""
        at = self._holding(start)
        parts, sizes, document, begins = list[ProvenanceRows](), list[Ints](), at.document, at.token
        for first, rows, edges in self._looked:
            if (
                first <= document and edges[0] <= begins and stop <= edges[-1]
            ):  # empty ones begin where others do
                a, b = document - first, int(np.searchsorted(edges, stop))
                parts, sizes, begins = [rows.slice(a, b)], [np.diff(edges[a : b + 1])], stop
                break
        while begins < stop:
            part, size = self._some(
                document, min(int((stop - begins) / self.meter.mean) + 16, _MOST)
            )
            parts.append(part)
            sizes.append(size)
            document, begins = document + len(size), begins + int(size.sum())
        found = Documents(at, join_rows(parts), np.concatenate(sizes))
        ends = at.token + np.cumsum(found.sizes)
        final = int(
            np.searchsorted(ends, stop)
        )  # the document that ends at the last token, or after it
        whole = int(ends[final]) == stop
        begin = stop if whole else int(ends[final] - found.sizes[final])
        self._document_at[stop] = At(at.document + final + whole, begin)
        return found

    # ------------------------------------------------------------ questions

    def drawn(self, position: int) -> int:
        if self._begins(position):
            return self._before(position)
        return self._holding(self._needed(position) - 1).document + 1

    def _needed(self, row: int) -> int:
        """The token before which all lie that were looked at for the rows before one."""
        return self._start(row)

    def _begins(self, row: int) -> bool:
        """Whether a pass begins with a row."""
        return row % (self.size or 1) == 0 if self.flow.size is not None else row == 0

    def _before(self, row: int) -> int:
        """The documents before the pass that begins with a row."""
        return row // (self.size or 1) * (self.flow.size or 0)

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        index = self.with_tokens(leaf, index)
        begin = self._before(low) if self._begins(low) else self._holding(self._start(low)).document
        found = [index[:0]]
        for document in self.flow.find(leaf, index, begin, self.drawn(high)).tolist():
            token, size = self._where(document)
            if size:
                found.append(self._rows_of(At(document, token), size))
        rows = find_distinct_values(np.concatenate(found))
        return rows[(rows >= low) & (rows < high)]

    def _rows_of(self, at: At, size: int) -> Ints:
        """The rows that hold a part of a document."""
        raise NotImplementedError

    def _add(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """Add the contents of a range of rows to a tally. Everything begun before either end was
        delivered.

        A document counts in the row in which it begins, its tokens where they are.
        """
        with tally.limited():
            first, last = self._begun(start), self._begun(stop)
            self.flow.count(tally, first, last, times)
            tally.tokens += (self._taken(stop) - self._taken(start)) * times
            if self._empty is not None:
                self.flow.tokens(last, self._empty, tally.samples, -times)
                self.flow.tokens(first, self._empty, tally.samples, times)

    @cached_property
    def _empty(self) -> Lengths | None:
        """Which documents have no tokens, and are in no row: 1 for each."""
        if self.extra or all(map(self.lengths.none_empty, self.leaves)):
            return None
        return Lengths([EmptyIndicator(lengths) for lengths in self.lengths.by_leaf])

    def _begun(self, row: int) -> int:
        """How many documents begin before a row."""
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
