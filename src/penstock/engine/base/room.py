"""Where large batches are put together: memory of one's own, or memory that a worker shares with
its parent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LARGE = 1 << 20
rooms: list[Callable[[int], Any]] = [lambda size: None]
"""The last of these says: uint8[size], or None for memory of one's own."""


def room_for(values: Sequence[Any]) -> Any:
    """Where arrays of one shape can be joined along their first axis, if anywhere. They must be
    bytes and nothing else,
    all of one dtype: no objects, and no masks beside them.
    """
    first: Any = values[0]
    size = len(values) * first.nbytes
    if size < LARGE or first.dtype.hasobject:
        return None
    if {(type(value), value.dtype) for value in values} != {(np.ndarray, first.dtype)}:
        return None
    room = rooms[-1](size)
    return None if room is None else room.view(first.dtype).reshape(-1, *first.shape[1:])
