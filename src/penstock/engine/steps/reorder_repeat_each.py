"""Each sample some times, adjacent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...types import Ints
from ..orders import RepeatEach
from .op import UNKNOWN, Before
from .reorder_op import OrderOp
from .seek import At
from .tally import Tally
from .tokens import Lengths


class RepeatEachOp(OrderOp):
    """Each sample some times, adjacent."""

    keeps_order = True

    one_pass = True

    order: RepeatEach

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        n = self.order.n
        below = self.input.find(leaf, index, low // n, -(-high // n))
        found = (below[:, None] * n + np.arange(n)).ravel()
        return found[(found >= low) & (found < high)]

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        if self.leaf is not None:
            return number
        if self.depth:  # the copies of a group lie behind it, not behind each of its samples
            return np.full(len(leaf), UNKNOWN)
        found = self.input.nth(leaf, number // self.order.n, last)
        return np.where(found < 0, found, found * self.order.n + number % self.order.n)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        n = self.order.n
        first, last = -(-start // n), stop // n
        if first > last:  # some of one sample
            return self.input.count(tally, last, last + 1, times * (stop - start))
        edges = (
            (first - 1, first, first * n - start),
            (first, last, n),
            (last, last + 1, stop - last * n),
        )
        for a, b, many in edges:
            if many:
                self.input.count(tally, a, b, times * many)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        below, left = divmod(position, self.order.n)
        self.input.tokens(below, lengths, out, times * self.order.n)
        lengths.between(self.input, below, below + (left > 0), out, times * left)

    def holding(self, token: int, lengths: Lengths) -> At:
        below, before = self.input.holding(token // self.order.n, lengths)
        return At(below * self.order.n, before * self.order.n)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        below, left = divmod(position, self.order.n)
        begun = left > 0
        yield Before(self.input, below + begun, early or begun, pending=int(begun))

    @property
    def period(self) -> int:
        return self.input.period * self.order.n
