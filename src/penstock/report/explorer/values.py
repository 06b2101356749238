"""Values of samples for a page: bounded windows of texts, and media that a browser can show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..values import describe_bytes, detect_media_type

TEXT_WINDOW = 4_000  # characters
MAX_FIELDS = 64
MAX_ITEMS = 32
MAX_MEDIA_BYTES = 32 << 20
_MAX_DEPTH = 4

MEDIA_TYPES = {
    "JPEG image": "image/jpeg",
    "PNG image": "image/png",
    "GIF image": "image/gif",
    "BMP image": "image/bmp",
    "WebP image": "image/webp",
    "AVIF image": "image/avif",
    "WAV audio": "audio/wav",
    "FLAC audio": "audio/flac",
    "Ogg audio": "audio/ogg",
    "MP3 audio": "audio/mpeg",
    "MP4 video": "video/mp4",
    "Matroska video": "video/webm",
}
"""Types that a browser shows without running anything; all others are named only."""

Json: TypeAlias = dict[str, Any]


def describe_value(value: Any, start: int = 0, length: int = TEXT_WINDOW, depth: int = 0) -> Json:
    """Return a value as JSON of bounded size, with its kind.

    Args:
        value: Any value of a sample.
        start: The first character of texts.
        length: The number of characters of a text.
        depth: The depth of the value in the sample.

    Returns:
        `kind`, and depending on it `text`, `items`, `media` or `shown`.

    >>> describe_value("abcdef", 2, 3)
    {'kind': 'text', 'text': 'cde', 'start': 2, 'size': 6}
    >>> describe_value(b"%PDF-1.7")
    {'kind': 'bytes', 'shown': '<PDF, 8 bytes>', 'size': 8, 'media': None}
    """
    match value:
        case str():
            text = make_printable(value[start : start + length])
            return {"kind": "text", "text": text, "start": start, "size": len(value)}
        case bytes():
            media = MEDIA_TYPES.get(detect_media_type(value[:64]))
            media = None if len(value) > MAX_MEDIA_BYTES else media
            size = len(value)
            return {"kind": "bytes", "shown": describe_bytes(value), "size": size, "media": media}
        case np.ndarray():
            return _describe_array(cast("npt.NDArray[Any]", value))
        case Mapping():
            return _describe_mapping(cast("Mapping[Any, Any]", value), start, length, depth)
        case list() | tuple():
            return _describe_list(cast("list[Any]", value), length, depth)
        case _:
            return {"kind": "value", "shown": make_printable(str(value)[:length])}


def _describe_array(array: npt.NDArray[Any]) -> Json:
    first = ", ".join(make_printable(str(item)) for item in array.reshape(-1)[:MAX_ITEMS].tolist())
    shape = " x ".join(map(str, array.shape))
    more = ", ..." if array.size > MAX_ITEMS else ""
    return {"kind": "array", "shown": f"{array.dtype}[{shape}] {first[:TEXT_WINDOW]}{more}"}


def _describe_mapping(fields: Mapping[Any, Any], start: int, length: int, depth: int) -> Json:
    if depth >= _MAX_DEPTH:
        return {"kind": "value", "shown": f"{len(fields):,} fields"}
    inner = length if depth == 0 else length // 4
    items = [
        [make_printable(str(name)[:200]), describe_value(field, start, inner, depth + 1)]
        for name, field in list(fields.items())[:MAX_FIELDS]
    ]
    return {"kind": "fields", "items": items, "size": len(fields)}


def _describe_list(values: list[Any] | tuple[Any, ...], length: int, depth: int) -> Json:
    if depth >= _MAX_DEPTH:
        return {"kind": "value", "shown": f"{len(values):,} items"}
    if values and all(isinstance(item, int | float) for item in values[:MAX_ITEMS]):
        more = ", ..." if len(values) > MAX_ITEMS else ""
        shown = f"[{', '.join(str(item)[:40] for item in values[:MAX_ITEMS])}{more}]"
        return {"kind": "value", "shown": f"{shown} ({len(values):,})"}
    items = [
        [str(number), describe_value(item, 0, max(length // 4, 200), depth + 1)]
        for number, item in enumerate(values[:MAX_ITEMS])
    ]
    return {"kind": "fields", "items": items, "size": len(values)}


def make_printable(text: str) -> str:
    """Replace characters that would hide or reorder what is shown; surrogates become U+FFFD.

    Right-to-left letters stay; marks that change the direction of the text around them do not.

    >>> make_printable("a\\x00b\\u202ec\\n")
    'a·b·c\\n'
    """
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else "\ufffd"
        if "\ud800" <= letter <= "\udfff"
        else "·"
        for letter in text
    )
