"""Long texts cut at natural boundaries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

from ..arguments import check_int
from ..errors import DataError

_BOUNDARIES = (
    re.compile(r"\n\s*\n"),  # paragraphs
    re.compile(r"\n"),
    re.compile("(?<=[.!?\u2026])\\s+|[\u3002\uff01\uff1f]"),  # sentences
    re.compile(r"\s+(?<!\r)"),  # words
)
"""Ends of larger and smaller parts of a text; a piece ends behind a match."""
_JOINED = re.compile(
    "[\u0300-\u036f\u200d\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]|(?<=\u200d)|(?<=\r)\n"
)
"""Characters that belong to the one before them: accents, and parts of emoji."""


class SplitText:
    """Cut long texts into pieces at natural boundaries; a function for `flat_map`.

    A piece ends at the last end of a paragraph that fits, else of a line, a sentence or a word, and
    else between two characters. No end is taken that would leave less than half a piece, but those
    of words. The pieces joined are the text.

    Args:
        max_chars: the most characters of a piece.
        field: the field with the text, if samples are mappings. Other fields are repeated.

    Raises:
        ConfigError: if `max_chars` is below 1.
        DataError: for samples without a text.

    >>> import penstock as ps
    >>> list(ps.from_sequence(["One of two. Three.\\n\\nFour five"]).flat_map(SplitText(14)))
    ['One of two. ', 'Three.\\n\\n', 'Four five']
    """

    def __init__(self, max_chars: int, field: str = "text") -> None:
        self.max_chars, self.field = check_int(max_chars, "SplitText({})", 1), field
        self.__qualname__ = f"SplitText({max_chars}, {field})"

    def __call__(self, sample: Any) -> list[Any]:
        """Return the pieces of a sample.

        Args:
            sample: a text, or a mapping with one.
        """
        if isinstance(sample, str):
            return split_text(sample, self.max_chars)
        fields = cast("Mapping[str, Any]", sample if isinstance(sample, Mapping) else {})
        text = fields.get(self.field)
        if not isinstance(text, str):
            raise DataError(
                f"SplitText: the field {self.field!r} holds no text; the sample has "
                f"{', '.join(map(str, fields)) or 'no fields'}"
            )
        return [{**fields, self.field: piece} for piece in split_text(text, self.max_chars)]


def split_text(text: str, max_chars: int) -> list[str]:
    """Return the pieces of a text.

    Args:
        text: the text.
        max_chars: the most characters of a piece.

    >>> split_text("a bc d", 5)
    ['a bc ', 'd']
    """
    edges = [0]
    while len(text) - edges[-1] > max_chars:
        edges.append(_find_end(text, edges[-1], edges[-1] + max_chars))
    return [text[start:stop] for start, stop in pairwise([*edges, len(text)])]


def _find_end(text: str, start: int, stop: int) -> int:
    """Return the end of a piece that begins at `start` and ends at `stop` at the latest."""
    ends = [_find_last(pattern, text, start, stop) for pattern in _BOUNDARIES]
    middle = (start + stop) // 2  # a large part that ends earlier would leave a short piece
    natural = next((end for end in ends if end > middle), ends[-1])
    if natural > start:
        return natural
    end = stop
    while end > start + 1 and _JOINED.match(text, end):
        end -= 1
    return end if end > start + 1 else stop


def _find_last(pattern: re.Pattern[str], text: str, start: int, stop: int) -> int:
    """Return the end of the last match between two positions; `start` without one."""
    end = start
    for match in pattern.finditer(text, start, stop):
        end = match.end()
    return end
