"""Trees of lines, for people: in a terminal and in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")

_NAME = 40  # characters


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

    def count_lines(self) -> int:
        """Return the number of lines."""
        return 1 + sum(tree.count_lines() for tree in self.below)

    def html(self) -> str:
        """Return the tree for a notebook. Names come from data, so everything is escaped."""
        from html import (
            escape,
        )  # its table of entities takes longer to load than most of this package

        inner = "".join(f"<li>{each.html()}</li>" for each in self.below)
        return escape(self.text) + (
            f'<ul style="list-style: none; margin: 0">{inner}</ul>' if inner else ""
        )


class Shows(ABC):
    """Base of objects that show themselves as a tree, in a terminal and a notebook."""

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


def format_call(step: str, /, *args: Any, **options: Any) -> str:
    """Return a call as a user writes it, without the arguments that are None.

    >>> format_call("slice", 3, 9, None, seed=1)
    'slice(3, 9, seed=1)'
    """
    given = [str(arg) for arg in args if arg is not None]
    given += [f"{key}={value}" for key, value in options.items() if value is not None]
    return f"{step}({', '.join(given)})"


def format_description(description: Any, seed: int | None, name: str | None) -> str:
    """Return the call of an order or a fold from its description: its name, and short settings."""
    settings = dict(cast("Mapping[str, Any]", description))
    step = shorten_name(settings.pop("order", None) or settings.pop("fold", "a step"))
    short = {
        shorten_name(key): shorten_name(value)
        for key, value in settings.items()
        if isinstance(value, str | int | float)
    }
    return format_call(
        step, short.pop("n", None), **{**short, "seed": seed, "name": quote_name(name)}
    )


def quote_name(name: str | None) -> str | None:
    """Return the name of a step as a call has it."""
    return None if name is None else repr(shorten_name(name))


def shorten_name(name: object) -> str:
    """Return a name that comes from data, short and on one line."""
    text = str(name) if str(name).isprintable() else ascii(name)
    return text if len(text) <= _NAME else f"{text[: _NAME - 3]}..."


def format_percent(share: float) -> str:
    """Return a share as a percentage with three digits."""
    return f"{100 * share:.3g}%"
