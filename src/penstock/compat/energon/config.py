"""Ranks, workers and error handling of a run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...engine.base import machine
from ...engine.streams.journal import OnError
from ...errors import ConfigError
from ...media import images


def log_exception(*failure: Any) -> None:
    """Replace each failing sample by another of its dataset, as `global_error_handler`.

    The loader's journal records both.

    Args:
        failure: not used.
    """


def reraise_exception(*failure: Any) -> None:
    """End the run at the first failing sample, as `global_error_handler`; the default.

    Args:
        failure: not used.
    """


_POLICIES: Mapping[Any, OnError] = {
    None: "raise",
    reraise_exception: "raise",
    log_exception: "quarantine",
}


@dataclass(frozen=True)
class WorkerConfig:
    """Rank, world size, threads, seed, and error handling of a run.

    Args:
        rank: rank of this process; detected by default.
        world_size: number of ranks; detected by default.
        num_workers: threads that prefetch; 0 computes inline. Their number changes neither the
            stream nor a state.
        data_parallel_group: the torch.distributed group whose ranks shard the data; equal ranks get
            equal data. Rank and world size are taken from it by default.
        seed_offset: seed of the order and of random numbers.
        global_error_handler: `reraise_exception` (default) or `log_exception`, which replaces each
            failing sample by another of its dataset, until `max_errors` failed.
        max_errors: number of failing samples that end the run.
        lanes: a run has a fixed number of lanes, sharded across ranks; by default one per rank. It
            can resume on any world size that divides the lanes: set `lanes=64` for a run that may
            grow to 64 ranks.
        restore_error_handler: only `reraise_exception`.
        worker_debug_path: not supported.
        worker_log_level: not supported.

    Raises:
        ConfigError: for settings that are not supported.

    >>> WorkerConfig(rank=1, world_size=4).rank_and_world_size()
    (1, 4)
    """

    rank: int | None = None
    world_size: int | None = None
    num_workers: int = 0
    data_parallel_group: Any = None
    seed_offset: int = 0
    global_error_handler: Callable[..., Any] | None = None
    max_errors: int = 100
    lanes: int | None = None
    restore_error_handler: Callable[..., Any] | None = None
    worker_debug_path: str | None = None
    worker_log_level: int = 0

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError(
                f"rank={self.rank}, world_size={self.world_size}: give both or neither"
            )
        if self.restore_error_handler not in (None, reraise_exception):
            raise ConfigError(
                "restore_error_handler: a state that fails to load always raises: leave it out"
            )
        if self.worker_debug_path is not None or self.worker_log_level:
            raise ConfigError(
                "worker_debug_path and worker_log_level: workers write no logs: use "
                "loader.core.keys() for the samples of an item, loader.core.journal for failed "
                "samples"
            )
        if self.global_error_handler not in _POLICIES:
            raise ConfigError(
                "global_error_handler: choose reraise_exception (the first failure ends the run) "
                "or log_exception (another sample replaces it; the loader's journal has source, "
                "index and error)"
            )

    @classmethod
    def default_worker_config(
        cls, num_workers: int = 4, data_parallel_group: Any = None
    ) -> WorkerConfig:
        """Return the rank and world size of this process, with four threads.

        Args:
            num_workers: number of threads.
            data_parallel_group: as in `WorkerConfig`.
        """
        rank, world_size = cls(data_parallel_group=data_parallel_group).rank_and_world_size()
        return cls(rank, world_size, num_workers, data_parallel_group)

    @property
    def on_error(self) -> OnError:
        """The error policy of the loader."""
        return _POLICIES[self.global_error_handler]

    def without_redundant_handler(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Drop the option `handler` if it equals this config's policy.

        Args:
            options: settings of a call.

        Returns:
            The options without a redundant handler.
        """
        redundant = "handler" in options and _POLICIES.get(options["handler"]) == self.on_error
        return (
            {name: value for name, value in options.items() if name != "handler"}
            if redundant
            else options
        )

    def rank_and_world_size(self) -> tuple[int, int]:
        """Return rank and world size."""
        if self.rank is not None and self.world_size is not None:
            return self.rank, self.world_size
        if self.data_parallel_group is not None:
            distributed: Any = importlib.import_module("torch.distributed")
            group = self.data_parallel_group
            return int(distributed.get_rank(group)), int(distributed.get_world_size(group))
        return machine.detect_rank()

    def lane_count(self) -> int:
        """Return the number of lanes of a new run."""
        return self.rank_and_world_size()[1] if self.lanes is None else self.lanes


@dataclass(frozen=True)
class SampleDecoder:
    """Decoding of the parts of samples, as class attribute `decoder` of a task encoder.

    Images are decoded as in `penstock.media.decode_image(image_decode)`, text and JSON by their
    type; `image_decode=None` leaves images as bytes. `decoder = None` leaves all parts as bytes.

    Args:
        image_decode: image format; None leaves bytes.

    >>> SampleDecoder(image_decode="pil").parts()
    Decode(kind='pil', orient=False)
    """

    image_decode: str | None = "torchrgb"

    def parts(self) -> images.Decode:
        """Return the function that decodes a sample."""
        return images.Decode(self.image_decode)


def cooker(fn: Any = None, **options: Any) -> Any:
    """Mark a function as a cooker; returns it unchanged.

    Args:
        fn: the function.
        options: other settings of Energon.

    Returns:
        The function.

    >>> @cooker
    ... def cook(sample):
    ...     return sample
    """
    refuse("cooker", options)
    return fn if fn is not None else _same


def _same(fn: Any) -> Any:
    return fn


_REASONS = {
    "auto_decode": "set the encoder's decoder = None to get bytes",
    "av_decode": "audio and video stay bytes",
    "cache_pool": "there is no such cache",
    "fail_on_timeout": "there is no watchdog",
    "failure_tolerance": "set max_errors of the WorkerConfig instead",
    "handler": "set global_error_handler of the WorkerConfig instead",
    "need_cache": "there is no such cache",
    "need_primary": "a crude sample has all its parts",
    "video_decode_audio": "audio and video stay bytes",
    "watchdog_initial_timeout_seconds": "there is no watchdog",
    "watchdog_timeout_seconds": "there is no watchdog",
}


# No-ops: a state is exact after every item, every function can resume, and no garbage collection
# is needed.
_NO_OPS = {
    "checkpoint_every_min_n_samples", "checkpoint_every_sec", "gc_collect_every_n_steps", "n_checkpoints",
    "stateless_map_fn",
}  # fmt: skip


def refuse(call: str, options: Mapping[str, Any]) -> None:
    """Raise for settings that are not supported; no-ops are accepted."""
    for name, value in options.items():
        if name in _NO_OPS or (value is None and name in _REASONS):
            continue
        reason = _REASONS.get(name)
        raise ConfigError(
            f"{call}: {name}= is not supported: {reason}"
            if reason
            else f"{call}: unknown setting {name!r}: remove it"
        )
