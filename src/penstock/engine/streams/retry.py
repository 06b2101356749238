"""Retries with exponential backoff of calls that fail because of storage, not of a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...errors import GivenUpError, StorageError
from ..base.event_counts import EVENT_COUNTS
from ..base.seams import world
from .step import Failed

T = TypeVar("T")

TRIES = 3
_PAUSE = 0.1  # seconds; four times as long after each try


def is_storage(error: BaseException) -> bool:
    """Return whether a failure comes from storage or memory. An `OSError` without a number is a
    decoder's report of bad data.
    """
    if isinstance(error, OSError):
        return error.errno is not None or isinstance(
            error, StorageError | ConnectionError | TimeoutError
        )
    return isinstance(error, MemoryError)


def retry_storage(call: Callable[[], T]) -> T:
    """Return the result of a call; repeat it after a pause if storage fails."""
    for number in range(TRIES - 1):
        try:
            return call()
        except Exception as error:
            cause = error.cause if isinstance(error, Failed) else error
            if not is_storage(cause) or isinstance(cause, GivenUpError):
                raise
            EVENT_COUNTS.add("retries")
            world.sched.sleep(_PAUSE * 4**number)
    return call()
