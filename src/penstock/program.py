"""The indexed half of the interpreter: a tree compiled to pure functions of positions.

`locate` maps positions to the samples behind them (integers only, vectorised, nothing is read); `values` reads and
computes them. Whatever needs no run to know its n-th sample is a program: an indexed source, an order, a mixture of
programs, a map, a batch, a pack whose lengths are known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from .errors import StateError
from .ints import within_reach
from .rows import Rows, bounds_of, empty_rows, join_rows
from .step import Leaf, Step, failed
from .types import Ints, Order, Source


class Program(Protocol):
    """An indexed flow, ready to be asked. `source` is what its values are read from, where that is all."""

    @property
    def size(self) -> int | None: ...
    @property
    def depth(self) -> int: ...
    @property
    def source(self) -> Source | None: ...
    def locate(self, positions: Ints, laps: Ints) -> Rows: ...
    def values(self, rows: Rows) -> list[Any]: ...


@dataclass
class ReadProgram:
    """A source: position `p` is sample `p % n` of pass `p // n`."""

    leaf: Leaf
    source: Source
    size: int
    depth: int = 0

    def locate(self, positions: Ints, laps: Ints) -> Rows:
        epoch = positions // self.size
        index = positions - epoch * self.size
        number = np.full(len(index), self.leaf.number)
        return Rows(number, epoch + laps, index, np.zeros(len(index), np.int64))

    def values(self, rows: Rows) -> list[Any]:
        try:
            return self.source.read(rows.index)
        except Exception as error:
            if len(rows) == 1:
                raise failed(rows, 0, error) from error
            return [self._one(rows, i) for i in range(len(rows))]  # finds out which one it was

    def _one(self, rows: Rows, i: int) -> Any:
        try:
            return self.source.read(rows.index[i : i + 1])[0]
        except Exception as error:
            raise failed(rows, i, error) from error


@dataclass
class ReorderProgram:
    """Another order of a program."""

    flow: Program
    order: Order
    key: int

    @property
    def size(self) -> int | None:
        return self.order.size(self.flow.size)

    @property
    def depth(self) -> int:
        return self.flow.depth

    @property
    def source(self) -> Source | None:
        return self.flow.source

    def locate(self, positions: Ints, laps: Ints) -> Rows:
        below, more = self.order.down(positions, self.flow.size, self.key)
        return self.flow.locate(below, laps if more is None else laps + more)

    def values(self, rows: Rows) -> list[Any]:
        return self.flow.values(rows)


class Drawing(Protocol):
    """Which input each position of a pass draws from, and which of its draws that is."""

    @property
    def size(self) -> int | None: ...
    @property
    def passes(self) -> Ints: ...
    def at(self, positions: Ints, /) -> tuple[Ints, Ints]: ...


@dataclass
class MixProgram:
    """Programs woven by a schedule. `owner[leaf]` is the input that a leaf belongs to; `on` says that the schedule
    knows the draws of later passes too; `base` is how far each input had come before the first pass.
    """

    flows: tuple[Program, ...]
    schedule: Drawing
    owner: Ints
    on: bool = False
    base: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        self.base = self.base if len(self.base) else np.zeros(len(self.flows), np.int64)
        self.size, self.depth = self.schedule.size, max(flow.depth for flow in self.flows)
        self._sources = [flow.source for flow in self.flows]

    @cached_property
    def advance(self) -> Ints:
        """How far each input moves on from one pass of the mixture to the next."""
        sizes = np.asarray([flow.size or 0 for flow in self.flows], np.int64)
        return sizes * self.schedule.passes

    def before(self, epoch: int) -> Ints:
        """How far each input had come before a pass."""
        return self.base if self.size is None else self.base + epoch * self.advance

    @property
    def source(self) -> Source | None:
        return None

    def place(self, position: int) -> tuple[MixProgram, int, int]:
        """What the mixture is at a position, from which pass on, and which position that is of it."""
        return self, 0, position

    def draws(self, positions: Ints) -> tuple[Ints, Ints]:
        """The input of each position, and which position of it is drawn."""
        if self.size is None or self.on:
            return self.schedule.at(positions)
        epoch = positions // self.size
        within_reach(int(epoch.max(initial=0)), int(self.advance.max(initial=0)))
        source, k = self.schedule.at(positions - epoch * self.size)
        return source, k + self.base[source] + (epoch * self.advance[source] if epoch.any() else 0)

    def locate(self, positions: Ints, laps: Ints) -> Rows:
        source, k = self.draws(positions)
        order, groups = _by_input(source, len(self.flows))
        k, laps = k[order], laps[order]
        parts = [self.flows[i].locate(k[a:b], laps[a:b]).deepened(self.depth) for i, a, b in groups]
        if not parts:
            return empty_rows(self.depth)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return join_rows(parts).take(back)

    def values(self, rows: Rows) -> list[Any]:
        order, groups = _by_input(self.owner[rows.leaf[rows.firsts()[:-1]]], len(self.flows))
        if not groups:
            return []
        if len(groups) == 1:
            flow = self.flows[groups[0][0]]
            return flow.values(rows.flattened(flow.depth))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        try:
            found = self._read(rows.index[order], groups) if not self.depth else None
        except Exception:
            found = None  # the careful way finds out which sample it was
        if found is None:
            rows, found = rows.take(order), list[Any]()
            for i, a, b in groups:
                flow = self.flows[i]
                found += flow.values(rows.slice(a, b).flattened(flow.depth))
        return np.fromiter(found, object, len(found))[back].tolist()

    def _read(self, index: Ints, groups: list[tuple[int, int, int]]) -> list[Any] | None:
        """The values of all groups, if they are nothing but read."""
        found = list[Any]()
        for i, a, b in groups:
            if (source := self._sources[i]) is None:
                return None
            found += source.read(index[a:b])
        return found


@dataclass
class PassesProgram:
    """A mixture that ends and was changed on the way: from pass `laps[i]`, at position `starts[i]`, it is `parts[i]`,
    of the same inputs. `now` is the pass in which a run of its passes stands: then all count `size` positions, as that
    one has, and those that have another number are not told.
    """

    flows: tuple[Program, ...]
    laps: tuple[int, ...]
    starts: tuple[int, ...]
    parts: tuple[MixProgram, ...]
    size: int
    now: int | None

    @property
    def depth(self) -> int:
        return self.parts[0].depth

    @property
    def source(self) -> Source | None:
        return None

    @cached_property
    def first(self) -> int:
        """The first pass that is told."""
        return next(lap for lap, part in zip(self.laps, self.parts, strict=True) if part.size == self.size)

    def pieces(self, low: int, high: int) -> Iterator[tuple[MixProgram, int, int, int]]:
        """Positions `[low, high)`, cut where the mixture changed: what it is there, and what is to be added to a
        position to have that of this part.
        """
        self.check(low, high)
        return self.cut(low, high)

    def check(self, low: int, high: int) -> None:
        """Refuse positions of passes that are not told."""
        for part, _, a, _ in self.cut(low, high):
            if not self.tells(part):
                raise StateError(
                    f"pass {a // self.size} of the mixture has {part.size} positions, the present one {self.size}: a "
                    "change on the way changed how long a pass is; ask the plan of a state saved in such a pass"
                )

    def tells(self, part: MixProgram) -> bool:
        """Whether the passes that are a part are told."""
        return self.now is None or part.size == self.size

    def cut(self, low: int, high: int) -> Iterator[tuple[MixProgram, int, int, int]]:
        edges = [min(max(start, low), high) for start in (*self.starts, max(high, low))]
        for start, part, a, b in zip(self.starts, self.parts, edges, edges[1:], strict=False):
            if a < b:
                yield part, -start, a, b

    def place(self, position: int) -> tuple[MixProgram, int, int]:
        """What the mixture is at a position, from which pass on, and which position that is of it."""
        i = bisect_right(self.starts, position) - 1
        return self.parts[i], self.laps[i], position - self.starts[i]

    def position(self, lap: int, place: int) -> int:
        """The position of a place of a pass."""
        i = bisect_right(self.laps, lap) - 1
        return self.starts[i] + (lap - self.laps[i]) * (self.parts[i].size or 0) + place

    def locate(self, positions: Ints, laps: Ints) -> Rows:
        order = np.argsort(positions, kind="stable")
        ordered, parts = positions[order], [empty_rows(self.depth)]
        if len(ordered):
            for part, shift, a, b in self.pieces(int(ordered[0]), int(ordered[-1]) + 1):
                here = order[slice(*np.searchsorted(ordered, [a, b]).tolist())]
                parts.append(part.locate(positions[here] + shift, laps[here]))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return join_rows(parts).take(back)

    def values(self, rows: Rows) -> list[Any]:
        return self.parts[0].values(rows)


def _by_input(source: Ints, inputs: int) -> tuple[Ints, list[tuple[int, int, int]]]:
    """A stable order that brings equal inputs together, and (input, start, stop) for each that occurs."""
    order = np.argsort(source.astype(np.int16 if inputs < 1 << 15 else np.int64), kind="stable")
    many = np.bincount(source)
    present = np.flatnonzero(many)
    edges = pairwise([0, *np.cumsum(many[present]).tolist()])
    return order, [(i, a, b) for i, (a, b) in zip(present.tolist(), edges, strict=True)]


@dataclass
class EachProgram:
    """A function on every sample. `node` numbers it among the nodes that leave marks."""

    flow: Program
    step: Step
    node: int

    @property
    def size(self) -> int | None:
        return self.flow.size

    @property
    def depth(self) -> int:
        return self.flow.depth

    @property
    def source(self) -> Source | None:
        return None

    def locate(self, positions: Ints, laps: Ints) -> Rows:
        rows = self.flow.locate(positions, laps)
        if self.step.kind == "index":
            place = positions % self.size if self.size else positions
            rows.marks = {**rows.marks, self.node: np.repeat(place, np.diff(rows.firsts()))}
        return rows

    def values(self, rows: Rows) -> list[Any]:
        index = rows.marks[self.node][rows.firsts()[:-1]] if self.step.kind == "index" else None
        return self.step.apply(self.flow.values(rows), rows, index)


@dataclass
class BatchProgram:
    """Groups of `n` neighbours of one pass."""

    flow: Program
    n: int
    drop: bool

    def __post_init__(self) -> None:
        below = self.flow.size
        self.size = None if below is None else below // self.n if self.drop else -(-below // self.n)
        self.depth = self.flow.depth + 1

    @property
    def source(self) -> Source | None:
        return None

    def locate(self, positions: Ints, laps: Ints) -> Rows:
        below = self.flow.size
        within_reach(int(positions.max(initial=0)), self.n)
        if below is None:
            starts, counts = positions * self.n, np.full_like(positions, self.n)
        else:
            epoch = positions // (self.size or 1)
            place = (positions - epoch * (self.size or 1)) * self.n
            starts, counts = epoch * below + place, np.minimum(below - place, self.n)
        bounds = bounds_of(counts)
        samples = np.repeat(starts - bounds[:-1], counts) + np.arange(int(bounds[-1]))
        return self.flow.locate(samples, np.repeat(laps, counts)).grouped(bounds)

    def values(self, rows: Rows) -> list[Any]:
        values = self.flow.values(rows.ungrouped())
        return [values[a:b] for a, b in pairwise(rows.levels[0].tolist())]
