"""Who computes, and how many: found by trying, within a budget of memory. It never changes what a
run gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from .dataset import Dataset
from .engine.base.hints import guided
from .engine.base.ints import whole
from .engine.base.machine import resident
from .engine.base.seams import world
from .engine.runtime.executors import ExecutorName
from .engine.runtime.setting import Setting
from .errors import ConfigError
from .loader import Loader

_NOTHING = 1e-4
"""Seconds; an item that takes less is made while nobody notices."""
_GAIN = 1.3
"""How many times as fast something must be to be worth more workers, or copies between
processes."""
_SIDE_BY_SIDE = 0.7
"""The part of what so many threads could gain, from which on they hardly wait for each other."""
_TRIALS = 10  # at most; each has its share of the time
_LOOK = 0.1  # seconds between two looks at the memory

State: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Trial:
    """What was measured with some options: items a second, and bytes of memory over those there
    were before."""

    executor: ExecutorName
    workers: int
    prefetch: int | None
    rate: float
    memory: int

    def __str__(self) -> str:
        ahead = f", prefetch={self.prefetch}" if self.prefetch else ""
        who = f"{self.executor}, {self.workers} workers{ahead}" if self.workers else "inline"
        return f"{who:32} {self.rate:12,.1f} items/s {self.memory / 1e6:10,.0f} MB"


@dataclass(frozen=True)
class Choice:
    """Options for a `Loader`, with what was measured on the way to them; `str()` is a table."""

    options: dict[str, Any]
    trials: tuple[Trial, ...]
    why: str

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return "\n".join([f"Loader({given}): {self.why}", *(f"  {trial}" for trial in self.trials)])


@guided
def autotune(
    dataset: Dataset | Callable[..., Loader],
    *,
    seconds: float = 20.0,
    ram_budget: int | None = None,
    max_workers: int = 64,
    state: State | None = None,
) -> Choice:
    """Try executors, numbers of workers and prefetching on the data itself, and choose by what was
    measured.

    The choice is options of a run only, which change no item and no state; `choice.options` is
    plain JSON, and `print(choice)` shows what was tried. Workers are chosen wherever an item takes
    longer than a tenth of a millisecond, as they make data while the training step runs; more of
    them, and processes, only where they are at least 1.3 times as fast. Afterwards nothing is left
    of the trials.

    Args:
        dataset: what will be loaded; or a function that makes the loader from the options to try,
            for one that has
            options of its own: `lambda **options: ps.Loader(ds, lanes=8, **options)`.
        seconds: how long to measure at most. Workers start in time of their own, and an item that
            takes longer is waited for.
        ram_budget: how many bytes workers and what they make ahead may take, over what this process
            holds already.
        max_workers: never more than so many.
        state: where to begin, as `load_state_dict` takes it; the beginning of the dataset when not
            given.

    Raises:
        ConfigError: for a dataset without items, and for figures that cannot be.

    >>> import penstock as ps
    >>> ds = ps.from_sequence(range(10_000)).batch(4)
    >>> choice = ps.autotune(ds, seconds=0.1)
    >>> sorted(choice.options)[-1], choice.options["executor"] in ("inline", "threads", "processes")
    ('workers', True)
    >>> loader = ps.Loader(ds, **choice.options)
    """
    if seconds <= 0:
        raise ConfigError(f"autotune(seconds={seconds}): more than 0")
    most = whole(max_workers, "autotune(max_workers={})", 1)
    budget = None if ram_budget is None else whole(ram_budget, "autotune(ram_budget={})", 1)
    make = partial(Loader, dataset) if isinstance(dataset, Dataset) else dataset
    return _Tuning(make, seconds, budget, most, state).chosen()


@dataclass
class _Tuning:
    make: Callable[..., Loader]
    seconds: float
    budget: int | None
    most: int
    state: State | None
    trials: list[Trial] = field(default_factory=list[Trial])

    def __post_init__(self) -> None:
        self._before = resident()

    def chosen(self) -> Choice:
        """The options."""
        alone = self._tried("inline", 0)
        assert alone is not None
        if alone.rate * _NOTHING > 1:
            return self._choice(
                alone, f"an item takes {1e6 / alone.rate:.0f} µs inline, which nobody notices"
            )
        threads = self._most_workers("threads", alone)
        if threads.workers > 1 and threads.rate >= _SIDE_BY_SIDE * threads.workers * alone.rate:
            return self._choice(self._ahead(threads), "threads run side by side")
        processes = self._most_workers("processes", alone)
        if processes.rate >= _GAIN * threads.rate:
            gain = processes.rate / threads.rate
            return self._choice(
                self._ahead(processes), f"processes are {gain:.1f} times as fast as threads"
            )
        why = (
            "more of them would not be faster"
            if threads.workers > 1
            else "one works while the training step runs"
        )
        return self._choice(self._ahead(threads), why)

    def _choice(self, trial: Trial, why: str) -> Choice:
        if self.budget is not None and trial.memory > self.budget:
            why += f"; it takes more memory than the budget of {self.budget / 1e6:,.0f} MB all the same"
        return Choice(
            self._options(trial.executor, trial.workers, trial.prefetch), tuple(self.trials), why
        )

    def _most_workers(self, executor: ExecutorName, alone: Trial) -> Trial:
        """The trial with the most workers that were worth it; one worker is as fast as nobody."""
        best, workers = Trial(executor, 1, None, alone.rate, alone.memory), 2
        while workers <= self.most:
            found = self._tried(executor, workers)
            if found is None or self._too_large(found) or found.rate < _GAIN * best.rate:
                break
            best, workers = found, 2 * workers
        return best

    def _ahead(self, best: Trial) -> Trial:
        """The same with more prefetched, where that is worth it."""
        found = (
            self._tried(best.executor, best.workers, 8 * best.workers) if best.workers > 1 else None
        )
        return (
            best
            if found is None or self._too_large(found) or found.rate < _GAIN * best.rate
            else found
        )

    def _too_large(self, trial: Trial) -> bool:
        return self.budget is not None and trial.memory > self.budget

    def _options(
        self, executor: ExecutorName, workers: int, prefetch: int | None
    ) -> dict[str, Any]:
        options: dict[str, Any] = {"executor": executor, "workers": workers}
        if prefetch is not None:
            options["prefetch"] = prefetch
        if self.budget is not None:
            options["prefetch_bytes"] = max(1, min(self.budget // 2, Setting().bytes_ahead))
        return options

    def _tried(
        self, executor: ExecutorName, workers: int, prefetch: int | None = None
    ) -> Trial | None:
        """One trial; None where there were enough, or the work cannot be done so."""
        if len(self.trials) == _TRIALS:
            return None
        try:
            with self.make(**self._options(executor, workers, prefetch)) as loader:
                if self.state is not None:
                    loader.load_state_dict(self.state)
                begun = prefetch or 2 * workers
                rate, memory = _measured(loader, begun, self.seconds / _TRIALS, self._before)
                self.state = (
                    loader.state_dict()
                )  # the next one begins with data that nobody has read
        except (ConfigError, ImportError):
            if executor != "processes":
                raise
            return None  # what is open cannot be sent to them, or the extra is not installed
        self.trials.append(Trial(executor, workers, prefetch, rate, memory))
        return self.trials[-1]


def _measured(loader: Loader, begun: int, seconds: float, before: int) -> tuple[float, int]:
    """Items a second and the most memory that was taken, once all workers have given something: so
    many items are begun before any is done.
    """
    items, looks, memory = 0, 0.0, 0
    steps = _endless(loader)
    for _ in range(2 * begun + 1):
        next(steps)
    began = now = world.sched.now()
    while now - began < seconds or not items:
        next(steps)
        items += 1
        now = world.sched.now()
        if now - began >= looks:
            looks = now - began + _LOOK
            memory = max(memory, sum(loader.stats()["resident_bytes"].values()) - before)
    return items / max(now - began, 1e-9), memory


def _endless(loader: Loader) -> Iterator[Any]:
    """Pass after pass, of which the first may have been at its end."""
    idle = 0
    while True:
        before = loader.stats()["items"]
        yield from loader
        idle = idle + 1 if loader.stats()["items"] == before else 0
        if idle > 1:
            raise ConfigError("autotune: the dataset gives nothing, so there is nothing to measure")
