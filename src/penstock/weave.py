"""Mixing streams: inputs whose samples cannot be counted beforehand, drawn from one by one by a rule.

The rule says whose turn it is; what happens when an input ends is settled when it ends. Weighted mixtures note it as
an event in their log, so that the cursor replays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from .errors import DataError
from .mix import Event, Exhausted, Mixture, event_from_json
from .rows import Rows, empty_rows, join_rows
from .streams import Stream, Tap, as_int, as_list
from .trail import Chunk, Fixed, Trail
from .types import Ints, Json

Outcome = Literal["again", "end", "redraw"]


class Draws(Protocol):
    """A rule at run time. Immutable, so that trails can keep it.

    `choose` gives whose turn it is at the next positions, none at the end; `eager` asks to be told of an input's end
    right after its last sample instead of at the first draw that fails.
    """

    @property
    def eager(self) -> bool: ...
    def choose(self, position: int, n: int, /) -> list[int]: ...
    def ended(self, source: int, position: int, drawn: Sequence[int], /) -> tuple[Draws, Outcome]: ...
    def saved(self) -> Json: ...
    def restored(self, saved: Json, /) -> Draws: ...


@dataclass(frozen=True)
class InTurn:
    """Round robin over `n` inputs; the first that ends, ends all."""

    n: int

    eager = False

    def choose(self, position: int, n: int, /) -> list[int]:
        return [p % self.n for p in range(position, position + n)]

    def ended(self, source: int, position: int, drawn: Sequence[int], /) -> tuple[Draws, Outcome]:
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

    eager = False

    def choose(self, position: int, n: int, /) -> list[int]:
        return [self.at] * n if self.at < self.n else []

    def ended(self, source: int, position: int, drawn: Sequence[int], /) -> tuple[Draws, Outcome]:
        return OneByOne(self.n, source + 1), "redraw"

    def saved(self) -> Json:
        return self.at

    def restored(self, saved: Json, /) -> Draws:
        return OneByOne(self.n, as_int(saved))


@dataclass(frozen=True)
class FirstOnes:
    """The first `n` samples of one input."""

    n: int

    eager = False

    def choose(self, position: int, n: int, /) -> list[int]:
        return [0] * min(n, self.n - position)

    def ended(self, source: int, position: int, drawn: Sequence[int], /) -> tuple[Draws, Outcome]:
        return self, "end"

    def saved(self) -> Json:
        return None

    def restored(self, saved: Json, /) -> Draws:
        return self


@dataclass(frozen=True)
class Passes:
    """`epochs` passes of one input, or endlessly many."""

    epochs: int | None
    done: int = 0

    eager = False

    def choose(self, position: int, n: int, /) -> list[int]:
        return [] if self.done == self.epochs else [0] * n

    def ended(self, source: int, position: int, drawn: Sequence[int], /) -> tuple[Draws, Outcome]:
        done = Passes(self.epochs, self.done + 1)
        return done, "end" if done.done == self.epochs else "again"

    def saved(self) -> Json:
        return self.done

    def restored(self, saved: Json, /) -> Draws:
        return Passes(self.epochs, as_int(saved))


@dataclass(frozen=True)
class ByWeight:
    """A weighted mixture over inputs of unknown length. `lapped` are the inputs that were given whole at least once."""

    mixture: Mixture
    stop: str
    caps: tuple[int | None, ...]
    passes: tuple[int, ...]
    over: bool = False

    @property
    def eager(self) -> bool:
        return self.stop != "first_exhausted"

    def choose(self, position: int, n: int, /) -> list[int]:
        return [] if self.over else self.mixture.at(np.arange(position, position + n))[0].tolist()

    def ended(self, source: int, position: int, drawn: Sequence[int], /) -> tuple[Draws, Outcome]:
        passes = tuple(done + (i == source) for i, done in enumerate(self.passes))
        cap = self.caps[source]
        if self.stop == "first_exhausted":
            return self._with(passes=passes), "end"
        if self.stop == "all_exhausted" or passes[source] == cap:
            return self._dropped(source, position, passes, drawn)
        if self.stop == "all_exhausted_oversample":
            seen = all(done > 0 for i, done in enumerate(passes) if self.mixture.opened[i])
            return self._with(passes=passes, over=seen), "end" if seen else "again"
        return self._with(passes=passes), "again"

    def _dropped(self, source: int, at: int, passes: tuple[int, ...], drawn: Sequence[int]) -> tuple[Draws, Outcome]:
        mixture = self.mixture.with_event(Exhausted(at, self.mixture.names[source], drawn[source]))
        left = mixture.live(at)
        return self._with(mixture=mixture, passes=passes, over=not left), "redraw" if left else "end"

    def _with(self, **changes: Any) -> ByWeight:
        fields = {name: getattr(self, name) for name in ("mixture", "stop", "caps", "passes", "over")}
        return ByWeight(**{**fields, **changes})

    def saved(self) -> Json:
        events = [event.to_json() for event in self.mixture.log if isinstance(event, Exhausted)]
        return [list(self.passes), self.over, events]

    def restored(self, saved: Json, /) -> Draws:
        passes, over, events = as_list(saved, 3)
        mixture, known = self.mixture, list[Event](self.mixture.log)
        for event in map(event_from_json, events):
            known.append(event)
        mixture = mixture.with_log(tuple(sorted(known, key=lambda event: event.at)))
        return self._with(mixture=mixture, passes=tuple(passes), over=bool(over))


class Draw(NamedTuple):
    """One draw: whose, the passes of all inputs and the rule as they stood afterwards, and the way back behind it."""

    source: int
    epochs: tuple[int, ...]
    draws: Draws
    trail: Trail
    used: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """The trail of draws: the state before the first of them, and what each changed."""

    position: int
    draws: Draws
    drawn: tuple[int, ...]
    epochs: tuple[int, ...]
    behind: tuple[tuple[Trail, int], ...]
    steps: Sequence[Draw]

    def at(self, count: int, /) -> Json:
        draws, epochs, drawn, behind = self.draws, self.epochs, list(self.drawn), list(self.behind)
        for step in self.steps[:count]:
            draws, epochs = step.draws, step.epochs
            drawn[step.source] += 1
            behind[step.source] = step.trail, step.used
        inputs = [[epoch, trail.at(used)] for epoch, (trail, used) in zip(epochs, behind, strict=True)]
        return [self.position + count, draws.saved(), drawn, inputs]


class Input:
    """One input of a weave: items taken from its stream beforehand, and where the next draw stands among them."""

    def __init__(self, stream: Stream) -> None:
        self.tap = Tap(stream)

    def seek(self, epoch: int, cursor: Json) -> None:
        self.tap.seek(epoch, cursor)
        self.behind: tuple[Trail, int] = (Fixed(self.tap.cursor()), 0)
        self.chunk, self.used, self._settled = Chunk([], empty_rows(0), Fixed(None)), 0, 0
        self.taken = list[Rows]()

    def more(self, n: int) -> bool:
        """Whether there is another item; takes up to `n` from the stream if none is at hand."""
        if self.used < len(self.chunk.values):
            return True
        self.settle()
        self.chunk, self.used = self.tap.take(n), 0
        self._settled = 0
        return bool(self.chunk.values)

    def draw(self) -> Any:
        value = self.chunk.values[self.used]
        self.used += 1
        self.behind = self.chunk.trail, self.used
        return value

    def settle(self) -> None:
        """Note the provenance of what was drawn since the last time."""
        if self.used > self._settled:
            self.taken.append(self.chunk.rows.slice(self._settled, self.used))
            self._settled = self.used


class Weave:
    """A mix of streams."""

    def __init__(self, streams: Sequence[Stream], names: Sequence[str], draws: Draws, depth: int) -> None:
        self.inputs, self.names, self.start, self.depth = [Input(stream) for stream in streams], names, draws, depth
        self.seek(0, None)

    def seek(self, epoch: int, cursor: Json, /) -> None:
        if cursor is None:
            self.position, self._draws, self._drawn = 0, self.start, [0] * len(self.inputs)
            self._epochs = (epoch,) * len(self.inputs)
            for each in self.inputs:
                each.seek(epoch, None)
        else:
            position, draws, drawn, inputs = as_list(cursor, 4)
            self.position, self._draws, self._drawn = as_int(position), self.start.restored(draws), list(drawn)
            self._epochs = tuple(as_int(own) for own, _ in as_list(inputs, len(self.inputs)))
            for each, (own, below) in zip(self.inputs, inputs, strict=True):
                each.seek(own, below)
        self._choices = list[int]()

    def cursor(self) -> Json:
        return self._trail([]).at(0)

    def _trail(self, steps: Sequence[Draw]) -> Drawn:
        behind = tuple(each.behind for each in self.inputs)
        return Drawn(self.position, self._draws, tuple(self._drawn), self._epochs, behind, steps)

    def close(self) -> None:
        for each in self.inputs:
            each.tap.stream.close()

    def _choose(self, n: int) -> int | None:
        if not self._choices:
            self._choices = self._draws.choose(self.position, max(n, 64))[::-1]
        return self._choices[-1] if self._choices else None

    def pull(self, n: int, /) -> Chunk:
        values, sources, steps = list[Any](), list[int](), list[Draw]()
        trail, barren, outcome = self._trail(steps), False, None
        while len(values) < n and outcome != "end" and (source := self._choose(n)) is not None:
            drawn = self.inputs[source]
            try:
                more = drawn.more(1 + self._choices[-n:].count(source))
            except Exception:
                if values:
                    break  # what was drawn before the failure is delivered before it
                raise
            if not more:
                outcome = self._ended(source)
                if outcome == "again" and barren:
                    raise DataError("a whole pass gave no sample, so it cannot be repeated", where=self.names[source])
                barren = outcome == "again"
                continue
            barren = False
            values.append(drawn.draw())
            sources.append(source)
            self._choices.pop()
            self.position += 1
            self._drawn[source] += 1
            if self._draws.eager and not self._more(drawn, 1 + self._choices[-n:].count(source)):
                outcome = self._ended(source)
            steps.append(Draw(source, self._epochs, self._draws, *drawn.behind))
        if not values:
            return Chunk([], empty_rows(0), Fixed(None))
        return Chunk(values, self._rows(np.asarray(sources)), trail)

    def _more(self, drawn: Input, n: int) -> bool:
        """Whether an input goes on; a failure shows when its next item is drawn."""
        try:
            return drawn.more(n)
        except Exception:
            return True

    def _rows(self, sources: Ints) -> Rows:
        """The provenance of what was drawn, put in the order of the draws."""
        parts, order = list[Rows](), list[Ints]()
        for i in np.unique(sources).tolist():
            drawn = self.inputs[int(i)]
            drawn.settle()
            parts.append(join_rows(drawn.taken).deepened(self.depth))
            order.append(np.flatnonzero(sources == i))
            drawn.taken = []
        back = np.empty_like(sources)
        back[np.concatenate(order)] = np.arange(len(sources))
        return join_rows(parts).take(back)

    def _ended(self, source: int) -> Outcome:
        """An input has no more: ask the rule."""
        self._draws, outcome = self._draws.ended(source, self.position, self._drawn)
        self._choices = []
        if outcome == "again":
            self._epochs = tuple(epoch + (i == source) for i, epoch in enumerate(self._epochs))
            taken = self.inputs[source].taken
            self.inputs[source].seek(self._epochs[source], None)
            self.inputs[source].taken = taken
        return outcome
