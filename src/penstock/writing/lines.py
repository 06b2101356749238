"""Rows as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ..errors import DataError


class LineEncoder:
    """Rows as lines, one each.

    >>> LineEncoder()(0, {"text": "a cat", "size": 3})
    (b'{"text": "a cat", "size": 3}\\n', 29)
    """

    suffix = "jsonl"
    end = 0

    def __call__(self, position: int, sample: Any) -> tuple[bytes, int]:
        """The line of one row, and its bytes."""
        try:
            line = as_json(sample) + b"\n"
            return line, len(line)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"a row cannot be written as JSON: {error}", where=f"sample {position}"
            ) from error

    def file(self, pieces: Sequence[Any]) -> bytes:
        """The lines of a file."""
        return b"".join(pieces)


def _keyed(value: Any) -> None:
    """Refuse keys that are no texts: JSON makes them some."""
    if isinstance(value, dict):
        for key, each in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no text")
            _keyed(each)
    elif isinstance(value, list | tuple):
        held = cast("Sequence[Any]", value)
        if any(issubclass(each, dict | list | tuple) for each in set(map(type, held))):
            for each in held:
                _keyed(each)


def as_json(value: Any) -> bytes:
    """A value as JSON; arrays as lists.

    >>> as_json({"tokens": np.arange(3)})
    b'{"tokens": [0, 1, 2]}'
    """
    _keyed(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        dtype: np.dtype[Any] = cast(Any, value).dtype
        for each in (dtype, *(field[0] for field in (dtype.fields or {}).values())):
            if (
                each.base.kind in "mM" or each.base.char in "gG"
            ):  # nanoseconds would become integers
                raise TypeError(f"{each} is not JSON")
        return cast(Any, value).tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")
