"""Vortex files, through their own package: rows by number, as those of Arrow files."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError, PenstockError, missing_extra
from ..types import Ints
from . import sidecar
from .arrays import named
from .block import Form, OfColumns, of_batch
from .checksummed import ChecksummedFile, OpenRequest
from .kinds import kinds_of
from .rows import arrow, together
from .unify import Conform

_AT_ONCE = 8  # reads under way
_KEPT = 64 << 20  # bytes as they lie in files, of all files of a source


class Vortex(OfColumns):
    """One file. Its package decodes what the wanted rows need of the columns that are asked for."""

    def __init__(self, wanted: OpenRequest) -> None:
        self._data, self._shared, self._origin = wanted.data, wanted.shared, wanted.origin
        self._stat = sidecar.stat(wanted.path)
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
        if missing := [column for column in wanted.columns or () if column not in names]:
            raise ConfigError(
                f"{self._origin}: there is no column {missing[0]!r}; the columns are "
                f"{', '.join(names)}"
            )
        self.columns = names if wanted.columns is None else list(wanted.columns)
        self.types = kinds_of(schema, self.columns)

    def __len__(self) -> int:
        return self._rows

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """The rows at `indices`, each decoded once."""
        with sidecar.unchanged_during(self._data.path, self._stat, name=str(self._origin)):
            if not indices.size:
                return []
            rows, places = np.unique(indices, return_inverse=True)
            with self._file() as file:
                asked = self._module().array(arrow().array(rows.astype(np.uint64)))
                table = file.scan(self.columns, indices=asked).read_all().to_arrow_table()
                table = Conform(table.schema, None, self._origin)(table)
                if len(table) != len(rows):
                    raise ValueError(f"{len(table)} rows where {len(rows)} were asked for")
                some = None if np.array_equal(rows, indices) else places
                return of_batch(together([table]), some, Form(table.schema), views=True)

    @contextlib.contextmanager
    def _file(self) -> Generator[Any]:
        """The file as its package has it; what went wrong where bytes were read is not told as an
        error of it."""
        with named(self._origin):
            reader = _Bytes(self._data, self._stat.size)
            try:
                reader, file = self._shared.files.get(
                    ("vortex", self._data.path), lambda: (1, self._opened(reader))
                )
                yield file
            except Exception as error:
                failed, reader.failed = reader.failed, None
                if failed is not None:
                    raise failed from error
                raise

    def _opened(self, reader: _Bytes) -> tuple[_Bytes, Any]:
        module = self._module()
        kept = self._shared.files.get("vortex", lambda: (1, module.SegmentCache(_KEPT)))
        key = f"{self._data.path} {self._stat}"
        return reader, module.open_readable(
            reader, concurrency=_AT_ONCE, segment_cache=kept, cache_key=key
        )

    def _module(self) -> Any:
        try:
            return importlib.import_module("vortex")
        except ModuleNotFoundError:
            raise missing_extra("vortex-data", "vortex", f"reading {self._origin.name}") from None


class _Bytes:
    """The bytes of a file for the package, which reads from several threads. It knows those who
    hold it weakly only: a circle through the package would never be freed."""

    def __init__(self, data: ChecksummedFile, size: int) -> None:
        self._data, self._size = weakref.ref(data), size
        self.failed: PenstockError | None = None

    def size(self) -> int:
        """The size of the file."""
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        """So many bytes, compared with their checksums where there are any."""
        data = self._data()
        if data is None:
            raise ValueError("the source is gone")
        try:
            return data.read(offset, length)
        except PenstockError as error:
            self.failed = error
            raise


def open_vortex(wanted: OpenRequest, /) -> Vortex:
    """The rows of one file."""
    return Vortex(wanted)
