"""Mixing by weight: the options of `mix`, and the draws of a lane. By position it is a `Mixture`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ....errors import ConfigError
from ....schedule import TOKEN_UNITS, CountedUnit, Schedule, TokenUnit
from ....types import Json, Sizer
from ...base.cursors import parse_cursor_int, parse_cursor_list
from ...base.shown import shorten_name
from ..events import Event, Exhausted, SetWeights, event_from_json
from ..mixture import Mixture
from ..timeline import Stop
from .rule import MANY, DrawChange, Draws, LaneShare, Outcome, Rule


@dataclass(frozen=True)
class Weighted(Rule):
    """Mixing by weight: the options of `mix`, and the changes of a run.

    Attributes:
        events: the changes during a run, each with the pass in which it was made.
        pasts: the mixtures that this one replaced, in order.
        now: the current pass of the run, if passes of the run are passes of the mixture.
        lengths: mean tokens of a sample of each input, measured once, if tokens are counted.
        point_lengths: those in the unit of the points, if weights count another unit of tokens.
        clock: whether tokens are counted by the token clock, because all lengths are known.
        draw_change: other draws, by a package outside the engine.
        sizer: the tokens of a sample once it is packed, if packing adds or cuts some.
        one_source_per: the positions in a row that draw from one source.
        global_step: the rows of a global step, for `one_source_per="global_step"`; None until a
            run has them.
    """

    weights: tuple[tuple[str, Any], ...] | Schedule | None
    seed: int
    block_size: int
    stop: Stop
    unit: CountedUnit
    max_epochs: float | tuple[tuple[str, float], ...] | None
    temperature: float | None
    events: tuple[tuple[int, Event], ...] = ()
    pasts: tuple[FormerMixture, ...] = ()
    now: int | None = None
    lengths: tuple[tuple[str, float], ...] | None = None
    clock: bool = False
    draw_change: DrawChange | None = None
    sizer: Sizer | None = None
    one_source_per: int | Literal["global_step"] = 1
    global_step: int | None = None
    point_lengths: tuple[tuple[str, float], ...] | None = None

    @property
    def stretch(self) -> int:
        """The positions in a row that draw from one source."""
        stretch = self.global_step if self.one_source_per == "global_step" else self.one_source_per
        if stretch is None:
            raise ConfigError(
                "mix(one_source_per='global_step'): the order depends on the rows of a global "
                "step, which a Loader or batch(global_batch_size=n) determines; use one of these, "
                "or give the number, one_source_per=<rows>"
            )
        return stretch

    @property
    def token_units(self) -> tuple[TokenUnit, ...]:
        """The units of tokens that are counted: of the weights, then of the points of a schedule."""
        points = self.weights.unit if isinstance(self.weights, Schedule) else self.unit
        wanted: set[str] = {self.unit, points}
        units: list[TokenUnit] = [unit for unit in TOKEN_UNITS if unit in wanted]
        return tuple(sorted(units, key=lambda unit: unit != self.unit))

    def means_by_unit(self) -> dict[str, dict[str, float]]:
        """Return the mean tokens of a sample of each input, in the units that are counted."""
        tables = zip(self.token_units, (self.lengths, self.point_lengths), strict=False)
        return {unit: dict(table) for unit, table in tables if table is not None}

    @cached_property
    def compiled(self) -> dict[Any, Any]:
        """Mixtures of this rule by names, sizes and path, shared by loaders, plans and passes."""
        return {}

    @cached_property
    def changed(self) -> dict[Any, Any]:
        """Mixtures after the latest changes, to which one more change is added."""
        return {}

    def with_changes(
        self,
        events: tuple[tuple[int, Event], ...],
        pasts: tuple[FormerMixture, ...],
        now: int | None,
    ) -> Weighted:
        """Return the rule of a run with these changes."""
        changed = replace(self, events=events, pasts=pasts, now=now)
        vars(changed)["changed"] = self.changed
        return changed

    named = keyed_by_name = shares_known = True

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
        weights = self.weights
        weights = weights.to_json() if isinstance(weights, Schedule) else weights and dict(weights)
        caps = dict(self.max_epochs) if isinstance(self.max_epochs, tuple) else self.max_epochs
        return {
            "mix": "weighted", "weights": weights, "seed": self.seed, "block_size": self.block_size, "stop": self.stop,
            "unit": self.unit, "max_epochs": caps, "temperature": self.temperature,
            **({} if self.lengths is None else {"lengths": dict(self.lengths)}),
            **({} if self.point_lengths is None else {"point_lengths": dict(self.point_lengths)}),
            **({} if self.draw_change is None else self.draw_change.describe()),
            **({"clock": True} if self.clock else {}),
            **({} if (size := self.sizer) is None else {"packed": [size.extra, size.multiple, size.most]}),
            **({} if self.one_source_per == 1 else {"one_source_per": self.one_source_per}),
            **({"global_step": self.global_step} if self.one_source_per == "global_step" else {}),
        }  # fmt: skip

    def options(self) -> dict[str, Any]:
        caps = self.max_epochs
        return {
            "seed": self.seed or None,
            "stop": None if self.stop == "restart" else self.stop,
            "unit": None if self.unit == "samples" else self.unit,
            "block_size": None if self.block_size == 1 else self.block_size,
            "one_source_per": None if self.one_source_per == 1 else self.one_source_per,
            "max_epochs": shorten_name(dict(caps)) if isinstance(caps, tuple) else caps,
            "temperature": self.temperature,
            **({} if self.draw_change is None else self.draw_change.describe()),
            "changes": len(self.events) or None,
        }

    def shares(self, names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Return the share of every input at first and at last; both empty if lengths decide."""
        if self.weights is None and self.temperature is not None:
            return {}, {}
        weights: Any = self.weights or dict.fromkeys(names, 1.0)
        for _, event in self.events:
            weights = event.weights if isinstance(event, SetWeights) else weights
        if isinstance(weights, Schedule):
            first, last = weights.points[0][1], weights.points[-1][1]
        else:
            first = last = weights
        return _normalize(names, dict(first)), _normalize(names, dict(last))

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class MixtureByPass:
    """A mixture after `events`, by pass.

    Attributes:
        passes: the mixture that draws from each of these passes on.
        mixture: the mixture in passes after the last event.
    """

    events: tuple[tuple[int, Event], ...]
    passes: dict[int, Mixture]
    mixture: Mixture

    @staticmethod
    def of(mixture: Mixture, events: Sequence[tuple[int, Event]]) -> MixtureByPass:
        """Return a mixture after events."""
        return MixtureByPass((), {0: mixture}, mixture).and_then(events)

    def at(self, epoch: int) -> Mixture:
        """Return the mixture of a pass."""
        return self.passes[max(first for first in self.passes if first <= epoch)]

    def begins(self, events: tuple[tuple[int, Event], ...]) -> bool:
        """Return whether these events are the first of others."""
        return self.events == events[: len(self.events)]

    def and_then(self, events: Sequence[tuple[int, Event]]) -> MixtureByPass:
        """Return the mixture after more events."""
        passes, mixture = dict(self.passes), self.mixture
        for epoch, event in events:
            before = passes[max(first for first in passes if first <= epoch)]
            passes[epoch] = before.with_event(event)
            if isinstance(event, SetWeights):
                mixture = replace(mixture, weights=event.weights, temperature=None)
                passes[epoch] = passes[epoch] if event.at or before.log else mixture
            passes[epoch + 1] = mixture
        return MixtureByPass((*self.events, *events), passes, mixture)


@dataclass(frozen=True)
class FormerMixture:
    """A mixture that another one replaced at position `at` of pass `epoch`, and its events.

    `rows` has the sources below it that had another number of rows then.
    """

    mixture: Mixture
    events: tuple[tuple[int, Event], ...]
    epoch: int
    at: int
    rows: tuple[tuple[str, int], ...] = ()

    @cached_property
    def changed(self) -> MixtureByPass:
        """The mixture of each pass."""
        return MixtureByPass.of(self.mixture, self.events)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class ByWeight(Draws):
    """A lane's share of a weighted mixture over inputs of unknown length.

    It is the mixture of the run, without the inputs that ended here after so many `passes`.
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
    def per_pass(self) -> int:
        if self.stop in ("first_exhausted", "all_exhausted"):
            return 1
        return max(MANY if cap is None else cap for cap in self.caps)

    def choose(self, position: int, n: int, /) -> list[int]:
        places = self.share.compute_offsets(np.arange(position, position + n), 0)
        places = places[places < self.mixture.end_within(int(places[-1]) + 1)]
        return [] if self.over else self.mixture.at(places)[0].tolist()

    def ended(
        self, source: int, position: int, drawn: Sequence[int], empty: bool, /
    ) -> tuple[Draws, Outcome]:
        passes = tuple(done + (i == source) for i, done in enumerate(self.passes))
        cap = self.caps[source]
        if self.stop == "first_exhausted":
            return replace(self, passes=passes), "end"
        if empty or self.stop == "all_exhausted" or passes[source] == cap:
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
    """Return the largest number of whole passes over each input."""
    caps = [rule.cap(name) for name in names]
    for name, cap in zip(names, caps, strict=True):
        if cap is not None and cap != int(cap):
            raise ConfigError(
                f"max_epochs of {name!r} is {cap}, but an input of the mixture has no random "
                "access, so parts of a pass cannot be counted; give a whole number of passes"
            )
    return tuple(None if cap is None else int(cap) for cap in caps)


def _normalize(names: Sequence[str], weights: Mapping[str, Any]) -> dict[str, float]:
    known = {name: float(weights.get(name, 0.0)) for name in names}
    total = sum(known.values())
    return {name: weight / total for name, weight in known.items()}
