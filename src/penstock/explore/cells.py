"""Values as short texts, and tables of texts as HTML. Values come from data, so HTML is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

_TEXT = 40  # characters of a value
_ITEMS = 5  # parts of a container


def format_value(value: Any, length: int = _TEXT) -> str:
    """Return a value as a short text on one line, at a cost that does not grow with the value.

    >>> format_value("a" * 100, 10), format_value([1] * 9), format_value(0.5)
    ("'aaaaaaa...", '[1, 1, 1, 1, 1, ... 4 more]', '0.5')
    """
    if isinstance(value, str | bytes):
        text = repr(value[:length])
        is_cut = len(value) > length
    elif isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        text = f"{array.dtype}{list(array.shape)}"
        if array.ndim == 1:
            text = f"{_format_items(array[:_ITEMS].tolist(), len(array), length)} {array.dtype}"
        return text
    elif isinstance(value, list | tuple):
        return _format_items(cast("Sequence[Any]", value), len(cast("Any", value)), length)
    elif isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        parts = [
            f"{format_value(name, length)}: {format_value(mapping[name], length)}"
            for _, name in zip(range(_ITEMS), mapping, strict=False)
        ]
        more = [f"... {len(mapping) - _ITEMS} more"] if len(mapping) > _ITEMS else []
        text, is_cut = f"{{{', '.join([*parts, *more])}}}", False
    else:
        text, is_cut = (
            str(cast("Any", value)) if isinstance(value, np.generic) else repr(value),
            False,
        )
    text = text if text.isprintable() else ascii(text)
    return f"{text[: length - 2]}..." if is_cut or len(text) > 3 * length else text


def _format_items(values: Sequence[Any], count: int, length: int) -> str:
    shown = [format_value(value, length) for value in values[:_ITEMS]]
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
