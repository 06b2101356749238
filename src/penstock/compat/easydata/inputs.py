"""Convert mixable inputs to Penstock datasets.

Inputs are Hugging Face datasets, sharded sources, sequences and iterables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from ...dataset import Dataset
from ...errors import ConfigError
from ...inputs import from_iterable, from_sequence
from ...sources.hub import HubStream, is_stream
from ...types import Json


def dataset_of(data: Any, name: str) -> Dataset:
    """Make a Penstock dataset of any object with rows.

    Args:
        data: a dataset, sharded source, sequence, iterable, or function that makes one.
        name: name for error messages.

    Raises:
        ConfigError: for an object without rows, or one that can be read only once.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(inner := getattr(data, "dataset", None), Dataset):
        return inner
    if hasattr(data, "shard_names") and hasattr(data, "open_shard"):
        return from_iterable(ForeignShards(data))
    if is_stream(data):
        return from_iterable(HubStream(data))
    kind: str = type(data).__name__
    if isinstance(data, str | bytes | Mapping):
        raise ConfigError(
            f"{name!r} is a {kind}, which has no rows: give a dataset or a list of rows"
        )
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return from_sequence(data)
    if isinstance(data, Iterator):
        raise ConfigError(
            f"{name!r} is a {kind}, which can be read only once: give a list, an iterable that "
            "makes a new iterator each time, or the function that makes it"
        )
    if isinstance(data, Iterable):
        return from_iterable(Itself(cast("Iterable[Any]", data)))
    if callable(data):
        return from_iterable(cast("Callable[[], Iterable[Any]]", data))
    raise ConfigError(
        f"{name!r} is a {kind}, which has no rows to iterate over: give a dataset or a list of rows"
    )


def read_once(rows: Iterable[Any]) -> Dataset:
    """Make a dataset of an iterator; a second pass raises an error.

    Args:
        rows: the iterator.
    """
    return from_iterable(_Once(rows), identity="read once")


class _Once:
    """A function that returns an iterator at its first call.

    After an error of the iterator, other calls raise the same error, since a retry opens it again.
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows: Iterable[Any] | None = rows
        self._error: Exception | None = None

    def __call__(self) -> Iterable[Any]:
        if self._error is not None:
            raise self._error
        if self._rows is None:
            raise ConfigError("an iterator can be read only once: give an iterable that restarts")
        rows, self._rows = self._rows, None
        return self._iterate(rows)

    def _iterate(self, rows: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from rows
        except Exception as error:
            self._error = error
            raise


class Itself:
    """A picklable function that returns the same iterable on every call."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = rows

    def __call__(self) -> Iterable[Any]:
        return self._rows


class ForeignShards:
    """A sharded source of another library as Penstock shards."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def names(self) -> Sequence[str]:
        return list(self._source.shard_names)

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        open_at_row: Callable[[str, int], Iterable[Any]] | None = getattr(
            self._source, "open_shard_at_row", None
        )
        if open_at_row is not None:
            return iter(open_at_row(name, row))
        return islice(self._source.open_shard(name), row, None)

    def describe(self) -> Json:
        return {"type": type(self._source).__qualname__, "shards": len(self.names())}
