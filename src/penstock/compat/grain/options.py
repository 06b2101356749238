"""Run options: threads and buffers. They change no element, order or state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
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
        enable_profiling: ignored: a `Loader` of the dataset measures every step of it.

    Raises:
        ConfigError: for negative numbers.

    >>> MultiprocessingOptions(num_workers=3, per_worker_buffer_size=10)
    MultiprocessingOptions(num_workers=3, per_worker_buffer_size=10, enable_profiling=False)
    """

    num_workers: int = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.per_worker_buffer_size < 1:
            raise ConfigError(
                f"{self}: give 0 or more workers, with a buffer of 1 or more elements each"
            )


class ExecutionTrackingMode(Enum):
    """Statistics of the steps of a pipeline; a `Loader` of `ds.core` measures them instead."""

    DISABLED = auto()
    STAGE_TIMING = auto()


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Options of a pipeline, which are accepted without effect.

    Args:
        filter_warn_threshold_ratio: ignored: filters do not warn.
        filter_raise_threshold_ratio: must be None in a pipeline. One that yields nothing at all
            raises an error by itself.
        execution_tracking_mode: ignored.
        min_shm_size: ignored: workers are threads, and copy nothing.

    >>> DatasetOptions(min_shm_size=10).merge(DatasetOptions(filter_warn_threshold_ratio=None))
    DatasetOptions(filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=None, \
    execution_tracking_mode=<ExecutionTrackingMode.DISABLED: 1>, min_shm_size=10)
    """

    filter_warn_threshold_ratio: float | None = 0.9
    filter_raise_threshold_ratio: float | None = None
    execution_tracking_mode: ExecutionTrackingMode = ExecutionTrackingMode.DISABLED
    min_shm_size: int = 0

    def require_supported(self) -> None:
        """Raise for an option that would change what the pipeline does.

        Raises:
            ConfigError: for a `filter_raise_threshold_ratio`.
        """
        if self.filter_raise_threshold_ratio is not None:
            raise ConfigError(
                f"filter_raise_threshold_ratio={self.filter_raise_threshold_ratio}: filters have "
                "no threshold: count in the function of the filter, and raise there"
            )

    def merge(self, other: DatasetOptions) -> DatasetOptions:
        """Return the options, with those of `other` where this one has the defaults.

        Args:
            other: other options.
        """
        changed = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if getattr(self, option.name) != option.default
        }
        return replace(other, **changed)


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
    worker_init: tuple[Callable[[int, int], None], ...] = ()

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

    def initialized(self, fn: Callable[[int, int], None] | None) -> Run:
        """Add a function to call before the first element."""
        return self if fn is None else replace(self, worker_init=(*self.worker_init, fn))

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
        tuple(fn for run in all_runs for fn in run.worker_init),
    )
