"""Rows as JSON lines."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np

from ..errors import DataError


class LineEncoder:
    """Rows as lines, one each.

    >>> LineEncoder()(0, {"text": "a cat", "size": 3})
    b'{"text": "a cat", "size": 3}\\n'
    """

    suffix = "jsonl"
    end = b""

    def __call__(self, position: int, sample: Any) -> bytes:
        """The line of one row."""
        try:
            return as_json(sample) + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"a row cannot be written as JSON: {error}", where=f"sample {position}") from error


def as_json(value: Any) -> bytes:
    """A value as JSON; arrays as lists.

    >>> as_json({"tokens": np.arange(3)})
    b'{"tokens": [0, 1, 2]}'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return cast(Any, value).tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")
