"""Draws by position: protocols of mixing rules, and the hook for packages that change the draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from ...types import Ints, Json


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
