"""Ranks, workers and error handling of a run."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

from ... import tasks
from ...engine.base import machine
from ...engine.base.random import derive_key
from ...engine.streams.journal import OnError
from ...errors import ConfigError, DataError
from ...media import images
from . import allowed
from .audio_video import AV_EXTENSIONS, decode_av
from .caching import FileStoreDecoder


def log_exception(
    e: Exception, sample: Any = None, sources: Sequence[tasks.SourceInfo] | None = None
) -> None:
    """Log a failing sample, as `global_error_handler`: another of its dataset replaces it.

    The loader's journal records both.

    Args:
        e: the error.
        sample: the key of the sample.
        sources: the sources of the sample.
    """
    logging.getLogger("penstock").warning(
        "a sample failed and was replaced: %s (%s)",
        e,
        ", ".join(f"{source.dataset_path}[{source.index}]" for source in sources or ()) or sample,
    )


def reraise_exception(
    e: Exception, sample: Any = None, sources: Sequence[tasks.SourceInfo] | None = None
) -> None:
    """End the run at the first failing sample, as `global_error_handler`; the default.

    Args:
        e: the error.
        sample: not used.
        sources: not used.

    Raises:
        Exception: always `e`.
    """
    raise e


Handler = Callable[..., Any]
"""`handler(error, sample, sources)`, or of older releases `handler(error, key)`."""


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
        global_error_handler: `reraise_exception` (default), `log_exception`, or a function of the
            error, the key and the sources of a failing sample. Another sample of its dataset
            replaces it, until `max_errors` failed; the function may raise to end the run.
        max_errors: number of failing samples that end the run.
        lanes: a run has a fixed number of lanes, sharded across ranks; by default one per rank. It
            can resume on any world size that divides the lanes: set `lanes=64` for a run that may
            grow to 64 ranks.
        restore_error_handler: only `reraise_exception`.
        worker_debug_path: not supported.
        worker_log_level: 0; workers write no logs.

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
        if self.global_error_handler is not None and not callable(self.global_error_handler):
            raise ConfigError(
                "global_error_handler: pass reraise_exception (the first failure ends the run), "
                "log_exception (another sample replaces it), or a function of error, key and "
                "sources"
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
        return "raise" if self.global_error_handler in (None, reraise_exception) else "quarantine"

    def with_handler(self, options: Mapping[str, Any]) -> tuple[WorkerConfig, dict[str, Any]]:
        """Take the option `handler` as the error handler, unless this config has one.

        Args:
            options: settings of a call.

        Returns:
            The config, and the other options.
        """
        others = {name: value for name, value in options.items() if name != "handler"}
        handler = options.get("handler")
        if handler is None or self.global_error_handler is not None:
            return self, others
        return replace(self, global_error_handler=handler), others

    def report_failure(self, entry: Mapping[str, Any]) -> None:
        """Call the error handler for an entry of the loader's journal.

        Args:
            entry: an entry of `loader.core.journal`.
        """
        handler = self.global_error_handler
        if handler is None:
            return
        error = DataError(str(entry["error"]), where=f"{entry['source']}[{entry['index']}]")
        source = tasks.SourceInfo(dataset_path=str(entry["source"]), index=entry["index"])
        parameters = inspect.signature(handler).parameters.values()
        variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        key = f"{entry['source']}/{entry['index']}"
        if variadic or len(parameters) > 2:
            handler(error, key, [source])
        else:
            handler(error, key)

    def rank_and_world_size(self) -> tuple[int, int]:
        """Return rank and world size."""
        if self.rank is not None and self.world_size is not None:
            return self.rank, self.world_size
        if self.data_parallel_group is not None:
            distributed: Any = importlib.import_module("torch.distributed")
            group = self.data_parallel_group
            return int(distributed.get_rank(group)), int(distributed.get_world_size(group))
        return machine.detect_rank()

    def global_rank(self) -> int:
        """Return the rank among all processes, not only those of `data_parallel_group`."""
        rank, _ = self.rank_and_world_size()
        if self.data_parallel_group is None:
            return rank
        distributed: Any = importlib.import_module("torch.distributed")
        return int(distributed.get_global_rank(self.data_parallel_group, rank))

    def should_log(self, level: int) -> bool:
        """Return whether workers log at a level: only at 0.

        Args:
            level: the level.
        """
        return level <= self.worker_log_level

    def worker_seed(self, override_local_worker_id: int | None = None) -> int:
        """Return a seed of this rank, for random numbers outside of hooks.

        Args:
            override_local_worker_id: number of a worker, for another seed.
        """
        rank, _ = self.rank_and_world_size()
        return derive_key(self.seed_offset, rank, override_local_worker_id or 0) & 0xFFFFFFFF

    def config(self) -> dict[str, Any]:
        """Return rank, world size and number of workers as a dict."""
        rank, world_size = self.rank_and_world_size()
        group = self.data_parallel_group
        return {
            "rank": rank,
            "world_size": world_size,
            "num_workers": self.num_workers,
            "data_parallel_group": None if group is None else group.size(),
        }

    def lane_count(self) -> int:
        """Return the number of lanes of a new run."""
        return self.rank_and_world_size()[1] if self.lanes is None else self.lanes


@dataclass(frozen=True)
class SampleDecoder(FileStoreDecoder):
    """Decoding of the parts of samples, as class attribute `decoder` of a task encoder.

    Images are decoded as in `penstock.media.decode_image(image_decode)`, text and JSON by their
    type; `image_decode=None` leaves images as bytes. `decoder = None` leaves all parts as bytes.

    Args:
        image_decode: image format; None leaves bytes.
        av_decode: "AVDecoder" (default) gives an `AVDecoder` for audio and video, "torch" all
            their frames as `AVData`, "pyav" an open container, None the bytes.
        video_decode_audio: whether "torch" decodes the audio of videos too.
        guess_content: only False.

    Raises:
        ConfigError: for an unknown format.

    >>> SampleDecoder(image_decode="pil").decode("a.txt", b"text")
    'text'
    """

    image_decode: str | None = "torchrgb"
    av_decode: str | None = "AVDecoder"
    video_decode_audio: bool = False
    guess_content: bool = False

    def __post_init__(self) -> None:
        if self.guess_content:
            raise ConfigError("SampleDecoder(guess_content=True): name the parts by their content")
        if self.av_decode not in ("AVDecoder", "torch", "pyav", None):
            raise ConfigError(
                f"SampleDecoder(av_decode={self.av_decode!r}): choose 'AVDecoder', 'torch', 'pyav' "
                "or None"
            )
        images.Decode(self.image_decode)

    def decode(self, fname: str, data: bytes) -> Any:
        """Return the decoded content of a file.

        Args:
            fname: name of the file, whose extension chooses the decoder.
            data: its bytes.
        """
        key, _, name = fname.rpartition("/")[2].partition(".")
        return self({"__key__": key, name: data})[name]

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return self.parts()(sample)

    def config(self) -> dict[str, Any]:
        """Return the settings as a dict."""
        return dict(vars(self))

    def parts(self, allow: Collection[str] = ()) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """Return the function that decodes a sample.

        Args:
            allow: names of the kinds of pickles that may be loaded.
        """
        return DecodeParts(images.Decode(self.image_decode), self, frozenset(allow))


@dataclass(frozen=True)
class DecodeParts:
    """Decode the parts of a sample: images and data, then audio and video, then allowed pickles."""

    images: images.Decode
    settings: SampleDecoder
    allow: frozenset[str]

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._decode(name, value, sample)
            if isinstance(value, bytes) and not name.startswith("__")
            else value
            for name, value in self.images(sample).items()
        }

    def _decode(self, name: str, data: bytes, sample: Mapping[str, Any]) -> Any:
        extension = name.rpartition(".")[2].lower()
        if extension in AV_EXTENSIONS and self.settings.av_decode is not None:
            return decode_av(data, self.settings.av_decode, self.settings.video_decode_audio)
        if extension in allowed.PICKLES:
            where = f"{sample.get('__key__', '')}.{name}"
            return allowed.unpickle(data, extension, self.allow, where)
        return data


def cooker(fn: Any = None, *, need_cache: bool = False, need_primary: bool = False) -> Any:
    """Mark a function as a cooker.

    Args:
        fn: the function.
        need_cache: whether it takes the cache of the loader as `cache`.
        need_primary: whether it takes the store of its own dataset as `primary`.

    Returns:
        The function.

    >>> @cooker(need_primary=True)
    ... def cook(sample, primary):
    ...     return sample
    """
    if fn is None:
        return partial(cooker, need_cache=need_cache, need_primary=need_primary)
    if not (need_cache or need_primary):
        return fn

    @wraps(fn)
    def cook(*args: Any, **stores: Any) -> Any:
        return fn(*args, **stores)

    marks: Any = cook
    marks.__cooker_need_cache__, marks.__cooker_need_primary__ = need_cache, need_primary
    return marks


_REASONS = {
    "auto_decode": "set the encoder's decoder = None to get bytes",
    "fail_on_timeout": "a thread cannot be ended; set a limit for the job",
}


# No-ops: a state is exact after every item, every function can resume, no garbage collection is
# needed, `max_errors` of the WorkerConfig limits failures, and the watchdog would only warn.
_NO_OPS = {
    "batcher_config", "batcher_stateless", "checkpoint_every_min_n_samples", "checkpoint_every_sec",
    "failure_tolerance", "filter_fn_config", "final_packer_failure_tolerance",
    "final_packer_stateless", "gc_collect_every_n_steps", "gc_freeze_at_start", "map_fn_config",
    "n_checkpoints", "packer_config", "pre_packer_failure_tolerance",
    "sample_encoder_failure_tolerance", "sample_encoder_stateless", "stateless_map_fn",
    "watchdog_initial_timeout_seconds", "watchdog_timeout_seconds",
}  # fmt: skip


def refuse(call: str, options: Mapping[str, Any]) -> None:
    """Raise for settings that are not supported; no-ops are accepted."""
    for name, value in options.items():
        if name in _NO_OPS or (not value and name in _REASONS):
            continue
        reason = _REASONS.get(name)
        raise ConfigError(
            f"{call}: {name}= is not supported: {reason}"
            if reason
            else f"{call}: unknown setting {name!r}: remove it"
        )
