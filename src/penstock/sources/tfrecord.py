"""TFRecord files: records one after the other, each with its length, and a checksum of either.

The format has no index, so one is made in a pass over the file that checks every sum; they are
checked again wherever a record is read. A file that was cut between two records cannot be told from
a shorter one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.base.seams import Stat
from ..errors import DataError
from ..types import Ints
from . import line_index, lines, sums
from .checksummed import ChecksummedFile, OpenRequest
from .crc32c import Sums, crc32c
from .example import Examples
from .records import Records

_CHUNK = 4 << 20  # bytes a pass over the file reads at once
_LENGTH = struct.Struct("<Q")
_HEAD, _FRAME = 12, 16  # bytes before the data of a record, and of all that is not its data
_MASK = np.uint32(0xA282EAD8)
_PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}


def open_tfrecord(wanted: OpenRequest, /) -> Records:
    """The records of one file."""
    path, origin, columns, data = wanted.path, wanted.origin, wanted.columns, wanted.data

    def offsets_of(path: Path, size: Stat, tell: Callable[[int], None]) -> tuple[Ints, sums.Sums]:
        return np.asarray([*_passed(data, size.size, tell), size.size], np.int64), sums.of([])

    index = line_index.make_index(
        path, origin, cache=wanted.cache, rebuild=wanted.rebuild, what="records", find=offsets_of
    )
    offsets = lines.IndexedOffsets(index, origin, wanted.shared.files)
    rows = Rows(Examples(None if columns is None else list(columns)))
    return Records(
        path,
        rows,
        rows=offsets.rows(),
        offsets=offsets.found,
        data=data,
        origin=origin,
        columns=columns,
        sound=sound,
    )


class Rows:
    """Makes a row of a record with its frame."""

    def __init__(self, parse: Callable[[bytes], Any]) -> None:
        self._parse = parse

    def __call__(self, framed: bytes) -> Any:
        return self._parse(framed[_HEAD:-4])


def _passed(data: ChecksummedFile, size: int, tell: Callable[[int], None]) -> Iterator[int]:
    """Where each record begins; all of them are sound."""
    at, origin = 0, data.origin
    while at < size:
        chunk = data.read(at, min(_CHUNK, size - at))
        starts, ends = _framed(chunk)
        if not ends:
            starts, chunk = [0], data.read(at, _length(chunk, at, size, origin))
            ends = [len(chunk)]
        fits = sound(memoryview(chunk), np.asarray(starts, np.int64), np.asarray(ends, np.int64))
        if not fits.all():
            raise _bad(chunk, at, at + starts[int(np.argmin(fits))], origin)
        yield from (at + start for start in starts)
        at += ends[-1]
        tell(at)


def _framed(chunk: bytes) -> tuple[list[int], list[int]]:
    """Where the whole records of a chunk begin and end, if their lengths are true."""
    starts, ends, at = list[int](), list[int](), 0
    while at + _FRAME <= len(chunk):
        stop = at + _FRAME + _LENGTH.unpack_from(chunk, at)[0]
        if stop > len(chunk):
            break
        starts.append(at)
        ends.append(stop)
        at = stop
    return starts, ends


def _length(chunk: bytes, at: int, size: int, origin: Path) -> int:
    """The bytes of a record that is longer than its chunk, if it says so truly and they are
    there."""
    if (
        len(chunk) < _HEAD
        or not _sums_fit(np.frombuffer(chunk, np.uint8), np.zeros(1, np.int64), 8).all()
    ):
        raise _bad(chunk, at, at, origin)
    length = _FRAME + _LENGTH.unpack_from(chunk)[0]
    if at + length > size:
        raise DataError(
            f"the file is cut off: a record has {length:,} bytes, of which {size - at:,} are here",
            where=f"{origin}, byte {at}",
        )
    return length


def sound(block: memoryview, starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Which records have the length and the sums that they were written with."""
    data = np.frombuffer(block, np.uint8)
    sizes = ends - starts
    fits = sizes >= _FRAME
    lengths = (
        _numbers(data, np.where(fits, starts, 0), 8)
        if len(data) >= 8
        else np.zeros(len(starts), np.uint64)
    )
    fits &= lengths == (sizes - _FRAME).astype(np.uint64)
    whole = np.flatnonzero(fits)
    fits[whole] &= _sums_fit(data, starts[whole], 8)
    fits[whole] &= _sums_fit(data, starts[whole] + _HEAD, sizes[whole] - _FRAME)
    return fits


def _sums_fit(
    data: npt.NDArray[np.uint8], starts: Ints, sizes: Ints | int
) -> npt.NDArray[np.bool_]:
    """Which stretches are followed by their sum."""
    sums: Sums = crc32c(data, starts, starts + sizes)
    masked = (sums >> np.uint32(15) | sums << np.uint32(17)) + _MASK
    return masked == _numbers(data, starts + sizes, 4)


def _numbers(
    data: npt.NDArray[np.uint8], starts: Ints, width: int
) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The whole numbers of so many bytes that begin there."""
    return data[starts[:, None] + np.arange(width)].view(f"<u{width}").reshape(-1)


def _bad(chunk: bytes, begin: int, at: int, origin: Path) -> DataError:
    ending = (
        ""
        if at
        else next((ending for magic, ending in _PACKED.items() if chunk.startswith(magic)), "")
    )
    if ending:
        return DataError(f"this is packed: name it {origin.name}{ending}", where=str(origin))
    cut = begin + len(chunk) < at + _HEAD
    reason = (
        "the file is cut off in the head of a record"
        if cut
        else "its checksum is not that of its bytes"
    )
    return DataError(f"the record cannot be read: {reason}", where=f"{origin}, byte {at}")
