"""Whose turn it is in a mix of streams, and what happens when an input ends. One small class for each rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import ConfigError
from ..mixing import Exhausted, Mixture, Stop, event_from_json
from ..ops.weave import MANY, Draws, Outcome
from ..streams.rounds import Share
from ..streams.stream import as_int, as_list, bad_cursor
from ..types import Json
from .draws import RuleSchedule, mixture
from .nodes import Again, By, Chain, Cycle, Head, Mix, Path, Turns, Weighted


@dataclass(frozen=True)
class InTurn:
    """Round robin over `n` inputs; the first that ends, ends all."""

    n: int

    eager, laps, said = False, 1, False

    def choose(self, position: int, n: int, /) -> list[int]:
        return [p % self.n for p in range(position, position + n)]

    def ended(self, source: int, position: int, drawn: Sequence[int], barren: bool, /) -> tuple[Draws, Outcome]:
        return self, "end"

    def saved(self) -> Json:
        return None

    def restored(self, saved: Json, /) -> Draws:
        return self


@dataclass(frozen=True)
class OneByOne:
    """Input after input, `n` of them. `at` is the one being read."""

    n: int
    at: int = 0

    eager, laps, said = False, 1, False

    def choose(self, position: int, n: int, /) -> list[int]:
        return [self.at] * n if self.at < self.n else []

    def ended(self, source: int, position: int, drawn: Sequence[int], barren: bool, /) -> tuple[Draws, Outcome]:
        return OneByOne(self.n, source + 1), "redraw"

    def saved(self) -> Json:
        return self.at

    def restored(self, saved: Json, /) -> Draws:
        return OneByOne(self.n, as_int(saved))


@dataclass(frozen=True)
class Passes:
    """`epochs` passes of one input, or endlessly many."""

    epochs: int | None
    done: int = 0

    eager = False

    @property
    def laps(self) -> int:
        return self.epochs or MANY

    @property
    def said(self) -> bool:
        return bool(self.epochs)

    def choose(self, position: int, n: int, /) -> list[int]:
        return [] if self.done == self.epochs else [0] * n

    def ended(self, source: int, position: int, drawn: Sequence[int], barren: bool, /) -> tuple[Draws, Outcome]:
        done = Passes(self.epochs, self.done + 1)
        return done, "end" if barren or done.done == self.epochs else "again"

    def saved(self) -> Json:
        return self.done

    def restored(self, saved: Json, /) -> Draws:
        return Passes(self.epochs, as_int(saved))


@dataclass(frozen=True)
class InCycle:
    """Round robin over the inputs in `ring`, of which the first is due at position `start`; `fresh` is the next of `n`
    inputs that was not begun.
    """

    n: int
    ring: tuple[int, ...]
    fresh: int
    start: int = 0

    eager, laps, said = False, 1, False

    @staticmethod
    def of(n: int, width: int) -> InCycle:
        return InCycle(n, tuple(range(min(n, width))), min(n, width))

    def choose(self, position: int, n: int, /) -> list[int]:
        ring = self.ring
        return [ring[(p - self.start) % len(ring)] for p in range(position, position + n)] if ring else []

    def ended(self, source: int, position: int, drawn: Sequence[int], barren: bool, /) -> tuple[Draws, Outcome]:
        place = self.ring.index(source)
        rest, new = (*self.ring[place + 1 :], *self.ring[:place]), (self.fresh,) if self.fresh < self.n else ()
        ring = (*rest, *new)
        return InCycle(self.n, ring, self.fresh + len(new), position), "redraw" if ring else "end"

    def saved(self) -> Json:
        return [self.start, list(self.ring), self.fresh]

    def restored(self, saved: Json, /) -> Draws:
        start, ring, fresh = as_list(saved, 3)
        begun = tuple(map(as_int, ring))
        if len(set(begun)) < len(begun) or not max(begun, default=-1) < as_int(fresh) <= self.n:
            raise bad_cursor(saved, f"a ring of {self.n} inputs")
        return InCycle(self.n, begun, fresh, as_int(start))


@dataclass(frozen=True)
class ByRule:
    """A lane's share of a mixing rule of the user's, up to its own `size` where it has one; the first input that ends,
    ends all.
    """

    rule: RuleSchedule
    share: Share
    size: int | None

    eager, laps, said = False, 1, False

    def choose(self, position: int, n: int, /) -> list[int]:
        places = self.share.places(np.arange(position, position + n), 0)
        places = places if self.size is None else places[places < self.size]
        return self.rule.at(places)[0].tolist() if len(places) else []

    def ended(self, source: int, position: int, drawn: Sequence[int], barren: bool, /) -> tuple[Draws, Outcome]:
        return self, "end"

    def saved(self) -> Json:
        return None

    def restored(self, saved: Json, /) -> Draws:
        return self


@dataclass(frozen=True)
class ByWeight:
    """A lane's share of a weighted mixture over inputs of unknown length, of which it made so many `passes`. The
    mixture is that of the run, but for the inputs that ended here.
    """

    mixture: Mixture
    share: Share
    stop: Stop
    caps: tuple[int | None, ...]
    passes: tuple[int, ...]
    over: bool = False

    said = False

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
        return [] if self.over else self.mixture.at(places)[0].tolist()

    def ended(self, source: int, position: int, drawn: Sequence[int], barren: bool, /) -> tuple[Draws, Outcome]:
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

    def _dropped(self, source: int, at: int, passes: tuple[int, ...], drawn: Sequence[int]) -> tuple[Draws, Outcome]:
        at *= self.share.lanes  # a position of the run
        mixture = self.mixture.with_event(Exhausted(at, self.mixture.names[source], drawn[source]))
        left = mixture.live(at)
        return replace(self, mixture=mixture, passes=passes, over=not left), "redraw" if left else "end"

    def saved(self) -> Json:
        events = [event.to_json() for event in self.mixture.log if isinstance(event, Exhausted)]
        return [list(self.passes), self.over, events]

    def restored(self, saved: Json, /) -> Draws:
        passes, over, events = as_list(saved, 3)
        mixture = self.mixture
        for event in map(event_from_json, events):
            mixture = mixture.with_event(event)
        passes = tuple(map(as_int, as_list(passes, len(self.passes))))
        return replace(self, mixture=mixture, passes=passes, over=bool(over))


def draws_of(flow: Mix, path: Path, lane: int = 0, lanes: int = 1) -> Draws:
    """The rule of a mix of streams at run time, as a lane has it."""
    share = Share(lane, lanes, mixed=True)
    match flow.rule:
        case Turns():
            return InTurn(len(flow.flows))
        case Chain():
            return OneByOne(len(flow.flows))
        case Head():
            raise AssertionError("a limit is a run of its own")
        case Again(epochs):
            return Passes(epochs)
        case Cycle(width):
            return InCycle.of(len(flow.flows), width)
        case By(mixing):
            unknown = (None,) * len(flow.flows)
            return ByRule(RuleSchedule(mixing, unknown), share, mixing.size(unknown))
        case Weighted() as rule:
            if rule.unit == "tokens":
                raise ConfigError(
                    "mix(unit='tokens') needs inputs with random access, to know their lengths; filter before writing "
                    "the data, or weight by samples"
                )
            if (key := (flow.names, path)) not in rule.compiled:  # apart from those of the same inputs as positions
                endless = (None,) * len(flow.flows)
                rule.compiled[key] = mixture(replace(rule, max_epochs=None, stop="restart"), flow.names, endless, path)
            return ByWeight(rule.compiled[key], share, rule.stop, _caps(rule, flow.names), (0,) * len(flow.flows))


def _caps(rule: Weighted, names: tuple[str, ...]) -> tuple[int | None, ...]:
    """How many whole passes each input may make."""
    asked = dict(rule.max_epochs) if isinstance(rule.max_epochs, tuple) else dict.fromkeys(names, rule.max_epochs)
    out = list[int | None]()
    for name in names:
        cap = asked.get(name)
        if cap is not None and cap != int(cap):
            raise ConfigError(
                f"max_epochs of {name!r} is {cap}, but its length is not known beforehand (see its steps), so only "
                "whole passes can be counted"
            )
        out.append(None if cap is None else int(cap))
    return tuple(out)
