"""Documents end to end, cut every so many tokens: which of them a row holds, by arithmetic.

Row `r` begins at token `r * length`, so what is in it is a question about sums of lengths: no row is planned before
another, in any pass, and what never ends has rows like anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..base.ints import distinct, within_reach
from ..base.rows import Rows, bounds_of, empty_rows, join_rows
from ..pack import cut_at
from ..types import Ints
from .op import Op
from .packed import PackedOp, lapped
from .tally import Tally
from .tokens import Lengths

_NEAR = 1024  # documents looked at one by one
_MOST = 1 << 18  # documents located at a time
_APART = 16  # rows left out between two that are looked up together
_HELD = 16  # tokens whose documents are remembered


class At(NamedTuple):
    """A document, and the token at which it begins."""

    document: int
    token: int


class CutOp(PackedOp):
    """Rows of `length` tokens. A flow that ends gives the same samples in every pass, and every pass begins a row."""

    def __init__(self, flow: Op, length: int, lengths: Lengths, extra: int, node: int) -> None:
        super().__init__(flow, lengths, extra, node)
        self.length = length
        self._held = dict[int, At]()

    @property
    def size(self) -> int | None:
        return None if self.flow.size is None else -(-self._pass // self.length)

    @cached_property
    def _pass(self) -> int:
        """The tokens of a pass."""
        assert self.flow.size is not None
        return self._tokens(self.flow.size)

    @cached_property
    def _mean(self) -> float:
        """The tokens of a document, about."""
        many = min(self.flow.size or _NEAR, _NEAR)
        return max(1.0, self._tokens(many) / max(many, 1))

    def _tokens(self, document: int) -> int:
        """The tokens before a document."""
        return int(self._by_leaf(document, self.lengths).sum())

    def _about(self, document: int) -> int:
        """The tokens before a document if all were as long as those of their pass are on average."""
        return int(self._by_leaf(document, self.lengths.about).sum())

    def _by_leaf(self, document: int, lengths: Lengths) -> Ints:
        out = np.zeros(len(lengths.by_leaf), np.int64)
        self.flow.tokens(document, lengths, out)
        if self.extra:
            tally = Tally(len(out))
            self.flow.count(tally, 0, document)
            out += tally.samples * self.extra
        return out

    # ------------------------------------------------------------ where a token is

    def _token(self, row: int) -> int:
        """The token at which a row begins, counted over all passes."""
        within_reach(row, self.length)
        epoch, place = divmod(row, self.size) if self.size else (0, row)
        return (epoch * self._pass if epoch else 0) + place * self.length

    def _holding(self, token: int) -> At:
        """The document that holds a token."""
        if (found := self._held.get(token)) is not None:
            return found
        near = self._near(token)
        while True:
            sizes = self._some(near.document, _NEAR)[1]
            begins = near.token + bounds_of(sizes)
            i = int(np.searchsorted(begins, token, side="right")) - 1
            near = At(near.document + i, int(begins[i]))
            if i < len(sizes):
                self._hold(token, near)
                return near

    def _hold(self, token: int, at: At) -> None:
        while len(self._held) >= _HELD:  # threads look at neighbouring rows
            self._held.pop(next(iter(self._held)), None)
        self._held[token] = at

    def _near(self, token: int) -> At:
        """A document that begins at a token or not long before it, found from how long documents are on average."""
        about = self._search(self._about, token, int(token / self._mean))
        return self._search(self._tokens, token, about.document)

    def _search(self, tokens: Callable[[int], int], token: int, guess: int) -> At:
        """The same by one way to add them up, where a guess is tried first."""
        low, high, tries = At(0, 0), None, 0
        while token - low.token > _NEAR // 2 * self._mean and (high is None or high.document - low.document > _NEAR):
            tries += 1
            if high is None:  # further, and sooner or later by leaps
                guess = max(guess, low.document + 1, 2 * low.document if tries > 3 else 0)
            else:
                guess = min(max(guess, low.document + 1), high.document - 1)
                if tries % 4 == 0:  # lengths may be anything: no more steps than halving takes, about
                    guess = (low.document + high.document) // 2
            at = At(guess, tokens(guess))
            low, high = (at, high) if at.token <= token else (low, at)
            guess += int((token - at.token) / self._mean) - _NEAR // 8
        return low

    def _some(self, first: int, many: int) -> tuple[Rows, Ints]:
        """Some documents from one on, within its pass: what they are, and their tokens."""
        if n := self.flow.size:
            many = min(many, n - first % n)
        positions = np.arange(first, first + many)
        rows = self.flow.locate(positions, np.zeros_like(positions))
        return rows, self.lengths.of(rows) + self.extra

    def drawn(self, position: int) -> int:
        if self._begins(position):
            return self._before(position)
        return self._holding(self._token(position) - 1).document + 1

    def _begins(self, row: int) -> bool:
        """Whether a pass begins with a row."""
        return row % (self.size or 1) == 0 if self.flow.size is not None else row == 0

    def _before(self, row: int) -> int:
        """The documents before the pass that begins with a row."""
        return row // (self.size or 1) * (self.flow.size or 0)

    # ------------------------------------------------------------ rows

    def locate(self, positions: Ints, laps: Ints) -> Rows:
        rows = distinct(positions)
        passes = rows // (self.size or 1) if self.flow.size is not None else np.zeros_like(rows)
        edges = np.flatnonzero((np.diff(rows) > _APART) | (np.diff(passes) > 0)) + 1
        parts = [self._run(run) for run in np.split(rows, edges)] if len(rows) else [empty_rows(self.depth)]
        found = join_rows(parts)
        if len(rows) != len(positions) or not np.array_equal(rows, positions):
            found = found.take(np.searchsorted(rows, positions))
        return lapped(found, laps)

    def _run(self, rows: Ints) -> Rows:
        """Rows of one pass that lie close together, in their order."""
        start, last, length = self._token(int(rows[0])), int(rows[-1]), self.length
        stop = self._token(last) + length
        if self.flow.size is not None:
            stop = min(stop, (last // (self.size or 1) + 1) * self._pass)
        at = self._holding(start)
        parts, sizes, begins = list[Rows](), list[Ints](), at.token
        document = at.document
        while begins < stop:
            part, size = self._some(document, min(int((stop - begins) / self._mean) + 16, _MOST))
            parts.append(part)
            sizes.append(size)
            document, begins = document + len(size), begins + int(size.sum())
        documents, tokens = join_rows(parts), np.concatenate(sizes)
        ends = at.token + np.cumsum(tokens)
        there = np.flatnonzero(tokens)
        row, item, first, end = cut_at(length, there, (ends - tokens - start)[there], (ends - start)[there])
        final = int(np.searchsorted(ends, stop))  # the document that ends at the last token of the run, or after it
        whole = int(ends[final]) == stop
        self._hold(stop, At(at.document + final + whole, stop if whole else int(ends[final] - tokens[final])))
        wanted = rows - rows[0]
        lower = np.asarray(np.searchsorted(row, wanted), np.int64)
        upper = np.asarray(np.searchsorted(row, wanted, side="right"), np.int64)
        bounds = bounds_of(upper - lower)
        pieces = np.repeat(lower - bounds[:-1], np.diff(bounds)) + np.arange(int(bounds[-1]))
        return self.parts(documents.take(item[pieces]), first[pieces], end[pieces], bounds)

    # ------------------------------------------------------------ questions

    def _find(self, leaf: int, index: Ints, low: int, high: int, lap: int) -> Ints:
        begin = self._before(low) if self._begins(low) else self._holding(self._token(low)).document
        found = [index[:0]]
        for document in self.flow.find(leaf, index, begin, self.drawn(high), lap).tolist():
            epoch = document // self.flow.size if self.flow.size else 0
            token = self._tokens(document) - (epoch * self._pass if epoch else 0)
            if size := int(self._some(document, 1)[1][0]):
                rows = np.arange(token // self.length, (token + size - 1) // self.length + 1)
                found.append(rows + epoch * (self.size or 0))
        rows = distinct(np.concatenate(found))
        return rows[(rows >= low) & (rows < high)]

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """A document counts in the row in which it begins, its tokens where they are."""
        first, last = self._begun(start), self._begun(stop)
        self.flow.count(tally, first, last, times)
        tally.tokens += (self._taken(stop) - self._taken(start)) * times
        if self._empty is not None:
            self.flow.tokens(last, self._empty, tally.samples, -times)
            self.flow.tokens(first, self._empty, tally.samples, times)

    @cached_property
    def _empty(self) -> Lengths | None:
        """Which documents have no tokens, and are in no row: 1 for each."""
        by_leaf = self.lengths.by_leaf
        if self.extra or all(lengths.all() for lengths in by_leaf):
            return None
        return Lengths([(lengths == 0).astype(np.int64) for lengths in by_leaf])

    def _begun(self, row: int) -> int:
        """How many documents begin before a row."""
        if self._begins(row):
            return self._before(row)
        token = self._token(row)
        at = self._holding(token)
        return at.document + (at.token < token)

    def _taken(self, row: int) -> Ints:
        """The tokens of each leaf before a row."""
        if self._begins(row):
            return self._by_leaf(self._before(row), self.lengths)
        token = self._token(row)
        at = self._holding(token)
        out = self._by_leaf(at.document, self.lengths)
        out[self._some(at.document, 1)[0].leaf[0]] += token - at.token
        return out
