"""Settings of EasyData that have no effect here, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError


class Refusal(NamedTuple):
    """A setting without effect.

    Attributes:
        accepted: EasyData's default, and other values that describe what happens.
        remedy: the setting or call to use instead.
    """

    accepted: tuple[Any, ...]
    remedy: str


_RETRIES = "set `PENSTOCK_STORE_SECONDS`, the seconds of retries of a request"
_CREDENTIALS = "credentials come from the environment, see stores.md"
_PREFETCH = "the trainer's loader prefetches; or use `Pipeline` with `LoadStageConfig`"
_PROGRESS = "set `PENSTOCK_PROGRESS=0` to show no progress"

REFUSED_FIELDS: Mapping[str, Mapping[str, Refusal]] = {
    "DatasetConfig": {
        "cache_enabled": Refusal(
            (True,), "indexes of lines are always stored, in `cache_path` or beside the data"
        ),
        "shard_column": Refusal((None,), "rows are numbered; sharding needs no column"),
    },
    "SourceStageConfig": {
        "cloud_max_retries": Refusal((3,), _RETRIES),
        "cloud_retry_delay": Refusal((1.0,), _RETRIES),
        "dask_storage_options": Refusal((None,), _CREDENTIALS),
    },
    "TokenizeStageConfig": {
        "batch_size": Refusal((1000,), "the run chooses the number of texts per tokenizer call"),
        "num_workers": Refusal((4,), "`LoadStageConfig(prefetch_workers=...)`"),
        "cache_tokenized": Refusal(
            (True, False),
            "call `save()` after `tokenize()` to store the tokens for the stages that follow",
        ),
    },
    "CacheStageConfig": {
        "hash_fn": Refusal(
            ("combined",), "give `TreeCacheManager.compute_key` the content to hash"
        ),
    },
    "LoadStageConfig": {
        "prefetch_to_device": Refusal(
            (False,), "`AsyncDataLoader(sharding_map=...)`, or `penstock.Loader(device=...)`"
        ),
    },
    "RayConfig": {
        "resources_per_worker": Refusal((None,), "an actor takes one CPU of the cluster"),
        "use_gpu": Refusal((False,), "tokenizers run on CPUs"),
        "object_store_memory": Refusal((None,), "call `ray.init(object_store_memory=...)` before"),
    },
    "ObservabilityConfig": {
        "progress_enabled": Refusal((True,), _PROGRESS),
        "progress_type": Refusal(("tqdm",), _PROGRESS),
        "metrics_enabled": Refusal((True, False), "`Loader.stats()` measures on request"),
        "log_level": Refusal(("INFO",), '`logging.getLogger("penstock").setLevel(...)`'),
        "log_interval": Refusal((100,), "read `Loader.metrics()` in the training loop"),
    },
    "DatasetMixture": {
        "dask_storage_options": Refusal((None,), _CREDENTIALS),
        "prefetch_workers": Refusal((2,), _PREFETCH),
        "prefetch_buffer_size": Refusal((4,), _PREFETCH),
        "cloud_max_retries": Refusal((3,), _RETRIES),
        "cloud_retry_delay": Refusal((0.1,), _RETRIES),
        "cache_remote_files": Refusal(
            (True,), "blocks of remote files are cached in `PENSTOCK_CACHE`"
        ),
        "cache_expiry_seconds": Refusal(
            (86400,), "set `PENSTOCK_CACHE_LIMIT`; least recently used blocks are evicted"
        ),
    },
}
"""Class -> field -> why another value than the default raises an error."""


def refuse(config: Any) -> None:
    """Raise if a field without effect has another value than EasyData's default.

    Args:
        config: the settings.

    Raises:
        ConfigError: if one of them is set; the message says what to use instead.
    """
    kind = type(config).__name__
    for name, (accepted, remedy) in REFUSED_FIELDS.get(kind, {}).items():
        if (value := getattr(config, name)) not in (None, *accepted):
            raise ConfigError(f"{kind}({name}={value!r}) would have no effect: {remedy}")
