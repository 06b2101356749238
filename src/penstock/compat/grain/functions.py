"""The functions that this face puts around the user's: in it, and only in it, `None` means that
there is no element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ...engine.base.tree import collate
from ...engine.graph.build import name_of
from ...errors import ConfigError, DataError, Skip
from .cipher import shuffled
from .order import generator_at
from .transforms import FlatMap


def function(step: str, transform: Any, kind: type[Any], method: str) -> Callable[..., Any]:
    """What a step is to call: the method of a transformation, or the function itself."""
    if isinstance(transform, kind):
        return getattr(transform, method)
    if not callable(transform):
        raise ConfigError(
            f"{step} takes a function or a {kind.__name__}, not a {type(transform).__name__}"
        )
    return transform


class Named:
    """A function known by the name of the user's."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__qualname__ = name_of(fn)


class Present(Named):
    """`fn` of what is there."""

    def __call__(self, x: Any) -> Any:
        return None if x is None else self.fn(x)

    def many(self, samples: list[Any]) -> list[Any]:
        """The same, for many."""
        fn = self.fn
        return [None if x is None else fn(x) for x in samples]


class PresentAt(Named):
    """`fn(i, x)` of what is there."""

    def __call__(self, index: int, x: Any) -> Any:
        return None if x is None else self.fn(index, x)


class PresentRandom(Named):
    """`fn(x, rng)` of what is there."""

    def __call__(self, x: Any, rng: np.random.Generator) -> Any:
        return None if x is None else self.fn(x, rng)


class PresentPair(Named):
    """`fn(i, x)` of a pair `(x, i)`."""

    def __call__(self, pair: tuple[Any, int]) -> Any:
        x, index = pair
        return None if x is None else self.fn(index, x)


class GrainRandom(Named):
    """`fn(x, rng)` with Grain's generator for the index."""

    def __init__(self, fn: Callable[..., Any], seed: int) -> None:
        super().__init__(fn)
        self.seed = seed
        self.__qualname__ = f"{name_of(fn)} (grain seed {seed})"

    def __call__(self, index: int, x: Any) -> Any:
        return None if x is None else self.fn(x, generator_at(self.seed, index))


class Kept(Named):
    """The element where `fn` says so, else nothing."""

    def __call__(self, x: Any) -> Any:
        return x if x is not None and self.fn(x) else None

    def many(self, samples: list[Any]) -> list[Any]:
        """The same, for many."""
        fn = self.fn
        return [x if x is not None and fn(x) else None for x in samples]


class Passes(Named):
    """Whether an element is there and `fn` lets it through."""

    def __call__(self, x: Any) -> bool:
        return x is not None and bool(self.fn(x))

    def many(self, samples: list[Any]) -> list[Any]:
        """The same, for many."""
        fn = self.fn
        return [x is not None and fn(x) for x in samples]


class IsThere:
    """Whether there is an element."""

    def __call__(self, x: Any) -> bool:
        return x is not None

    def many(self, samples: list[Any]) -> list[bool]:
        """The same, for many."""
        return [x is not None for x in samples]


class Pieces(Named):
    """All pieces of an element."""

    def __call__(self, x: Any) -> Sequence[Any]:
        return () if x is None else self.fn(x)


class Piece:
    """One piece of an element: for `(x, i)` the piece `i % max_fan_out`, or nothing."""

    def __init__(self, transform: FlatMap) -> None:
        self.transform = transform
        self.__qualname__ = name_of(transform.flat_map)

    def __call__(self, pair: tuple[Any, int]) -> Any:
        x, index = pair
        if x is None:
            return None
        pieces, most = list(self.transform.flat_map(x)), self.transform.max_fan_out
        if len(pieces) > most:
            raise DataError(
                f"flat_map gave {len(pieces)} elements, more than its max_fan_out of {most}; raise "
                "that"
            )
        place = index % most
        return pieces[place] if place < len(pieces) else None


class Place:
    """The place of a sample over all passes of `n`."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, value: Any, source: str, epoch: int, index: int) -> int:
        return epoch * self.n + index


class GrainWindow:
    """Window number `i` in Grain's order: put into the cipher's order, and taken from behind."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.__qualname__ = f"grain window shuffle (seed {seed})"

    def __call__(self, index: int, window: list[Any]) -> list[Any]:
        if (seed := self.seed + index) >> 32:
            raise ConfigError(
                f"window {index} would have the seed {seed}, beyond 32 bits; Grain has no order "
                "there"
            )
        n = len(window)
        return [window[i] for i in reversed(shuffled(np.arange(n), n, seed).tolist())]


def same(window: list[Any]) -> list[Any]:
    """The window."""
    return window


# ---------------------------------------------------------------- zip


class End:
    """Stands behind the last element of an input of a strict zip; no user's element is one."""


END = End()


class Strict:
    """Tuples of equally long inputs."""

    def __call__(self, elements: tuple[Any, ...]) -> tuple[Any, ...]:
        over = [i for i, element in enumerate(elements) if isinstance(element, End)]
        if not over:
            return elements
        if len(over) == len(elements):
            raise Skip
        longer = next(i for i in range(len(elements)) if i not in over)
        raise DataError(
            f"zip: input {over[0]} is shorter than input {longer}; strict=False stops at the "
            "shortest"
        )


# ---------------------------------------------------------------- batches


def stack(values: Sequence[Any]) -> Any:
    """A batch of trees: dicts, lists, tuples and named tuples stay, and what stands at their leaves
    is stacked.

    >>> stack([{"x": 1, "y": [2, "a"]}, {"x": 3, "y": [4, "b"]}])
    {'x': array([1, 3]), 'y': [array([2, 4]), array(['a', 'b'], dtype='<U1')]}
    """
    return _stack(values, "")


def _stack(values: Sequence[Any], path: str) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        keys = list(cast("Mapping[Any, Any]", first))
        for value in values:
            if not isinstance(value, Mapping) or set(cast("Mapping[Any, Any]", value)) != set(keys):
                raise DataError(
                    f"batch: {path or 'the elements'} have different structures: "
                    f"{_show(first, value)}"
                )
        return {key: _stack([value[key] for value in values], f"{path}[{key!r}]") for key in keys}
    if isinstance(first, list | tuple):
        kind, size = cast("type[Any]", type(cast("Any", first))), len(cast("Sequence[Any]", first))
        for value in values:
            if type(value) is not kind or len(value) != size:
                raise DataError(
                    f"batch: {path or 'the elements'} have different structures: "
                    f"{_show(first, value)}"
                )
        columns = [
            _stack(column, f"{path}[{i}]") for i, column in enumerate(zip(*values, strict=True))
        ]
        return kind(*columns) if hasattr(kind, "_fields") else kind(columns)
    if first is None or isinstance(first, str | bytes):
        return np.asarray(values) if first is not None else None
    try:
        return collate(values)
    except DataError as error:
        raise DataError(f"batch: {path}: {error}" if path else f"batch: {error}") from error


def _show(first: Any, other: Any) -> str:
    return " and ".join(repr(value)[:60] for value in (first, other))
