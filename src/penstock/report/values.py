"""Sample values as text: shortened strings, arrays by shape, media by kind and size."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

_SHOWN_NUMBERS = 8
_MAGIC_NUMBERS = (
    (b"\xff\xd8\xff", "JPEG image"),
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"GIF8", "GIF image"),
    (b"BM", "BMP image"),
    (b"fLaC", "FLAC audio"),
    (b"OggS", "Ogg audio"),
    (b"ID3", "MP3 audio"),
    (b"\xff\xfb", "MP3 audio"),
    (b"%PDF-", "PDF"),
    (b"\x1aE\xdf\xa3", "Matroska video"),
    (b"\x93NUMPY", "NumPy array"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\x03\x04", "zip"),
)


def detect_media_type(data: bytes) -> str:
    """Return the media type of bytes, by their magic number.

    >>> detect_media_type(b"%PDF-1.7"), detect_media_type(b"RIFF....WAVEfmt "), detect_media_type(b"a cat")
    ('PDF', 'WAV audio', 'bytes')
    """
    if data[:4] == b"RIFF":
        return {b"WAVE": "WAV audio", b"WEBP": "WebP image", b"AVI ": "AVI video"}.get(
            data[8:12], "bytes"
        )
    if data[4:8] == b"ftyp":
        return "AVIF image" if data[8:12] in (b"avif", b"avis") else "MP4 video"
    return next((kind for magic, kind in _MAGIC_NUMBERS if data.startswith(magic)), "bytes")


def describe_bytes(data: bytes) -> str:
    """Describe bytes by kind and size.

    >>> describe_bytes(b"%PDF-1.7")
    '<PDF, 8 bytes>'
    """
    return f"<{detect_media_type(data)}{_format_image_size(data)}, {len(data):,} bytes>"


def _format_image_size(data: bytes) -> str:
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return f", {width} x {height}"
    return ""


def format_sample(sample: Any, width: int) -> Iterator[str]:
    """Yield a line of at most `width` characters for every field of a sample.

    >>> list(format_sample({"text": "a cat on a mat", "image": b"%PDF-1.7"}, 16))
    ['  text: a cat o…', '  image: <PDF, …']
    """
    fields = cast("Mapping[Any, Any]", sample) if isinstance(sample, Mapping) else {"": sample}
    for name, value in fields.items():
        line = (
            f"  {name}: {_format_value(value, width)}"
            if name != ""
            else f"  {_format_value(value, width)}"
        )
        line = "".join(letter if letter.isprintable() else "·" for letter in line)
        yield line if len(line) <= width else line[: max(width - 1, 1)] + "…"


def _format_value(value: Any, width: int) -> str:
    match value:
        case bytes():
            return describe_bytes(value)
        case str():
            return value[: width + 1]
        case np.ndarray():
            array = cast("npt.NDArray[Any]", value)
            some = ", ".join(map(str, array.reshape(-1)[:_SHOWN_NUMBERS].tolist()))
            end = ", ..." if array.size > _SHOWN_NUMBERS else ""
            return f"{array.dtype}[{' x '.join(map(str, array.shape))}] {some}{end}"
        case Mapping():
            inner = cast("Mapping[Any, Any]", value)
            return (
                "{"
                + ", ".join(
                    f"{name}: {_format_value(one, width)}"
                    for name, one in list(inner.items())[:_SHOWN_NUMBERS]
                )
                + "}"
            )
        case list() | tuple():
            items = cast("list[Any]", value)
            more = f", ... ({len(items):,})" if len(items) > _SHOWN_NUMBERS else ""
            return (
                "["
                + ", ".join(_format_value(one, width) for one in items[:_SHOWN_NUMBERS])
                + more
                + "]"
            )
        case _:
            return str(value)


def convert_to_json(value: Any) -> Any:
    """Return a value as JSON: bytes as kind and size, arrays as type, shape and first numbers.

    >>> convert_to_json({"a": b"%PDF-1.7", "b": np.arange(2)})
    {'a': {'kind': 'PDF', 'bytes': 8}, 'b': {'dtype': 'int64', 'shape': [2], 'first': [0, 1]}}
    """
    match value:
        case np.bool_():
            return bool(value)
        case np.integer():
            return int(cast("np.integer[Any]", value))
        case np.floating():
            return convert_to_json(float(cast("np.floating[Any]", value)))
        case bytes():
            return {"kind": detect_media_type(value), "bytes": len(value)}
        case np.ndarray():
            array = cast("npt.NDArray[Any]", value)
            first = array.reshape(-1)[:_SHOWN_NUMBERS].tolist()
            return {"dtype": str(array.dtype), "shape": list(array.shape), "first": first}
        case Mapping():
            return {
                str(name): convert_to_json(one)
                for name, one in cast("Mapping[Any, Any]", value).items()
            }
        case list() | tuple():
            return [convert_to_json(one) for one in cast("list[Any]", value)]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case str() | bool() | int() | float() | None:
            return value
        case _:
            return str(value)
