"""Opens a tree: which parts run as programs, which as streams, and how a lane or a rank gets its share. One `match`
over five nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np

from .build import Builder, require_indexed, why_not
from .deal import Spread
from .draws import mixture
from .errors import ConfigError, StateError
from .feed import Positions, Upstream
from .hold import Holding
from .nodes import (
    Again,
    Batch,
    By,
    Chain,
    Cycle,
    Each,
    Flow,
    Head,
    Hold,
    Mix,
    Path,
    Read,
    Reorder,
    Sizer,
    Turns,
    Weighted,
    inputs_of,
)
from .order import Gap, Repeat, Slice, Stride
from .packed import PackProgram
from .random import key_of
from .retry import patiently
from .rows import Rows, empty_rows
from .sources.identity import content
from .step import Leaf
from .streams import Batches, Stream, as_int, as_list
from .tail import has_tail, tail_of
from .trail import Chunk, Fixed
from .turns import ByRule, ByWeight, Draws, FirstOnes, InCycle, InTurn, OneByOne, Passes
from .types import Json, Shards
from .weave import Weave
from .work import Hired, Work


def tail_group(flow: Flow) -> int | None:
    """How many rows of a program one item takes; None where the yield depends on the data."""
    return tail_of(flow).group if why_not(flow) is None else None


def straight(flow: Flow, program: Any) -> Callable[[int], int] | None:
    """From which position on of the mixture below it a position of a flow draws; None where that cannot be said."""
    match flow:
        case Mix(_, _, Weighted()):
            return int
        case Each(below) | Reorder(below, Slice(0, _, 1) | Repeat()):
            return straight(below, program.flow)
        case Reorder(below, Gap() as gap) if line := straight(below, program.flow):
            return lambda position: line(gap.after(position))
        case Reorder(below, Stride(first, count)) if line := straight(below, program.flow):
            return lambda position: line(position * count + first)
        case Hold(below, Batch(n)) if line := straight(below, program.flow):
            return lambda position: line(position * n)
        case Hold(below) if isinstance(program, PackProgram) and (line := straight(below, program.flow)):
            return lambda position: line(program.drawn(position))
        case _:
            return None


def lane_of(flow: Flow, lane: int, lanes: int) -> Flow:
    """A lane's share: every `lanes`-th sample of the last indexed step, every `lanes`-th shard or row of a stream."""
    if why_not(flow) is None:
        return Reorder(flow, Stride(lane, lanes))
    match flow:
        case Read(source, name):
            assert isinstance(source, Shards)
            return Read(LaneShards(source, lane, lanes), name)
        case Mix(flows):
            return replace(flow, flows=tuple(lane_of(child, lane, lanes) for child in flows))
        case Reorder(below) | Each(below) | Hold(below):
            return replace(flow, flow=lane_of(below, lane, lanes))


class LaneShards:
    """Some of the shards, or, where there are fewer shards than lanes, some of the rows of each."""

    def __init__(self, shards: Shards, lane: int, lanes: int) -> None:
        self.shards, self.lane, self.lanes = shards, lane, lanes

    def names(self) -> list[str]:
        names = list(self.shards.names())
        return names[self.lane :: self.lanes] if len(names) >= self.lanes else names

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        if len(self.shards.names()) >= self.lanes:
            return self.shards.open(name, row)
        # Opened at a row that is known to be there: the first of the shard, or the last one that this lane had.
        if row == 0:
            return islice(self.shards.open(name, 0), self.lane, None, self.lanes)
        return islice(self.shards.open(name, self.lane + (row - 1) * self.lanes), self.lanes, None, self.lanes)

    def describe(self) -> Json:
        return self.shards.describe()


class Opener:
    """Opens one tree (or one lane of it) with given hands."""

    def __init__(self, builder: Builder, hired: Hired, spread: Spread) -> None:
        self.builder, self.hired, self.spread = builder, hired, spread
        self._furthest = dict[Path, Callable[[int | None], int]]()
        self.positions: Positions | None = None  # of an indexed flow

    def furthest(self, path: Path, cursor: int | None) -> int:
        """The first position of the mixture at a path that nobody has drawn yet, given the cursor of a lone program."""
        if path not in self._furthest:
            raise ConfigError(
                "set_weights: the mixture is shuffled, sliced or nested, so its positions are not those of the run; "
                "pass at="
            )
        return self._furthest[path](cursor)

    def last_key(self, epoch: int, cursor: Json) -> str | None:
        """A digest of what the last position before a cursor is made of; None where only reading could tell."""
        while isinstance(cursor, list) and cursor:
            cursor = cursor[0]
        if self.positions is None or not isinstance(cursor, int) or cursor < 1:
            return None
        try:
            rows = self.positions.rows_at(np.asarray([cursor - 1]), epoch)
        except StateError:  # it came from an input that the mixture which took over does not have
            return None
        names = [self.builder.leaves[int(leaf)].name for leaf in rows.leaf]
        return content([names, rows.epoch.tolist(), rows.index.tolist(), rows.part.tolist()])

    def open(self, flow: Flow, seed: int = 0, path: Path = (), grain: int = 1) -> Stream:
        """The stream of a flow."""
        if why_not(flow) is None and not has_tail(flow):
            positions = Positions(self.builder.program(flow, seed, path), self.spread)
            self.positions = positions if path == () else self.positions
            work = Work(positions, positions.program, [], self.hired, grain)
            if (line := straight(flow, positions.program)) is not None:
                self._furthest[path] = lambda cursor: line(as_int(work.furthest() if cursor is None else cursor))
            return work
        match flow:
            case Hold(below, Batch(n, drop)):
                return Batches(self.open(below, seed, path, grain * n), n, drop)
            case Hold(below, fold, size):
                assert not isinstance(fold, Batch)
                key = self.builder.hold_key(flow, seed, path)
                return Holding(self.open(below, seed, path), fold, size or Sizer(_one), key)
            case Each(below):
                return self._each(flow, self.open(below, seed, path, grain), seed, path)
            case Mix(_, names, rule):
                inner = rule.seed if isinstance(rule, Weighted) else seed
                opener = self._paired() if isinstance(rule, Turns) else self
                streams = [opener.open(child, inner, place) for child, place in inputs_of(flow, path)]
                weave = Weave(streams, names, draws_of(flow, path, self.builder.lane), depth_of(flow))
                if isinstance(rule, Weighted):
                    self._furthest[path] = lambda _: weave.position
                return weave
            case Read():
                return Sharded(self.builder.leaf(flow, path))
            case Reorder(_, order):
                require_indexed(
                    flow, type(order).__name__.lower(), "use .shuffle_buffer(n), or put it before that step"
                )
                raise AssertionError("an indexed reorder is a program")

    def _paired(self) -> Opener:
        """The opener of what is zipped: a sample that failed would take the partner of another."""
        twin = copy(self)
        twin.hired = replace(self.hired, paired=True)
        return twin

    def _each(self, flow: Each, below: Stream, seed: int, path: Path) -> Stream:
        step = self.builder.step(flow, seed, path)
        if isinstance(below, Work):
            return below.then(step)
        return Work(Upstream(below), None, [step], self.hired)


def _one(value: Any) -> int:
    return 1


def depth_of(flow: Flow) -> int:
    """How many levels of groups the items of a flow have."""
    match flow:
        case Read():
            return 0
        case Mix(flows):
            return max(map(depth_of, flows))
        case Hold(below):
            return depth_of(below) + 1
        case Reorder(below) | Each(below):
            return depth_of(below)


def draws_of(flow: Mix, path: Path, lane: int = 0) -> Draws:
    """The rule of a mix of streams at run time. Lanes draw in orders of their own, or all would ask for one input."""
    match flow.rule:
        case Turns():
            return InTurn(len(flow.flows))
        case Chain():
            return OneByOne(len(flow.flows))
        case Head(n):
            return FirstOnes(n)
        case Again(epochs):
            return Passes(epochs)
        case Cycle(width):
            return InCycle.of(len(flow.flows), width)
        case By(mixing):
            return ByRule(mixing, mixing.size((None,) * len(flow.flows)))
        case Weighted() as rule:
            if rule.unit == "tokens":
                raise ConfigError(
                    "mix(unit='tokens') needs inputs with random access, to know their lengths; filter before writing "
                    "the data, "
                    "or weight by samples"
                )
            endless = (None,) * len(flow.flows)
            seed = key_of(rule.seed, lane) if lane else rule.seed
            schedule = mixture(replace(rule, max_epochs=None, stop="restart", seed=seed), flow.names, endless, path)
            return ByWeight(schedule, rule.stop, _caps(rule, flow.names), (0,) * len(flow.flows))


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


class Sharded:
    """Shards one after the other; the cursor is the shard and the row."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self.shards = cast(Shards, leaf.source)
        self._names = list(self.shards.names())
        self.seek(0, None)

    def cursor(self) -> Json:
        return [self._shard, self._row]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        shard, row = (0, 0) if cursor is None else as_list(cursor)
        self._epoch, self._shard, self._row = epoch, as_int(shard), as_int(row)
        self._open: Iterator[Any] | None = None

    def close(self) -> None:
        self._open = None

    def pull(self, n: int, /) -> Chunk:
        while self._shard < len(self._names):
            if values := patiently(partial(self._read, n)):
                chunk = Chunk(values, self._rows(len(values)), _ShardTrail(self._shard, self._row))
                self._row += len(values)
                return chunk
            self._shard, self._row, self._open = self._shard + 1, 0, None
        return Chunk([], empty_rows(0), Fixed(None))

    def _read(self, n: int) -> list[Any]:
        try:
            if self._open is None:
                self._open = self.shards.open(self._names[self._shard], self._row)
            return list(islice(self._open, n))
        except Exception as error:
            self._open = None  # the next try opens it at the row where we stand
            error.add_note(f"penstock: in {self.leaf.name}, shard {self._names[self._shard]}")
            raise

    def _rows(self, n: int) -> Rows:
        index = np.arange(self._row, self._row + n)
        zeros = np.zeros_like(index)
        return Rows(zeros + self.leaf.number, zeros + self._epoch, index, zeros + self._shard)


class _ShardTrail:
    def __init__(self, shard: int, row: int) -> None:
        self.shard, self.row = shard, row

    def at(self, count: int, /) -> Json:
        return [self.shard, self.row + count]
