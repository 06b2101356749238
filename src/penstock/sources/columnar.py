"""Parquet and Arrow IPC files, read at random through pyarrow.

Rows are dicts; `rows_of` documents their values.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.columnar import import_arrow
from ..errors import (
    ConfigError,
    DataError,
    PenstockError,
    convert_storage_errors,
    make_memory_error,
    make_storage_error,
)
from ..stores import ByteRange, is_remote, storage
from ..stores.limits import DECODED
from ..types import Ints
from . import file_versions
from .arrow_index import index_record_batches, require_plausible
from .arrow_take import ArrowTake
from .block import ColumnarFile, ColumnFacts, take_rows_of_batches
from .chain import compute_offsets
from .checksummed import ChecksummedFile
from .kinds import describe_column_types
from .lru import SharedCaches
from .parquet_pages import require_small_row_group
from .rows import (
    check_offsets,
    find_largest_row,
    iterate_innermost_arrays,
    join_batches,
    map_file,
    open_for_arrow,
)
from .unify import SchemaConverter

_SAMPLED_ROW_GROUPS = 64  # row groups whose sizes estimate those of all row groups of a file
_MAPPED_BATCH_COST = 4096  # cache cost of a batch in a mapped file, which is only its description


def read_footer(path: Path) -> tuple[Any, list[int], int]:
    """Return schema, rows per row group, and the average uncompressed bytes of a row group."""
    with _convert_arrow_errors(path):
        pq: Any = import_arrow("pyarrow.parquet")
        with open_for_arrow(path) as raw, pq.ParquetFile(raw) as file:
            # `footer.schema.to_arrow_schema()` returns UUID and JSON columns as bytes and texts.
            footer, schema = file.metadata, file.schema_arrow
        sizes = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        if footer.num_rows != sum(sizes):
            raise ValueError(
                f"its footer names {footer.num_rows:,} rows, its row groups hold {sum(sizes):,}"
            )
        # Statistics of single columns stay unread: Arrow crashes if they are damaged.
        sampled = min(footer.num_row_groups, _SAMPLED_ROW_GROUPS)
        group = sum(footer.row_group(number).total_byte_size for number in range(sampled)) // max(
            sampled, 1
        )
    return schema, sizes, group


class Parquet(ColumnarFile):
    """One Parquet file; opening reads the footer, and reading a row decodes its row group.

    Decoded row groups are cached. Random reads over a file larger than the cache decode a full row
    group for a few rows: write small row groups (a few MiB), or Arrow files.
    """

    slow = True

    def __init__(
        self,
        path: Path,
        *,
        columns: Sequence[str] | None,
        shared: SharedCaches,
        data: ChecksummedFile | None = None,
        schema: Any = None,
        some: bool = False,
    ) -> None:
        self.path = self._path = path
        self._shared, self._stat = shared, file_versions.stat_file(path)
        self._data = data or ChecksummedFile(path, path, shared.files)
        self._compare_footer()
        footer, sizes, group = read_footer(path)
        names = _select_columns(footer.names, columns, path, some or schema is not None)
        self.file_schema: Any = import_arrow().schema([footer.field(name) for name in names])
        self._conform = SchemaConverter(self.file_schema, schema, path)
        self.columns = self._conform.schema.names
        self.types = describe_column_types(self._conform.schema, self.columns)
        self._form = ColumnFacts(self._conform.schema)
        self._starts = compute_offsets(sizes)
        self._small_groups = set[int]()
        self._group = group * len(names) // max(len(footer.names), 1)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """Return the rows at `indices`, visiting each row group once."""

        def group(number: int) -> Any:
            batch, overflowed = self._shared.decoded.get(
                (self._path, number), lambda: self._decode(number)
            )
            if overflowed:
                rows = indices - self._starts[number]
                self._require_representable(
                    number,
                    {name: np.intersect1d(rows, bad_rows) for name, bad_rows in overflowed.items()},
                )
            return batch

        with _convert_arrow_errors(self._path, indices):
            rows_block = take_rows_of_batches(self._starts, indices, group, self._form, views=False)
        if len(indices) > 1 and int(indices[-1] - indices[0]) == len(indices) - 1:
            self._drop_passed(int(indices[0]), int(indices[-1]) + 1)
        return rows_block

    def decoding(self) -> tuple[int, int] | None:
        return self._group, len(self) // max(len(self._starts) - 1, 1)

    def arrow_schema(self) -> Any:
        """Return the schema that all files are converted to."""
        return self._conform.schema

    def column(self, name: str, /) -> Iterator[Any]:
        """Yield one column, row group by row group."""
        pq: Any = import_arrow("pyarrow.parquet")
        self._data.compare(0, self._stat.size)
        with (
            _convert_arrow_errors(self._path),
            open_for_arrow(self._path) as raw,
            pq.ParquetFile(raw) as file,
        ):
            if name in self.columns and name not in self._conform.names:
                yield from self._conform.nulls(name, len(self))
                return
            _select_columns(file.schema_arrow.names, [name], self._path)
            for group in range(file.num_row_groups):
                require_small_row_group(raw, file, group, [name], self._path, self._stat.size)
                column = file.read_row_group(group, columns=[name], use_threads=False).column(name)
                self._require_rows(group, len(column))
                self._require_representable(
                    group, _find_overflowed_rows(raw, file, group, [name], {name: column})
                )
                yield from self._conform.column(name, column, len(column)).chunks

    def _decode(self, group: int) -> tuple[int, Any]:
        with file_versions.guard_unchanged(self._path, self._stat, name=str(self._path)):
            table, overflowed = self._read_group(group)
        table = self._conform(table)
        _require_small_rows(table, self._path, int(self._starts[group]))
        return table.get_total_buffer_size(), (join_batches([table]), overflowed)

    def _read_group(self, group: int) -> tuple[Any, dict[str, Ints]]:
        pq: Any = import_arrow("pyarrow.parquet")
        footer = self._shared.files.get(
            self._path, lambda: (1, pq.read_metadata(open_for_arrow(self._path)))
        )
        if self._data.known():
            for start, stop in _iterate_column_chunks(footer.row_group(group), self._conform.names):
                self._data.compare(start, stop)
        # With a cached footer opening is cheap, and a reader per call needs no lock. The loader
        # provides the threads. Remote bytes are already prefetched; this thread waits for them, so
        # that Ctrl-C can interrupt it.
        options = {"metadata": footer, "page_checksum_verification": True, "pre_buffer": False}
        with open_for_arrow(self._path) as raw, pq.ParquetFile(raw, **options) as file:
            if group not in self._small_groups:
                names = self._conform.names
                require_small_row_group(raw, file, group, names, self._path, self._stat.size)
                self._small_groups.add(group)
            table = file.read_row_group(group, columns=self._conform.names, use_threads=False)
            table = table.select(self._conform.names)
            self._require_rows(group, table.num_rows)
            return table, _find_overflowed_rows(raw, file, group, self._conform.names, table)

    def _drop_passed(self, start: int, stop: int) -> None:
        """Evict row groups that were read to their end: sequential readers do not return.

        Decoding the next ones into memory in use is faster.
        """
        ends = self._starts[1:]
        for group in range(
            int(ends.searchsorted(start, "right")), int(ends.searchsorted(stop, "right"))
        ):
            self._shared.decoded.drop((self._path, group))

    def ranges(self, indices: Ints, /) -> list[ByteRange]:
        """Return the remote byte ranges that these rows need and that are not decoded yet."""
        if not is_remote(self._path):
            return []
        pq: Any = import_arrow("pyarrow.parquet")
        footer = self._shared.files.get(
            self._path, lambda: (1, pq.read_metadata(open_for_arrow(self._path)))
        )
        groups = np.unique(np.searchsorted(self._starts, indices, side="right") - 1).tolist()
        missing = [group for group in groups if not self._shared.decoded.holds((self._path, group))]
        parts = [
            part
            for group in missing
            for part in _iterate_column_chunks(footer.row_group(group), self._conform.names)
        ]
        return [ByteRange(str(self._path), start, stop) for start, stop in parts]

    def _require_rows(self, group: int, rows: int) -> None:
        """Raise if a row group has another number of rows than the footer says."""
        expected = int(self._starts[group + 1] - self._starts[group])
        if rows != expected:
            raise DataError(
                f"row group {group} holds {rows:,} rows, its footer names {expected:,}",
                where=str(self._path),
            )

    def _require_representable(self, group: int, overflowed: Mapping[str, Ints]) -> None:
        """Raise if a row is among those whose timestamps 64-bit nanoseconds cannot represent."""
        for name, rows in overflowed.items():
            if rows.size:
                raise DataError(
                    f"column {name!r} holds an int96 timestamp outside of the years 1677 to 2262, "
                    "which 64-bit nanoseconds cannot represent: write the column in microseconds, "
                    "or leave it out (columns=)",
                    where=f"{self._path}, row {int(self._starts[group] + rows[0])}",
                )

    def _compare_footer(self) -> None:
        size = self._stat.size
        if not self._data.known() or size < 8:
            return
        self._data.compare(size - 8, size)
        with convert_storage_errors(self._path):
            length = int.from_bytes(
                storage.world.store.read(str(self._path), size - 8, 4), "little"
            )
        self._data.compare(max(size - 8 - length, 0), size)


def _iterate_column_chunks(group: Any, columns: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of the selected columns of a row group."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema.split(".")[0] in columns or any(
            "." in column for column in columns
        ):
            begin = min(
                chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset
            )
            yield begin, begin + chunk.total_compressed_size


def _find_overflowed_rows(
    raw: Any, file: Any, group: int, names: Sequence[str], columns: Any
) -> dict[str, Ints]:
    """Return, by column, the rows of a row group whose int96 timestamps overflow in Arrow.

    Arrow converts them to 64-bit nanoseconds, which wrap around outside of the years 1677 to 2262.
    Milliseconds represent all int96 values, so this reads the columns again in milliseconds.
    """
    schema = file.schema_arrow
    types = {name: str(schema.field(name).type) for name in names}
    times = [
        name
        for name, type_name in types.items()
        if "timestamp[ns" in type_name or "extension" in type_name
    ]
    if not times or all(
        file.schema.column(number).physical_type != "INT96" for number in range(len(file.schema))
    ):
        return {}
    options = {"metadata": file.metadata, "coerce_int96_timestamp_unit": "ms", "pre_buffer": False}
    with import_arrow("pyarrow.parquet").ParquetFile(raw, **options) as coarse:
        table = coarse.read_row_group(group, columns=times, use_threads=False)
    differing = {name: _find_differing_rows(columns[name], table.column(name)) for name in times}
    return {name: rows for name, rows in differing.items() if rows.size}


def _find_differing_rows(fine: Any, coarse: Any) -> Ints:
    """Return the rows of a nanosecond column that differ from the same column in milliseconds."""

    def differ(fine: Any, coarse: Any) -> npt.NDArray[np.bool_]:
        masks = [np.zeros(0, np.bool_)]
        for fine_leaf, coarse_leaf in zip(
            iterate_innermost_arrays(fine), iterate_innermost_arrays(coarse), strict=True
        ):
            if fine_leaf.type != coarse_leaf.type:
                ns, ms = (
                    part.cast(import_arrow().int64()).fill_null(0).to_numpy()
                    for part in (fine_leaf, coarse_leaf)
                )
                masks.append(ns // 1_000_000 != ms)
        return np.concatenate(masks)

    values = differ(fine, coarse)
    if import_arrow("pyarrow.types").is_timestamp(fine.type) or not values.any():
        return np.flatnonzero(values)
    rows = range(len(fine))
    return np.asarray(
        [row for row in rows if differ(fine.slice(row, 1), coarse.slice(row, 1)).any()], np.int64
    )


class Arrow(ColumnarFile):
    """One Arrow IPC file, in the file or the stream format, memory-mapped and used in place.

    Compressed batches are decoded and cached. A compressed stream decodes all its columns, and a stream
    with dictionaries is kept in memory in full; the file format has neither limit.
    """

    slow = False

    def __init__(
        self,
        path: Path,
        *,
        columns: Sequence[str] | None,
        shared: SharedCaches,
        data: ChecksummedFile | None = None,
        origin: Path | None = None,
        schema: Any = None,
        some: bool = False,
    ) -> None:
        self._path, self._origin, self._shared = path, origin or path, shared
        self.path = self._origin
        self._stat = file_versions.stat_file(path)
        self._data = data or ChecksummedFile(path, self._origin, shared.files)
        with _convert_arrow_errors(self._origin):
            buffer = self._mapped()
            self._is_file = bytes(memoryview(buffer)[:6]) == b"ARROW1"
            reader = self._open(buffer)
            self._schema: Any = reader.schema
            names: list[str] = self._schema.names
            index = index_record_batches(buffer, file=self._is_file)
            for start, stop in index.gaps(self._stat.size):
                self._data.compare(start, stop, memoryview(buffer))
            if self._is_file and reader.num_record_batches != len(index.sizes):
                raise DataError(
                    "its footer does not match its batches: it is damaged", where=str(self._origin)
                )
        chosen = _select_columns(names, columns, self._origin, some or schema is not None)
        self.file_schema: Any = import_arrow().schema([self._schema.field(name) for name in chosen])
        self._conform = SchemaConverter(self.file_schema, schema, self._origin)
        self.columns = self._conform.schema.names
        self.types = describe_column_types(self._conform.schema, self.columns)
        self._index, self._starts = index, compute_offsets(index.sizes)
        self._form = ColumnFacts(self._conform.schema)
        self._gather = ArrowTake(
            self._conform.schema, len(index.sizes), self._mapped, self._decoded_batch
        )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """Return the rows at `indices`, visiting each batch once; lists of numbers are views."""
        file_versions.require_unchanged(self._path, self._stat, name=str(self._origin))

        with _convert_arrow_errors(self._origin, indices):
            is_plain = not (
                self._index.compressed or self._index.dictionaries or self._conform.changes
            )
            take_few = self._gather.take if is_plain else None
            return take_rows_of_batches(
                self._starts,
                indices,
                self._decoded_batch,
                self._form,
                views=not self._index.compressed,
                few=take_few,
            )

    def flat(self, name: str, /) -> list[npt.NDArray[Any]]:
        """Return the values of the lists of a column, batch by batch, as views."""
        file_versions.require_unchanged(self._path, self._stat, name=str(self._origin))
        with _convert_arrow_errors(self._origin):
            return self._shared.decoded.get(
                (self._path, name), lambda: (_MAPPED_BATCH_COST, self._flat(name))
            )

    def _flat(self, name: str) -> list[npt.NDArray[Any]]:
        batches = map(self._decoded_batch, range(len(self._index.sizes)))
        return [batch.column(name).flatten().to_numpy(zero_copy_only=False) for batch in batches]

    def arrow_schema(self) -> Any:
        """Return the schema that all files are converted to."""
        return self._conform.schema

    def column(self, name: str, /) -> Iterator[Any]:
        """Yield one column, batch by batch, as views."""
        with _convert_arrow_errors(self._origin):
            if name in self.columns and name not in self._conform.names:
                yield from self._conform.nulls(name, len(self))
                return
            _select_columns(self._schema.names, [name], self._origin)
            self._data.compare(0, self._stat.size, memoryview(self._mapped()))
            for batch in self._open(self._mapped()) if not self._is_file else self._batches():
                yield self._conform.column(name, batch.column(name), len(batch))

    def _batches(self) -> Iterator[Any]:
        reader = self._open(self._mapped())
        yield from map(reader.get_batch, range(reader.num_record_batches))

    def _decoded_batch(self, number: int) -> Any:
        return self._shared.decoded.get((self._path, number), lambda: self._batch(number))

    def _mapped(self) -> Any:
        return self._shared.files.get(self._path, self._map)

    def _map(self) -> tuple[int, Any]:
        buffer = map_file(self._path)
        # Checked after mapping: the mapping keeps its bytes even if the file is replaced.
        file_versions.require_unchanged(self._path, self._stat, name=str(self._origin))
        return 1, buffer

    def _open(self, buffer: Any, fields: Sequence[int] | None = None) -> Any:
        ipc: Any = import_arrow("pyarrow.ipc")
        options = ipc.IpcReadOptions(included_fields=fields)
        return (ipc.open_file if self._is_file else ipc.open_stream)(buffer, options=options)

    def _batch(self, number: int) -> tuple[int, Any]:
        buffer, index, schema = self._mapped(), self._index, self._schema
        self._data.compare(*index.ranges[number], memoryview(buffer))
        if index.packed_dictionaries:
            require_plausible(memoryview(buffer), index.packed_dictionaries)
        if index.compressed:
            require_plausible(memoryview(buffer), [index.bodies[number]])
        if self._is_file and (index.compressed or index.dictionaries):
            fields = sorted(schema.names.index(column) for column in self._conform.names)
            batch = self._open(buffer, fields).get_batch(number)
        elif index.dictionaries:
            batches = self._shared.decoded.get(self._path, lambda: self._all(buffer))
            batch = batches[number]
        else:
            start, stop = index.ranges[number]
            batch = import_arrow("pyarrow.ipc").read_record_batch(
                buffer.slice(start, stop - start), schema
            )
        batch = batch.select(self._conform.names)
        batch.validate()
        _require_small_rows(batch, self._origin, int(self._starts[number]))
        for column in batch.columns:
            check_offsets(column)
        if batch.num_rows != index.sizes[number]:
            raise DataError(f"batch {number} is damaged", where=str(self._origin))
        conformed = self._conform(batch)
        if conformed is not batch:  # lists in runs and views
            _require_small_rows(conformed, self._origin, int(self._starts[number]))
        return (
            conformed.get_total_buffer_size()
            if index.compressed or conformed is not batch
            else _MAPPED_BATCH_COST
        ), conformed

    def _all(self, buffer: Any) -> tuple[int, Any]:
        if self._index.compressed:
            require_plausible(memoryview(buffer), self._index.bodies)
        batches = list(self._open(buffer))
        return sum(
            batch.get_total_buffer_size() for batch in batches
        ) if self._index.compressed else _MAPPED_BATCH_COST, batches


def _select_columns(
    names: Sequence[str], columns: Sequence[str] | None, path: Path, some: bool = False
) -> list[str]:
    """Return the columns to read, by default all; with `some`, only the existing ones."""
    if len(set(names)) != len(names):
        raise DataError(
            f"two columns have the same name, of {', '.join(names)}: rename one", where=str(path)
        )
    if some and columns is not None:
        return [column for column in columns if column in names]
    for column in columns or ():
        if column not in names:
            raise ConfigError(
                f"{path}: there is no column {column!r}; the columns are {', '.join(names)}"
            )
    return list(names if columns is None else columns)


def _require_small_rows(table: Any, path: Path, first: int) -> None:
    """Raise if a row would take much memory in Python: a list of many nulls takes none in a file."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        row, size = find_largest_row(column)
        if size > DECODED:
            raise DataError(
                f"the values of the column {name!r} would take {size >> 20:,} MiB of memory, and "
                f"the limit is {DECODED >> 20:,} MiB: leave it out (columns=), or split long rows",
                where=f"{path}, row {first + row}",
            )


@contextlib.contextmanager
def _convert_arrow_errors(path: Path, indices: Ints | None = None) -> Generator[None]:
    """Convert pyarrow's errors to errors that name the file and the rows."""
    try:
        yield
    except PenstockError:
        raise
    except MemoryError as error:  # an error of Arrow too; the file is not at fault
        raise make_memory_error(error, _name_rows(path, indices)) from error
    except (
        import_arrow().ArrowException,
        OSError,
        ValueError,
        OverflowError,
        struct.error,
        IndexError,
    ) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise make_storage_error(error, path) from error
        reason = str(error)
        if isinstance(error, import_arrow().ArrowInvalid | OSError):  # truncated or damaged
            reason = f"{reason.rstrip('.')}; write or copy it again"
        raise DataError(f"cannot be read: {reason}", where=_name_rows(path, indices)) from error


def _name_rows(path: Path, indices: Ints | None) -> str:
    if indices is None or not indices.size:
        return str(path)
    first, last = int(np.min(indices)), int(np.max(indices))
    return f"{path}, row {first}" if first == last else f"{path}, rows {first} to {last}"
