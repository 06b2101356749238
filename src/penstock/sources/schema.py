"""Sources that know the columns of their samples without reading one."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class StoresSchema(Protocol):
    """A source whose samples are rows of Arrow columns.

    `arrow_schema` returns a `pyarrow.Schema`, or `None` if only reading tells the columns.
    """

    def arrow_schema(self) -> Any | None: ...
