"""Arrays that are mapped from files travel to other processes by name."""

from __future__ import annotations

import mmap
from typing import Any, cast

import numpy as np


class _Mapping(tuple[Any, ...]):
    """File, type, shape, offset and memory order of a mapped array."""


def packed(seq: Any) -> Any:
    """An array, or its file and where it lies there.

    >>> packed("abc")
    'abc'
    """
    # A slice of a mapping reports the offset of the whole, so only whole mappings can go by name.
    if not isinstance(seq, np.memmap):
        return seq
    array = cast(Any, seq)
    if not isinstance(array.base, mmap.mmap) or array.mode == "c" or not array.filename:
        return array
    order = "C" if array.flags.c_contiguous else "F"
    return _Mapping((str(array.filename), array.dtype, array.shape, array.offset, order))


def unpacked(state: Any) -> Any:
    """What was packed."""
    if isinstance(state, _Mapping):
        name, dtype, shape, offset, order = state
        array: Any = np.memmap(name, dtype, "r", offset, shape, order)
        return array
    return state
