"""Another order of an input: by a permutation of every pass, pass after pass, the same places again
and again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import lcm

import numpy as np

from ...errors import ConfigError
from ...types import Ints, Json, Order, Path
from ..base.rows import ProvenanceRows
from ..orders import AllBut, Pick, Portion, Replay, Slice, Stride, WindowShuffle
from .op import UNKNOWN, Before, Op, UnaryOp
from .read import ReadOp
from .seek import At, Metered, holding
from .tally import Tally, repeat_positions, spend_search, split_passes
from .tokens import Lengths

_SCAN = 1 << 20  # places of a fixed set that are looked at


class OrderOp(UnaryOp):
    """An order of an input. As it stands: pass after pass as one, each in its own order."""

    one_pass = False

    def __init__(self, input: Op, order: Order, key: int) -> None:
        super().__init__(input)
        self.order, self.key, self.source = order, key, input.source

    @property
    def size(self) -> int | None:
        return self.order.size(self.input.size)

    def locate(self, positions: Ints) -> ProvenanceRows:
        below, replay = self.order.down(positions, self.input.size, self.key)
        rows = self.input.locate(below)
        return rows if replay is None else rows.later(replay)

    def find_first(self, leaves: int, leaf: int, number: int, position: int) -> int | None:
        if type(self) is not OrderOp:  # only this one keeps the order within a pass
            return None
        (row,) = self.order.down(np.asarray([position]), self.input.size, self.key)[0].tolist()
        first = self.input.find_first(leaves, leaf, number, row)
        return None if first is None else position - (row - first)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        self.input.tokens(position, lengths, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        return self.input.holding(token, lengths)

    def count_distinct(self, out: Ints) -> None:
        self.input.count_distinct(out)
        leaf = self.input.leaf
        if leaf is not None and (size := self.order.size(int(out[leaf]))) is not None:
            out[leaf] = min(size, out[leaf])


class PassOp(OrderOp):
    """An order that gives what every pass holds, in whatever order; or any other that is the
    user's."""

    one_pass = True

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        size, n = self.size, self.input.size
        if n is None and isinstance(self.order, Stride):
            first, last = self.order.down(np.asarray([low, high - 1]), None, self.key)[0].tolist()
            found = self.input.find(leaf, index, first, last + 1)
        elif n is None or size is None:  # an order without passes may draw from anywhere
            spend_search(high - low)
            rows = self.locate(np.arange(low, high))
            hits = np.flatnonzero((rows.leaf == leaf) & np.isin(rows.index, index))
            return low + np.unique(np.searchsorted(rows.firsts(), hits, side="right") - 1)
        else:
            first, last = low // size, (high - 1) // size + 1
            found = self.input.find(leaf, index, first * n, last * n)
        found = self.order.up(found, n, self.key)
        return np.sort(found[(found >= low) & (found < high)])

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        return number if self.leaf is not None else np.full(len(leaf), UNKNOWN)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        n = self.input.size
        if self.input.leaf is not None:
            return self.input.count(tally, start, stop, times)
        if n is None or self.size != n:
            return tally.one_by_one(self, start, stop, times)
        head, tail = (
            -(-start // n) * n,
            stop // n * n,
        )  # whole passes hold what they hold in any order
        if head > tail:
            return tally.one_by_one(self, start, stop, times)
        tally.one_by_one(self, start, head, times)
        self.input.count(tally, head, tail, times)
        tally.one_by_one(self, tail, stop, times)

    def known(self) -> tuple[object, Json] | None:
        selected = find_selected_source(self.input)
        if selected is None or self.size != self.input.size:
            return None
        order: dict[str, Json] = {"order": self.order.describe(), "key": self.key}
        source, sets = selected
        return source, {**order, "of": sets} if sets else order

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        n = self.input.size
        if not n or self.size != n or self.input.repeats:
            return lengths.sums(self).before(position, out, times)
        self.input.tokens(position // n * n, lengths, out, times)
        lengths.sums(self).within(position // n, position % n, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        n = self.input.size
        if not n or self.size != n or not self.input.repeats:
            return holding(self, token, lengths)
        sums = lengths.get_exact_sums(self)
        whole = int(sums.tokens_of_pass().sum())
        epoch, rest = divmod(token, max(whole, 1))
        place, before = sums.holding(epoch, rest)
        return At(epoch * n + place, epoch * whole + before)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        if self.input.size and position % self.input.size == 0:
            yield Before(self.input, position, early)

    @property
    def has_steady_counts(self) -> bool:
        return self.size is not None and self.input.leaf is not None

    @property
    def repeats(self) -> bool:
        return self.size == self.input.size and self.input.repeats

    @property
    def period(self) -> int:
        if self.size is None:
            raise ConfigError(
                "a skip, a stride or an order of yours over an endless source leaves no passes in "
                "which samples can be found or excluded; put that step before repeat()"
            )
        return self.size


class WindowOp(PassOp):
    """Windows of neighbours in random order; of an input that never ends they reach over its
    passes."""

    order: WindowShuffle

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        if self.input.size is not None:
            return super()._find(leaf, index, low, high)
        window = self.order.window
        below = self.input.find(leaf, index, low // window * window, -(-high // window) * window)
        found = self.order.up(below, None, self.key)
        return np.sort(found[(found >= low) & (found < high)])

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        if self.input.size is not None or self.input.leaf is not None:
            return super()._count(tally, start, stop, times)
        window = self.order.window
        head = min(-(-start // window) * window, stop)
        tail = max(head, stop // window * window)  # whole windows hold what they hold in any order
        tally.one_by_one(self, start, head, times)
        self.input.count(tally, head, tail, times)
        tally.one_by_one(self, tail, stop, times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        start = position if self.input.size is None else position % max(self.input.size, 1)
        start = position - start % self.order.window
        self.input.tokens(start, lengths, out, times)
        lengths.between(self, start, position, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        return holding(self, token, lengths)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        if self.input.size is not None:
            yield from super().before(position, early)
        elif position % self.order.window == 0:
            yield Before(self.input, position, early)

    @property
    def period(self) -> int:
        return (
            super().period
            if self.input.size is not None
            else lcm(self.input.period, self.order.window)
        )


class RoundOp(PassOp):
    """A fixed set of places, repeated: a slice, or a first pass that is replayed.

    `around` has their number, and the positions of the input between which they lie.
    """

    one_pass = False

    @property
    def around(self) -> tuple[int, int, int]:
        if isinstance(self.order, Slice):
            last = self.order.start + (self.order.count - 1) * self.order.step
            return self.order.count, min(self.order.start, last), max(self.order.start, last) + 1
        assert self.input.size is not None
        return self.input.size, 0, self.input.size

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        period = self.around[0]
        whole = (min(-(-low // period) * period, high), max(high // period * period, low))
        parts = list[Ints]()
        for a, b in pairwise(sorted({low, *whole, high})):
            start, stop = self.below(a % period, min(a % period + b - a, period))
            found = self.input.find(leaf, index, start, stop)
            parts.append(repeat_positions(self.places_of(found), period, a, b))
        return np.concatenate(parts)

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        period, first, _ = self.around
        if self.leaf is not None or first or not self.forwards:
            return super().nth(leaf, number, last)
        found = self.input.nth(leaf, number, last)
        return np.where(found < period, found, UNKNOWN)

    def find_first(self, leaves: int, leaf: int, number: int, position: int) -> int | None:
        period, first, _ = self.around
        if first or not self.forwards or position >= period:
            return None
        return self.input.find_first(leaves, leaf, number, position)

    def below(self, start: int, stop: int) -> tuple[int, int]:
        """Between which positions of the input the places `[start, stop)` of a lap lie."""
        ends = self.order.down(np.asarray([start, stop - 1]), self.input.size, self.key)[0]
        return int(ends.min()), int(ends.max()) + 1

    def places_of(self, below: Ints) -> Ints:
        """Return the places in one replay at which positions of the input come up."""
        place = self.order.up(below, self.input.size, self.key)
        return place[place >= 0]

    @property
    def forwards(self) -> bool:
        """True if they are neighbours in the input, in its order."""
        return isinstance(self.order, Replay) or (
            isinstance(self.order, Slice) and self.order.step == 1
        )

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        period, first, _ = self.around

        if self.input.leaf is not None:
            return self.input.count(tally, start, stop, times)
        for _, a, b, passes in split_passes(start, stop, period, alike=True):
            if self.forwards:
                self.input.count(tally, first + a, first + b, times * passes)
            else:
                tally.one_by_one(self, a, b, times * passes)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        period, first, _ = self.around
        if not (period and self.forwards):
            return lengths.sums(self).before(position, out, times)
        replay, place = divmod(position, period)
        for below, more in (
            (first + place, times),
            (first + period, replay * times),
            (first, -(replay + 1) * times),
        ):
            self.input.tokens(below, lengths, out, more)

    def holding(self, token: int, lengths: Lengths) -> At:
        period, first, _ = self.around
        if not (period and self.forwards):
            return holding(self, token, lengths)
        meter = Metered(self.input, lengths)
        before = meter.tokens(first) if first else 0
        each = max(meter.tokens(first + period) - before, 1)
        replay, rest = divmod(token, each)
        found = self.input.holding(before + rest, lengths)
        if found.document <= first:
            return At(replay * period, replay * each)
        return At(replay * period + found.document - first, replay * each + found.token - before)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        if (
            self.size is None and self.input.size is None
        ):  # a mixture that ends takes over from one that does not
            return
        period, first, _ = self.around
        early = early and position > 0
        replay, place = divmod(position - early, max(period, 1))  # the end of one is of that one
        if not replay and self.size == period and (self.forwards or place + early == 0):
            yield Before(self.input, first + place + early, early, first, replays=True)

    @property
    def different(self) -> int:
        """The number of different places of the input."""
        return self.around[0]

    def count_distinct(self, out: Ints) -> None:
        self.input.count_distinct(out)
        if (leaf := self.input.leaf) is None:
            return
        places = min(self.around[0], _SCAN)
        if self.input.size == out[leaf] or places < self.around[0]:
            out[leaf] = min(self.different, out[leaf])
        else:  # the input repeats samples
            out[leaf] = len(np.unique(self.locate(np.arange(places)).index))

    @property
    def mixture(self) -> Path | None:
        return (
            self.input.mixture if isinstance(self.order, Replay) else None
        )  # a slice is a place of its own

    @property
    def has_steady_counts(self) -> bool:
        return self.size is not None

    @property
    def repeats(self) -> bool:
        return True

    @property
    def period(self) -> int:
        return self.around[0]


class PickOp(RoundOp):
    """Places by number, some of them perhaps more than once."""

    order: Pick

    @property
    def around(self) -> tuple[int, int, int]:
        return len(self.order.indices), *self.order.reach

    def below(self, start: int, stop: int) -> tuple[int, int]:
        return self.order.reach

    def places_of(self, below: Ints) -> Ints:
        return self.order.every(below)

    @property
    def different(self) -> int:
        return self.order.different


class PortionOp(RoundOp):
    """A share of the places, or the others; all but some."""

    order: Portion | AllBut

    @property
    def around(self) -> tuple[int, int, int]:
        assert self.size is not None and self.input.size is not None
        return self.size, 0, self.input.size

    @property
    def forwards(self) -> bool:
        return False


def find_repeated_leaves(root: Op) -> tuple[int, ...]:
    """Return the leaves whose samples of the first pass come again in every pass of an op.

    They are below a slice or limit of several sources, or in an endless input of a mix that ends.
    """
    while root.one_pass:
        (root,) = root.inputs
    if isinstance(root, RoundOp):
        return root.leaves if root.leaf is None else ()
    if root.only_input is not None or root.size is None:
        return ()
    return tuple(leaf for each in root.inputs if each.size is None for leaf in each.leaves)


def find_selected_source(step: Op) -> tuple[object, list[Json]] | None:
    """Return the source of a step, and the parts and slices it takes; None for any other step."""
    sets = list[Json]()
    while isinstance(step, OrderOp) and isinstance(step.order, Portion | Slice):
        sets.append(step.order.describe())
        step = step.input
    return (step.named.source, sets) if isinstance(step, ReadOp) and not step.former else None


def below_orders(root: Op) -> Op:
    """Return the op below orders: it gives the values of the samples, in whatever order."""
    while isinstance(root, OrderOp):
        root = root.input
    return root
