"""Records of executors outside this process: jobs that workers know, and samples that crashed
several.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from ....errors import ConfigError, DataError
from ...base.rows import ProvenanceRows
from ...streams.job import Job
from ...streams.step import Failed

T = TypeVar("T")

DEATHS = 3
"""A sample over which so many workers died is bad."""


class Lessons(Generic[T]):
    """The jobs that workers know. `teach` sends each once; beyond `most`, the least recently used
    is dropped.

    Lanes have a job each, made of the same parts: that is one here. What is kept must hold those
    parts, so that nothing else has their identity.
    """

    def __init__(self, most: int, teach: Callable[[Job], T], forget: Callable[[T], None]) -> None:
        self._most, self._teach, self._forget = most, teach, forget
        self._known = OrderedDict[tuple[int, ...], T]()

    def of(self, job: Job) -> T:
        """What workers know of a job."""
        key = (id(job.op), *map(id, job.steps))
        if key not in self._known:
            self._known[key] = self._teach(replace(job, steps=[*job.steps]))
            while len(self._known) > self._most:
                self._forget(self._known.popitem(last=False)[1])
        self._known.move_to_end(key)
        return self._known[key]

    def clear(self) -> None:
        """Let go of all."""
        self._known.clear()


class Deadly:
    """Samples that cost too many workers, by the number of the job in which they did."""

    def __init__(self) -> None:
        self._bad = dict[tuple[int, int, int, int], str]()

    def note(self, job: int, at: tuple[int, int, int], how: str) -> Failed:
        """Remember a sample (leaf, pass, index), and what became of its workers; the failure."""
        self._bad[job, *at] = how
        return _failure(at, how)

    def among(self, job: int, rows: ProvenanceRows) -> Failed | None:
        """The failure of the first such sample in a unit, if there is one."""
        for (of, leaf, epoch, index), how in self._bad.items():
            if (
                of == job
                and ((rows.leaf == leaf) & (rows.epoch == epoch) & (rows.index == index)).any()
            ):
                return _failure((leaf, epoch, index), how)
        return None


def _failure(at: tuple[int, int, int], how: str) -> Failed:
    """A new one each time: an error that was raised holds those who asked, and is not kept."""
    return Failed(
        *at,
        DataError(
            f"its {how} {DEATHS} times in a row over this sample; fix the function, or remove the "
            "sample"
        ),
    )


def cannot_be_sent(executor: str, error: Exception) -> ConfigError:
    """What is raised of functions and sources that workers elsewhere cannot have."""
    return ConfigError(
        f"executor={executor!r}: the functions and sources cannot be sent to another process: "
        f"{error}; keep open files, locks and connections out of functions and sources, or use "
        "executor='threads'"
    )
