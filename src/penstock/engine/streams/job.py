"""Jobs: units of work, and the functions to apply to each. A job is pure and runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from ...types import DataLocation
from ..base.groups import NeighbourGroups
from ..base.rows import ProvenanceRows, compute_bounds
from ..base.seams import world
from .budget import bytes_of_all
from .clock import Clock, Note
from .retry import patiently
from .step import Step, listed

Apply: TypeAlias = "Callable[[Sequence[Any], ProvenanceRows], Sequence[Any]]"


class Done(NamedTuple):
    """A unit, computed: what came out, which items of the unit it came from, how long it took, how
    many bytes it was when it was most, and what took how long, if that is asked for.
    """

    values: list[Any]
    rows: ProvenanceRows
    origin: list[int] | None
    seconds: float
    size: float
    notes: Sequence[Note] = ()


class Reads(Protocol):
    """What the samples of rows are read by: an op of a compiled tree."""

    def values(self, rows: ProvenanceRows, /) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Grouping:
    """Batches of `n` neighbours; what is left of the last unit is short, or dropped."""

    n: int
    drop: bool


@dataclass
class Job:
    """The work on every unit: read it (`op`, unless a stream does), then one step after another."""

    op: Reads | None
    steps: list[Step | Grouping]
    clock: Clock | None = None
    names: Sequence[str] = ()
    """Of the sources, by leaf."""

    def named(self, leaf: int, epoch: int, index: int) -> str:
        """A sample, for people."""
        return f"{self.names[leaf]}[{index}] (pass {epoch})"

    def __call__(self, values: list[Any] | None, rows: ProvenanceRows) -> Done:
        done = patiently(partial(self._once, values, rows))
        return done if self.clock is None else done._replace(notes=self.clock.taken())

    def _once(self, values: list[Any] | None, rows: ProvenanceRows) -> Done:
        began = world.sched.now()
        found = Results(self.op.values(rows) if self.op else values or [], rows, None)
        for step in self.steps:
            found.go(step)
        return found.done(began)

    def carefully(
        self, values: list[Any] | None, rows: ProvenanceRows, at: Callable[[int, int, int], None]
    ) -> Done:
        """Execute the job item by item; `at` receives the sample (leaf, pass, index) before each."""

        def apply_one_by_one(
            call: Apply, values: Sequence[Any], rows: ProvenanceRows
        ) -> Sequence[Any]:
            out, first = list[Any](), rows.firsts()
            for i in range(len(values)):
                at(*(int(column[first[i]]) for column in (rows.leaf, rows.epoch, rows.index)))
                out += call(values[i : i + 1], rows.slice(i, i + 1))
            return out

        op, began = self.op, world.sched.now()
        given: Sequence[Any] = values or []
        if op is not None:
            given = apply_one_by_one(lambda _, row: op.values(row), range(len(rows)), rows)
        found = Results(given, rows, None)
        for step in self.steps:
            found.go(step, apply_one_by_one)
        return found.done(began)


class Computed(Protocol):
    """A unit under way. `result` waits for it; it may be cancelled as long as it has not begun."""

    def result(self) -> Done: ...
    def done(self) -> bool: ...
    def cancel(self) -> None: ...


class Executor(Protocol):
    """Executors of units of jobs, many at a time and in any order.

    `resident` is the memory in bytes of each worker, as far as it is visible from here; `reach`
    says where they run; `deaths` counts replaced workers.
    """

    @property
    def reach(self) -> DataLocation: ...
    @property
    def deaths(self) -> int: ...
    def submit(self, job: Job, values: list[Any] | None, rows: ProvenanceRows, /) -> Computed: ...
    def resident(self) -> dict[str, int]: ...
    def close(self) -> None: ...


@dataclass
class Results:
    """Items on their way through the functions of a unit; `origin` says which of its items each
    came from."""

    values: Sequence[Any]
    rows: ProvenanceRows
    origin: list[int] | None
    size: float = 0.0

    def done(self, began: float) -> Done:
        """What came out."""
        size = max(self.size, bytes_of_all(self.values))
        return Done(listed(self.values), self.rows, self.origin, world.sched.now() - began, size)

    def go(
        self,
        step: Step | Grouping,
        by: Callable[[Apply, Sequence[Any], ProvenanceRows], Sequence[Any]] | None = None,
    ) -> None:
        """Through one step; `by` calls it in the place of a call."""
        if isinstance(step, Grouping):
            return self.group(step)
        if step.kind in (
            "filter",
            "flat",
            "may_skip",
        ):  # what it leaves says less of what was there
            self.size = max(self.size, bytes_of_all(self.values))
        results = (
            by(step.apply, self.values, self.rows) if by else step.apply(self.values, self.rows)
        )
        if step.kind != "filter":
            self.values = results
        if step.kind in ("filter", "may_skip"):
            self.keep([i for i, result in enumerate(results) if result])
        if step.kind == "may_skip":
            self.values = [some[0] for some in self.values]
        if step.kind == "flat":
            self.spread()

    def group(self, by: Grouping) -> None:
        """In batches. Nothing may have been left out or added before: a unit is then of whole
        batches."""
        assert self.origin is None
        total = len(self.values) - (len(self.values) % by.n if by.drop else 0)
        offsets = (
            np.minimum(np.arange(0, total + by.n, by.n), total) if total else np.zeros(1, np.int64)
        )
        self.values = NeighbourGroups(self.values, offsets.tolist())
        self.rows = self.rows.slice(0, total).grouped(offsets)

    def keep(self, which: list[int]) -> None:
        """These items only."""
        if len(which) == len(self.values):
            return
        self.values = [self.values[i] for i in which]
        self.rows = self.rows.take(np.asarray(which, np.int64))
        self.origin = which if self.origin is None else [self.origin[i] for i in which]

    def spread(self) -> None:
        """Every value is a list: its entries become the items, each with a part number of its
        own."""
        counts = np.asarray([len(value) for value in self.values], np.int64)
        source = np.repeat(np.arange(len(counts)), counts)
        piece = np.arange(len(source)) - compute_bounds(counts)[source] + 1
        rows = self.rows.take(source)
        self.rows = replace(
            rows, part=rows.part * 1_000_003 + np.repeat(piece, np.diff(rows.firsts()))
        )
        self.values = [entry for value in self.values for entry in value]
        self.origin = (
            source.tolist() if self.origin is None else [self.origin[i] for i in source.tolist()]
        )
