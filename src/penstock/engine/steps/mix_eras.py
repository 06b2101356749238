"""A mixture that a run changed: a list of eras, each an unchanged mixture from a position on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...errors import StateError
from ...types import Ints, Path
from ..base.passes import Passes
from ..base.rows import ProvenanceRows, join_rows, make_empty_rows
from .mix_op import MixOp
from .op import Before, Op, UnaryOp
from .tally import Tally, make_removed_error
from .tokens import Lengths


class Era(NamedTuple):
    """From position `offset` of pass `epoch` on, samples are drawn by `mix`. That pass is its
    first."""

    epoch: int
    offset: int
    mix: MixOp


class PartOfEra(NamedTuple):
    """Positions `start` to `stop - 1` of one era: positions of its mixture, when `shift` is
    added."""

    mix: MixOp
    shift: int
    start: int
    stop: int


class ErasOp(Op):
    """The eras of a mixture, in order; the first begins at the first position.

    Positions count on over all eras. The inputs are those of the last era.
    """

    def __init__(self, eras: Sequence[Era]) -> None:
        self.eras, self._present = tuple(eras), eras[-1].mix
        self.inputs, self.depth = self._present.inputs, self._present.depth
        firsts = [0 if self.passes is None else self.passes.start(era.epoch) for era in eras]
        self._shifts = [-first for first in firsts]
        self._starts = [first + era.offset for first, era in zip(firsts, eras, strict=True)]

    @property
    def passes(self) -> Passes | None:
        return self._passes

    @cached_property
    def _passes(self) -> Passes | None:
        last = {era.epoch: era.mix.size for era in self.eras}
        sizes = [(epoch, size) for epoch, size in last.items() if size is not None]
        return Passes.of(sizes) if len(sizes) == len(last) else None

    @property
    def size(self) -> int | None:
        """The size of the first pass."""
        return None if self.passes is None else self.passes.sizes[0]

    @property
    def mixture(self) -> Path | None:
        return self._present.at

    @property
    def mixed(self) -> bool:
        return True

    def era_at(self, position: int) -> tuple[MixOp, int, int]:
        """Return the mixture at a position, its first pass, and the position in the mixture."""
        i = bisect_right(self._starts, position) - 1
        return self.eras[i].mix, self.eras[i].epoch, position + self._shifts[i]

    def position(self, epoch: int, offset: int) -> int:
        """Return the position at an offset in a pass."""
        return offset if self.passes is None else self.passes.start(epoch) + offset

    def _stretches(self, low: int, high: int) -> Iterator[PartOfEra]:
        """Yield the eras of the positions in a range."""
        for i in range(max(bisect_right(self._starts, low) - 1, 0), len(self.eras)):
            later = self._starts[i + 1] if i + 1 < len(self.eras) else high
            start, stop = max(self._starts[i], low), min(later, high)
            if start < stop:
                yield PartOfEra(self.eras[i].mix, self._shifts[i], start, stop)
            if later >= high:
                return

    def locate(self, positions: Ints) -> ProvenanceRows:
        if not len(positions):
            return make_empty_rows(self.depth)
        order = np.argsort(positions, kind="stable")
        ordered, parts = positions[order], list[ProvenanceRows]()
        for mix, shift, start, stop in self._stretches(int(ordered[0]), int(ordered[-1]) + 1):
            here = ordered[slice(*np.searchsorted(ordered, [start, stop]).tolist())]
            if len(here):
                parts.append(mix.locate(here + shift))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return join_rows(parts).take(back)

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return self._present.values(rows)

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        found = [
            mix.find(leaf, index, start + shift, stop + shift) - shift
            for mix, shift, start, stop in self._stretches(low, high)
        ]
        return np.concatenate([index[:0], *found])

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        for mix, shift, first, last in self._stretches(start, stop):
            mix.count(tally, first + shift, last + shift, times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        for mix, shift, start, stop in self._stretches(0, position):
            mix.tokens(stop + shift, lengths, out, times)
            mix.tokens(start + shift, lengths, out, -times)

    def find_progress(self, position: int, early: bool = False) -> tuple[int, int]:
        mix, epoch, at = self._era_before(position, early)
        passes, place = mix.find_progress(at, early)
        return epoch + passes, place

    def _era_before(self, position: int, is_end: bool) -> tuple[MixOp, int, int]:
        """Return the era at a position; the end of a pass is of that pass if it `is_end`."""
        more = int(is_end and position > 0)
        mix, epoch, at = self.era_at(position - more)
        return mix, epoch, at + more

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        mix, epoch, at = self._era_before(position, early)
        for each in mix.before(at, early):
            if each.op.leaves:
                yield each._replace(again=each.replays and (each.again or epoch > 0))


class FormerInput(UnaryOp):
    """An input whose passes had `size` samples in an earlier era, and have another number now."""

    def __init__(self, now: Op, size: int) -> None:
        super().__init__(now)
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def _now(self, positions: Ints) -> Ints:
        epoch, place = np.divmod(positions, self._size)
        return epoch * (self.input.size or 0) + place

    def locate(self, positions: Ints) -> ProvenanceRows:
        if (positions % self._size >= (self.input.size or 0)).any():
            raise StateError(
                "an earlier pass drew samples that their source no longer has; load the state with "
                "the data it was saved with"
            )
        return self.input.locate(self._now(positions))

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        now = self.input.size or 1
        first, last = self._now(np.asarray([low, high - 1])).tolist()
        epoch, place = np.divmod(self.input.find(leaf, index, first, last + 1), now)
        found = (epoch * self._size + place)[place < self._size]
        return found[(found >= low) & (found < high)]

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        if self.input.leaf is not None:  # any draws are as many samples
            return self.input.count(tally, start, stop, times)
        tally.one_by_one(self, start, stop, times)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        yield Before(self.input, int(self._now(np.asarray([position]))[0]), early)

    @property
    def period(self) -> int:
        return self._size

    @property
    def repeats(self) -> bool:
        return False

    @property
    def has_steady_counts(self) -> bool:
        return self.input.leaf is not None


class RemovedInput(Op):
    """An input of an earlier era that the pipeline no longer has."""

    def __init__(self, name: str, size: int | None) -> None:
        self.name, self._size = name, size

    @property
    def size(self) -> int | None:
        return self._size

    def locate(self, positions: Ints) -> ProvenanceRows:
        if not len(positions):
            return make_empty_rows(self.depth)
        raise make_removed_error(self.name)

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        return index[:0]

    def count(self, tally: Tally, start: int, stop: int, times: int = 1) -> None:
        tally.removed[self.name] += (stop - start) * times

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        pass

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        return iter(())
