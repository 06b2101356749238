"""Mixing streams: inputs whose samples cannot be counted beforehand, drawn from one by one by a
rule.

The rule says whose turn it is; what happens when an input ends is settled when it ends. Weighted
mixtures note it as an event in their log, so that the cursor replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...types import Ints, Json, Path
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..base.integers import find_distinct_values
from ..base.rows import ProvenanceRows, join_rows, make_empty_rows
from ..mixing.rules import Draws, Outcome
from ..streams.chunk_cursors import Chunk, ChunkCursors, ConstantCursor
from ..streams.shared_reader import LaneContext, PassCounts
from ..streams.stream import BufferedStream, Stream
from ..streams.stream_opener import StreamOpener
from .op import Op


class Draw(NamedTuple):
    """One draw: whose, the passes of all inputs and the rule as they stood afterwards, and the way
    back behind it."""

    source: int
    epochs: tuple[int, ...]
    draws: Draws
    cursors: ChunkCursors
    used: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """The cursors of draws: the state before the first of them, and what each changed."""

    position: int
    draws: Draws
    drawn: tuple[int, ...]
    epochs: tuple[int, ...]
    behind: tuple[tuple[ChunkCursors, int], ...]
    steps: Sequence[Draw]

    def at(self, count: int, /) -> Json:
        draws, epochs, drawn, behind = self.draws, self.epochs, list(self.drawn), list(self.behind)
        for step in self.steps[:count]:
            draws, epochs = step.draws, step.epochs
            drawn[step.source] += 1
            behind[step.source] = step.cursors, step.used
        inputs = [
            [epoch, cursors.at(used)] for epoch, (cursors, used) in zip(epochs, behind, strict=True)
        ]
        return [self.position + count, draws.saved(), drawn, inputs]


class Input:
    """One input of a weave: items taken from its stream beforehand, and where the next draw stands
    among them."""

    def __init__(self, stream: Stream) -> None:
        self.input = BufferedStream(stream)

    def seek(self, epoch: int, cursor: Json) -> None:
        self.input.seek(epoch, cursor)
        self.behind: tuple[ChunkCursors, int] = (ConstantCursor(self.input.cursor()), 0)
        self.chunk = Chunk([], make_empty_rows(0), ConstantCursor(None))
        self.used = 0
        self._settled = 0
        self.taken = list[ProvenanceRows]()

    @property
    def ready(self) -> bool:
        """True if an item that was taken is left."""
        return self.used < len(self.chunk.values)

    def more(self, n: int) -> bool:
        """Return whether an item is left; take up to `n` from the stream if none was taken."""
        if self.ready:
            return True
        self.settle()
        self.chunk, self.used = self.input.take(n), 0
        self._settled = 0
        return bool(self.chunk.values)

    def back(self, epoch: int) -> None:
        """Go back to behind the last item drawn."""
        cursors, used = self.behind
        self.input.seek(epoch, cursors.at(used))
        self.chunk = Chunk([], make_empty_rows(0), ConstantCursor(None))
        self.used = 0
        self._settled = 0

    def draw(self) -> Any:
        value = self.chunk.values[self.used]
        self.used += 1
        self.behind = self.chunk.cursors, self.used
        return value

    def settle(self) -> None:
        """Note the provenance of what was drawn since the last time."""
        if self.used > self._settled:
            self.taken.append(self.chunk.rows.slice(self._settled, self.used))
            self._settled = self.used


class MixStream:
    """A mix of streams. `patience` is how many passes in a row an input may give nothing: a lane
    without a share of one has one of another.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        names: Sequence[str],
        draws: Draws,
        depth: int,
        lane: LaneContext,
    ) -> None:
        self.inputs = [Input(stream) for stream in streams]
        self.names = names
        self.start = draws
        self.depth = depth
        self.lane = lane.lane
        self.empty_passes = lane.empty_passes
        self.patience = lane.lanes if lane.lanes > 1 else 0
        self.seek(0, None)

    def seek(self, epoch: int, cursor: Json, /) -> None:
        if cursor is None:
            self.position, self._draws, self._drawn = 0, self.start, [0] * len(self.inputs)
            self._epochs = (epoch * self.start.per_pass,) * len(self.inputs)
            for each in self.inputs:
                each.seek(self._epochs[0], None)
        else:
            position, draws, drawn, inputs = parse_cursor_list(cursor, 4)
            self.position = parse_cursor_int(position)
            self._drawn = [
                parse_cursor_int(count) for count in parse_cursor_list(drawn, len(self.inputs))
            ]
            self._draws = self.start.restored(draws)
            self._epochs = tuple(
                parse_cursor_int(own) for own, _ in parse_cursor_list(inputs, len(self.inputs))
            )
            for each, (own, below) in zip(self.inputs, inputs, strict=True):
                each.seek(own, below)
        self._choices = list[int]()
        if cursor is not None:
            self._choose(1)  # refuses now where nothing can be drawn

    def cursor(self) -> Json:
        return self._make_cursors([]).at(0)

    def _make_cursors(self, steps: Sequence[Draw]) -> Drawn:
        behind = tuple(each.behind for each in self.inputs)
        return Drawn(self.position, self._draws, tuple(self._drawn), self._epochs, behind, steps)

    def close(self) -> None:
        for each in self.inputs:
            each.input.stream.close()

    def _choose(self, n: int) -> int | None:
        if not self._choices:
            self._choices = self._draws.choose(self.position, max(n, 64))[::-1]
        return self._choices[-1] if self._choices else None

    def pull(self, n: int, /) -> Chunk:
        values, sources, steps = list[Any](), list[int](), list[Draw]()
        cursors, idle, outcome = self._make_cursors(steps), 0, None
        eager = self._draws.eager
        while len(values) < n and outcome != "end" and (source := self._choose(n)) is not None:
            drawn = self.inputs[source]
            if not (drawn.ready or drawn.more(self._choices[len(values) - n :].count(source))):
                outcome = self._ended(source, idle > self.patience)
                idle = idle + 1 if outcome == "again" else 0
                continue
            idle = 0
            values.append(drawn.draw())
            sources.append(source)
            self._choices.pop()
            self.position += 1
            self._drawn[source] += 1
            if eager and not drawn.ready and not self._goes_on(source, n - len(values)):
                outcome = self._ended(source)
            steps.append(Draw(source, self._epochs, self._draws, *drawn.behind))
        if not values:
            return Chunk([], make_empty_rows(0), ConstantCursor(None))
        return Chunk(values, self._rows(np.asarray(sources)), cursors)

    def _goes_on(self, source: int, left: int) -> bool:
        """Return whether an input has another item, of the `left` still to draw; errors appear when
        it is drawn.
        """
        drawn = self.inputs[source]
        try:
            return drawn.more(max(1, self._choices[-left:].count(source) if left else 0))
        except Exception:
            drawn.back(self._epochs[source])
            return True

    def _rows(self, sources: Ints) -> ProvenanceRows:
        """The provenance of what was drawn, put in the order of the draws."""
        parts, order = list[ProvenanceRows](), list[Ints]()
        for i in find_distinct_values(sources).tolist():
            drawn = self.inputs[int(i)]
            drawn.settle()
            parts.append(join_rows(drawn.taken).deepened(self.depth))
            order.append(np.flatnonzero(sources == i))
            drawn.taken = []
        back = np.empty_like(sources)
        back[np.concatenate(order)] = np.arange(len(sources))
        return join_rows(parts).take(back)

    def _ended(self, source: int, empty: bool = False) -> Outcome:
        """An input has no more: ask the rule."""
        if empty:
            self.empty_passes.note(self.names[source], self.lane)
        self._draws, outcome = self._draws.ended(source, self.position, self._drawn, empty)
        self._choices = []
        if outcome == "again":
            self._epochs = tuple(epoch + (i == source) for i, epoch in enumerate(self._epochs))
            taken = self.inputs[source].taken
            self.inputs[source].seek(self._epochs[source], None)
            self.inputs[source].taken = taken
        return outcome


class MixStreamOp(Op):
    """A mix of streams. `rule` gives a lane its draws; a mixture by weight has a place, `at`.
    `paired`: the items
    become partners in a zip. `endless`: it never ends.
    """

    indexed = False

    def __init__(
        self,
        inputs: Sequence[Op],
        names: Sequence[str],
        rule: Callable[[int, int], Draws],
        *,
        at: Path | None = None,
        paired: bool = False,
        endless: bool = False,
    ) -> None:
        self.inputs, self.names, self.rule, self.at, self.paired, self.endless = (
            tuple(inputs), tuple(names), rule, at, paired, endless,
        )  # fmt: skip
        self.depth = max(each.depth for each in self.inputs)

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        lane, lanes = opening.own_lane[:2]
        draws = self.rule(lane, lanes)
        passes = PassCounts(
            None if passes.run is None or self.endless else passes.run * draws.per_pass,
            draws.per_pass,
        )
        below = opening
        if self.paired:  # a sample that failed would take the partner of another
            below = replace(opening, execution=replace(opening.execution, paired=True))
        weave = MixStream(
            [below.open(each, passes) for each in self.inputs],
            self.names,
            draws,
            self.depth,
            opening.own_lane,
        )
        if self.at is not None:
            opening.drawn[self.at] = lambda _: weave.position * lanes
        return weave

    @property
    def mixture(self) -> Path | None:
        return self.at
