"""Inputs woven by a schedule: by weight, one after the other, in turn, by a rule of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from ...arguments import check_position
from ...arrays.columnar import ColumnarSamples
from ...types import Ints, Path
from ..base.integers import find_distinct_values
from ..base.progress import Progress
from ..base.rows import ProvenanceRows, make_empty_rows, merge_rows_in_order
from ..mixing.rules import Drawing, Invertible
from ..streams.function_call import FunctionCall
from .mix_together import PermutedSources, ShuffledSources, by_input
from .op import UNKNOWN, Before, Op
from .read import blocks_of, read_any
from .reorder_op import below_orders
from .tally import Tally, repeat_positions, spend_search
from .tokens import Lengths

_SCAN = 1 << 16  # positions looked at together where a rule has no inverse


class MixOp(Op):
    """A mix of indexed inputs; a mixture, drawn from by a rule, has a `place`. `on` says that the
    schedule knows the draws of later passes too; `base` is how far each input had come before the
    first pass.
    """

    def __init__(
        self,
        inputs: Sequence[Op],
        schedule: Drawing,
        leaves: int,
        at: Path | None = None,
        on: bool = False,
        base: Ints | None = None,
    ) -> None:
        self.inputs, self.schedule, self.at = tuple(inputs), schedule, at
        self.owner = np.full(leaves, -1, np.int64)  # which input a leaf belongs to
        for i, each in enumerate(self.inputs):
            self.owner[list(each.leaves)] = i
        self.base = np.zeros(len(inputs), np.int64) if base is None else base
        self._size, self.depth = schedule.size, max(each.depth for each in self.inputs)
        self._pass = None if on else self._size  # positions after which the schedule begins anew
        self._below, self._functions = _same_functions(self.inputs)
        self._sources = [each.source for each in self._below]
        self._any = read_any(self._sources)

    @property
    def size(self) -> int | None:
        return self._size

    @property
    def mixture(self) -> Path | None:
        return self.at

    @property
    def mixed(self) -> bool:
        return self.at is not None or super().mixed

    @cached_property
    def advance(self) -> Ints:
        """Draws of each input from one pass of the mix to the next."""
        sizes = np.asarray([each.size or 0 for each in self.inputs], np.int64)
        return sizes * self.schedule.passes

    @cached_property
    def _shuffled_sources(self) -> ShuffledSources:
        return ShuffledSources(self.inputs)

    @cached_property
    def _permuted_sources(self) -> PermutedSources:
        return PermutedSources(self.inputs)

    def drawn(self, epoch: int) -> Ints:
        """Return the draws of each input before a pass."""
        return self.base if self._pass is None else self.base + epoch * self.advance

    def position(self, epoch: int, offset: int) -> int:
        """The position at an offset in a pass."""
        return epoch * (self._size or 0) + offset

    def era_at(self, position: int) -> tuple[MixOp, int, int]:
        """Return the mix at a position, its first pass, and the position counted from there."""
        return self, 0, position

    def draws(self, positions: Ints) -> tuple[Ints, Ints]:
        """The input of each position, and which position of it is drawn."""
        if self._pass is None:
            return self.schedule.at(positions)
        epoch = positions // self._pass
        check_position(int(epoch.max(initial=0)), int(self.advance.max(initial=0)))
        source, k = self.schedule.at(positions - epoch * self._pass)
        return source, k + self.base[source] + (epoch * self.advance[source] if epoch.any() else 0)

    def locate(self, positions: Ints) -> ProvenanceRows:
        source, k = self.draws(positions)
        found = self._shuffled_sources.locate(source, k) or self._permuted_sources.locate(source, k)
        if found is not None:
            return found
        order, groups = by_input(source, len(self.inputs))
        k = k[order]
        parts = [self.inputs[i].locate(k[a:b]).deepened(self.depth) for i, a, b in groups]
        return merge_rows_in_order(parts, order) if parts else make_empty_rows(self.depth)

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        values = self._gathered(rows)
        for step in self._functions:
            values = step.apply(values, rows)
        return values

    def _gathered(self, rows: ProvenanceRows) -> Sequence[Any]:
        """Return the values of the inputs, before the functions that all share."""
        source = self.owner[rows.leaf if not rows.levels else rows.leaf[rows.firsts()[:-1]]]
        if self._any is not None:
            with suppress(
                IndexError
            ):  # of a list that got shorter: the careful way finds out which sample it was
                return self._any(source, rows.index)
        order, groups = by_input(source, len(self.inputs))
        if not groups:
            return []
        if len(groups) == 1:
            each = self._below[groups[0][0]]
            return each.values(rows.flattened(each.depth))
        try:
            found = self._read(rows.index[order], groups) if not self.depth else None
        except Exception:
            # the inputs read again, name the sample, and log what fails for many samples alone
            found = None
        if found is None:
            rows, found = rows.take(order), list[Sequence[Any]]()
            for i, a, b in groups:
                each = self._below[i]
                found.append(each.values(rows.slice(a, b).flattened(each.depth)))
        first = found[0]
        if isinstance(first, ColumnarSamples) and all(
            isinstance(part, ColumnarSamples) for part in found
        ):
            return first.join_parts(found, order)
        values = np.empty(len(order), object)
        values[order] = np.fromiter(chain.from_iterable(found), object, len(order))
        return values.tolist()

    def _read(self, index: Ints, groups: list[tuple[int, int, int]]) -> list[Sequence[Any]] | None:
        """The values of all groups, if they are nothing but read."""
        found = list[Sequence[Any]]()
        sources = [source for i, _, _ in groups if (source := self._sources[i]) is not None]
        if len(sources) < len(groups):
            return None
        for source, (_, a, b) in zip(sources, groups, strict=True):
            part = blocks_of(source, index[a:b])
            if len(part) != b - a:
                return None
            found.append(part)
        return found

    # ------------------------------------------------------------ backwards

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        i, size, schedule = int(self.owner[leaf]), self._pass, self.schedule
        if i < 0:
            return index[:0]
        input = self.inputs[i]
        if not isinstance(schedule, Invertible):
            return self._scanned(i, leaf, index, low, high)
        if size is None:
            a, b = (int(schedule.counts(position)[i]) for position in (low, high))
            place = _positions_of_draws(schedule, i, input.find(leaf, index, a, b))
            return place[place >= 0]
        first, last, drawn = low // size, high // size, int(schedule.counts(size)[i])
        each, base = int(self.advance[i]), int(self.base[i])
        if each == 0:  # every pass begins anew with the same draws
            place = _positions_of_draws(
                schedule, i, input.find(leaf, index, base, base + drawn) - base
            )
            place = place[place >= 0]
            return repeat_positions(place, size, low, high)
        a, b = (
            base + e * each + int(schedule.counts(p - e * size)[i])
            for e, p in ((first, low), (last, high))
        )
        k = input.find(leaf, index, a, b) - base
        k = k[k % each < drawn]
        place = _positions_of_draws(schedule, i, k % each)
        return (place + k // each * size)[place >= 0]

    def _scanned(self, i: int, leaf: int, index: Ints, low: int, high: int) -> Ints:
        """By trying every position: for rules of the user's."""
        parts = [index[:0]]
        spend_search(high - low)
        with Progress("look for a sample", high - low, "positions") as progress:
            for start in range(low, high, _SCAN):
                positions = np.arange(start, min(start + _SCAN, high))
                source, k = self.draws(positions)
                mine, k = positions[source == i], k[source == i]
                if len(k):
                    found = self.inputs[i].find(leaf, index, int(k.min()), int(k.max()) + 1)
                    parts.append(mine[np.isin(k, found)])
                progress.more(len(positions))
        return np.concatenate(parts)

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        if not isinstance(self.schedule, Invertible):
            return super().nth(leaf, number, last)
        source, k = self.owner[leaf], np.empty(len(leaf), np.int64)
        for i in map(int, find_distinct_values(source)):
            mine = np.flatnonzero(source == i)
            k[mine] = self.inputs[i].nth(leaf[mine], number[mine], last)
        known, epoch = k >= 0, np.zeros_like(k)
        if self._pass is not None:
            drawn = self.schedule.counts(self._pass)[source]
            later = known & (k >= drawn)
            known &= ~later | (
                drawn == self.advance[source]
            )  # else passes do not follow one another without gaps
            epoch = np.where(later, k // np.maximum(drawn, 1), 0)
            k = k - epoch * drawn
        out = np.full(len(k), UNKNOWN)
        out[known] = epoch[known] * (self._pass or 0) + self.schedule.positions_of(
            source[known], k[known]
        )
        return out

    # ------------------------------------------------------------ sums

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        schedule, size = self.schedule, self._pass
        if not isinstance(schedule, Invertible):
            tally.look_at(stop - start)
            return tally.one_by_one(self, start, stop, times)

        def part(a: int, b: int, epoch: int, times: int) -> None:
            low, high = schedule.counts(a), schedule.counts(b)
            shift = self.drawn(epoch)
            for i in np.flatnonzero(high > low).tolist():
                self.inputs[i].count(tally, int(low[i] + shift[i]), int(high[i] + shift[i]), times)

        if size is None:
            return part(start, stop, 0, times)
        first, last = start // size, stop // size
        if first == last:
            return part(start - first * size, stop - first * size, first, times)
        part(start - first * size, size, first, times)
        self._passes(tally, schedule.counts(size).tolist(), first + 1, last, times)
        part(0, stop - last * size, last, times)

    def _passes(self, tally: Tally, counts: list[int], first: int, last: int, times: int) -> None:
        """Whole passes of a mix that ends."""
        for input, step, drawn, base in zip(
            self.inputs, self.advance.tolist(), counts, self.base.tolist(), strict=True
        ):
            if step == drawn:
                input.count(tally, base + first * step, base + last * step, times)
            elif step == 0:
                input.count(tally, base, base + drawn, times * (last - first))
            elif input.has_steady_counts and not tally.by_document:
                input.count(tally, 0, drawn, times * (last - first))
            else:
                tally.look_at_passes(last - first, drawn)
                for epoch in range(first, last):
                    input.count(tally, base + epoch * step, base + epoch * step + drawn, times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        _, _, epoch, place = self._find_progress(position, True)
        if epoch and not (self.schedule.counts(self._pass or 0) == self.advance).all():
            return lengths.sums(self).before(position, out, times)
        drawn = self.schedule.counts(place) + self.drawn(epoch)
        for upto, sign in ((drawn, times), (self.base, -times)):
            if upto.any():
                self._shuffled_sources.tokens(upto, lengths, out, sign)
                for i in np.flatnonzero(
                    (upto > 0) & (drawn > self.base) & ~self._shuffled_sources.mine
                ).tolist():
                    self.inputs[i].tokens(int(upto[i]), lengths, out, sign)

    # ------------------------------------------------------------ how far

    def find_progress(self, position: int, early: bool = False) -> tuple[int, int]:
        _, earlier, epoch, place = self._find_progress(position, early)
        return earlier + epoch, place

    def _find_progress(self, position: int, early: bool) -> tuple[MixOp, int, int, int]:
        more = int(early and position > 0)  # the end of a pass is of that pass
        part, earlier, at = self.era_at(position - more)
        epoch, place = divmod(at, part._pass) if part._pass else (0, at)
        return part, earlier, epoch, place + more

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        part, earlier, epoch, place = self._find_progress(position, early)
        drawn = part.schedule.counts(place) + part.drawn(epoch)
        again = earlier + epoch > 0
        for each, k in zip(part.inputs, drawn.tolist(), strict=True):
            # Each pass of a mix that ends draws from the beginning of an endless input.
            replays = part._pass is not None and each.size is None
            yield Before(each, k, early and position > 0, replays=replays, again=replays and again)

    @property
    def has_steady_counts(self) -> bool:
        return (
            self._pass is not None
            and isinstance(self.schedule, Invertible)
            and all(each.has_steady_counts for each in self.inputs)
        )

    @property
    def repeats(self) -> bool:
        if self._pass is None or not isinstance(self.schedule, Invertible):
            return False
        drawn = self.schedule.counts(self._pass)
        same = bool((drawn == self.advance).all())
        return same and all(
            each.repeats for each, count in zip(self.inputs, drawn.tolist(), strict=True) if count
        )


def _same_functions(inputs: Sequence[Op]) -> tuple[list[Op], list[FunctionCall]]:
    """Split off the functions of single samples in which every input ends: return the inputs
    them, and the functions.
    """
    below, functions = [*map(below_orders, inputs)], list[FunctionCall]()
    while first := below[0].function:
        for op in below:
            call = op.function
            if not call or call.fn is not first.fn or not call.takes_value_alone:
                return below, functions
            if op.depth or call.profiler:
                return below, functions
        below, functions = [below_orders(op.inputs[0]) for op in below], [first, *functions]
    return below, functions


def _positions_of_draws(schedule: Invertible, source: int, k: Ints) -> Ints:
    return schedule.positions_of(np.full(len(k), source), k)
