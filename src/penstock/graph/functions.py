"""The functions of steps that are more than a user's function: picklable, and named as the user wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np

from ..base.hints import few
from ..errors import ConfigError
from ..streams.step import Miscounted
from .build import name_of


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
            raise ConfigError(f"rename({names!r}): a mapping, {{'old': 'new', ...}}")
        self.names = dict(names)
        self.__qualname__ = f"rename({', '.join(f'{old}={new}' for old, new in sorted(self.names.items()))})"

    def __call__(self, sample: Any) -> dict[str, Any]:
        if not isinstance(sample, Mapping):
            raise ConfigError(f"rename: the sample is a {type(sample).__name__}, not a mapping; map it to a dict first")
        found = cast("Mapping[str, Any]", sample)
        if missing := [old for old in self.names if old not in found]:
            raise ConfigError(f"rename: no key {missing[0]!r}; the sample has {few(found, 8)}")
        out = dict[str, Any]()
        for old, value in found.items():
            new = self.names.get(old, old)
            if new in out:
                raise ConfigError(f"rename: two keys would be {new!r}; the sample has {few(found, 8)}")
            out[new] = value
        return out


class Batched:
    """A function of lists of up to `n` samples, as one of a sample that can also take many at once."""

    def __init__(self, fn: Callable[[list[Any]], Any], n: int) -> None:
        self.fn, self.n = fn, n
        self.__qualname__, self.version = name_of(fn), getattr(fn, "version", None)

    def __call__(self, sample: Any) -> Any:
        return self.many([sample])[0]

    def many(self, samples: list[Any]) -> list[Any]:
        """The result of each sample."""
        parts = (samples[start : start + self.n] for start in range(0, len(samples), self.n))
        return [result for part in parts for result in self._results(part)]

    def _results(self, samples: list[Any]) -> list[Any]:
        given = self.fn(samples)
        if isinstance(given, Mapping) and given:
            named = cast("Mapping[str, Any]", given)
            columns = {name: self._one_each(column, len(samples), f" of {name!r}") for name, column in named.items()}
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return self._one_each(given, len(samples))

    def _one_each(self, given: Any, count: int, of: str = "") -> list[Any]:
        """A list or an array as a list of so many results."""
        step = f"map(batched={self.n}): {name_of(self.fn)} gave"
        if not isinstance(given, Iterable) or isinstance(given, str | bytes):
            raise Miscounted(f"{step} a {type(given).__name__}{of}; a list of results, or columns: {{name: list, ...}}")
        found = list[Any](given.tolist() if isinstance(given, np.ndarray) and given.ndim == 1 else given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        if len(found) != count:
            raise Miscounted(
                f"{step} {len(found)} results{of} for {count} samples, and each has one; to give more or fewer use "
                ".flat_map(fn), to drop samples .map(fn, may_skip=True)"
            )
        return found
