"""Mixing rules: the input of each draw, by position and one draw at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np

from ....types import Ints, Json

Outcome = Literal["again", "end", "redraw"]
MANY = 1 << 20  # passes where nobody can know how many; enough that none is begun twice


class Drawing(Protocol):
    """A rule by position, over inputs of known lengths.

    `size` is the number of positions of a pass (None: it never ends), `passes` the passes of each
    input in one pass. `at` returns the input of each position, and which draw of that input it is;
    `counts` the draws of each input before a position.
    """

    @property
    def size(self) -> int | None: ...
    @property
    def passes(self) -> Ints: ...
    def at(self, positions: Ints, /) -> tuple[Ints, Ints]: ...
    def counts(self, position: int, /) -> Ints: ...


@dataclass(frozen=True)
class OverInputs:
    """A drawing that takes one pass of each input in a pass, over inputs of these lengths."""

    sizes: tuple[int | None, ...]

    @property
    def passes(self) -> Ints:
        return np.ones(len(self.sizes), np.int64)


@runtime_checkable
class Invertible(Protocol):
    """A drawing with an inverse: the draws of each input before a position, the positions of draws
    (or -1)."""

    def counts(self, position: int, /) -> Ints: ...
    def positions_of(self, source: Ints, k: Ints, /) -> Ints: ...


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
    of an input's end right after its last sample instead of at the first draw that fails. `per_pass` is
    how many passes of an input one pass takes at most. What is `empty`, pass after pass without
    a sample, is not begun again. A rule without anything to remember saves nothing.
    """

    @property
    def eager(self) -> bool:
        return False

    @property
    def per_pass(self) -> int:
        return 1

    def choose(self, position: int, n: int, /) -> list[int]:
        raise NotImplementedError

    def ended(
        self, source: int, position: int, drawn: Sequence[int], empty: bool, /
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

    A rule is a file of this folder. It says here all that the step `Mix` needs to know of it.
    """

    METHOD: ClassVar[str] = "mix"
    """The function or method of users that makes the rule."""
    named: ClassVar[bool] = False
    """True if inputs are identified by name, not by place."""
    keyed_by_name: ClassVar[bool] = False
    """True if the random steps of an input are keyed by its name."""
    unindexed: ClassVar[str | None] = None
    """The reason why a mix of this rule never has positions."""
    shares_known: ClassVar[bool] = False
    """True if a formula tells how often each input is drawn from in the long run."""
    counts_passes: ClassVar[bool] = False
    """True if positions and draws count on from one pass to the next."""
    paired: ClassVar[bool] = False
    """True if samples of different inputs belong together."""

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

    def options(self) -> dict[str, Any]:
        """Return the options as users write them, to show the rule; None is left out."""
        return {}

    def shares(self, names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Return the share of every input at first and at last, to show it; both may be empty."""
        return {}, {}
