"""Encode rows as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ..errors import DataError


class LineEncoder:
    """Encoder of rows as JSON lines.

    >>> LineEncoder()(0, {"text": "a cat", "size": 3})
    (b'{"text": "a cat", "size": 3}\\n', 29)
    """

    suffix = "jsonl"
    end = 0

    def __call__(self, position: int, sample: Any) -> tuple[bytes, int]:
        """Return the line of one row and its size in bytes."""
        try:
            line = encode_json(sample) + b"\n"
            return line, len(line)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"a row cannot be written as JSON: {error}; convert the value in a map step, as in "
                "str(value), or write format='arrow' or Parquet",
                where=f"sample {position}",
            ) from error

    def file(self, pieces: Sequence[Any]) -> bytes:
        """Return the file of these lines."""
        return b"".join(pieces)


def _require_text_keys(value: Any) -> None:
    """Raise `TypeError` for keys that are not text, which JSON would convert."""
    if isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not text")
            _require_text_keys(item)
    elif isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        if any(issubclass(item, dict | list | tuple) for item in set(map(type, items))):
            for item in items:
                _require_text_keys(item)


def encode_json(value: Any) -> bytes:
    """Return a value as JSON, arrays as lists.

    Raises:
        TypeError: for keys that are not text, and values that JSON does not have.
        ValueError: for NaN and infinity.

    >>> encode_json({"tokens": np.arange(3)})
    b'{"tokens": [0, 1, 2]}'
    """
    _require_text_keys(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_to_json_type).encode()


def _to_json_type(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        dtype: np.dtype[Any] = cast(Any, value).dtype
        for field_dtype in (dtype, *(field[0] for field in (dtype.fields or {}).values())):
            if (
                field_dtype.base.kind in "mM" or field_dtype.base.char in "gG"
            ):  # nanoseconds would become integers
                raise TypeError(f"{field_dtype} is not JSON")
        return cast(Any, value).tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")
