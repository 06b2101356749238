"""Offsets of the record batches of Arrow data, read from its message headers.

The parser compares all lengths with each other and with the bytes present, before Arrow itself
parses the data. Damaged data therefore cannot cause a large allocation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..stores.limits import DECODED
from .convert import MAX_UNPACK_RATIO

_MAX_RATIOS = (256, 33_000, 0)  # largest compression ratios by codec: LZ4 frames, zstd
_MAX_FOOTER_PADDING = 64  # bytes of padding allowed before a footer


class BatchBody(NamedTuple):
    """Byte range of the body of a record batch, and the offsets of its header and table."""

    start: int
    stop: int
    header: int
    table: int


class RecordBatchIndex(NamedTuple):
    """The record batches of an Arrow file: byte ranges, rows, and properties of their messages.

    `packed_dictionaries` are the bodies of compressed dictionaries.
    """

    ranges: list[tuple[int, int]]
    sizes: list[int]
    compressed: bool
    dictionaries: bool
    bodies: list[BatchBody]
    packed_dictionaries: list[BatchBody]

    def gaps(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield the byte ranges outside all bodies, which opening the file reads."""
        edges = [0, *(edge for body in self.bodies for edge in (body.start, body.stop)), size]
        yield from zip(edges[::2], edges[1::2], strict=True)


def index_record_batches(buffer: Any, *, file: bool) -> RecordBatchIndex:
    """Find the record batches of Arrow data by reading message headers only.

    A message is a marker, the length of its header, the header (a flatbuffer) and a body; see
    "Encapsulated message format" in the Arrow specification. Only the footer of a file reliably lists
    their offsets: some writers pad the beginning of a file, or omit the first marker.

    Args:
        buffer: The bytes.
        file: True for the file format, false for the stream format.

    Raises:
        ValueError: The data is damaged or cut off.
    """
    view = memoryview(buffer)
    start = 8 if file else 0
    if file and bytes(view[start : start + 4]) != b"\xff\xff\xff\xff":
        return _read_footer_index(view)
    index = RecordBatchIndex([], [], False, False, [], [])
    offset = start
    while offset < len(view):
        marker, length = struct.unpack_from("<Ii", view, offset)
        if marker != 0xFFFFFFFF or length < 0:
            raise ValueError(f"no Arrow message at byte {offset}")
        if length == 0:
            _require_end(view, offset + 8, file)
            return _require_rows(index)
        index, offset = _index_message(view, index, offset, offset + 8, length)
    # Socket readers accept a missing end mark. In a file it may mean a half-written file.
    raise ValueError("it has no end mark: it was cut off, or its writer was not closed")


def _require_end(view: memoryview, end: int, file: bool) -> None:
    """Raise if another stream or file follows the end, which other readers silently skip."""
    footer = (
        len(view) - 10 - struct.unpack_from("<i", view, len(view) - 10)[0] if file else len(view)
    )
    if footer - end > _MAX_FOOTER_PADDING or any(view[end:footer]):
        raise ValueError(
            f"it ends at byte {end}, and {footer - end:,} bytes follow: write one dataset per file"
        )


def _read_footer_index(view: memoryview) -> RecordBatchIndex:
    """Return the record batches that the footer lists, in file order."""
    (length,) = struct.unpack_from("<i", view, len(view) - 10)
    footer = view[len(view) - 10 - length : len(view) - 10]
    table = struct.unpack_from("<I", footer)[0]
    index, stop = RecordBatchIndex([], [], False, False, [], []), 8
    for offset, header, _ in _read_footer_blocks(footer, table, 2):
        prefix = 8 if bytes(view[offset : offset + 4]) == b"\xff\xff\xff\xff" else 4
        index, _ = _index_message(view, index, offset, offset + prefix, header - prefix)
        index = index._replace(dictionaries=True)
    for offset, header, body in _read_footer_blocks(footer, table, 3):
        prefix = 8 if bytes(view[offset : offset + 4]) == b"\xff\xff\xff\xff" else 4
        if offset < stop:
            raise ValueError(f"the batch at byte {offset} overlaps another one")
        index, stop = _index_message(view, index, offset, offset + prefix, header - prefix)
        if stop != offset + header + body or len(index.sizes) != len(index.ranges):
            raise ValueError(f"the batch at byte {offset} differs from its footer entry")
    return _require_rows(index)


def _read_footer_blocks(footer: memoryview, table: int, field: int) -> list[tuple[int, int, int]]:
    """Return the blocks of a footer: message offset, bytes before the body, body size."""
    vector = _read_vector(footer, table, field)
    return [
        struct.unpack_from("<qi4xq", footer, vector.offset + 24 * number)
        for number in range(vector.length)
    ]


def _index_message(
    view: memoryview, index: RecordBatchIndex, offset: int, begin: int, length: int
) -> tuple[RecordBatchIndex, int]:
    """Add the message at byte `offset` to the index; return index and message end.

    The header of the message starts at `begin`.
    """
    header = view[begin : begin + length]
    message = struct.unpack_from("<I", header)[0]
    kind = _read_field(header, message, 1, "<B")
    body = _read_field(header, message, 3, "<q")
    stop = begin + length + body
    if body < 0 or stop > len(view):
        raise ValueError(f"the message at byte {offset} is cut off")
    compressed = index.compressed
    if kind == 2:
        batch = _follow(header, _follow(header, message, 2), 1)
        if _find_field_offset(header, batch, 3):
            index.packed_dictionaries.append(BatchBody(begin + length, stop, begin, batch))
    if kind == 3:
        batch = _follow(header, message, 2)
        index.ranges.append((offset, stop))
        index.bodies.append(BatchBody(begin + length, stop, begin, batch))
        index.sizes.append(_read_field(header, batch, 0, "<q"))
        nodes = _read_vector(header, batch, 1)
        if nodes.length and struct.unpack_from("<q", header, nodes.offset)[0] != index.sizes[-1]:
            raise ValueError(
                f"the batch at byte {offset} and its first column have different numbers of rows"
            )
        compressed |= _find_field_offset(header, batch, 3) != 0
    return index._replace(compressed=compressed, dictionaries=index.dictionaries or kind == 2), stop


def _require_rows(index: RecordBatchIndex) -> RecordBatchIndex:
    if min(index.sizes, default=0) < 0:
        raise ValueError("a batch has a negative number of rows")
    return index


def _find_field_offset(header: memoryview, table: int, field: int) -> int:
    """Return the offset of a field of a flatbuffer table, or 0 if the field is absent."""
    entries = table - struct.unpack_from("<i", header, table)[0]
    if 4 + 2 * field >= struct.unpack_from("<H", header, entries)[0]:
        return 0
    offset = struct.unpack_from("<H", header, entries + 4 + 2 * field)[0]
    return table + offset if offset else 0


def _follow(header: memoryview, table: int, field: int) -> int:
    """Return the offset of the table that a field of a flatbuffer table refers to."""
    slot = _find_field_offset(header, table, field)
    return slot + struct.unpack_from("<I", header, slot)[0]


class FlatbufferVector(NamedTuple):
    """Offset and length of a flatbuffer vector."""

    offset: int
    length: int


def _read_vector(header: memoryview, table: int, field: int) -> FlatbufferVector:
    slot = _find_field_offset(header, table, field)
    if not slot:
        return FlatbufferVector(0, 0)
    start = slot + struct.unpack_from("<I", header, slot)[0]
    return FlatbufferVector(start + 4, struct.unpack_from("<I", header, start)[0])


def require_plausible(view: memoryview, bodies: Sequence[BatchBody]) -> None:
    """Raise if compressed buffers claim more than their codec can produce, or much memory at once.

    Args:
        view: The bytes of the file.
        bodies: The batches that are decompressed together.
    """
    packed = sum(body.stop - body.start for body in bodies)
    limit = max(DECODED, MAX_UNPACK_RATIO * packed)
    if sum(_measure_claims(view, *body) for body in bodies) > limit:
        raise ValueError(
            f"{packed:,} bytes of compressed columns would take more than {limit >> 20:,} MiB of "
            "memory: write smaller record batches, or do not compress them"
        )


def _measure_claims(view: memoryview, start: int, stop: int, header: int, table: int) -> int:
    """Return the bytes that the compressed buffers of a batch claim to decompress to."""
    header_bytes, total = view[header:start], 0
    compression = _follow(header_bytes, table, 3)
    max_ratio = _MAX_RATIOS[_read_field(header_bytes, compression, 0, "<B")]
    buffers = _read_vector(header_bytes, table, 2)
    for number in range(buffers.length):
        offset, length = struct.unpack_from("<qq", header_bytes, buffers.offset + 16 * number)
        if length == 0:
            continue
        if offset < 0 or length < 8 or start + offset + length > stop:
            raise ValueError("a buffer lies outside of its batch")
        (claimed,) = struct.unpack_from("<q", view, start + offset)
        if not -1 <= claimed <= length * max_ratio:
            raise ValueError(
                f"a compressed buffer of {length:,} bytes claims to decompress to {claimed:,}"
            )
        total += max(claimed, 0)
    return total


def _read_field(header: memoryview, table: int, field: int, kind: str) -> int:
    slot = _find_field_offset(header, table, field)
    return struct.unpack_from(kind, header, slot)[0] if slot else 0
