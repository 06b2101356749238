"""Shared buffers: memory in which a worker assembles large batches for its parent process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MIN_SHARED_BYTES = 1 << 20
allocators: list[Callable[[int], Any]] = [lambda size: None]
"""Allocators; the last one is in use. It returns uint8[size], or None for private memory."""


def allocate_shared(values: Sequence[Any]) -> Any:
    """Allocate shared memory to join arrays of one shape along axis 0, or return None.

    Arrays must be plain and of one dtype: no objects and no masks.
    """
    first: Any = values[0]
    size = len(values) * first.nbytes
    if size < MIN_SHARED_BYTES or first.dtype.hasobject:
        return None
    if {(type(value), value.dtype) for value in values} != {(np.ndarray, first.dtype)}:
        return None
    room = allocators[-1](size)
    return None if room is None else room.view(first.dtype).reshape(-1, *first.shape[1:])
