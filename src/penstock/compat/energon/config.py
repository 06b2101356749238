"""Who we are among the ranks, and how a run is done."""

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
    """As `WorkerConfig(global_error_handler=...)`: another sample of the dataset takes the place of
    one that fails, and the loader's journal tells of both.
    """


def reraise_exception(*failure: Any) -> None:
    """As `WorkerConfig(global_error_handler=...)`: the first sample that fails ends the run. The
    default."""


_POLICIES: Mapping[Any, OnError] = {
    None: "raise",
    reraise_exception: "raise",
    log_exception: "quarantine",
}


@dataclass(frozen=True)
class WorkerConfig:
    """Our rank and the world size (found by themselves where not given), threads, seed, and what to
    do about failures.

    - `num_workers` threads compute ahead; their number changes nothing in the stream, nor in a
      state. 0: inline.
    - `data_parallel_group`: the torch.distributed group whose ranks share out the data; equal ranks
      get the same. Rank and world size are found from it where not given.
    - `seed_offset`: another one gives another order, and other random numbers.
    - `global_error_handler`: `reraise_exception` (default) or `log_exception`, which puts another
      sample of the dataset in the place of one that fails, until `max_errors` failed.
    - `lanes`: a run is made of a fixed number of lanes, dealt out to the ranks; by default as many
      as there are ranks.
      It can go on with any number of ranks that divides it: give `lanes=64` to a run that may grow
          to 64 ranks.

    >>> WorkerConfig(rank=1, world_size=4).place()
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
                "restore_error_handler: a state that cannot be restored is always an error; leave "
                "it out"
            )
        if self.worker_debug_path is not None or self.worker_log_level:
            raise ConfigError(
                "worker_debug_path and worker_log_level: there are no logs of workers; "
                "loader.core.keys() tells what an item is made of, loader.core.journal which "
                "samples failed"
            )
        if self.global_error_handler not in _POLICIES:
            raise ConfigError(
                "global_error_handler: reraise_exception (the first failure ends the run) or "
                "log_exception (another sample takes its place; the loader's journal has source, "
                "index and error) can be chosen"
            )

    @classmethod
    def default_worker_config(
        cls, num_workers: int = 4, data_parallel_group: Any = None
    ) -> WorkerConfig:
        """The rank and world size of this process, and four threads."""
        rank, world_size = cls(data_parallel_group=data_parallel_group).place()
        return cls(rank, world_size, num_workers, data_parallel_group)

    @property
    def on_error(self) -> OnError:
        """The loader's policy."""
        return _POLICIES[self.global_error_handler]

    def agreed(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options without a `handler` that says what this says."""
        agree = "handler" in options and _POLICIES.get(options["handler"]) == self.on_error
        return (
            {name: value for name, value in options.items() if name != "handler"}
            if agree
            else options
        )

    def place(self) -> tuple[int, int]:
        """Rank and world size."""
        if self.rank is not None and self.world_size is not None:
            return self.rank, self.world_size
        if self.data_parallel_group is not None:
            distributed: Any = importlib.import_module("torch.distributed")
            group = self.data_parallel_group
            return int(distributed.get_rank(group)), int(distributed.get_world_size(group))
        return machine.place()

    def lane_count(self) -> int:
        """The lanes of a run that begins with this."""
        return self.place()[1] if self.lanes is None else self.lanes


@dataclass(frozen=True)
class SampleDecoder:
    """How the parts of samples are decoded: images as `image_decode` says (see
    `penstock.media.decode_image`), text and JSON as what they are; `image_decode=None` leaves
    images as bytes. As class attribute `decoder` of a task encoder; `decoder = None` leaves all
    parts as bytes.

    >>> SampleDecoder(image_decode="pil").parts()
    Decode(kind='pil', orient=False)
    """

    image_decode: str | None = "torchrgb"

    def parts(self) -> images.Decode:
        """The function that decodes a sample."""
        return images.Decode(self.image_decode)


def cooker(fn: Any = None, **options: Any) -> Any:
    """Marks a function as a cooker; it stays as it is.

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
    "av_decode": "audio and video are left as bytes",
    "cache_pool": "there is no cache of this kind",
    "fail_on_timeout": "there is no watchdog",
    "failure_tolerance": "max_errors of the WorkerConfig says how many samples may fail",
    "handler": "global_error_handler of the WorkerConfig says what to do",
    "need_cache": "there is no cache of this kind",
    "need_primary": "a crude sample has all its parts",
    "video_decode_audio": "audio and video are left as bytes",
    "watchdog_initial_timeout_seconds": "there is no watchdog",
    "watchdog_timeout_seconds": "there is no watchdog",
}


# What these ask for holds anyway: a state is exact after every item, every function can be resumed,
# and nothing has to be collected.
_HELD = {
    "checkpoint_every_min_n_samples", "checkpoint_every_sec", "gc_collect_every_n_steps", "n_checkpoints",
    "stateless_map_fn",
}  # fmt: skip


def refuse(call: str, options: Mapping[str, Any]) -> None:
    """Settings whose promise would not be kept are refused by name; those that ask for nothing are
    not."""
    for name, value in options.items():
        if name in _HELD or (value is None and name in _REASONS):
            continue
        reason = _REASONS.get(name)
        raise ConfigError(
            f"{call}: {name}= is not supported: {reason}"
            if reason
            else f"{call}: no setting {name!r}"
        )
