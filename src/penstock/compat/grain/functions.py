"""Wrappers around the user's functions.

Inside them, and only there, `None` means that an index has no element.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ...arrays.trees import collate
from ...engine.steps.function_step import name_of
from ...errors import ConfigError, DataError, Skip
from .cipher import shuffled
from .order import generator_at
from .record import Record, RecordMetadata, make_generator
from .sharding import ShardOptions
from .transforms import FlatMap


def function(step: str, transform: Any, kind: type[Any], method: str) -> Callable[..., Any]:
    """Return the function to call: a transformation's method, or the function itself.

    Raises:
        ConfigError: for a value that is neither.
    """
    if isinstance(transform, kind):
        return getattr(transform, method)
    if not callable(transform):
        raise ConfigError(
            f"{step} takes a function or a {kind.__name__}, not a {type(transform).__name__}: pass "
            "one of them"
        )
    return transform


class Named:
    """A wrapper that has the qualified name of the user's function."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__qualname__ = name_of(fn)


class Present(Named):
    """Apply `fn(x)` to present elements."""

    def __call__(self, x: Any) -> Any:
        return None if x is None else self.fn(x)

    def many(self, samples: list[Any]) -> list[Any]:
        """Apply the function to a batch of elements."""
        fn = self.fn
        return [None if x is None else fn(x) for x in samples]


class PresentAt(Named):
    """Apply `fn(i, x)` to present elements; `i` begins with `first`."""

    def __init__(self, fn: Callable[..., Any], first: int = 0) -> None:
        super().__init__(fn)
        self.first = first

    def __call__(self, index: int, x: Any) -> Any:
        return None if x is None else self.fn(self.first + index, x)


class PresentRandom(Named):
    """Apply `fn(x, rng)` to present elements."""

    def __call__(self, x: Any, rng: np.random.Generator) -> Any:
        return None if x is None else self.fn(x, rng)


class PresentPair(Named):
    """Apply `fn(i, x)` to a pair `(x, i)`, if it has an element."""

    def __call__(self, pair: tuple[Any, int]) -> Any:
        x, index = pair
        return None if x is None else self.fn(index, x)


class GrainRandom(Named):
    """Apply `fn(x, rng)` with Grain's generator for the index, which begins with `first`."""

    def __init__(self, fn: Callable[..., Any], seed: int, first: int = 0) -> None:
        super().__init__(fn)
        self.seed, self.first = seed, first
        self.__qualname__ = f"{name_of(fn)} (grain seed {seed})"

    def __call__(self, index: int, x: Any) -> Any:
        return None if x is None else self.fn(x, generator_at(self.seed, self.first + index))


class Keep(Named):
    """Keep an element if `fn` is true, else return None."""

    def __call__(self, x: Any) -> Any:
        return x if x is not None and self.fn(x) else None

    def many(self, samples: list[Any]) -> list[Any]:
        """Filter a batch of elements."""
        fn = self.fn
        return [x if x is not None and fn(x) else None for x in samples]


class Passes(Named):
    """Return whether an element is present and `fn` is true."""

    def __call__(self, x: Any) -> bool:
        return x is not None and bool(self.fn(x))

    def many(self, samples: list[Any]) -> list[Any]:
        """Test a batch of elements."""
        fn = self.fn
        return [x is not None and fn(x) for x in samples]


class IsThere:
    """Return whether there is an element."""

    def __call__(self, x: Any) -> bool:
        return x is not None

    def many(self, samples: list[Any]) -> list[bool]:
        """Test a batch of elements."""
        return [x is not None for x in samples]


class Pieces(Named):
    """Return all pieces of an element."""

    def __call__(self, x: Any) -> Sequence[Any]:
        return () if x is None else self.fn(x)


class Piece:
    """Return one piece of an element: for `(x, i)` the piece `i % max_fan_out`, or None."""

    def __init__(self, transform: FlatMap) -> None:
        self.transform = transform
        self.__qualname__ = name_of(transform.flat_map)

    def __call__(self, pair: tuple[Any, int]) -> Any:
        x, index = pair
        if x is None:
            return None
        pieces, max_fan_out = list(self.transform.flat_map(x)), self.transform.max_fan_out
        if len(pieces) > max_fan_out:
            raise DataError(
                f"flat_map returned {len(pieces)} elements, more than its max_fan_out of "
                f"{max_fan_out}: raise max_fan_out"
            )
        piece_index = index % max_fan_out
        return pieces[piece_index] if piece_index < len(pieces) else None


class SamplePosition:
    """Return the position of a sample over all passes of `n` samples."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.__qualname__ = "Place"  # random keys and states have this name

    def __call__(self, value: Any, source: str, epoch: int, index: int) -> int:
        return epoch * self.n + index


class Element:
    """Return the element of a dataset at a position over all passes."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.__qualname__ = type(dataset).__qualname__

    def __call__(self, position: int) -> Any:
        return self.dataset[position]


class GrainWindow:
    """Shuffle window `i` in Grain's order: permuted by the cipher, then reversed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.__qualname__ = f"grain window shuffle (seed {seed})"

    def __call__(self, index: int, window: list[Any]) -> list[Any]:
        if (seed := self.seed + index) >> 32:
            raise ConfigError(
                f"window {index} would have the seed {seed}, beyond 32 bits, for which Grain has "
                "no order: lower the seed"
            )
        n = len(window)
        return [window[i] for i in reversed(shuffled(np.arange(n), n, seed).tolist())]


def same(window: list[Any]) -> list[Any]:
    """Return the window unchanged."""
    return window


# ---------------------------------------------------------------- zip


class End:
    """Sentinel after the last element of an input of a strict zip."""


END = End()


class Strict:
    """Check that inputs of a strict zip end together."""

    def __call__(self, elements: tuple[Any, ...]) -> tuple[Any, ...]:
        ended = [i for i, element in enumerate(elements) if isinstance(element, End)]
        if not ended:
            return elements
        if len(ended) == len(elements):
            raise Skip
        longer = next(i for i in range(len(elements)) if i not in ended)
        raise DataError(
            f"zip: input {ended[0]} is shorter than input {longer}: pass strict=False to stop at "
            "the shortest"
        )


# ---------------------------------------------------------------- batches


def stack(values: Sequence[Any]) -> Any:
    """Stack the leaves of trees: dicts, lists, tuples and named tuples keep their structure.

    Raises:
        DataError: if the trees have different structures.

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
    if (jax := _jax_for(first)) is not None:
        return _stack_registered(jax, values, path)
    try:
        return collate(values)
    except DataError as error:
        raise DataError(f"batch: {path}: {error}" if path else f"batch: {error}") from error


def _jax_for(value: Any) -> Any:
    """Return JAX if a value is of a class that is registered with it as a tree."""
    if isinstance(value, np.ndarray | np.generic | int | float | bool):
        return None
    jax: Any = sys.modules.get("jax")
    tree_util = getattr(jax, "tree_util", None)
    return None if tree_util is None or tree_util.all_leaves([value]) else jax


def _stack_registered(jax: Any, values: Sequence[Any], path: str) -> Any:
    leaves, structure = jax.tree_util.tree_flatten(values[0])
    columns: list[list[Any]] = [[leaf] for leaf in leaves]
    for value in values[1:]:
        others, other_structure = jax.tree_util.tree_flatten(value)
        if other_structure != structure:
            raise DataError(
                f"batch: {path or 'the elements'} have different structures: "
                f"{_show(values[0], value)}"
            )
        for column, leaf in zip(columns, others, strict=True):
            column.append(leaf)
    stacked = [_stack(column, f"{path}, leaf {i}") for i, column in enumerate(columns)]
    return jax.tree_util.tree_unflatten(structure, stacked)


def _show(first: Any, other: Any) -> str:
    return " and ".join(repr(value)[:60] for value in (first, other))


# ---------------------------------------------------------------- records


def record_bytes(row: Mapping[str, Any]) -> bytes:
    """Return the bytes of a raw record."""
    return row["__record__"]


class OnData(Named):
    """Apply `fn(data)` to the data of a record."""

    def __call__(self, record: Record) -> Record:
        return record.with_data(self.fn(record.data))


class OnDataRandom(Named):
    """Apply `fn(data, rng)` to the data of a record, with the generator of the record."""

    def __call__(self, record: Record) -> Record:
        return record.with_data(self.fn(record.data, record.metadata.rng))


class TestsData(Named):
    """Return whether `fn` is true for the data of a record."""

    def __call__(self, record: Record) -> bool:
        return bool(self.fn(record.data))


class BatchRecords(Named):
    """Batch the data of records; the metadata are those of the last one."""

    def __call__(self, records: Sequence[Record]) -> Record:
        return records[-1].with_data(self.fn([record.data for record in records]))


def data_of(record: Record) -> Any:
    """Return the data of a record."""
    return record.data


def with_key(value: Any, source: str, epoch: int, index: int) -> tuple[Any, int]:
    """Pair an element with its key in the source."""
    return value, index


class ReadRecord:
    """Return the record at a position of a shard, by the sampler of a user."""

    def __init__(self, source: Any, sampler: Any, shard: ShardOptions) -> None:
        self.source, self.sampler, self.shard = source, sampler, shard
        self.__qualname__ = f"records by {type(sampler).__qualname__}"

    def __call__(self, position: int) -> Record:
        index = position * self.shard.shard_count + self.shard.shard_index
        metadata = self.sampler[index]
        return Record(metadata, self.source[metadata.record_key])


class MakeRecord:
    """Return the record of `((data, key), position)`, with Grain's generator of the record."""

    def __init__(self, shard: ShardOptions, seed: int | None) -> None:
        self.shard, self.seed = shard, seed
        self.__qualname__ = "record"

    def __call__(self, pair: tuple[tuple[Any, int], int]) -> Record:
        (data, key), position = pair
        index = position * self.shard.shard_count + self.shard.shard_index
        return Record(RecordMetadata(index, key, make_generator(self.seed, index)), data)


class FlatMapRecords(FlatMap):
    """Replace the record of an element by those of its parts."""

    def __init__(self, transform: FlatMap) -> None:
        self.transform, self.max_fan_out = transform, transform.max_fan_out

    def flat_map(self, element: Record) -> list[Record]:
        """Return the records of the parts."""
        start = element.metadata.index * self.max_fan_out
        parts = self.transform.flat_map(element.data)
        return [Record(RecordMetadata(start + i), part) for i, part in enumerate(parts)]


def without_metadata(data: Any) -> Record:
    """Return a record of data that several records were packed into."""
    return Record(RecordMetadata(0), data)
