"""The functions of steps that are more than a user's function: picklable, and named as the user
wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from ...arguments import join_first
from ...errors import ConfigError
from ..steps.function_step import name_of


class OfPair:
    """`fn(i, x)` of a pair."""

    def __init__(self, fn: Callable[[int, Any], Any]) -> None:
        self.fn = fn
        self.__qualname__, self.version = name_of(fn), getattr(fn, "version", None)

    def __call__(self, pair: tuple[int, Any]) -> Any:
        return self.fn(*pair)


class Renamed:
    """A mapping under other keys."""

    def __init__(self, names: Mapping[str, str]) -> None:
        if not isinstance(names, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"rename({names!r}): give a mapping, {{'old': 'new', ...}}")
        self.names = dict(names)
        self.__qualname__ = (
            f"rename({', '.join(f'{old}={new}' for old, new in sorted(self.names.items()))})"
        )

    def __call__(self, sample: Any) -> dict[str, Any]:
        if not isinstance(sample, Mapping):
            raise ConfigError(
                f"rename: the sample is a {type(sample).__name__}, not a mapping; map it to a dict "
                "first"
            )
        found = cast("Mapping[str, Any]", sample)
        if missing := [old for old in self.names if old not in found]:
            raise ConfigError(
                f"rename: the sample has no key {missing[0]!r}; name one that it has: "
                f"{join_first(found, 8)}"
            )
        out = dict[str, Any]()
        for old, value in found.items():
            new = self.names.get(old, old)
            if new in out:
                raise ConfigError(
                    f"rename: two keys would be {new!r}, and the sample has {join_first(found, 8)}; "
                    "give each a name of its own"
                )
            out[new] = value
        return out
