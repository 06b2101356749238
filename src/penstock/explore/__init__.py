"""Look at a dataset, summarise its columns, and convert it to tables of other libraries.

`Look` has `head`, `take`, `sample`, `schema`, `columns` and `describe`. `Tables` has `to_arrow`,
`to_pandas`, `to_polars`, `to_hf` and `to_list`. `penstock.Dataset` inherits both. `show` shows one
item: a batch or a packed row. Optional libraries are imported where they are used. May import
everything below `explore` in the architecture, but not `dataset`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .items import show

__all__ = ["show"]


def __getattr__(name: str) -> Any:
    # Imported at first use, because every dataset imports this package.
    if name == "show":
        from .items import show

        return show
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
