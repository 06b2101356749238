"""Brace expansion in paths, as in shells: `{000..099}`, `{a,b}`, also nested."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import ConfigError
from ..stores.urls import strip_secrets

_MAX_NAMES = 1_000_000
_MAX_BRACES = 64
_NUMBER_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand `{a,b}` and `{000..099}` as a shell does; other braces stay.

    >>> list(expand_braces("part-{08..10}.{csv,txt}"))[:3]
    ['part-08.csv', 'part-08.txt', 'part-09.csv']
    """
    if pattern.count("{") > _MAX_BRACES:
        raise ConfigError(
            f"{strip_secrets(pattern)[:60]!r}... has more than {_MAX_BRACES} braces: give a "
            "list, or a glob"
        )
    if _count_names(pattern) > _MAX_NAMES:
        raise ConfigError(
            f"{strip_secrets(pattern)[:60]!r} means more than {_MAX_NAMES:,} names: give a glob"
        )
    yield from _expand_alternatives(pattern)


def _expand_alternatives(pattern: str) -> Iterator[str]:
    if (match := _find_first_brace(pattern)) is None:
        yield pattern
        return
    before, choices, after = match
    tails = list(_expand_alternatives(after))
    for choice in choices:
        yield from (
            before + middle + tail for middle in _expand_alternatives(choice) for tail in tails
        )


def _count_names(pattern: str) -> int:
    """Return the number of names of a pattern, without expanding it."""
    match = _find_first_brace(pattern)
    return 1 if match is None else sum(map(_count_names, match[1])) * _count_names(match[2])


def _find_first_brace(pattern: str) -> tuple[str, list[str], str] | None:
    """Return the text before the first brace with alternatives, these, and the text after."""
    for open_ in (index for index, letter in enumerate(pattern) if letter == "{"):
        close = _find_closing_brace(pattern, open_)
        choices = _parse_alternatives(pattern[open_ + 1 : close]) if close else None
        if choices is not None:
            return pattern[:open_], choices, pattern[close + 1 :]
    return None


def _find_closing_brace(pattern: str, open_: int) -> int:
    depth = 0
    for index in range(open_, len(pattern)):
        depth += (pattern[index] == "{") - (pattern[index] == "}")
        if depth == 0:
            return index
    return 0


def _parse_alternatives(inside: str) -> list[str] | None:
    """Return the alternatives between two braces, or `None` if this is no brace expression."""
    if match := _NUMBER_RANGE.fullmatch(inside):
        low, high = match.groups()
        first, last = int(low), int(high)
        if abs(last - first) >= _MAX_NAMES:
            raise ConfigError(f"the brace range {{{inside}}} means more than {_MAX_NAMES:,} names")
        width = max(len(low), len(high)) if low.startswith("0") or high.startswith("0") else 0
        step = 1 if last >= first else -1
        return [f"{number:0{width}d}" for number in range(first, last + step, step)]
    parts: list[str] = []
    depth = start = 0
    for index, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(inside[start:index])
            start = index + 1
    return [*parts, inside[start:]] if parts else None
