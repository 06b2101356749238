"""Run options: threads and buffers. They change no element, order or state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ConfigError


@dataclass(frozen=True)
class ReadOptions:
    """Prefetch of elements: `num_threads` threads, at most `prefetch_buffer_size` elements.

    0 of either reads inline.

    Args:
        num_threads: number of threads.
        prefetch_buffer_size: elements in flight.

    Raises:
        ConfigError: for negative numbers.

    >>> ReadOptions()
    ReadOptions(num_threads=16, prefetch_buffer_size=500)
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500

    def __post_init__(self) -> None:
        if self.num_threads < 0 or self.prefetch_buffer_size < 0:
            raise ConfigError(f"{self}: give numbers of 0 or more")


@dataclass(frozen=True)
class MultiprocessingOptions:
    """Number of workers, and elements in flight per worker; 0 workers compute inline.

    The workers are threads: stream and states do not depend on their number.

    Args:
        num_workers: number of workers.
        per_worker_buffer_size: elements in flight per worker.

    Raises:
        ConfigError: for negative numbers.

    >>> MultiprocessingOptions(num_workers=3, per_worker_buffer_size=10)
    MultiprocessingOptions(num_workers=3, per_worker_buffer_size=10)
    """

    num_workers: int = 0
    per_worker_buffer_size: int = 1

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.per_worker_buffer_size < 1:
            raise ConfigError(
                f"{self}: give 0 or more workers, with a buffer of 1 or more elements each"
            )


@dataclass(frozen=True)
class Stage:
    """A thread that prefetches up to `n` elements and applies `fn` to them."""

    n: int
    fn: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Run:
    """Run options of a whole pipeline, from `ReadOptions`, `mp_prefetch` and prefetch steps."""

    threads: int = 0
    prefetch: int = 0
    stages: tuple[Stage, ...] = ()

    @staticmethod
    def of(options: ReadOptions) -> Run:
        """Make one thread pool for the whole pipeline, for any number of inputs."""
        threads, prefetch = options.num_threads, options.prefetch_buffer_size
        return Run(threads, prefetch) if threads and prefetch else Run()

    def workers(self, options: MultiprocessingOptions) -> Run:
        """Add workers."""
        prefetch = options.num_workers * options.per_worker_buffer_size
        return replace(
            self,
            threads=max(self.threads, options.num_workers),
            prefetch=max(self.prefetch, prefetch),
        )

    def stage(self, stage: Stage) -> Run:
        """Append a stage."""
        return replace(self, stages=(*self.stages, stage))

    def mapped(self, fn: Callable[[Any], Any]) -> Run:
        """Append a function to the last stage."""
        last = self.stages[-1]
        assert last.fn is not None
        return replace(self, stages=(*self.stages[:-1], Stage(last.n, Then(last.fn, fn))))

    @property
    def on_device(self) -> bool:
        """True if a stage is on a device: only maps can follow."""
        return any(stage.fn is not None for stage in self.stages)


@dataclass(frozen=True)
class Then:
    """Compose two functions."""

    first: Callable[[Any], Any]
    second: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return self.second(self.first(value))


def merge_runs(runs: Iterable[Run]) -> Run:
    """Return the run options of a pipeline over several: the maximum of each."""
    all_runs = list(runs)
    stages = max((stage.n for run in all_runs for stage in run.stages), default=0)
    return Run(
        max((run.threads for run in all_runs), default=0),
        max((run.prefetch for run in all_runs), default=0),
        (Stage(stages),) if stages else (),
    )
