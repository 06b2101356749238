"""Storage that fails is no fault of the sample: it is asked again a few times, then the failure is
raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...errors import GivenUpError, StorageError
from ..base.event_counts import EVENT_COUNTS
from ..base.seams import world
from .step import Failed

T = TypeVar("T")

TRIES = 3
_PAUSE = 0.1  # seconds; four times as long from one try to the next


def is_storage(error: BaseException) -> bool:
    """Return whether a failure comes from storage or memory. An `OSError` without a number is a
    decoder's report of bad data.
    """
    if isinstance(error, OSError):
        return error.errno is not None or isinstance(
            error, StorageError | ConnectionError | TimeoutError
        )
    return isinstance(error, MemoryError)


def patiently(call: Callable[[], T]) -> T:
    """What a call gives; where storage fails, it is made again after a pause."""
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
