"""Lance datasets, read at random through their own package.

A source reads the version that was the latest when it was opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, make_missing_extra_error
from ..types import Ints
from . import file_versions
from .arrays import convert_package_errors
from .block import ColumnarFile, ColumnFacts, take_batch_rows
from .checksummed import OpenRequest
from .folders import parse_lance_version
from .kinds import describe_column_types
from .lru import SharedCaches
from .rows import join_batches


class Lance(ColumnarFile):
    """One version of a dataset, given by the path of its manifest; rows are as in Arrow files."""

    def __init__(self, path: Path, *, columns: Sequence[str] | None, shared: SharedCaches) -> None:
        self._path, self._shared, self._stat = path, shared, file_versions.stat_file(path)
        with convert_package_errors(path):
            dataset = self._dataset()
            schema: Any = dataset.schema
            names, self._rows = list[str](schema.names), int(dataset.count_rows())
        if missing := [column for column in columns or () if column not in names]:
            raise ConfigError(
                f"{path}: there is no column {missing[0]!r}; the columns are {', '.join(names)}"
            )
        self.columns = names if columns is None else list(columns)
        self.types = describe_column_types(schema, self.columns)

    def __len__(self) -> int:
        return self._rows

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """Return the rows at `indices`."""
        with file_versions.guard_unchanged(self._path, self._stat, name=str(self._path)):
            if not indices.size:
                return []
            with convert_package_errors(self._path):
                table = self._dataset().take(indices.tolist(), columns=self.columns)
                return take_batch_rows(
                    join_batches([table]), None, ColumnFacts(table.schema), views=True
                )

    def _dataset(self) -> Any:
        return self._shared.files.get(("lance", self._path), self._open)

    def _open(self) -> tuple[int, Any]:
        try:
            module: Any = importlib.import_module("lance")
        except ModuleNotFoundError:
            raise make_missing_extra_error(
                "pylance", "lance", f"reading {self._path.parent.parent.name}"
            ) from None
        return 1, module.dataset(
            str(self._path.parent.parent), version=parse_lance_version(self._path)
        )


def open_lance(request: OpenRequest, /) -> Lance:
    """Open one dataset, in the version of this manifest."""
    return Lance(request.path, columns=request.columns, shared=request.shared)
