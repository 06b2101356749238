"""One item in a notebook: the shapes of a batch, and the documents of packed rows as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..engine.base.shown import Shown, Shows, attempt, counted, shorten_name
from .cells import format_value, show_table
from .run_counts import BAND_COLOURS, OTHERS_COLOUR

_ROWS = 8  # rows whose documents are listed
_DOCUMENTS = 8  # documents that are listed for a row
_BARS = 64  # documents with a bar of their own
_PARTS = 20  # parts of a container that are listed
_DEPTH = 3  # of containers in containers
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
      documents, 100% full
        row 0: 2 documents of 3, 1 tokens
    """
    return ItemView(item)


class ItemView(Shows):
    """An item as a tree of lines, and in a notebook as a table and bars; `show` returns it."""

    def __init__(self, item: Any) -> None:
        self._tree = attempt(lambda: _build_tree("", item, 0), Shown(type(item).__name__))
        self._html = attempt(lambda: _show_mapping(item), "") or self._tree.html()

    def _shown(self) -> Shown:
        return self._tree

    def _repr_html_(self) -> str:
        return self._html


def _show_mapping(item: Any) -> str:
    """Return a mapping as a table of its entries, with a bar for each packed row; else nothing."""
    if not isinstance(item, Mapping) or not item:
        return ""
    entries = cast("Mapping[Any, Any]", item)
    rows = [[shorten_name(key), *_describe_entry(entries[key])] for key in list(entries)[:_PARTS]]
    if len(entries) > _PARTS:
        rows.append([f"... {len(entries) - _PARTS} more", "", ""])
    bars = ""
    if (segment_ids := entries.get("segment_ids")) is not None:
        bars = attempt(lambda: _draw_documents(np.asarray(segment_ids)), "")
    return show_table(["entry", "type", "values"], rows) + bars


def _describe_entry(value: Any) -> tuple[str, str]:
    """Return the type and shape of an entry, and its values or their range."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _format_shape(value), attempt(lambda: _format_range(value), "")
    if isinstance(value, list | tuple | Mapping):
        kind, _, content = _build_tree("", value, _DEPTH).text.partition(": ")
        return kind, content or format_value(value)
    return type(value).__name__, format_value(value)


def _draw_documents(segment_ids: Any) -> str:
    """Return a bar for each packed row: its documents by length, and padding as empty space."""
    rows = segment_ids.reshape(-1, segment_ids.shape[-1])
    length = max(1, rows.shape[1])
    lines = list[str]()
    for row in rows[:_ROWS]:
        sizes = _count_tokens(row)
        parts = [
            _draw_part(f"document {number}", size, length, BAND_COLOURS[number % len(BAND_COLOURS)])
            for number, size in enumerate(sizes[:_BARS])
        ]
        if others := sizes[_BARS:]:
            title = f"{len(others)} more documents"
            parts.append(_draw_part(title, sum(others), length, OTHERS_COLOUR))
        bar = "".join(parts)
        lines.append(
            '<div style="display: flex; gap: 8px; align-items: center"><div style="display: flex; '
            f'width: 480px; height: 14px; border: 1px solid {OTHERS_COLOUR}">{bar}</div>'
            f"<span>{counted(len(sizes), 'document')}, {sum(sizes) / length:.0%} full</span></div>"
        )
    if len(rows) > _ROWS:
        lines.append(f"... {counted(len(rows) - _ROWS, 'more row')}")
    return "".join([_describe_fill(rows), *lines])


def _draw_part(title: str, tokens: int, length: int, colour: str) -> str:
    return (
        f'<span title="{title}: {counted(tokens, "token")}" style="background: {colour}; '
        f'height: 100%; width: {100 * tokens / length:.2f}%"></span>'
    )


def _count_tokens(row: Any) -> list[int]:
    """Return the number of tokens of each document of a packed row."""
    return [size for size in np.bincount(row[row > 0])[1:].tolist() if size]


def _describe_fill(rows: Any) -> str:
    return f"documents, {(rows > 0).mean():.0%} full"


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
    if depth > _DEPTH:
        return ()
    below = [_build_tree(name, part, depth + 1) for name, part in parts[:_PARTS]]
    more = [Shown(f"... {len(parts) - _PARTS} more")] if len(parts) > _PARTS else []
    return (*below, *more)


def _describe_array(value: Any) -> str:
    numbers = attempt(lambda: _format_range(value), "")
    return _format_shape(value) + (f", {numbers}" if numbers else "")


def _format_shape(value: Any) -> str:
    shape = ", ".join(map(str, value.shape))
    return f"{str(value.dtype).rpartition('.')[2]}[{shape}]"


def _format_range(value: Any) -> str:
    """Return the range of the numbers of an array in this memory; a tensor elsewhere has none."""
    array: Any = np.asarray(value)
    if array.dtype.kind not in "iuf" or not 0 < array.size <= _MOST_NUMBERS:
        return ""
    return f"{array.min()} to {array.max()}"


def _list_documents(segment_ids: Any) -> tuple[Shown, ...]:
    """Return the number of documents, and of the tokens of each, for each packed row."""
    rows = segment_ids.reshape(-1, segment_ids.shape[-1])
    lines = list[Shown]()
    for number, row in enumerate(rows[:_ROWS]):
        tokens = _count_tokens(row)
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
    return (Shown(_describe_fill(rows), tuple(lines)),)
