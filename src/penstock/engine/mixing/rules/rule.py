"""Mixing rules: the input of each draw, by position and one draw at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from ....types import Ints, Json

Outcome = Literal["again", "end", "redraw"]
MANY = 1 << 20  # passes where nobody can know how many; enough that none is begun twice


class Drawing(Protocol):
    """The input of each position of a pass, and which of its draws the position is."""

    @property
    def size(self) -> int | None: ...
    @property
    def passes(self) -> Ints: ...
    def at(self, positions: Ints, /) -> tuple[Ints, Ints]: ...
    def counts(self, position: int, /) -> Ints: ...


@runtime_checkable
class Invertible(Protocol):
    """A drawing with an inverse: the draws of each input before a position, the positions of draws
    (or -1)."""

    def counts(self, position: int, /) -> Ints: ...
    def places(self, source: Ints, k: Ints, /) -> Ints: ...


class DrawChange(ABC):
    """A change of the draws of a weighted mixture by a package outside the engine.

    `Weighted(draw_change=...)` has the change of a new run. During the run, the package replaces it
    by another of its class (`ChangedDraws`), which states save as an event of this `kind`. The
    weights of such a mixture cannot change.

    Args:
        kind: name of the event in states, unique for each class.
    """

    classes: ClassVar[dict[str, type[DrawChange]]] = {}

    def __init_subclass__(cls, kind: str) -> None:
        DrawChange.classes[kind] = cls

    @abstractmethod
    def apply_to(self, mixture: Any, /) -> Drawing:
        """Return the changed draws of a `Mixture`; the mixture itself if it draws as before."""

    @abstractmethod
    def describe(self) -> dict[str, Json]:
        """Return the options of `mix` that describe this kind of draws."""

    @abstractmethod
    def to_json(self) -> dict[str, Json]:
        """Return the event, with its kind under "event"."""

    @classmethod
    @abstractmethod
    def from_json(cls, saved: Any, /) -> Self:
        """Return the change that `to_json` wrote."""


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
    def compute_offsets(self, rounds: Ints, run: int, /) -> Ints: ...


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
        """Return whether a mix never ends, for inputs that never do or end."""
        raise NotImplementedError

    def describe(self) -> dict[str, Json]:
        """Return the rule as JSON, for fingerprints."""
        raise NotImplementedError
