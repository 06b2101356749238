"""How a pipeline is run: threads and buffers. None of it changes an element, an order or a
state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ConfigError


@dataclass(frozen=True)
class ReadOptions:
    """How elements are read ahead: by `num_threads` threads, at most `prefetch_buffer_size` of
    them. 0 of either reads in the caller's thread, when asked.

    >>> ReadOptions()
    ReadOptions(num_threads=16, prefetch_buffer_size=500)
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500

    def __post_init__(self) -> None:
        if self.num_threads < 0 or self.prefetch_buffer_size < 0:
            raise ConfigError(f"{self}: numbers of threads and elements, 0 or more")


@dataclass(frozen=True)
class MultiprocessingOptions:
    """How many workers compute ahead, and how many elements each. 0 workers compute in the caller's
    thread.

    The workers are threads: same stream and same states for any number of them.

    >>> MultiprocessingOptions(num_workers=3, per_worker_buffer_size=10)
    MultiprocessingOptions(num_workers=3, per_worker_buffer_size=10)
    """

    num_workers: int = 0
    per_worker_buffer_size: int = 1

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.per_worker_buffer_size < 1:
            raise ConfigError(f"{self}: 0 or more workers, with room for 1 element or more each")


@dataclass(frozen=True)
class Stage:
    """Up to `n` elements made ahead by a thread of their own; `fn` is what that thread does to
    them."""

    n: int
    fn: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Run:
    """All that `ReadOptions`, `mp_prefetch` and prefetching ask for, over a whole pipeline."""

    threads: int = 0
    ahead: int = 0
    stages: tuple[Stage, ...] = ()

    @staticmethod
    def of(options: ReadOptions) -> Run:
        """One pool for the whole pipeline, however many inputs it has."""
        threads, ahead = options.num_threads, options.prefetch_buffer_size
        return Run(threads, ahead) if threads and ahead else Run()

    def workers(self, options: MultiprocessingOptions) -> Run:
        """With room for these workers too."""
        ahead = options.num_workers * options.per_worker_buffer_size
        return replace(
            self, threads=max(self.threads, options.num_workers), ahead=max(self.ahead, ahead)
        )

    def stage(self, stage: Stage) -> Run:
        """With one more stage, behind those there are."""
        return replace(self, stages=(*self.stages, stage))

    def mapped(self, fn: Callable[[Any], Any]) -> Run:
        """With one more function in the last stage."""
        last = self.stages[-1]
        assert last.fn is not None
        return replace(self, stages=(*self.stages[:-1], Stage(last.n, Then(last.fn, fn))))

    @property
    def placed(self) -> bool:
        """Whether the last stage is on a device: nothing but maps can follow."""
        return any(stage.fn is not None for stage in self.stages)


@dataclass(frozen=True)
class Then:
    """One function after the other."""

    first: Callable[[Any], Any]
    second: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return self.second(self.first(value))


def together(runs: Iterable[Run]) -> Run:
    """The run of a pipeline over several: the most that any asks for, once."""
    found = list(runs)
    stages = max((stage.n for run in found for stage in run.stages), default=0)
    return Run(
        max((run.threads for run in found), default=0),
        max((run.ahead for run in found), default=0),
        (Stage(stages),) if stages else (),
    )
