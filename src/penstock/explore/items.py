"""One item in a notebook: the shapes of a batch, and the documents of packed rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..engine.base.shown import Shown, Shows, attempt, counted, shorten_name
from .cells import format_value

_ROWS = 8  # rows whose documents are listed
_DOCUMENTS = 8  # documents that are listed for a row
_PARTS = 20  # parts of a container that are listed
_MOST_NUMBERS = 1 << 24  # numbers of an array whose range is computed


def show(item: Any) -> ItemView:
    """Show an item of a dataset or loader as a tree: types, shapes and ranges, not all values.

    For packed rows, which have `segment_ids`, it lists the documents of each row.

    Args:
        item: a sample, a batch or a packed row; with arrays or tensors in any containers.

    Returns:
        An object that prints as a tree, and shows as one in a notebook.

    >>> import penstock as ps
    >>> from penstock.explore import show
    >>> show(ps.from_sequence([[7, 8, 9], [5, 6]]).pack(4).head(1)[0])
    3 entries
      tokens: int32[4], 5 to 9
      segment_ids: int32[4], 1 to 2
      positions: int32[4], 0 to 2
      documents
        row 0: 2 documents of 3, 1 tokens
    """
    return ItemView(item)


class ItemView(Shows):
    """An item as a tree of lines; `show` returns it."""

    def __init__(self, item: Any) -> None:
        self._tree = attempt(lambda: _build_tree("", item, 0), Shown(type(item).__name__))

    def _shown(self) -> Shown:
        return self._tree


def _build_tree(name: str, value: Any, depth: int) -> Shown:
    head = f"{name}: " if name else ""
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        parts = [(shorten_name(key), entries[key]) for key in entries]
        below = _build_trees(parts, depth)
        documents = entries.get("segment_ids")
        if documents is not None:
            below = (*below, *attempt(lambda: _list_documents(np.asarray(documents)), ()))
        return Shown(f"{head}{len(entries)} entries", below)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Shown(head + _describe_array(value))
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        kind = "tuple" if isinstance(value, tuple) else "list"
        if all(isinstance(part, str | bytes | int | float | None) for part in items):
            return Shown(f"{head}{kind} of {len(items)}: {format_value(value)}")
        parts = [(str(number), part) for number, part in enumerate(items)]
        return Shown(f"{head}{kind} of {len(items)}", _build_trees(parts, depth))
    return Shown(head + format_value(value))


def _build_trees(parts: Sequence[tuple[str, Any]], depth: int) -> tuple[Shown, ...]:
    if depth > 3:
        return ()
    below = [_build_tree(name, part, depth + 1) for name, part in parts[:_PARTS]]
    more = [Shown(f"... {len(parts) - _PARTS} more")] if len(parts) > _PARTS else []
    return (*below, *more)


def _describe_array(value: Any) -> str:
    shape = ", ".join(map(str, value.shape))
    text = f"{str(value.dtype).rpartition('.')[2]}[{shape}]"
    return text + attempt(lambda: _describe_range(value), "")


def _describe_range(value: Any) -> str:
    """Return the range of the numbers of an array in this memory; a tensor elsewhere has none."""
    array: Any = np.asarray(value)
    if array.dtype.kind not in "iuf" or not 0 < array.size <= _MOST_NUMBERS:
        return ""
    return f", {array.min()} to {array.max()}"


def _list_documents(segment_ids: Any) -> tuple[Shown, ...]:
    """Return the number of documents, and of the tokens of each, for each packed row."""
    rows = segment_ids.reshape(-1, segment_ids.shape[-1])
    lines = list[Shown]()
    for number, row in enumerate(rows[:_ROWS]):
        tokens = np.bincount(row[row > 0])[1:].tolist()
        sizes = ", ".join(map(str, tokens[:_DOCUMENTS])) + (", ..." * (len(tokens) > _DOCUMENTS))
        padding = int((row == 0).sum())
        lines.append(
            Shown(
                f"row {number}: {counted(len(tokens), 'document')} of {sizes} tokens"
                + (f", {padding} of padding" if padding else "")
            )
        )
    if len(rows) > _ROWS:
        lines.append(Shown(f"... {len(rows) - _ROWS} more rows"))
    return (Shown("documents", tuple(lines)),)
