"""Documents end to end, cut every so many tokens: row `r` of a pass holds those from `r * length`
on."""

from __future__ import annotations

import numpy as np

from ...types import Ints
from ..base.integers import find_distinct_values
from ..base.rows import ProvenanceRows, compute_bounds, join_rows, make_empty_rows
from ..packing import split_documents
from .joined import At, JoinedOp
from .tally import Tally

_APART = 16  # rows left out between two that are looked up together


class CutOp(JoinedOp):
    """Rows of `length` tokens."""

    @property
    def size(self) -> int | None:
        return None if self.flow.size is None else -(-self._pass // self.length)

    def _start(self, row: int) -> int:
        epoch, place = self._in_pass(row)
        return (epoch * self._pass if epoch else 0) + place * self.length

    def _until(self, token: int, at: At) -> int:
        return token

    # ------------------------------------------------------------ rows

    def locate(self, positions: Ints) -> ProvenanceRows:
        rows = find_distinct_values(positions)
        passes = rows // (self.size or 1) if self.flow.size is not None else np.zeros_like(rows)
        edges = np.flatnonzero((np.diff(rows) > _APART) | (np.diff(passes) > 0)) + 1
        parts = (
            [self._run(run) for run in np.split(rows, edges)]
            if len(rows)
            else [make_empty_rows(self.depth)]
        )
        found = join_rows(parts)
        if len(rows) != len(positions) or not np.array_equal(rows, positions):
            found = found.take(np.searchsorted(rows, positions))
        return found

    def _run(self, rows: Ints) -> ProvenanceRows:
        """Rows of one pass that lie close together, in their order."""
        start, last, length = self._start(int(rows[0])), int(rows[-1]), self.length
        stop = self._start(last) + length
        if self.flow.size is not None:
            stop = min(stop, (last // (self.size or 1) + 1) * self._pass)
        at, documents, tokens = self._between(start, stop)
        ends = at.token + np.cumsum(tokens)
        there = np.flatnonzero(tokens)
        row, item, first, end = split_documents(
            length, there, (ends - tokens - start)[there], (ends - start)[there]
        )
        wanted = rows - rows[0]
        lower = np.asarray(np.searchsorted(row, wanted), np.int64)
        upper = np.asarray(np.searchsorted(row, wanted, side="right"), np.int64)
        bounds = compute_bounds(upper - lower)
        pieces = np.repeat(lower - bounds[:-1], np.diff(bounds)) + np.arange(int(bounds[-1]))
        return self.parts(documents.take(item[pieces]), first[pieces], end[pieces], bounds)

    # ------------------------------------------------------------ questions

    def _rows_of(self, at: At, size: int) -> Ints:
        epoch = at.document // self.flow.size if self.flow.size else 0
        token = at.token - (epoch * self._pass if epoch else 0)
        rows = np.arange(token // self.length, (token + size - 1) // self.length + 1)
        return rows + epoch * (self.size or 0)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        self._add(tally, start, stop, times)
