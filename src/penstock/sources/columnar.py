"""Parquet and Arrow IPC files, read at random through pyarrow. Rows are dicts; see `rows_of` for their values."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError, DataError, PenstockError, StorageError
from ..types import Ints
from . import sidecar
from .chain import by_part, starts_of
from .held import Shared
from .rows import arrow, check, mapped, rows_of, together

_MAPPED = 4096  # what a batch costs that lies in a mapped file: its description


def footer_of(path: Path) -> tuple[list[str], list[int]]:
    """What opening a Parquet file needs: the names of its columns, and the rows of its row groups."""
    with _named(path):
        footer = arrow("pyarrow.parquet").read_metadata(str(path))
        sizes = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        return footer.schema.to_arrow_schema().names, sizes


class Parquet:
    """One Parquet file. Opened, its footer alone is read; a row costs its row group, decoded once while it is held.

    The unit of reading is the row group, so rows at random over a file larger than the cache decode a whole row group
    for a few rows: write small row groups (a few MiB), or use Arrow files where that matters.
    """

    slow = True

    def __init__(self, path: Path, *, columns: Sequence[str] | None, shared: Shared) -> None:
        self.path = self._path = path
        self._shared, self._stat = shared, sidecar.stat(path)
        names, sizes = footer_of(path)
        self.columns = _wanted(names, columns, path)
        self._starts = starts_of(sizes)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`, each row group visited once."""

        def group(number: int) -> Any:
            return self._shared.decoded.get((self._path, number), lambda: self._decoded(number))

        with _named(self._path, indices):
            return _read(self._starts, indices, group, views=False)

    def column(self, name: str, /) -> Iterator[Any]:
        """One column, row group by row group."""
        pq: Any = arrow("pyarrow.parquet")
        with _named(self._path), pq.ParquetFile(str(self._path)) as file:
            _wanted(file.schema_arrow.names, [name], self._path)
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group, columns=[name], use_threads=False).column(name).chunks

    def _decoded(self, group: int) -> tuple[int, Any]:
        pq: Any = arrow("pyarrow.parquet")
        sidecar.unchanged(self._path, self._stat, name=str(self._path))
        footer = self._shared.files.get(self._path, lambda: (1, pq.read_metadata(str(self._path))))
        # With the footer at hand opening is cheap, and a reader of one's own needs no lock. Threads are the loader's.
        with pq.ParquetFile(str(self._path), metadata=footer, page_checksum_verification=True) as file:
            table = file.read_row_group(group, columns=self.columns, use_threads=False)
        table = table.select(self.columns)
        return table.get_total_buffer_size(), together([table])


class Arrow:
    """One Arrow IPC file, in the file or the stream format: mapped, its batches used where they lie.

    Compressed batches are decoded, and held for a while. A compressed stream decodes all its columns, and a stream with
    dictionaries is held whole; the file format has neither limit.
    """

    slow = False

    def __init__(
        self, path: Path, *, columns: Sequence[str] | None, shared: Shared, origin: Path | None = None
    ) -> None:
        self._path, self._origin, self._shared = path, origin or path, shared
        self.path = self._origin
        self._stat = sidecar.stat(path)
        with _named(self._origin):
            buffer = self._mapped()
            self._is_file = bytes(memoryview(buffer)[:6]) == b"ARROW1"
            reader = self._opened(buffer)
            self._schema: Any = reader.schema
            names: list[str] = self._schema.names
            index = index_of(buffer, file=self._is_file)
            if self._is_file and reader.num_record_batches != len(index.sizes):
                raise DataError("its footer does not fit its batches", where=str(self._origin))
        self.columns = _wanted(names, columns, self._origin)
        self._index, self._starts = index, starts_of(index.sizes)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`, each batch visited once; lists of numbers are views of the file."""
        sidecar.unchanged(self._path, self._stat, name=str(self._origin))

        def batch(number: int) -> Any:
            return self._shared.decoded.get((self._path, number), lambda: self._batch(number))

        with _named(self._origin, indices):
            return _read(self._starts, indices, batch, views=not self._index.compressed)

    def column(self, name: str, /) -> Iterator[Any]:
        """One column, batch by batch, where it lies."""
        with _named(self._origin):
            _wanted(self._schema.names, [name], self._origin)
            for batch in self._opened(self._mapped()) if not self._is_file else self._batches():
                yield batch.column(name)

    def _batches(self) -> Iterator[Any]:
        reader = self._opened(self._mapped())
        yield from map(reader.get_batch, range(reader.num_record_batches))

    def _mapped(self) -> Any:
        return self._shared.files.get(self._path, lambda: (1, mapped(self._path)))

    def _opened(self, buffer: Any, fields: Sequence[int] | None = None) -> Any:
        ipc: Any = arrow("pyarrow.ipc")
        options = ipc.IpcReadOptions(included_fields=fields)
        return (ipc.open_file if self._is_file else ipc.open_stream)(buffer, options=options)

    def _batch(self, number: int) -> tuple[int, Any]:
        buffer, index, schema = self._mapped(), self._index, self._schema
        if self._is_file and (index.compressed or index.dictionaries):
            fields = sorted(schema.names.index(column) for column in self.columns)
            batch = self._opened(buffer, fields).get_batch(number)
        elif index.dictionaries:
            whole = self._shared.decoded.get(self._path, lambda: self._all(buffer))
            batch = whole[number]
        else:
            start, stop = index.places[number]
            batch = arrow("pyarrow.ipc").read_record_batch(buffer.slice(start, stop - start), schema)
        batch = batch.select(self.columns)
        batch.validate()
        for column in batch.columns:
            check(column)
        if batch.num_rows != index.sizes[number]:
            raise DataError(f"batch {number} is damaged", where=str(self._origin))
        return (batch.get_total_buffer_size() if index.compressed else _MAPPED), batch

    def _all(self, buffer: Any) -> tuple[int, Any]:
        whole = list(self._opened(buffer))
        return sum(batch.get_total_buffer_size() for batch in whole) if self._index.compressed else _MAPPED, whole


def _read(starts: Ints, indices: Ints, batch: Callable[[int], Any], *, views: bool) -> list[Any]:
    """Rows of batches: each batch converted by itself, or all rows put together first where they lie far apart."""

    def part(number: int, rows: Ints) -> list[Any]:
        return rows_of(batch(number), rows, views=views)

    def few(numbers: list[int], rows: Ints) -> list[Any]:
        pieces = [batch(number).slice(row, 1) for number, row in zip(numbers, rows.tolist(), strict=True)]
        return rows_of(together(pieces), np.arange(len(rows), dtype=np.int64), views=True)

    return by_part(starts, indices, part, few)


class Index(NamedTuple):
    """Where the record batches of an Arrow file lie (start, stop), and how many rows each has."""

    places: list[tuple[int, int]]
    sizes: list[int]
    compressed: bool
    dictionaries: bool


def index_of(buffer: Any, *, file: bool) -> Index:
    """Find the record batches of Arrow data by reading the headers of its messages, and nothing of their bodies.

    A message is a marker, the length of its header, the header (a flatbuffer) and a body; see "Encapsulated message
    format" in the Arrow specification. Only the footer of a file is bound to say where they are: some writers pad the
    beginning of a file, or leave out the marker there.
    """
    view = memoryview(buffer)
    start = 8 if file else 0
    if file and bytes(view[start : start + 4]) != b"\xff\xff\xff\xff":
        return _listed(view)
    found = Index([], [], False, False)
    at = start
    while at < len(view):
        marker, length = struct.unpack_from("<Ii", view, at)
        if marker != 0xFFFFFFFF or length < 0:
            raise ValueError(f"no Arrow message at byte {at}")
        if length == 0:
            return _whole(found)
        found, at = _message(view, found, at, at + 8, length)
    # Readers of sockets take this for an end. In a file it may be half of what was written.
    raise ValueError("it has no end mark: it was cut off, or its writer was not closed")


def _listed(view: memoryview) -> Index:
    """The record batches that the footer of a file names, in the order in which they lie there."""
    (length,) = struct.unpack_from("<i", view, len(view) - 10)
    footer = view[len(view) - 10 - length : len(view) - 10]
    table = struct.unpack_from("<I", footer)[0]
    found, stop = Index([], [], False, bool(_blocks(footer, table, 2))), 8
    for at, header, body in _blocks(footer, table, 3):
        framed = 8 if bytes(view[at : at + 4]) == b"\xff\xff\xff\xff" else 4
        if at < stop:
            raise ValueError(f"the batch at byte {at} lies in another one")
        found, stop = _message(view, found, at, at + framed, header - framed)
        if stop != at + header + body or len(found.sizes) != len(found.places):
            raise ValueError(f"the batch at byte {at} is not what the footer says")
    return _whole(found)


def _blocks(footer: memoryview, table: int, field: int) -> list[tuple[int, int, int]]:
    """A list of places in a footer: where a message begins, the bytes before its body, the bytes of its body."""
    slot = _slot(footer, table, field)
    if not slot:
        return []
    at = slot + struct.unpack_from("<I", footer, slot)[0]
    (count,) = struct.unpack_from("<I", footer, at)
    return [struct.unpack_from("<qi4xq", footer, at + 4 + 24 * number) for number in range(count)]


def _message(view: memoryview, found: Index, at: int, begin: int, length: int) -> tuple[Index, int]:
    """What is known with the message at byte `at` too, whose header begins at `begin`; and where the message ends."""
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
        found.sizes.append(_field(header, batch, 0, "<q"))
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


def _field(header: memoryview, table: int, field: int, kind: str) -> int:
    place = _slot(header, table, field)
    return struct.unpack_from(kind, header, place)[0] if place else 0


def _wanted(names: Sequence[str], columns: Sequence[str] | None, path: Path) -> list[str]:
    if len(set(names)) != len(names):
        raise DataError(f"two columns have one name: {', '.join(names)}", where=str(path))
    for column in columns or ():
        if column not in names:
            raise ConfigError(f"{path}: there is no column {column!r}; the columns are {', '.join(names)}")
    return list(names if columns is None else columns)


@contextlib.contextmanager
def _named(path: Path, indices: Ints | None = None) -> Generator[None]:
    """Errors of pyarrow as errors that name file and row."""
    try:
        yield
    except PenstockError:
        raise
    except (arrow().ArrowException, OSError, ValueError, OverflowError, struct.error, IndexError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{path}: {error}") from error
        where = str(path)
        if indices is not None and indices.size:
            first, last = int(np.min(indices)), int(np.max(indices))
            where += f", row {first}" if first == last else f", rows {first} to {last}"
        raise DataError(f"cannot be read: {error}", where=where) from error
