"""Invisible marks in renderings: noncharacters that show where data and answers are.

A mark is a character of U+FDD0 to U+FDDF, followed by the digits U+FDE0 to U+FDEF of a number.
Unicode reserves these characters for use inside a program, so texts do not contain them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]

GENERATION_START, GENERATION_END, DATA = "\ufdd0", "\ufdd1", "\ufdd2"
_PART_START, _PART_END = "\ufdd3", "\ufdd4"
CONTROL_PREFIX = "\ufdd5"
"""Stands before the control tokens of a template in the text for a protected tokenizer."""

PLACEHOLDER, OTHER_PLACEHOLDER = "\ufdd6" * 16, "\ufdd7" * 16
"""Stand for contents of messages in a rendering; even a part of one shows where that is."""

NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_MARK = re.compile("([\ufdd0-\ufdd4])([\ufde0-\ufdef]*)")
_DIGITS = str.maketrans("0123456789abcdef", "".join(map(chr, range(0xFDE0, 0xFDF0))))
_NUMBERS = {char: digit for digit, char in _DIGITS.items()}


def mark_part(text: str, message: int) -> str:
    """Return a part of a message between two marks that name the message.

    White space at the ends stays outside, where a template may trim it.

    Args:
        text: the part.
        message: the index of the message.
    """
    core = text.strip()
    if not core:
        return text
    start = len(text) - len(text.lstrip())
    number = format(message, "x").translate(_DIGITS)
    end = start + len(core)
    return f"{text[:start]}{_PART_START}{number}{core}{_PART_END}{number}{text[end:]}"


@dataclass
class Rendering:
    """A rendered conversation without its marks.

    Attributes:
        text: the text that is encoded.
        generation: the spans of `{% generation %}` blocks.
        data: positions of marks in control tokens of the data.
        parts: the spans of marked parts, by the index of the message.
    """

    text: str
    generation: list[Span] = field(default_factory=list[Span])
    data: list[int] = field(default_factory=list[int])
    parts: dict[int, list[Span]] = field(default_factory=dict[int, list[Span]])


def remove_marks(marked: str) -> str:
    """Return a rendering without its marks; placeholders stay.

    Args:
        marked: the output of a template.
    """
    return _MARK.sub("", marked)


def read_marks(marked: str) -> Rendering:
    """Return a rendering without its marks, and what they marked.

    Args:
        marked: the output of a template.

    >>> read_marks("say " + mark_part(" yes ", 3)).parts
    {3: [(5, 8)]}
    """
    pieces, position, previous = list[str](), 0, 0
    rendering, starts = Rendering(""), dict[str, int]()
    for match in _MARK.finditer(marked):
        pieces.append(marked[previous : match.start()])
        position += match.start() - previous
        previous = match.end()
        kind, digits = match.groups()
        if kind == DATA:
            rendering.data.append(position)
        elif kind in (GENERATION_START, _PART_START):
            starts[kind + digits] = position
        elif kind == GENERATION_END:
            rendering.generation.append((starts.pop(GENERATION_START, position), position))
        elif kind == _PART_END and (start := starts.pop(_PART_START + digits, None)) is not None:
            number = int("".join(chr(_NUMBERS[ord(digit)]) for digit in digits), 16)
            rendering.parts.setdefault(number, []).append((start, position))
    rendering.text = "".join([*pieces, marked[previous:]]) if pieces else marked
    return rendering
