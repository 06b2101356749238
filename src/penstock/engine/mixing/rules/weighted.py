"""By weight: what was asked for, and the draws of a lane. By position it is a `Mixture`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ....errors import ConfigError
from ....schedule import CountedUnit, Schedule
from ....types import Json
from ...base.cursors import parse_cursor_int, parse_cursor_list
from ..events import Event, Exhausted, SetWeights, event_from_json
from ..mixture import Mixture
from ..timeline import Stop
from .rule import MANY, DrawChange, Draws, LaneShare, Outcome, Rule


@dataclass(frozen=True)
class Weighted(Rule):
    """By weight: see `penstock.engine.mixing`. `events` are the changes made during a run, each
    with the pass in which it was made; cursors carry them. `now` is the pass in which the run
    stands, where that is a pass of the mixture. `lengths` are the mean tokens of a sample of each
    input, where tokens are counted: found out once, when the mixture is made. `clock` says that
    tokens are counted by the clock, as all lengths are known. A package outside the engine may
    change the draws.
    """

    weights: tuple[tuple[str, Any], ...] | Schedule | None
    seed: int
    block_size: int
    stop: Stop
    unit: CountedUnit
    max_epochs: float | tuple[tuple[str, float], ...] | None
    temperature: float | None
    events: tuple[tuple[int, Event], ...] = ()
    pasts: tuple[Past, ...] = ()
    now: int | None = None
    lengths: tuple[tuple[str, float], ...] | None = None
    clock: bool = False
    draw_change: DrawChange | None = None

    @cached_property
    def compiled(self) -> dict[Any, Any]:
        """The mixtures that were made of this rule, by their names, sizes and place: loaders, plans
        and passes share what one of them has worked out.
        """
        return {}

    @cached_property
    def changed(self) -> dict[Any, Any]:
        """The mixtures after the latest changes, likewise: one more change is added to these."""
        return {}

    def after(
        self, events: tuple[tuple[int, Event], ...], pasts: tuple[Past, ...], now: int | None
    ) -> Weighted:
        """Return the rule of a run with these changes."""
        found = replace(self, events=events, pasts=pasts, now=now)
        vars(found)["changed"] = self.changed
        return found

    named = True

    def endless(self, names: Sequence[str], inputs: Sequence[bool]) -> bool:
        """Return whether a mixture never ends. Inputs of weight 0 do not count; a cap ends only
        inputs with a length.
        """
        if isinstance(self.weights, Schedule):
            points = [weights for _, weights in self.weights.points]
        else:
            points = [dict(self.weights or dict.fromkeys(names, 1.0))]
        is_endless = dict(zip(names, inputs, strict=True))
        live = [name for name in names if any(point.get(name) for point in points)]
        if self.stop == "restart":
            return any(is_endless[name] or self.cap(name) is None for name in live)
        combine = all if self.stop == "first_exhausted" else any
        return combine(is_endless[name] for name in live)

    def cap(self, name: str) -> float | None:
        """Return the largest number of passes over an input."""
        caps = self.max_epochs
        return dict(caps).get(name) if isinstance(caps, tuple) else caps

    def describe(self) -> dict[str, Json]:
        asked = (
            self.weights.to_json()
            if isinstance(self.weights, Schedule)
            else self.weights and dict(self.weights)
        )
        caps = dict(self.max_epochs) if isinstance(self.max_epochs, tuple) else self.max_epochs
        return {
            "mix": "weighted", "weights": asked, "seed": self.seed, "block_size": self.block_size, "stop": self.stop,
            "unit": self.unit, "max_epochs": caps, "temperature": self.temperature,
            **({} if self.lengths is None else {"lengths": dict(self.lengths)}),
            **({} if self.draw_change is None else self.draw_change.describe()),
            **({"clock": True} if self.clock else {}),
        }  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class Changed:
    """A mixture after `events`: from which pass on it is which mixture, and what it is in new
    passes."""

    events: tuple[tuple[int, Event], ...]
    passes: dict[int, Mixture]
    mixture: Mixture

    @staticmethod
    def of(mixture: Mixture, events: Sequence[tuple[int, Event]]) -> Changed:
        """Return a mixture after events."""
        return Changed((), {0: mixture}, mixture).and_then(events)

    def at(self, epoch: int) -> Mixture:
        """Return the mixture of a pass."""
        return self.passes[max(each for each in self.passes if each <= epoch)]

    def begins(self, events: tuple[tuple[int, Event], ...]) -> bool:
        """Return whether these events are the first of others."""
        return self.events == events[: len(self.events)]

    def and_then(self, events: Sequence[tuple[int, Event]]) -> Changed:
        """Return the mixture after more events."""
        passes, mixture = dict(self.passes), self.mixture
        for epoch, event in events:
            before = passes[max(each for each in passes if each <= epoch)]
            passes[epoch] = before.with_event(event)
            if isinstance(event, SetWeights):
                mixture = replace(mixture, weights=event.weights, temperature=None)
                passes[epoch] = passes[epoch] if event.at or before.log else mixture
            passes[epoch + 1] = mixture
        return Changed((*self.events, *events), passes, mixture)


@dataclass(frozen=True)
class Past:
    """A mixture that another one took over from at position `at` of pass `lap`, and what had
    happened to it."""

    mixture: Mixture
    events: tuple[tuple[int, Event], ...]
    lap: int
    at: int

    @cached_property
    def changed(self) -> Changed:
        """The mixture of each pass."""
        return Changed.of(self.mixture, self.events)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class ByWeight(Draws):
    """A lane's share of a weighted mixture over inputs of unknown length, after so many `passes` of
    each.

    It is the mixture of the run, without the inputs that ended here.
    """

    mixture: Mixture
    share: LaneShare
    stop: Stop
    caps: tuple[int | None, ...]
    passes: tuple[int, ...]
    over: bool = False

    @property
    def eager(self) -> bool:
        return self.stop != "first_exhausted"

    @property
    def laps(self) -> int:
        if self.stop in ("first_exhausted", "all_exhausted"):
            return 1
        return max(MANY if cap is None else cap for cap in self.caps)

    def choose(self, position: int, n: int, /) -> list[int]:
        places = self.share.places(np.arange(position, position + n), 0)
        places = places[places < self.mixture.end_within(int(places[-1]) + 1)]
        return [] if self.over else self.mixture.at(places)[0].tolist()

    def ended(
        self, source: int, position: int, drawn: Sequence[int], barren: bool, /
    ) -> tuple[Draws, Outcome]:
        passes = tuple(done + (i == source) for i, done in enumerate(self.passes))
        cap = self.caps[source]
        if self.stop == "first_exhausted":
            return replace(self, passes=passes), "end"
        if barren or self.stop == "all_exhausted" or passes[source] == cap:
            return self._dropped(source, position, passes, drawn)
        if self.stop == "all_exhausted_oversample":
            seen = all(done > 0 for i, done in enumerate(passes) if self.mixture.opened[i])
            return replace(self, passes=passes, over=seen), "end" if seen else "again"
        return replace(self, passes=passes), "again"

    def _dropped(
        self, source: int, at: int, passes: tuple[int, ...], drawn: Sequence[int]
    ) -> tuple[Draws, Outcome]:
        at *= self.share.lanes  # a position of the run
        mixture = self.mixture.with_event(Exhausted(at, self.mixture.names[source], drawn[source]))
        left = mixture.live(at)
        return replace(
            self, mixture=mixture, passes=passes, over=not left
        ), "redraw" if left else "end"

    def saved(self) -> Json:
        events = [event.to_json() for event in self.mixture.log if isinstance(event, Exhausted)]
        return [list(self.passes), self.over, events]

    def restored(self, saved: Json, /) -> Draws:
        passes, over, events = parse_cursor_list(saved, 3)
        mixture = self.mixture
        for event in map(event_from_json, events):
            mixture = mixture.with_event(event)
        passes = tuple(map(parse_cursor_int, parse_cursor_list(passes, len(self.passes))))
        return replace(self, mixture=mixture, passes=passes, over=bool(over))


def caps_of(rule: Weighted, names: Sequence[str]) -> tuple[int | None, ...]:
    """How many whole passes each input may make."""
    caps = [rule.cap(name) for name in names]
    for name, cap in zip(names, caps, strict=True):
        if cap is not None and cap != int(cap):
            raise ConfigError(
                f"max_epochs of {name!r} is {cap}, but its length is not known beforehand (see "
                "its steps); give a whole number of passes"
            )
    return tuple(None if cap is None else int(cap) for cap in caps)
