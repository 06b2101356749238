"""Brace expressions in paths, as shells know them: `{000..099}`, `{a,b}`, one in another."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..engine.base.urls import without_secrets
from ..errors import ConfigError

_MOST_NAMES = 1_000_000
_MOST_BRACES = 64
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def braces(pattern: str) -> Iterator[str]:
    """Write out `{a,b}` and `{000..099}`, as a shell does; a brace with neither stays as it is.

    >>> list(braces("part-{08..10}.{csv,txt}"))[:3]
    ['part-08.csv', 'part-08.txt', 'part-09.csv']
    """
    if pattern.count("{") > _MOST_BRACES:
        raise ConfigError(
            f"{without_secrets(pattern)[:60]!r}... has more than {_MOST_BRACES} braces: give a "
            "list, or a glob"
        )
    if _meant(pattern) > _MOST_NAMES:
        raise ConfigError(
            f"{without_secrets(pattern)[:60]!r} means more than {_MOST_NAMES:,} names: give a glob"
        )
    yield from _braces(pattern)


def _braces(pattern: str) -> Iterator[str]:
    if (found := _first_brace(pattern)) is None:
        yield pattern
        return
    before, choices, after = found
    tails = list(_braces(after))
    for choice in choices:
        yield from (before + middle + tail for middle in _braces(choice) for tail in tails)


def _meant(pattern: str) -> int:
    """How many names a pattern means, before any is written out."""
    found = _first_brace(pattern)
    return 1 if found is None else sum(map(_meant, found[1])) * _meant(found[2])


def _first_brace(pattern: str) -> tuple[str, list[str], str] | None:
    """What is before the first brace with alternatives, these, and what follows."""
    for open_ in (at for at, letter in enumerate(pattern) if letter == "{"):
        close = _closing(pattern, open_)
        choices = _choices(pattern[open_ + 1 : close]) if close else None
        if choices is not None:
            return pattern[:open_], choices, pattern[close + 1 :]
    return None


def _closing(pattern: str, open_: int) -> int:
    depth = 0
    for at in range(open_, len(pattern)):
        depth += (pattern[at] == "{") - (pattern[at] == "}")
        if depth == 0:
            return at
    return 0


def _choices(inside: str) -> list[str] | None:
    """The alternatives between two braces, or `None` where this is no brace expression."""
    if found := _RANGE.fullmatch(inside):
        low, high = found.groups()
        first, last = int(low), int(high)
        if abs(last - first) >= _MOST_NAMES:
            raise ConfigError(f"the brace range {{{inside}}} means more than {_MOST_NAMES:,} names")
        width = max(len(low), len(high)) if low.startswith("0") or high.startswith("0") else 0
        step = 1 if last >= first else -1
        return [f"{number:0{width}d}" for number in range(first, last + step, step)]
    parts: list[str] = []
    depth = start = 0
    for at, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
    return [*parts, inside[start:]] if parts else None
