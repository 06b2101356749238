"""Helpers of EasyData: files, formats, retries and columns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn, TypeVar, cast

from ...engine.base import seams
from ...errors import ConfigError
from ...sources.hub import is_stream
from .sources import expand_data_files

F = TypeVar("F", bound=Callable[..., Any])

_BUILDERS = {
    ".arrow": "arrow", ".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet",
    ".pq": "parquet",
}  # fmt: skip


def with_retry(
    max_retries: int = 3,
    initial_delay: float = 0.1,
    max_delay: float = 10.0,
    backoff_factor: float = 2.0,
    retryable_exceptions: tuple[type[BaseException], ...] = (OSError, TimeoutError),
) -> Callable[[F], F]:
    """Return a decorator that retries a function with exponential backoff.

    Reads of remote files are retried without it. A generator function is not retried, since its
    errors appear in `next`.

    Args:
        max_retries: number of retries.
        initial_delay: seconds before the first retry.
        max_delay: maximum seconds before a retry.
        backoff_factor: factor of the delay after each retry.
        retryable_exceptions: errors that are retried.

    >>> with_retry(max_retries=1)(int)("3")
    3
    """

    def decorate(fn: F) -> F:
        @wraps(fn)
        def call(*args: Any, **options: Any) -> Any:
            delay = initial_delay
            for _ in range(max_retries):
                try:
                    return fn(*args, **options)
                except retryable_exceptions:
                    seams.LocalSched().sleep(min(delay, max_delay))
                    delay *= backoff_factor
            return fn(*args, **options)

        return cast(F, call)

    return decorate


def get_cached_filesystem(
    protocol: str,
    cache_dir: Any = None,
    cache_type: str = "filecache",
    expiry_time: int = 86400,
    storage_options: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Raise an error: reads of remote files go through a cache of blocks without it.

    Args:
        protocol: not supported.
        cache_dir: not supported.
        cache_type: not supported.
        expiry_time: not supported.
        storage_options: not supported.

    Raises:
        ConfigError: always; the message says what to use instead.
    """
    raise ConfigError(
        f"get_cached_filesystem({protocol!r}) would have no effect: sources cache the blocks of "
        "remote files; set PENSTOCK_CACHE to the folder and PENSTOCK_CACHE_LIMIT to its size"
    )


def is_streaming(ds: Any) -> bool:
    """Return whether a dataset is a Hugging Face stream.

    Args:
        ds: the dataset.
    """
    return is_stream(ds)


def infer_builder_from_ext(path: str) -> str | None:
    """Return the format of a file by the ending of its name; None for another ending.

    Args:
        path: the path.

    >>> infer_builder_from_ext("a.jsonl"), infer_builder_from_ext("a.bin")
    ('json', None)
    """
    return next((kind for ending, kind in _BUILDERS.items() if path.endswith(ending)), None)


def glob_files(pattern: str, recursive: bool = True) -> list[str]:
    """Return the files of a glob, sorted; empty if there are none.

    Args:
        pattern: the glob, also of remote files.
        recursive: accepted; `**` in the pattern decides.
    """
    try:
        return expand_data_files(pattern)
    except ConfigError:
        return []


def wrap_format_callback(fn: Callable[[Any], Any], content_key: str = "content") -> Any:
    """Return a callback that always returns a mapping.

    Args:
        fn: the callback; None leaves the row unchanged, and another value becomes a field.
        content_key: name of that field.

    >>> wrap_format_callback(str.upper)("a")
    {'content': 'A'}
    """

    @wraps(fn)
    def call(row: Any) -> Any:
        changed = fn(row)
        if changed is None:
            return row
        return cast(Any, changed) if isinstance(changed, dict) else {content_key: changed}

    return call


def align_columns_intersection(datasets: Sequence[Any]) -> list[Any]:
    """Return datasets with the columns that all of them have; unchanged if there are none.

    Args:
        datasets: Hugging Face datasets.
    """
    if not datasets:
        return []
    common = set[str].intersection(*[set(dataset.column_names) for dataset in datasets])
    if not common:
        return list(datasets)
    return [
        dataset.select_columns([name for name in dataset.column_names if name in common])
        for dataset in datasets
    ]


def warn_deprecated(msg: str) -> None:
    """Warn of a deprecated use.

    Args:
        msg: the message.
    """
    warnings.warn(msg, DeprecationWarning, stacklevel=2)
