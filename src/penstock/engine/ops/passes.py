"""A mixture that ends and was changed on the way: each pass as it was, or is, or will be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import StateError
from ...types import Ints, Path
from ..base.rows import ProvenanceRows, join_rows, make_empty_rows
from .mix import MixOp
from .op import Before, Op
from .tally import Tally
from .tokens import Lengths


@dataclass(frozen=True)
class Cut:
    """Positions `[start, stop)`, which are those of a part when `shift` is added."""

    part: MixOp
    shift: int
    start: int
    stop: int


class PassesOp(Op):
    """From pass `laps[i]`, at position `starts[i]`, it is `parts[i]`, of the same inputs. `now` is
    the pass in which a run of its passes stands: then all count `size` positions, as that one has,
    and those that have another number are not told.
    """

    def __init__(
        self,
        laps: Sequence[int],
        starts: Sequence[int],
        parts: Sequence[MixOp],
        size: int,
        now: int | None,
    ) -> None:
        self.laps, self.starts, self.parts, self.now = tuple(laps), tuple(starts), tuple(parts), now
        self.inputs, self.depth, self._size = parts[0].inputs, parts[0].depth, size

    @property
    def size(self) -> int:
        return self._size

    @property
    def mixture(self) -> Path | None:
        return self.parts[0].at

    @property
    def mixed(self) -> bool:
        return True

    @cached_property
    def first(self) -> int:
        """The first pass that is told."""
        return next(
            lap for lap, part in zip(self.laps, self.parts, strict=True) if self.tells(part)
        )

    def tells(self, part: MixOp) -> bool:
        """Whether the passes that are a part are told."""
        return self.now is None or part.size == self._size

    def told(self, epoch: int) -> bool:
        """Whether a pass is told."""
        return self.tells(self.place(epoch * self._size)[0])

    def check(self, low: int, high: int) -> None:
        """Refuse positions of passes that are not told."""
        for cut in self._cut(low, high):
            if not self.tells(cut.part):
                raise StateError(
                    f"pass {cut.start // self._size} of the mixture has {cut.part.size} "
                    f"positions, the current pass {self._size}: a change of the run altered the "
                    "length of a pass; make the plan from a state saved in that pass"
                )

    def _told(self, low: int, high: int) -> Iterator[Cut]:
        self.check(low, high)
        return self._cut(low, high)

    def _cut(self, low: int, high: int) -> Iterator[Cut]:
        """Positions `[low, high)`, cut where the mixture changed."""
        edges = [min(max(start, low), high) for start in (*self.starts, max(high, low))]
        for start, part, a, b in zip(self.starts, self.parts, edges, edges[1:], strict=False):
            if a < b:
                yield Cut(part, -start, a, b)

    def place(self, position: int) -> tuple[MixOp, int, int]:
        """Return the mixture at a position, the first pass with it, and the position in the
        mixture.
        """
        i = bisect_right(self.starts, position) - 1
        return self.parts[i], self.laps[i], position - self.starts[i]

    def position(self, lap: int, place: int) -> int:
        """The position of a place of a pass."""
        i = bisect_right(self.laps, lap) - 1
        return self.starts[i] + (lap - self.laps[i]) * (self.parts[i].size or 0) + place

    def locate(self, positions: Ints) -> ProvenanceRows:
        order = np.argsort(positions, kind="stable")
        ordered, parts = positions[order], [make_empty_rows(self.depth)]
        if len(ordered):
            for cut in self._told(int(ordered[0]), int(ordered[-1]) + 1):
                here = order[slice(*np.searchsorted(ordered, [cut.start, cut.stop]).tolist())]
                parts.append(cut.part.locate(positions[here] + cut.shift))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return join_rows(parts).take(back)

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return self.parts[0].values(rows)

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        found = [
            cut.part.find(leaf, index, cut.start + cut.shift, cut.stop + cut.shift) - cut.shift
            for cut in self._cut(low, high)
            if self.tells(cut.part)
        ]
        return np.concatenate([index[:0], *found])

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        for cut in self._told(start, stop):
            cut.part.count(tally, cut.start + cut.shift, cut.stop + cut.shift, times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        for cut in self._told(0, position):
            cut.part.tokens(cut.stop + cut.shift, lengths, out, times)
            cut.part.tokens(cut.start + cut.shift, lengths, out, -times)

    def stands(self, position: int, ahead: bool = False) -> tuple[int, int]:
        part, lap, at = self._at(position, ahead)
        epoch, place = part.stands(at, ahead)
        return lap + epoch, place

    def _at(self, position: int, ahead: bool) -> tuple[MixOp, int, int]:
        more = int(ahead and position > 0)
        part, lap, at = self.place(position - more)
        return part, lap, at + more

    def before(self, position: int, ahead: bool = False) -> Iterator[Before]:
        part, _, at = self._at(position, ahead)
        return part.before(at, ahead)
