"""Run a function over all items of a list, such as the files of a dataset, by any executor.

The function may run anywhere, twice and in any order. If it writes its results atomically, the work
is resumed by leaving out the items that are done.
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
from ..streams.function_call import SampleFailure
from ..streams.job import Job, PendingResult
from .executors import ExecutorName, make_executor

T = TypeVar("T")
R = TypeVar("R")

_TASKS_PER_WORKER = 4  # in flight


@dataclass(frozen=True)
class ItemFunction(Generic[T, R]):
    """A function and its items. Units are rows whose index is the number of an item."""

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
    """Return `fn` of every item, in the order of the items; the log shows the progress.

    Failing storage is retried, a worker that dies is replaced, and an item over which three workers
    die is an error. Any error ends all workers.

    Args:
        what: a verb for the progress line.
        unit: the items, in plural.
        fn: the function.
        items: its arguments.
        executor: an executor of `penstock.Loader`.
        workers: their number; None for one per core.

    >>> compute("square", "numbers", lambda x: x * x, range(5), "threads", 2)
    [0, 1, 4, 9, 16]
    """
    if not items:
        return []
    job = Job(ItemFunction(fn, items), [], names=(unit,))
    number = count_cores() if workers is None else check_int(workers, "workers={}", 1)
    pool = make_executor(executor, 0 if executor == "inline" else min(number, len(items)))
    with Progress(what, len(items), unit) as progress:
        if pool is None:
            return [job(None, _row(i)).values[0] for i in progress.each(range(len(items)))]
        in_flight, results, limit = deque[PendingResult](), list[R](), _TASKS_PER_WORKER * number
        try:
            for i in range(len(items) + limit - 1):
                if i < len(items):
                    in_flight.append(pool.submit(job, None, _row(i)))
                if i >= limit - 1 and in_flight:
                    results.append(_result(items[len(results)], in_flight.popleft()))
                    progress.tell(len(results))
        finally:
            pool.close()
    return results


def _row(number: int) -> ProvenanceRows:
    zero = np.zeros(1, np.int64)
    return ProvenanceRows(zero, zero, np.asarray([number]), zero)


def _result(item: Any, computed: PendingResult) -> Any:
    try:
        return computed.result().values[0]
    except SampleFailure as failure:
        failure.cause.add_note(f"penstock: the job was {item!r}")
        raise failure.cause from None
