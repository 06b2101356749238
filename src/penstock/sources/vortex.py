"""Vortex files, read at random through their own package; rows are as in Arrow files."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from ..arrays.columnar import import_arrow
from ..errors import ConfigError, DataError, PenstockError, make_missing_extra_error
from ..types import Ints
from . import file_versions
from .arrays import convert_package_errors
from .block import ColumnarFile, ColumnFacts, take_batch_rows
from .checksummed import ChecksummedFile, OpenRequest
from .kinds import describe_column_types
from .rows import join_batches
from .unify import SchemaConverter

_CONCURRENT_READS = 8
_SEGMENT_CACHE = 64 << 20  # bytes of encoded segments, of all files of a source


class Vortex(ColumnarFile):
    """One file; its package decodes the parts of columns that the rows need."""

    def __init__(self, request: OpenRequest) -> None:
        self._data, self._shared, self._origin = request.data, request.shared, request.origin
        self._stat = file_versions.stat_file(request.path)
        with self._file() as file:
            if not hasattr(file.dtype, "names"):
                raise DataError(
                    f"it holds {file.dtype}, not a table of columns", where=str(self._origin)
                )
            names, self._rows, schema = (
                list[str](file.dtype.names()),
                len(file),
                file.dtype.to_arrow_schema(),
            )
        if missing := [column for column in request.columns or () if column not in names]:
            raise ConfigError(
                f"{self._origin}: there is no column {missing[0]!r}; the columns are "
                f"{', '.join(names)}"
            )
        self.columns = names if request.columns is None else list(request.columns)
        self.types = describe_column_types(schema, self.columns)

    def __len__(self) -> int:
        return self._rows

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """Return the rows at `indices`, decoding each once."""
        with file_versions.guard_unchanged(self._data.path, self._stat, name=str(self._origin)):
            if not indices.size:
                return []
            rows, inverse = np.unique(indices, return_inverse=True)
            with self._file() as file:
                row_array = self._module().array(import_arrow().array(rows.astype(np.uint64)))
                table = file.scan(self.columns, indices=row_array).read_all().to_arrow_table()
                table = SchemaConverter(table.schema, None, self._origin)(table)
                if len(table) != len(rows):
                    raise ValueError(f"{len(table)} rows where {len(rows)} were asked for")
                positions = None if np.array_equal(rows, indices) else inverse
                return take_batch_rows(
                    join_batches([table]), positions, ColumnFacts(table.schema), views=True
                )

    @contextlib.contextmanager
    def _file(self) -> Generator[Any]:
        """Open the file in its package; an error while reading bytes replaces the package's error."""
        with convert_package_errors(self._origin):
            reader = _ByteReader(self._data, self._stat.size)
            try:
                reader, file = self._shared.files.get(
                    ("vortex", self._data.path), lambda: (1, self._open(reader))
                )
                yield file
            except Exception as error:
                read_error, reader.failed = reader.failed, None
                if read_error is not None:
                    raise read_error from error
                raise

    def _open(self, reader: _ByteReader) -> tuple[_ByteReader, Any]:
        module = self._module()
        segments = self._shared.files.get(
            "vortex", lambda: (1, module.SegmentCache(_SEGMENT_CACHE))
        )
        key = f"{self._data.path} {self._stat}"
        return reader, module.open_readable(
            reader, concurrency=_CONCURRENT_READS, segment_cache=segments, cache_key=key
        )

    def _module(self) -> Any:
        try:
            return importlib.import_module("vortex")
        except ModuleNotFoundError:
            raise make_missing_extra_error(
                "vortex-data", "vortex", f"reading {self._origin.name}"
            ) from None


class _ByteReader:
    """The bytes of a file for the package, which reads from several threads.

    It references the file weakly, because a cycle through the package would never be freed.
    """

    def __init__(self, data: ChecksummedFile, size: int) -> None:
        self._data, self._size = weakref.ref(data), size
        self.failed: PenstockError | None = None

    def size(self) -> int:
        """Return the size of the file."""
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes, compared with their checksums if there are any."""
        data = self._data()
        if data is None:
            raise ValueError("the source was deleted")
        try:
            return data.read(offset, length)
        except PenstockError as error:
            self.failed = error
            raise


def open_vortex(request: OpenRequest, /) -> Vortex:
    """Open one file."""
    return Vortex(request)
