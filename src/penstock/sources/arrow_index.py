"""Where the record batches of Arrow data lie, read from the headers of its messages before Arrow
itself sees them.

The lengths in them are compared with each other and with the bytes that are there, so that damage
asks for no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_MOST = (256, 33_000, 0)  # what a byte can unfold to, by codec: LZ4 frames, zstd
_PADDING = 64  # bytes that may lie before a footer


class Body(NamedTuple):
    """Where the body of a record batch lies, where the header that describes it, and its table in
    the header."""

    start: int
    stop: int
    header: int
    table: int


class Index(NamedTuple):
    """Where the record batches of an Arrow file lie (start, stop), and how many rows each has."""

    places: list[tuple[int, int]]
    sizes: list[int]
    compressed: bool
    dictionaries: bool
    bodies: list[Body]

    def gaps(self, size: int) -> Iterator[tuple[int, int]]:
        """What of the file is no body of a record batch: what is read when it is opened."""
        edges = [0, *(edge for body in self.bodies for edge in (body.start, body.stop)), size]
        yield from zip(edges[::2], edges[1::2], strict=True)


def index_of(buffer: Any, *, file: bool) -> Index:
    """Find the record batches of Arrow data by reading the headers of its messages, and nothing of
    their bodies.

    A message is a marker, the length of its header, the header (a flatbuffer) and a body; see
    "Encapsulated message format" in the Arrow specification. Only the footer of a file is bound to
    say where they are: some writers pad the beginning of a file, or leave out the marker there.
    """
    view = memoryview(buffer)
    start = 8 if file else 0
    if file and bytes(view[start : start + 4]) != b"\xff\xff\xff\xff":
        return _listed(view)
    found = Index([], [], False, False, [])
    at = start
    while at < len(view):
        marker, length = struct.unpack_from("<Ii", view, at)
        if marker != 0xFFFFFFFF or length < 0:
            raise ValueError(f"no Arrow message at byte {at}")
        if length == 0:
            _refuse_more(view, at + 8, file)
            return _whole(found)
        found, at = _message(view, found, at, at + 8, length)
    # Readers of sockets take this for an end. In a file it may be half of what was written.
    raise ValueError("it has no end mark: it was cut off, or its writer was not closed")


def _refuse_more(view: memoryview, end: int, file: bool) -> None:
    """Refuse what follows the end: another stream or file that was put behind, which other readers
    pass over."""
    footer = (
        len(view) - 10 - struct.unpack_from("<i", view, len(view) - 10)[0] if file else len(view)
    )
    if footer - end > _PADDING or any(view[end:footer]):
        raise ValueError(
            f"it ends at byte {end}, and {footer - end:,} bytes follow: write files one by one"
        )


def _listed(view: memoryview) -> Index:
    """The record batches that the footer of a file names, in the order in which they lie there."""
    (length,) = struct.unpack_from("<i", view, len(view) - 10)
    footer = view[len(view) - 10 - length : len(view) - 10]
    table = struct.unpack_from("<I", footer)[0]
    found, stop = Index([], [], False, bool(_blocks(footer, table, 2)), []), 8
    for at, header, body in _blocks(footer, table, 3):
        framed = 8 if bytes(view[at : at + 4]) == b"\xff\xff\xff\xff" else 4
        if at < stop:
            raise ValueError(f"the batch at byte {at} lies in another one")
        found, stop = _message(view, found, at, at + framed, header - framed)
        if stop != at + header + body or len(found.sizes) != len(found.places):
            raise ValueError(f"the batch at byte {at} is not what the footer says")
    return _whole(found)


def _blocks(footer: memoryview, table: int, field: int) -> list[tuple[int, int, int]]:
    """A list of places in a footer: where a message begins, the bytes before its body, the bytes of
    its body."""
    found = _vector(footer, table, field)
    return [
        struct.unpack_from("<qi4xq", footer, found.at + 24 * number)
        for number in range(found.length)
    ]


def _message(view: memoryview, found: Index, at: int, begin: int, length: int) -> tuple[Index, int]:
    """What is known with the message at byte `at` too, whose header begins at `begin`; and where
    the message ends."""
    header = view[begin : begin + length]
    message = struct.unpack_from("<I", header)[0]
    kind = _field(header, message, 1, "<B")
    body = _field(header, message, 3, "<q")
    stop = begin + length + body
    if body < 0 or stop > len(view):
        raise ValueError(f"the message at byte {at} is cut off")
    compressed = found.compressed
    if kind == 3:
        place = _slot(header, message, 2)
        batch = place + struct.unpack_from("<I", header, place)[0]
        found.places.append((at, stop))
        found.bodies.append(Body(begin + length, stop, begin, batch))
        found.sizes.append(_field(header, batch, 0, "<q"))
        nodes = _vector(header, batch, 1)
        if nodes.length and struct.unpack_from("<q", header, nodes.at)[0] != found.sizes[-1]:
            raise ValueError(
                f"the batch at byte {at} and its first column differ in their number of rows"
            )
        compressed |= _slot(header, batch, 3) != 0
    return found._replace(compressed=compressed, dictionaries=found.dictionaries or kind == 2), stop


def _whole(found: Index) -> Index:
    if min(found.sizes, default=0) < 0:
        raise ValueError("a batch with a negative number of rows")
    return found


def _slot(header: memoryview, table: int, field: int) -> int:
    """Where a field of a flatbuffer table lies, 0 where it is left out."""
    entries = table - struct.unpack_from("<i", header, table)[0]
    if 4 + 2 * field >= struct.unpack_from("<H", header, entries)[0]:
        return 0
    offset = struct.unpack_from("<H", header, entries + 4 + 2 * field)[0]
    return table + offset if offset else 0


class Vector(NamedTuple):
    """Where the elements of a flatbuffer vector begin, and how many there are."""

    at: int
    length: int


def _vector(header: memoryview, table: int, field: int) -> Vector:
    slot = _slot(header, table, field)
    if not slot:
        return Vector(0, 0)
    at = slot + struct.unpack_from("<I", header, slot)[0]
    return Vector(at + 4, struct.unpack_from("<I", header, at)[0])


def plausible(view: memoryview, start: int, stop: int, header: int, table: int) -> None:
    """Refuse compressed buffers that claim to unfold to more than their codec can make of so few
    bytes."""
    head = view[header:start]
    compression = _slot(head, table, 3)
    most = _MOST[
        _field(head, compression + struct.unpack_from("<I", head, compression)[0], 0, "<B")
    ]
    buffers = _vector(head, table, 2)
    for number in range(buffers.length):
        offset, length = struct.unpack_from("<qq", head, buffers.at + 16 * number)
        if length == 0:
            continue
        if offset < 0 or length < 8 or start + offset + length > stop:
            raise ValueError("a buffer that lies outside of its batch")
        (claimed,) = struct.unpack_from("<q", view, start + offset)
        if not -1 <= claimed <= length * most:
            raise ValueError(
                f"a compressed buffer of {length:,} bytes that claims to hold {claimed:,}"
            )


def _field(header: memoryview, table: int, field: int, kind: str) -> int:
    place = _slot(header, table, field)
    return struct.unpack_from(kind, header, place)[0] if place else 0
