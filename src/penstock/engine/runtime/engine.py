"""Work on a whole dataset: jobs that know nothing of each other, computed by whoever computes runs.

A job is a function of its item alone, so it may be computed anywhere, twice, and in any order. What
it leaves behind it leaves whole; then such work is resumed by leaving out the items that are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ...arguments import check_int
from ..base.machine import count_cores
from ..base.progress import Progress
from ..base.rows import ProvenanceRows
from ..streams.job import Computed, Job
from ..streams.step import Failed
from .executors import ExecutorName, make_executor

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 4  # jobs that each worker has before it


@dataclass(frozen=True)
class Jobs(Generic[T, R]):
    """A function and its items. A unit of an executor is a row that names an item by its number."""

    fn: Callable[[T], R]
    items: Sequence[T]

    def values(self, rows: ProvenanceRows, /) -> list[R]:
        return [self.fn(self.items[int(number)]) for number in rows.index]


def compute(
    what: str,
    unit: str,
    fn: Callable[[T], R],
    items: Sequence[T],
    executor: ExecutorName = "inline",
    workers: int | None = None,
) -> list[R]:
    """`fn` of every item, by so many workers (None: one for each core); the results in the order of
    the items.

    Storage that fails is asked again, a worker that dies is replaced and its job computed again,
    and one over which three die is an error. Whatever is raised ends all workers.

    >>> compute("square", "numbers", lambda x: x * x, range(5), "threads", 2)
    [0, 1, 4, 9, 16]
    """
    if not items:
        return []
    job = Job(Jobs(fn, items), [], names=(unit,))
    number = count_cores() if workers is None else check_int(workers, "workers={}", 1)
    crew = make_executor(executor, 0 if executor == "inline" else min(number, len(items)))
    with Progress(what, len(items), unit) as progress:
        if crew is None:
            return [job(None, _row(i)).values[0] for i in progress.each(range(len(items)))]
        under_way, found = deque[tuple[int, Computed]](), list[R]()
        try:
            for i in range(len(items)):
                under_way.append((i, crew.submit(job, None, _row(i))))
                if len(under_way) >= _AHEAD * number:
                    found.append(_result(items, *under_way.popleft()))
                    progress.tell(len(found))
            while under_way:
                found.append(_result(items, *under_way.popleft()))
                progress.tell(len(found))
        finally:
            crew.close()
    return found


def _row(number: int) -> ProvenanceRows:
    none = np.zeros(1, np.int64)
    return ProvenanceRows(none, none, np.asarray([number]), none)


def _result(items: Sequence[Any], number: int, under_way: Computed) -> Any:
    try:
        return under_way.result().values[0]
    except Failed as failure:
        failure.cause.add_note(f"penstock: the job was {items[number]!r}")
        raise failure.cause from None
