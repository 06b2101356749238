"""Trees of lines, for people: in a terminal and in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """A line, and what is shown under it."""

    text: str
    below: tuple[Shown, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, indent: str) -> list[str]:
        return [
            indent + self.text,
            *(line for each in self.below for line in each._lines(indent + "  ")),
        ]

    def html(self) -> str:
        """The same for a notebook. Names come from data, so everything is escaped."""
        from html import (
            escape,
        )  # its table of entities takes longer to load than most of this package

        inner = "".join(f"<li>{each.html()}</li>" for each in self.below)
        return escape(self.text) + (
            f'<ul style="list-style: none; margin: 0">{inner}</ul>' if inner else ""
        )


class Shows(ABC):
    """What shows itself as a tree, to a terminal and to a notebook."""

    @abstractmethod
    def _shown(self) -> Shown: ...

    def __repr__(self) -> str:
        return str(self._shown())

    def _repr_html_(self) -> str:
        return self._shown().html()


def counted(n: int, what: str) -> str:
    """
    >>> counted(1, "item"), counted(12_000, "row")
    ('1 item', '12,000 rows')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"


def attempt(ask: Callable[[], T], otherwise: T) -> T:
    """An answer, or something in its place: what is shown is never the error."""
    with suppress(Exception):
        return ask()
    return otherwise
