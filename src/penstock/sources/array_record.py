"""ArrayRecord files, read at random through their own package, which checks each record."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, make_missing_extra_error
from ..types import Ints
from . import file_versions
from .checksummed import OpenRequest
from .example import RECORD_COLUMN, ExampleDecoder
from .lru import SharedCaches

# Options for random access, without threads that a fork would lose.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class ArrayRecord:
    """One file; a row is `{"__record__": bytes}`.

    `columns` selects features of `tf.train.Example` records instead.
    """

    def __init__(
        self, path: Path, origin: Path, *, columns: Sequence[str] | None, shared: SharedCaches
    ) -> None:
        self.columns = columns
        self._path, self._origin, self._shared = path, origin, shared
        self._parse = ExampleDecoder([RECORD_COLUMN] if columns is None else list(columns))
        self._stat = file_versions.stat_file(path)
        self._rows = int(self._reader().num_records())

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the rows at `indices`."""
        with file_versions.guard_unchanged(self._path, self._stat, name=str(self._origin)):
            if not indices.size:
                return []
            try:
                records = self._reader().read(indices.tolist())
            except (RuntimeError, ValueError, IndexError) as error:
                raise self._bad(error) from error
            rows = list[Any]()
            for index, record in zip(indices.tolist(), records, strict=True):
                try:
                    rows.append(self._parse(record))
                except ValueError as error:
                    raise DataError(str(error), where=f"{self._origin}, record {index}") from error
            return rows

    def _reader(self) -> Any:
        return self._shared.files.get(("array_record", self._path), self._open)

    def _open(self) -> tuple[int, Any]:
        try:
            module: Any = importlib.import_module("array_record.python.array_record_module")
        except ModuleNotFoundError:
            raise make_missing_extra_error(
                "array-record", "array-record", f"reading {self._origin.name}"
            ) from None
        reader = module.ArrayRecordReader(str(self._path), _READER_OPTIONS)
        if not reader.ok():
            raise self._bad("it is damaged, was cut off, or is no ArrayRecord file")
        return 1, reader

    def _bad(self, reason: object) -> DataError:
        return DataError(f"the file cannot be read: {reason}", where=str(self._origin))


def open_array_record(request: OpenRequest, /) -> ArrayRecord:
    """Open one file."""
    return ArrayRecord(request.path, request.origin, columns=request.columns, shared=request.shared)
