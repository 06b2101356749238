"""Values as short texts, and tables of texts as HTML. Values come from data, so HTML is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

_TEXT = 40  # characters of a value
_ITEMS = 5  # parts of a container
_DEPTH = 3  # of containers in containers


def format_value(value: Any, length: int = _TEXT, depth: int = _DEPTH) -> str:
    """Return a value as a short text on one line, at a cost that does not grow with the value.

    >>> format_value("a" * 100, 10), format_value([1] * 9), format_value(0.5)
    ("'aaaaaaa...", '[1, 1, 1, 1, 1, ... 4 more]', '0.5')
    """
    if isinstance(value, str | bytes):
        text = repr(value[:length])
        text = text if text.isprintable() else ascii(text)
        return f"{text[: length - 2]}..." if len(value) > length else text
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if array.ndim != 1:
            return f"{array.dtype}{list(array.shape)}"
        return f"{_format_items(array[:_ITEMS].tolist(), len(array), length, 1)} {array.dtype}"
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return _format_items(items, len(items), length, depth)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        if not depth:
            return "{...}"
        parts = [
            f"{format_value(name, length)}: {format_value(mapping[name], length, depth - 1)}"
            for _, name in zip(range(_ITEMS), mapping, strict=False)
        ]
        more = [f"... {len(mapping) - _ITEMS} more"] if len(mapping) > _ITEMS else []
        return f"{{{', '.join([*parts, *more])}}}"
    text = str(value)
    text = text if text.isprintable() else ascii(text)
    return f"{text[: length - 2]}..." if len(text) > length else text


def _format_items(values: Sequence[Any], count: int, length: int, depth: int) -> str:
    if not depth:
        return "[...]"
    shown = [format_value(value, length, depth - 1) for value in values[:_ITEMS]]
    more = [f"... {count - _ITEMS} more"] if count > _ITEMS else []
    return f"[{', '.join([*shown, *more])}]"


def show_table(names: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """Return a table as HTML.

    >>> show_table(["a<b"], [["1"]])
    '<table><thead><tr><th>a&lt;b</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>'
    """
    from html import escape  # its table of entities takes long to load

    def show_row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(show_row(row, "td") for row in rows)
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead>{show_row(names, 'th')}</thead><tbody>{body}</tbody></table>"
