"""TFRecord files: consecutive records, each with its length and checksums of both.

The format has no index. One pass over the file builds one and checks every checksum; reading a
record checks again. A file that was cut between two records looks like a shorter file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..stores.storage import Stat
from ..types import Ints
from . import line_index, lines, sums
from .checksummed import ChecksummedFile, OpenRequest
from .crc32c import Crc32Checksums, compute_crc32c
from .example import ExampleDecoder
from .records import RecordFile

_CHUNK_BYTES = 4 << 20  # bytes per read of a pass over the file
_LENGTH_STRUCT = struct.Struct("<Q")
_HEAD, _OVERHEAD = 12, 16  # bytes before the data of a record, and of its full frame
_CHECKSUM_MASK_DELTA = np.uint32(0xA282EAD8)
_COMPRESSION_MAGICS = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}


def open_tfrecord(request: OpenRequest, /) -> RecordFile:
    """Open one file."""
    path, origin, columns, data = request.path, request.origin, request.columns, request.data

    def offsets_of(
        path: Path, size: Stat, tell: Callable[[int], None]
    ) -> tuple[Ints, sums.BlockChecksums]:
        starts = [*_find_record_starts(data, size.size, tell), np.asarray([size.size], np.int64)]
        return np.concatenate(starts), sums.compute_checksums([])

    index = line_index.make_index(
        path, origin, cache=request.cache, rebuild=request.rebuild, what="records", find=offsets_of
    )
    offsets = lines.IndexedOffsets(index, origin, request.shared.files)
    rows = RecordDecoder(ExampleDecoder(None if columns is None else list(columns)))
    return RecordFile(
        path,
        rows,
        rows=offsets.rows(),
        offsets=offsets.found,
        data=data,
        origin=origin,
        columns=columns,
        sound=find_valid_records,
    )


class RecordDecoder:
    """Decoder of framed records."""

    def __init__(self, parse: Callable[[bytes], Any]) -> None:
        self._parse = parse

    def __call__(self, framed: bytes) -> Any:
        return self._parse(framed[_HEAD:-4])


def _find_record_starts(
    data: ChecksummedFile, size: int, tell: Callable[[int], None]
) -> Iterator[Ints]:
    """Yield the starts of records, chunk by chunk, after checking them."""
    at, origin = 0, data.origin
    while at < size:
        chunk = data.read(at, min(_CHUNK_BYTES, size - at))
        starts, ends = _find_framed_records(chunk)
        if not ends:
            starts, chunk = [0], data.read(at, _read_long_record_size(chunk, at, size, origin))
            ends = [len(chunk)]
        begins = np.asarray(starts, np.int64)
        is_valid = find_valid_records(memoryview(chunk), begins, np.asarray(ends, np.int64))
        if not is_valid.all():
            raise _damaged_record_error(chunk, at, at + starts[int(np.argmin(is_valid))], origin)
        yield begins + at
        at += ends[-1]
        tell(at)


def _find_framed_records(chunk: bytes) -> tuple[list[int], list[int]]:
    """Return the bounds of the complete records of a chunk, according to their lengths."""
    ends, at, size, unpack = list[int](), 0, len(chunk), _LENGTH_STRUCT.unpack_from
    while at + _OVERHEAD <= size:
        at += _OVERHEAD + unpack(chunk, at)[0]
        if at > size:
            break
        ends.append(at)
    return [0, *ends[:-1]] if ends else [], ends


def _read_long_record_size(chunk: bytes, at: int, size: int, origin: Path) -> int:
    """Return the size of a record that is longer than its chunk, after checking its length."""
    if (
        len(chunk) < _HEAD
        or not _match_checksums(np.frombuffer(chunk, np.uint8), np.zeros(1, np.int64), 8).all()
    ):
        raise _damaged_record_error(chunk, at, at, origin)
    length = _OVERHEAD + _LENGTH_STRUCT.unpack_from(chunk)[0]
    if at + length > size:
        raise DataError(
            f"the file is cut off: a record has {length:,} bytes, only {size - at:,} are left",
            where=f"{origin}, byte {at}",
        )
    return length


def find_valid_records(block: memoryview, starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Return which records match their lengths and checksums."""
    data = np.frombuffer(block, np.uint8)
    sizes = ends - starts
    is_valid = sizes >= _OVERHEAD
    lengths = (
        _read_integers(data, np.where(is_valid, starts, 0), 8)
        if len(data) >= 8
        else np.zeros(len(starts), np.uint64)
    )
    is_valid &= lengths == (sizes - _OVERHEAD).astype(np.uint64)
    complete = np.flatnonzero(is_valid)
    is_valid[complete] &= _match_checksums(data, starts[complete], 8)
    is_valid[complete] &= _match_checksums(
        data, starts[complete] + _HEAD, sizes[complete] - _OVERHEAD
    )
    return is_valid


def _match_checksums(
    data: npt.NDArray[np.uint8], starts: Ints, sizes: Ints | int
) -> npt.NDArray[np.bool_]:
    """Return which byte ranges are followed by their checksum."""
    sums: Crc32Checksums = compute_crc32c(data, starts, starts + sizes)
    masked = (sums >> np.uint32(15) | sums << np.uint32(17)) + _CHECKSUM_MASK_DELTA
    return masked == _read_integers(data, starts + sizes, 4)


def _read_integers(
    data: npt.NDArray[np.uint8], starts: Ints, width: int
) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return the little-endian integers of `width` bytes at `starts`."""
    return data[starts[:, None] + np.arange(width)].view(f"<u{width}").reshape(-1)


def _damaged_record_error(chunk: bytes, begin: int, at: int, origin: Path) -> DataError:
    extension = (
        ""
        if at
        else next(
            (
                extension
                for magic, extension in _COMPRESSION_MAGICS.items()
                if chunk.startswith(magic)
            ),
            "",
        )
    )
    if extension:
        return DataError(
            f"the file is compressed: rename it {origin.name}{extension}", where=str(origin)
        )
    is_cut = begin + len(chunk) < at + _HEAD
    reason = (
        "the file is cut off in the head of a record"
        if is_cut
        else "its checksum does not match its bytes"
    )
    return DataError(f"the record cannot be read: {reason}", where=f"{origin}, byte {at}")
