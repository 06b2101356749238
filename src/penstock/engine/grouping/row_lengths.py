"""Rows that are cut one after the other, and whose length changes during a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ...types import Ints, Json
from ..base.passes import Passes
from ..base.rows import compute_bounds
from ..base.step_plan import NumberPlan, RowsByStep, iter_equal_steps, resolve_lengths

EarlierLengths: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a row and the length of the rows before it, in the order of rows."""


@dataclass(frozen=True)
class LengthPlan(NumberPlan):
    """Row lengths by global step, or by the tokens that rows have room for.

    `rows` are the rows of a global step by step; None if they are not known yet.

    >>> LengthPlan(((0, 4), (5, 8)), "steps", ((0, 10),)).find_earlier()
    ((50, 4),)
    """

    rows: RowsByStep | None = None

    def with_rows(self, rows: RowsByStep, end: int | None) -> LengthPlan:
        """Return the plan for global steps of so many rows, in a run that ends after `end` rows."""
        if self.unit != "fraction":
            return replace(self, rows=rows)
        lengths = self.at_rows(end, "pack(Schedule(...))")
        return LengthPlan(resolve_lengths(NumberPlan(rows), lengths), "steps", rows)

    def find_earlier(self, row: int = 0, step: int = 0, tokens: int = 0) -> EarlierLengths:
        """Return the row lengths before the last one, from a row on.

        Args:
            row: the first row of global step `step`.
            step: that step.
            tokens: the tokens that the rows before have room for.
        """
        assert self.rows is not None
        stages = iter_equal_steps(NumberPlan(self.rows), self, row, step, tokens)
        return tuple(
            (now.row, before.length)
            for before, now in pairwise(stages)
            if before.length != now.length
        )

    def to_json(self) -> Json:
        """Return the plan for descriptions."""
        rows: Json = None if self.rows is None else [[*each] for each in self.rows]
        return {"points": [[*point] for point in self.points], "unit": self.unit, "rows": rows}

    @staticmethod
    def from_json(saved: Any) -> LengthPlan:
        points, rows = (
            tuple((int(at), int(number)) for at, number in saved[key]) for key in ("points", "rows")
        )
        return LengthPlan(points, saved["unit"], rows)


@dataclass(frozen=True)
class RowLengths:
    """The tokens of the rows of a pass: `length`, and those of `earlier` rows.

    >>> rows = RowLengths(8, ((2, 4),))
    >>> rows.begins(np.arange(4)).tolist(), rows.holding(np.array([7, 8, 15, 16])).tolist()
    ([0, 4, 8, 16], [1, 2, 2, 3])
    """

    length: int
    earlier: EarlierLengths = ()

    @cached_property
    def _first_rows(self) -> Ints:
        return np.asarray([0, *(row for row, _ in self.earlier)])

    @cached_property
    def _lengths(self) -> Ints:
        return np.asarray([*(length for _, length in self.earlier), self.length])

    @cached_property
    def _first_tokens(self) -> Ints:
        return compute_bounds(np.diff(self._first_rows) * self._lengths[:-1])

    def spans(self, rows: Ints) -> Ints:
        """Return the numbers of the spans of rows of one length that hold rows."""
        return np.searchsorted(self._first_rows[1:], rows, side="right")

    def of(self, rows: Ints) -> Ints:
        """Return the lengths of rows."""
        return self._lengths[self.spans(rows)]

    def begins(self, rows: Ints) -> Ints:
        """Return the tokens at which rows begin."""
        if not self.earlier:
            return rows * self.length
        span = self.spans(rows)
        return self._first_tokens[span] + (rows - self._first_rows[span]) * self._lengths[span]

    def holding(self, tokens: Ints) -> Ints:
        """Return the rows that hold tokens."""
        if not self.earlier:
            return tokens // self.length
        span = np.searchsorted(self._first_tokens[1:], tokens, side="right")
        return self._first_rows[span] + (tokens - self._first_tokens[span]) // self._lengths[span]

    def count(self, tokens: int) -> int:
        """Return the number of rows that so many tokens make."""
        return int(self.holding(np.asarray([tokens - 1]))[0]) + 1 if tokens else 0


@dataclass
class PassCuts:
    """The row lengths of every pass of a run that cuts `tokens` tokens a pass into rows.

    `tokens` is None for an endless input, which has one pass. `earlier` counts rows over all passes.

    >>> cuts = PassCuts(8, ((4, 4),), 10)  # rows of 4, 4, 2 tokens, then 4, 6, then 8, 2
    >>> cuts.passes.to_json(), cuts.of(1).earlier
    ([[0, 3], [1, 2]], ((1, 4),))
    """

    length: int
    earlier: EarlierLengths
    tokens: int | None
    _epochs: list[int] = field(default_factory=list[int], init=False)
    _lengths: list[RowLengths] = field(default_factory=list[RowLengths], init=False)

    def __post_init__(self) -> None:
        if self.tokens is None:
            self._add(0, RowLengths(self.length, self.earlier))
            return
        epoch, start, mixed = 0, 0, list[tuple[int, int]]()
        for row, length in self.earlier:
            # Rows from `start`, where pass `epoch` begins, on have this length.
            now = RowLengths(length, tuple(mixed))
            self._add(epoch, now)
            if (size := now.count(self.tokens)) and row >= start + size:
                epoch, start, mixed = epoch + 1, start + size, []
                self._add(epoch, now := RowLengths(length))
                size = now.count(self.tokens)
                epoch, start = epoch + (row - start) // size, start + (row - start) // size * size
            if row > start:
                mixed.append((row - start, length))
        self._add(epoch, RowLengths(self.length, tuple(mixed)))
        if mixed:
            self._add(epoch + 1, RowLengths(self.length))

    def _add(self, epoch: int, lengths: RowLengths) -> None:
        """Set the row lengths from a pass on."""
        while self._epochs and self._epochs[-1] >= epoch:
            self._epochs.pop()
            self._lengths.pop()
        self._epochs.append(epoch)
        self._lengths.append(lengths)

    def of(self, epoch: int) -> RowLengths:
        """Return the row lengths of a pass."""
        return self._lengths[bisect_right(self._epochs, epoch) - 1]

    @cached_property
    def passes(self) -> Passes | None:
        """The rows of passes; None for an endless input."""
        if self.tokens is None:
            return None
        sizes: Sequence[int] = [lengths.count(self.tokens) for lengths in self._lengths]
        return Passes.of(zip(self._epochs, sizes, strict=True))
