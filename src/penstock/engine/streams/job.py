"""Jobs: units of work, and the functions to apply to each. A job is pure and runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...types import DataLocation
from ..base.groups import NeighbourGroups
from ..base.rows import ProvenanceRows
from ..base.seams import world
from .budget import bytes_of_all
from .clock import Clock, Note
from .results import Apply, Call, Results
from .retry import patiently
from .step import FunctionCall, listed


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

    def run(self, items: Results, call: Call | None = None) -> None:
        """Replace the items of a unit by their batches.

        No step may have dropped or added items before: a unit then consists of whole batches.
        """
        assert items.origin is None
        total = len(items.values) - (len(items.values) % self.n if self.drop else 0)
        offsets = (
            np.minimum(np.arange(0, total + self.n, self.n), total)
            if total
            else np.zeros(1, np.int64)
        )
        items.values = NeighbourGroups(items.values, offsets.tolist())
        items.rows = items.rows.slice(0, total).grouped(offsets)


@dataclass
class Job:
    """The work on every unit: read it (`op`, unless a stream does), then one step after another."""

    op: Reads | None
    steps: list[FunctionCall | Grouping]
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
        return self._run(self.op.values(rows) if self.op else values or [], rows, began)

    def _run(
        self, values: Sequence[Any], rows: ProvenanceRows, began: float, call: Call | None = None
    ) -> Done:
        """Send values through all steps."""
        items = Results(values, rows)
        for step in self.steps:
            step.run(items, call)
        size = max(items.size, bytes_of_all(items.values))
        seconds = world.sched.now() - began
        return Done(listed(items.values), items.rows, items.origin, seconds, size)

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
        return self._run(given, rows, began, apply_one_by_one)


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
