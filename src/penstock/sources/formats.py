"""Registry of the readers of other libraries' formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .chain import IndexedFile
from .checksummed import OpenRequest

OpenFormat: TypeAlias = Callable[[OpenRequest], IndexedFile]
"""Opens one file of a format."""


def find_opener(kind: str) -> OpenFormat | None:
    """Return the function that opens files of a format, or `None` for Penstock's own formats.

    Readers are imported on first use.

    >>> find_opener("jsonl") is None
    True
    """
    match kind:
        case "array_record":
            from .array_record import open_array_record as found
        case "hdf5":
            from .arrays import open_hdf5 as found
        case "lance":
            from .lance import open_lance as found
        case "litdata":
            from .litdata import open_litdata as found
        case "mds":
            from .mds import open_mds as found
        case "tfrecord":
            from .tfrecord import open_tfrecord as found
        case "vortex":
            from .vortex import open_vortex as found
        case "zarr":
            from .arrays import open_zarr as found
        case _:
            return None
    return found
