"""Files of records between two offsets: the common part of several formats."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import DataError, PenstockError
from ..stores import ByteRange, is_remote
from ..types import Ints
from . import file_versions
from .chain import choose_max_gap, merge_row_ranges, read_in_file_order
from .checksummed import ChecksummedFile
from .kinds import ColumnType

_BLOCK_BYTES = 1 << 20
RECORD_ERRORS = (ValueError, LookupError, ArithmeticError, TypeError, RecursionError, struct.error)
"""Errors that parsing damaged bytes may raise."""

ParseRecord: TypeAlias = Callable[[bytes], Any]
FindValidRecords: TypeAlias = Callable[[memoryview, Ints, Ints], npt.NDArray[np.bool_]]
"""Returns which records of a block, given by their bounds, match their checksums."""


class RecordFile:
    """One file of records.

    `offsets` returns the start of each record, and the end of the last; `types` maps columns to types.
    No file stays open between reads. Nearby rows are read together.
    """

    def __init__(
        self,
        path: Path,
        parse: ParseRecord,
        *,
        rows: int,
        offsets: Callable[[], npt.NDArray[np.integer[Any]]],
        data: ChecksummedFile,
        origin: Path,
        columns: Sequence[str] | None,
        sound: FindValidRecords | None = None,
        types: Mapping[str, ColumnType] | None = None,
    ) -> None:
        self.columns, self.types = columns, types or {}
        self._path, self._parse, self._origin, self._sound, self._data = (
            path,
            parse,
            origin,
            sound,
            data,
        )
        self._offsets, self._rows, self._stat = offsets, rows, file_versions.stat_file(path)

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the rows at `indices`.

        Raises:
            DataError: A record cannot be parsed; the error names its first byte.
        """
        with file_versions.guard_unchanged(self._path, self._stat, name=str(self._origin)):
            if not indices.size:
                return []
            offsets = self._offsets()
            starts, ends = offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
            if bool((starts > ends).any()) or int(ends.max()) > self._stat.size:
                raise DataError(
                    "a record ends before it begins, or after the end of the file: it is damaged",
                    where=str(self._origin),
                )
            return read_in_file_order(starts, ends, self._rows_of)

    def ranges(self, indices: Ints, /) -> list[ByteRange]:
        """Return the byte ranges that these rows need; none for a local file."""
        if not is_remote(self._path):
            return []
        offsets = self._offsets()
        return merge_row_ranges(
            self._path, offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
        )

    def _rows_of(self, starts: Ints, ends: Ints) -> Iterator[Any]:
        """Yield rows in file order, read in blocks of neighbours."""
        starts_block = (starts[1:] > ends[:-1] + choose_max_gap(self._path)) | (
            starts[1:] // _BLOCK_BYTES != starts[:-1] // _BLOCK_BYTES
        )
        for low, high in pairwise([0, *(np.flatnonzero(starts_block) + 1).tolist(), len(starts)]):
            base = int(starts[low])
            block = self._data.read(base, int(ends[high - 1]) - base)
            begins, stops = starts[low:high] - base, ends[low:high] - base
            if (
                self._sound is not None
                and not (is_valid := self._sound(memoryview(block), begins, stops)).all()
            ):
                raise self._bad(
                    base + int(begins[int(np.argmin(is_valid))]),
                    "its checksum does not match its bytes",
                )
            for first, last in zip(begins.tolist(), stops.tolist(), strict=True):
                try:
                    yield self._parse(block[first:last])
                except PenstockError as error:
                    raise self._bad(base + first, error) from error
                except RECORD_ERRORS as error:
                    reason = (
                        "it is nested too deeply" if isinstance(error, RecursionError) else error
                    )
                    raise self._bad(base + first, reason) from error

    def _bad(self, start: int, reason: object) -> DataError:
        return DataError(
            f"the record cannot be read: {reason}", where=f"{self._origin}, byte {start}"
        )


def check_row_count(data: ChecksummedFile, rows: int) -> int:
    """Check the number of rows at the beginning of a file of MDS or LitData against its index.

    The number is followed by the offsets of the rows, of 4 bytes each.

    Returns:
        The number of rows.
    """
    stored_rows, size, origin = (
        int.from_bytes(data.head(0, 4), "little"),
        file_versions.stat_file(data.path).size,
        data.origin,
    )
    if stored_rows != rows:
        raise DataError(
            f"it says it has {stored_rows:,} rows, its folder's index says {rows:,}",
            where=str(origin),
        )
    if 4 * (rows + 2) > size:
        raise DataError(
            f"{size:,} bytes are too few for {rows:,} rows: it was cut", where=str(origin)
        )
    return rows


def read_offsets(data: ChecksummedFile, rows: int) -> npt.NDArray[np.uint32]:
    """Return the offsets at the beginning of such a file: uint32[rows + 1].

    They must increase, begin after themselves, and end with the file.
    """
    offsets = np.frombuffer(data.head(4, 4 * (rows + 1)), "<u4")
    header_end, size = 4 * (rows + 2), file_versions.stat_file(data.path).size
    if (
        int(offsets[0]) < header_end
        or int(offsets[-1]) != size
        or bool((offsets[1:] < offsets[:-1]).any())
    ):
        raise DataError(
            "its offsets do not fit its size: it is damaged or was cut", where=str(data.origin)
        )
    return offsets
