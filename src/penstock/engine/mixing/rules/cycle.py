"""A ring of inputs: where one ends, the next that was not begun has its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....types import Json
from ...base.cursors import make_cursor_error, parse_cursor_int, parse_cursor_list
from .rule import Drawing, Draws, LaneShare, Outcome, Rule


@dataclass(frozen=True)
class Cycle(Rule):
    """One sample of each of `width` inputs in turn; where one ends, the next that was not begun has
    its place from the next round on.
    """

    width: int

    METHOD = "interleave"
    named = True
    unindexed = "interleave() depends on where each of its inputs ends"

    def schedule(self, sizes: Sequence[int | None]) -> Drawing:
        raise AssertionError("the ends of its inputs are not known beforehand")

    def draws(self, n: int, share: LaneShare) -> Draws:
        return InCycle.of(n, self.width)

    def endless(self, names: Sequence[str], inputs: Sequence[bool]) -> bool:
        return any(inputs)

    def describe(self) -> dict[str, Json]:
        return {"mix": "interleave", "width": self.width}

    def options(self) -> dict[str, Any]:
        return {"width": self.width}


@dataclass(frozen=True)
class InCycle(Draws):
    """Round robin over the inputs in `ring`; the first is due at position `start`.

    `fresh` is the next of `n` inputs that was not begun.
    """

    n: int
    ring: tuple[int, ...]
    fresh: int
    start: int = 0

    @staticmethod
    def of(n: int, width: int) -> InCycle:
        return InCycle(n, tuple(range(min(n, width))), min(n, width))

    def choose(self, position: int, n: int, /) -> list[int]:
        ring = self.ring
        return (
            [ring[(p - self.start) % len(ring)] for p in range(position, position + n)]
            if ring
            else []
        )

    def ended(
        self, source: int, position: int, drawn: Sequence[int], empty: bool, /
    ) -> tuple[Draws, Outcome]:
        place = self.ring.index(source)
        rest = (*self.ring[place + 1 :], *self.ring[:place])
        new = (self.fresh,) if self.fresh < self.n else ()
        ring = (*rest, *new)
        return InCycle(self.n, ring, self.fresh + len(new), position), "redraw" if ring else "end"

    def saved(self) -> Json:
        return [self.start, list(self.ring), self.fresh]

    def restored(self, saved: Json, /) -> Draws:
        start, ring, fresh = parse_cursor_list(saved, 3)
        begun = tuple(map(parse_cursor_int, ring))
        if (
            len(set(begun)) < len(begun)
            or not max(begun, default=-1) < parse_cursor_int(fresh) <= self.n
        ):
            raise make_cursor_error(saved, f"a ring of {self.n} inputs")
        return InCycle(self.n, begun, fresh, parse_cursor_int(start))
