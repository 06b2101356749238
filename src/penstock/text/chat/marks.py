"""Invisible marks in renderings: noncharacters that show where data and answers are.

A mark is a character of U+FDD0 to U+FDDF, followed by the digits U+FDE0 to U+FDEF of a number.
Unicode reserves these characters for use inside a program, so texts do not contain them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

from ..offset_tokenizers import Span

GENERATION_START, GENERATION_END, DATA = "\ufdd0", "\ufdd1", "\ufdd2"
_PART_START, _PART_END = "\ufdd3", "\ufdd4"
_SWITCH, MEDIA_START, MEDIA_END = "\ufdd5", "\ufdd8", "\ufdd9"
_MARKS = (
    *(GENERATION_START, GENERATION_END, DATA, _PART_START, _PART_END),
    *(_SWITCH, MEDIA_START, MEDIA_END),
)

PLACEHOLDER, OTHER_PLACEHOLDER = "\ufdd6" * 16, "\ufdd7" * 16
"""Stand for contents of messages in a rendering; even a part of one shows where that is."""

NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_MARK = re.compile("([\ufdd0-\ufdd5\ufdd8\ufdd9])([\ufde0-\ufdef]*)")
MEDIA_KINDS = {"\U0001fffe": "image", "\U0002fffe": "audio", "\U0003fffe": "video"}
"""Noncharacters that stand for media in the content of a message."""
ANSWER_KEYS = ("content", "reasoning_content", "reasoning", "thinking")
"""Keys of a message with the texts of an answer."""
MEDIA_MARKS = {kind: mark for mark, kind in MEDIA_KINDS.items()}
_DIGITS = str.maketrans("0123456789abcdef", "".join(map(chr, range(0xFDE0, 0xFDF0))))
_NUMBERS = {char: digit for digit, char in _DIGITS.items()}
_DIGIT_CHARS = "".join(map(chr, _NUMBERS))


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


def mark_empty(message: int) -> str:
    """Return the two marks of a part of a message without characters.

    Args:
        message: the index of the message.
    """
    return "".join(mark_ends(message))


def mark_ends(message: int) -> tuple[str, str]:
    """Return the marks at the start and at the end of a part of a message.

    Args:
        message: the index of the message.
    """
    number = format(message, "x").translate(_DIGITS)
    return f"{_PART_START}{number}", f"{_PART_END}{number}"


def mark_switch(message: int | None) -> str:
    """Return the mark behind which a template writes a message, or text of no message.

    Args:
        message: the index of the message.
    """
    return _SWITCH if message is None else f"{_SWITCH}{format(message, 'x').translate(_DIGITS)}"


@dataclass
class Rendering:
    """A rendered conversation without its marks.

    Attributes:
        text: the text that is encoded.
        generation: the spans of `{% generation %}` blocks.
        data: positions of marks in control tokens of the data.
        parts: the spans of marked parts, by the index of the message.
        media: the spans of tokens of media.
        message_spans: the spans that a traced template writes for a message, by its index.
        owned: the control tokens of the template, once they are looked for.
    """

    text: str
    generation: list[Span] = field(default_factory=list[Span])
    data: list[int] = field(default_factory=list[int])
    parts: dict[int, list[Span]] = field(default_factory=dict[int, list[Span]])
    media: list[Span] = field(default_factory=list[Span])
    message_spans: dict[int, list[Span]] = field(default_factory=dict[int, list[Span]])
    owned: list[Span] | None = None

    def has_data(self, start: int, stop: int) -> bool:
        """Return whether a control token of the data lies in a span.

        Args:
            start: the start of the span.
            stop: the end of the span.
        """
        place = bisect_right(self.data, start)
        return place < len(self.data) and self.data[place] < stop


def remove_marks(marked: str, except_for: str = "") -> str:
    """Return a rendering without its marks; placeholders stay.

    Args:
        marked: the output of a template.
        except_for: a mark that stays.
    """
    return _MARK.sub(lambda match: match[0] if match[1] == except_for else "", marked)


def read_marks(marked: str) -> Rendering:
    """Return a rendering without its marks, and what they marked.

    Args:
        marked: the output of a template.

    >>> read_marks("say " + mark_part(" yes ", 3)).parts
    {3: [(5, 8)]}
    """
    if not any(mark in marked for mark in _MARKS):
        return Rendering(marked)
    return _read_pairs(marked) or _read_any_marks(marked)


def _read_pairs(marked: str) -> Rendering | None:
    """Return what pairs of one kind mark; `None` if there are other marks, or pairs in pairs."""
    is_part = _PART_START in marked
    start, end = (_PART_START, _PART_END) if is_part else (GENERATION_START, GENERATION_END)
    if any(mark in marked for mark in _MARKS if mark not in (start, end)):
        return None
    head, *rest = marked.split(start)
    pieces, position, rendering = [head], len(head), Rendering("")
    for piece in rest:
        inner, *after = piece.split(end)
        digits = inner[: len(inner) - len(inner.lstrip(_DIGIT_CHARS))]
        if len(after) != 1 or not after[0].startswith(digits):
            return None
        inner, outer = inner[len(digits) :], after[0][len(digits) :]
        span = position, position + len(inner)
        if is_part:
            rendering.parts.setdefault(_read_number(digits), []).append(span)
        else:
            rendering.generation.append(span)
        pieces += inner, outer
        position = span[1] + len(outer)
    rendering.text = "".join(pieces)
    return rendering if end not in head else None


def _read_any_marks(marked: str) -> Rendering:
    pieces, position, previous = list[str](), 0, 0
    rendering, starts, switches = Rendering(""), dict[str, int](), list[tuple[int, str]]()
    for match in _MARK.finditer(marked):
        pieces.append(marked[previous : match.start()])
        position += match.start() - previous
        previous = match.end()
        kind, digits = match.groups()
        if kind == DATA:
            rendering.data.append(position)
        elif kind in (GENERATION_START, _PART_START, MEDIA_START):
            starts[kind + digits] = position
        elif kind == _SWITCH:
            switches.append((position, digits))
        elif kind == MEDIA_END:
            rendering.media.append((starts.pop(MEDIA_START, position), position))
        elif kind == GENERATION_END:
            rendering.generation.append((starts.pop(GENERATION_START, position), position))
        elif kind == _PART_END and (start := starts.pop(_PART_START + digits, None)) is not None:
            rendering.parts.setdefault(_read_number(digits), []).append((start, position))
    text = rendering.text = "".join([*pieces, marked[previous:]]) if pieces else marked
    for (start, digits), (stop, _) in pairwise([*switches, (len(text), "")]):
        if digits and text[start:stop].strip():
            _add_span(rendering.message_spans.setdefault(_read_number(digits), []), (start, stop))
    return rendering


def _add_span(spans: list[Span], span: Span) -> None:
    """Add a span to others before it, joined with the last one if both touch."""
    if spans and spans[-1][1] == span[0]:
        span = spans.pop()[0], span[1]
    spans.append(span)


def _read_number(digits: str) -> int:
    return int(digits.translate(_NUMBERS), 16)
