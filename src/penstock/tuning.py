"""Autotuning: choose executor, workers and prefetching by measurement, within a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from .arguments import check_int, make_not_dataset_error, validate_arguments
from .dataset import Dataset
from .engine.base.machine import measure_resident_memory
from .engine.base.seams import world
from .engine.runtime.executors import ExecutorName
from .engine.runtime.run_options import RunOptions
from .errors import ConfigError
from .loader import Loader

_NEGLIGIBLE_SECONDS = 1e-4
"""Time of an item below which computing inline does not delay training."""
_MIN_SPEEDUP = 1.3
"""Speedup that justifies more workers, or copies between processes."""
_PARALLEL_EFFICIENCY = 0.7
"""Share of the ideal speedup of threads from which they hardly wait for each other."""
_MAX_TRIALS = 10  # each has an equal share of the time
_MEMORY_INTERVAL = 0.1  # seconds between two measurements of the memory

State: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class TuningTrial:
    """Measurement with some options: items per second, and additional bytes of memory."""

    executor: ExecutorName
    workers: int
    prefetch: int | None
    rate: float
    memory: int

    def __str__(self) -> str:
        ahead = f", prefetch={self.prefetch}" if self.prefetch else ""
        options = f"{self.executor}, {self.workers} workers{ahead}" if self.workers else "inline"
        return f"{options:32} {self.rate:12,.1f} items/s {self.memory / 1e6:10,.0f} MB"


@dataclass(frozen=True)
class TuningChoice:
    """Options for a `Loader`, with the measurements that led to them; `str()` is a table."""

    options: dict[str, Any]
    trials: tuple[TuningTrial, ...]
    why: str

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return "\n".join(
            [f"Loader({options}): {self.why}", *(f"  {trial}" for trial in self.trials)]
        )


@validate_arguments
def autotune(
    dataset: Dataset | Callable[..., Loader],
    *,
    seconds: float = 20.0,
    ram_budget: int | None = None,
    max_workers: int = 64,
    state: State | None = None,
) -> TuningChoice:
    """Measure executors, numbers of workers and prefetching on the data, and choose the best.

    The options change no item and no state. `choice.options` is plain JSON, and `print(choice)`
    shows the trials. If an item takes longer than a tenth of a millisecond, a worker is chosen, as
    it works during the training step. More workers, and processes, are chosen only if they are at
    least 1.3 times as fast. All trials are closed afterwards.

    Args:
        dataset: the dataset to load; or a function from the options of a trial to a loader, for
            further options: `lambda **options: ps.Loader(ds, lanes=8, **options)`.
        seconds: limit on the time of measurement. Starting workers takes additional time, and a
            slow item is completed.
        ram_budget: limit on the bytes of workers and prefetched items, in addition to the present
            memory of this process.
        max_workers: maximum number of workers.
        state: state at which to begin, as for `load_state_dict`. Default: the beginning of the
            dataset.

    Returns:
        The chosen options and all trials.

    Raises:
        ConfigError: if the dataset has no items, or if a limit is invalid.

    >>> import penstock as ps
    >>> ds = ps.from_sequence(range(10_000)).batch(4)
    >>> choice = ps.autotune(ds, seconds=0.1)
    >>> sorted(choice.options)[-1], choice.options["executor"] in ("inline", "threads", "processes")
    ('workers', True)
    >>> loader = ps.Loader(ds, **choice.options)
    """
    if seconds <= 0:
        raise ConfigError(f"autotune(seconds={seconds}): give more than 0 seconds")
    limit = check_int(max_workers, "autotune(max_workers={})", 1)
    budget = None if ram_budget is None else check_int(ram_budget, "autotune(ram_budget={})", 1)
    make = partial(Loader, dataset) if isinstance(dataset, Dataset) else dataset
    if not callable(make):
        raise make_not_dataset_error("autotune", dataset)
    return _OptionSearch(make, seconds, budget, limit, state).choose()


@dataclass
class _OptionSearch:
    make: Callable[..., Loader]
    seconds: float
    budget: int | None
    max_workers: int
    state: State | None
    trials: list[TuningTrial] = field(default_factory=list[TuningTrial])

    def __post_init__(self) -> None:
        self._initial_memory = measure_resident_memory()

    def choose(self) -> TuningChoice:
        """Run trials, and return the best options."""
        inline = self._try("inline", 0)
        assert inline is not None
        if inline.rate * _NEGLIGIBLE_SECONDS > 1:
            return self._choice(
                inline, f"an item takes {1e6 / inline.rate:.0f} µs inline, which is negligible"
            )
        threads = self._scale_workers("threads", inline)
        ideal = threads.workers * inline.rate
        if threads.workers > 1 and threads.rate >= _PARALLEL_EFFICIENCY * ideal:
            return self._choice(self._try_prefetch(threads), "threads run in parallel")
        processes = self._scale_workers("processes", inline)
        if processes.rate >= _MIN_SPEEDUP * threads.rate:
            gain = processes.rate / threads.rate
            return self._choice(
                self._try_prefetch(processes), f"processes are {gain:.1f} times as fast as threads"
            )
        why = (
            "more workers would not be faster"
            if threads.workers > 1
            else "one worker prefetches during the training step"
        )
        return self._choice(self._try_prefetch(threads), why)

    def _choice(self, trial: TuningTrial, why: str) -> TuningChoice:
        if self.budget is not None and trial.memory > self.budget:
            why += f"; it exceeds the memory budget of {self.budget / 1e6:,.0f} MB"
        return TuningChoice(
            self._options(trial.executor, trial.workers, trial.prefetch), tuple(self.trials), why
        )

    def _scale_workers(self, executor: ExecutorName, inline: TuningTrial) -> TuningTrial:
        """Double the workers while it pays; one worker counts as fast as inline."""
        best, workers = TuningTrial(executor, 1, None, inline.rate, inline.memory), 2
        while workers <= self.max_workers:
            trial = self._try(executor, workers)
            if trial is None or not self._is_better(trial, best):
                break
            best, workers = trial, 2 * workers
        return best

    def _try_prefetch(self, best: TuningTrial) -> TuningTrial:
        """Try more prefetching, and return the better trial."""
        if best.workers <= 1:
            return best
        trial = self._try(best.executor, best.workers, 8 * best.workers)
        return trial if trial is not None and self._is_better(trial, best) else best

    def _is_better(self, trial: TuningTrial, best: TuningTrial) -> bool:
        if self.budget is not None and trial.memory > self.budget:
            return False
        return trial.rate >= _MIN_SPEEDUP * best.rate

    def _options(
        self, executor: ExecutorName, workers: int, prefetch: int | None
    ) -> dict[str, Any]:
        options: dict[str, Any] = {"executor": executor, "workers": workers}
        if prefetch is not None:
            options["prefetch"] = prefetch
        if self.budget is not None:
            options["prefetch_bytes"] = max(
                1, min(self.budget // 2, RunOptions().max_prefetch_bytes)
            )
        return options

    def _try(
        self, executor: ExecutorName, workers: int, prefetch: int | None = None
    ) -> TuningTrial | None:
        """Run a trial; `None` after the last one, or if the executor cannot run the pipeline."""
        if len(self.trials) == _MAX_TRIALS:
            return None
        try:
            with self.make(**self._options(executor, workers, prefetch)) as loader:
                if self.state is not None:
                    loader.load_state_dict(self.state)
                in_flight = prefetch or 2 * workers
                seconds = self.seconds / _MAX_TRIALS
                rate, memory = _measure_loader(loader, in_flight, seconds, self._initial_memory)
                self.state = loader.state_dict()  # the next trial begins with unread data
        except (ConfigError, ImportError):
            if executor != "processes":
                raise
            return None  # the pipeline cannot be pickled, or the extra is not installed
        self.trials.append(TuningTrial(executor, workers, prefetch, rate, memory))
        return self.trials[-1]


def _measure_loader(
    loader: Loader, in_flight: int, seconds: float, initial_memory: int
) -> tuple[float, int]:
    """Return items per second and the peak of additional memory, after a warm-up.

    During the warm-up all workers deliver items: `in_flight` items are begun before any is done.
    """
    items, next_check, memory = 0, 0.0, 0
    steps = _repeat_passes(loader)
    for _ in range(2 * in_flight + 1):
        next(steps)
    began = now = world.sched.now()
    while now - began < seconds or not items:
        next(steps)
        items += 1
        now = world.sched.now()
        if now - began >= next_check:
            next_check = now - began + _MEMORY_INTERVAL
            memory = max(memory, sum(loader.stats()["resident_bytes"].values()) - initial_memory)
    return items / max(now - began, 1e-9), memory


def _repeat_passes(loader: Loader) -> Iterator[Any]:
    """Iterate over pass after pass; the first one may be at its end."""
    idle = 0
    while True:
        before = loader.stats()["items"]
        yield from loader
        idle = idle + 1 if loader.stats()["items"] == before else 0
        if idle > 1:
            raise ConfigError(
                "autotune: the dataset has no items to measure; give a dataset that is not empty"
            )
