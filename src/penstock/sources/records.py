"""Files of records, each between two offsets: what the formats have in common that give every
record its bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import DataError, PenstockError
from ..stores import Range, is_remote
from ..types import Ints
from . import sidecar
from .chain import gap_of, in_file_order, ranges_of
from .checked import Checked
from .kinds import Kind

_BLOCK = 1 << 20
BROKEN = (ValueError, LookupError, ArithmeticError, TypeError, RecursionError, struct.error)
"""What parsing damaged bytes may raise."""

Parse: TypeAlias = Callable[[bytes], Any]
Sound: TypeAlias = Callable[[memoryview, Ints, Ints], npt.NDArray[np.bool_]]
"""Which records of a block, from byte to byte, have the checksum that they were written with."""


class Records:
    """One file of records; `offsets` finds where each begins, and at last where they end. `types`
    are those of columns.

    No open file is held between reads. Rows that lie close together are read in one go.
    """

    def __init__(
        self,
        path: Path,
        parse: Parse,
        *,
        rows: int,
        offsets: Callable[[], npt.NDArray[np.integer[Any]]],
        data: Checked,
        origin: Path,
        columns: Sequence[str] | None,
        sound: Sound | None = None,
        types: Mapping[str, Kind] | None = None,
    ) -> None:
        self.columns, self.types = columns, types or {}
        self._path, self._parse, self._origin, self._sound, self._data = (
            path,
            parse,
            origin,
            sound,
            data,
        )
        self._offsets, self._rows, self._stat = offsets, rows, sidecar.stat(path)

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`. A record that does not parse is a `DataError` with the byte at
        which it begins."""
        with sidecar.still(self._path, self._stat, name=str(self._origin)):
            if not indices.size:
                return []
            offsets = self._offsets()
            starts, ends = offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
            if bool((starts > ends).any()) or int(ends.max()) > self._stat.size:
                raise DataError(
                    "a record ends before it begins, or behind the end of the file",
                    where=str(self._origin),
                )
            return in_file_order(starts, ends, self._rows_of)

    def ranges(self, indices: Ints, /) -> list[Range]:
        """Which bytes of the file these rows need; none where it lies on this machine."""
        if not is_remote(self._path):
            return []
        offsets = self._offsets()
        return ranges_of(
            self._path, offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
        )

    def _rows_of(self, starts: Ints, ends: Ints) -> Iterator[Any]:
        """Rows in the order of the file, a block of neighbours at a time."""
        apart = (starts[1:] > ends[:-1] + gap_of(self._path)) | (
            starts[1:] // _BLOCK != starts[:-1] // _BLOCK
        )
        for low, high in pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(starts)]):
            base = int(starts[low])
            block = self._data.read(base, int(ends[high - 1]) - base)
            begins, stops = starts[low:high] - base, ends[low:high] - base
            if (
                self._sound is not None
                and not (fits := self._sound(memoryview(block), begins, stops)).all()
            ):
                raise self._bad(
                    base + int(begins[int(np.argmin(fits))]),
                    "its checksum is not that of its bytes",
                )
            for first, last in zip(begins.tolist(), stops.tolist(), strict=True):
                try:
                    yield self._parse(block[first:last])
                except PenstockError as error:
                    raise self._bad(base + first, error) from error
                except BROKEN as error:
                    reason = (
                        "it is nested too deeply" if isinstance(error, RecursionError) else error
                    )
                    raise self._bad(base + first, reason) from error

    def _bad(self, start: int, reason: object) -> DataError:
        return DataError(
            f"the record cannot be read: {reason}", where=f"{self._origin}, byte {start}"
        )


def counted(data: Checked, rows: int) -> int:
    """The rows of a file that begins with their number and their offsets, of 4 bytes each, as MDS
    and LitData do.

    They must be as many as the index beside it says, and their offsets must have room.
    """
    found, size, origin = (
        int.from_bytes(data.head(0, 4), "little"),
        sidecar.stat(data.path).size,
        data.origin,
    )
    if found != rows:
        raise DataError(
            f"it says it has {found:,} rows, its folder's index says {rows:,}", where=str(origin)
        )
    if 4 * (rows + 2) > size:
        raise DataError(
            f"{size:,} bytes are too few for {rows:,} rows: it was cut", where=str(origin)
        )
    return rows


def headed(data: Checked, rows: int) -> npt.NDArray[np.uint32]:
    """The offsets of such a file: uint32[rows + 1]. They must rise, begin behind themselves, and
    end with the file."""
    offsets = np.frombuffer(data.head(4, 4 * (rows + 1)), "<u4")
    behind, size = 4 * (rows + 2), sidecar.stat(data.path).size
    if (
        int(offsets[0]) < behind
        or int(offsets[-1]) != size
        or bool((offsets[1:] < offsets[:-1]).any())
    ):
        raise DataError(
            "its offsets do not fit its size: it is damaged or was cut", where=str(data.origin)
        )
    return offsets
