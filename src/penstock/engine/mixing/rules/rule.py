"""What a rule of mixing is: whose turn it is, by position and one draw at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

from ....types import Ints, Json
from ..drawing import Drawing

Outcome = Literal["again", "end", "redraw"]
MANY = 1 << 20  # passes where nobody can know how many; enough that none is begun twice


class Draws:
    """A rule at run time. Immutable, so that trails can keep it.

    `choose` gives whose turn it is at the next positions, none at the end; `eager` asks to be told
    of an input's end right after its last sample instead of at the first draw that fails. `laps` is
    how many passes of an input one pass takes at most. What goes `barren`, pass after pass without
    a sample, is not begun again. A rule without anything to remember saves nothing.
    """

    @property
    def eager(self) -> bool:
        return False

    @property
    def laps(self) -> int:
        return 1

    def choose(self, position: int, n: int, /) -> list[int]:
        raise NotImplementedError

    def ended(
        self, source: int, position: int, drawn: Sequence[int], barren: bool, /
    ) -> tuple[Draws, Outcome]:
        raise NotImplementedError

    def saved(self) -> Json:
        return None

    def restored(self, saved: Json, /) -> Draws:
        return self


class LaneShare(Protocol):
    """A lane's share of the positions of a run: one in every round of so many `lanes`."""

    @property
    def lanes(self) -> int: ...
    def places(self, rounds: Ints, run: int, /) -> Ints: ...


class Rule:
    """The way in which inputs are combined: by position if all have positions, else one draw at a
    time until an input ends.

    `named`: inputs are identified by name, not by place. `unindexed`: the reason why a mix of this
    rule never has positions.
    """

    named: ClassVar[bool] = False
    unindexed: ClassVar[str | None] = None

    def schedule(self, sizes: Sequence[int | None]) -> Drawing:
        """The rule by position, over inputs of these lengths."""
        raise NotImplementedError

    def draws(self, n: int, share: LaneShare) -> Draws:
        """The draws of a lane from `n` inputs whose lengths are not known."""
        raise NotImplementedError

    def endless(self, names: Sequence[str], inputs: Sequence[bool]) -> bool:
        """Whether a mix never ends, given which of its inputs never do."""
        raise NotImplementedError

    def describe(self) -> dict[str, Json]:
        """What it is, for fingerprints."""
        raise NotImplementedError
