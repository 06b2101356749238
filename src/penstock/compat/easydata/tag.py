"""Provenance fields on rows: `__source__`, and `__source_path__` for nested mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import DataError

SOURCE, PATH = "__source__", "__source_path__"


class Tag:
    """Copy rows and add the name of their source."""

    def __init__(self, name: str, nested: bool = False) -> None:
        self._name, self._nested = name, nested
        self.__qualname__ = "tag"

    def __call__(self, row: Any) -> dict[str, Any]:
        return self.many([row])[0]

    def many(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Tag a batch of rows."""
        name = self._name
        for row in rows:
            if not isinstance(row, Mapping):
                raise DataError(
                    f"a row is a {type(row).__name__}, but {SOURCE} needs mappings: convert rows "
                    "to mappings",
                    where=name,
                )
        if not self._nested:
            return [{**row, SOURCE: name} for row in rows]
        inner = [row.get(PATH, row.get(SOURCE)) for row in rows]
        paths = [name if below is None else f"{name}/{below}" for below in inner]
        return [{**row, SOURCE: name, PATH: path} for row, path in zip(rows, paths, strict=True)]
