"""Hugging Face datasets: streams shard by shard, and rows by the batch wherever they are Arrow
tables underneath."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np

from ..errors import ConfigError
from ..types import Ints, Json
from .identity import Digest, keyed, sampled, value_digest
from .rows import exact_pylist

_BATCH = 256  # rows converted at a time
_LEAVES = (
    "ArrowExamplesIterable",
    "ExamplesIterable",
)  # what only reads, so that shards can be read one by one


def is_stream(thing: Any) -> bool:
    """Whether something is a `datasets.IterableDataset`; asked without importing that library."""
    kinds = (kind for kind in type(thing).__mro__ if kind.__module__.startswith("datasets."))
    return any(kind.__name__ == "IterableDataset" for kind in kinds)


class HubStream:
    """A `datasets.IterableDataset` as shards that can be opened at a row.

    A dataset that only reads files is opened shard by shard, so going back to a row costs at most
    one shard; where the shards are Arrow tables, the rows before it are passed over without being
    decoded. One with steps of its own (`map`, `shuffle`, `take`) is one shard, and its steps are
    run again up to the row. `identity` is what the user says that the samples are, a version.

    >>> from datasets import Dataset
    >>> stream = HubStream(Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset(num_shards=3))
    >>> stream.names(), list(stream.open("1", 0))
    (['0', '1', '2'], [{'x': 2}])
    """

    def __init__(self, dataset: Any, identity: str | int | None = None) -> None:
        self._dataset, self.identity = dataset, identity
        leaf = getattr(dataset, "_ex_iterable", None)
        plain = (
            type(leaf).__name__ in _LEAVES and not dataset._distributed and not dataset._formatting
        )
        self._shards = int(dataset.num_shards) if plain else 1
        refuse_cut_off(dataset)
        self._tables = (
            plain and bool(getattr(leaf, "iter_arrow", None)) and _is_plain(dataset.features)
        )

    def names(self) -> Sequence[str]:
        """The numbers of the shards."""
        return [str(number) for number in range(self._shards)]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        """The rows of a shard, from a row on."""
        part = self._dataset.shard(self._shards, int(name)) if self._shards > 1 else self._dataset
        passed = 0 if can_skip(part) else row
        part = part.skip(row) if row and not passed else part
        # Not `iter(part)`, which in a worker of a torch DataLoader gives only that worker's share.
        return (
            _batches(part.with_format("arrow"))
            if self._tables
            else islice(_singles(part.iter(1)), passed, None)
        )

    def digest(self) -> Digest:
        """Return what the dataset reads, and the steps and seeds that order it."""
        if self.identity is not None:
            return {"identity": str(self.identity)}
        made = [
            _told(self._dataset._ex_iterable),
            _told(getattr(self._dataset, "_shuffling", None)),
        ]
        if self._dataset._distributed is not None:
            made.append([self._dataset._distributed.rank, self._dataset._distributed.world_size])
        return {
            "steps": value_digest([*made, int(getattr(self._dataset, "epoch", 0)), self._shards])
        }

    @property
    def unknown(self) -> bool:
        """True if samples come from a function of the user, whose order cannot be identified."""
        return self.identity is None and _opaque(self._dataset._ex_iterable)

    def describe(self) -> Json:
        """That it is a stream, and how many shards it has."""
        return {"type": "datasets.IterableDataset", "shards": self._shards}


def can_skip(thing: Any) -> bool:
    """Return whether `skip(n)` passes over the first n samples. A stream split by node skips before
    it is split."""
    return callable(getattr(thing, "skip", None)) and getattr(thing, "_distributed", None) is None


def described_rows(dataset: Any) -> Callable[[Ints], list[Any]]:
    """Return a reader of the stored rows of a map-style `datasets.Dataset`: nothing is decoded or
    transformed, and a file beside the data is named without its folder, so a row is the same
    wherever it lies and costs next to nothing.
    """
    stored = dataset.with_format("arrow")
    return lambda indices: [
        _without_folders(stored[index : index + 1].to_pylist()[0]) for index in indices.tolist()
    ]


def _without_folders(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_folders(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    held = cast("dict[str, Any]", value)
    if held.keys() == {"bytes", "path"}:
        return {**held, "path": (held["path"] or "").rpartition("/")[2]}
    return {name: _without_folders(each) for name, each in held.items()}


def refuse_cut_off(dataset: Any) -> None:
    """Raise `ConfigError` for columns that `datasets` would cut: times of day in nanoseconds."""
    schema: Any = getattr(dataset.features, "arrow_schema", ())
    for field in schema:
        if any(name in str(field.type) for name in ("time64[ns]", "date64")):
            raise ConfigError(
                f"the column {field.name!r} is {field.type}, of which `datasets` would cut off a "
                "part without a word: "
                "store it as int64, or remove it (remove_columns)"
            )


def slicer(dataset: Any) -> Callable[[int, int], list[Any] | None]:
    """How to read neighbours of a map-style `datasets.Dataset`, `start` to `stop`.

    Plain columns without a format are taken from the Arrow table, anything else through the
    dataset's own slice; None where those are no mappings of columns, as with the formats that are
    tables.
    """
    refuse_cut_off(dataset)
    form = dataset.format
    whole = form["type"] is None and set(form["columns"]) == set(dataset.column_names)
    if whole and dataset._indices is None and _is_plain(dataset.features):
        table = dataset.data
        return lambda start, stop: _rows(table.fast_slice(start, stop - start))
    return lambda start, stop: _by_column(dataset[start:stop])


_MANY = 64  # entries of a list that are looked at


def _told(thing: Any) -> Any:
    """Return the identity of a Hugging Face stream: the steps, their numbers, the states of their
    generators, and some rows or the names of what is read.
    """
    kind = type(cast(object, thing))
    if isinstance(thing, str):
        return thing.split("/")[-2:]
    if isinstance(thing, bool | int | float | None):
        return thing
    if isinstance(thing, np.random.Generator):
        return thing.bit_generator.state
    if isinstance(thing, dict):
        return {str(name): _told(each) for name, each in cast("dict[Any, Any]", thing).items()}
    if isinstance(thing, list | tuple):
        items = cast("Sequence[Any]", thing)
        return [len(items), *(_told(items[place]) for place in keyed(len(items), _MANY).tolist())]
    if kind.__module__.startswith("datasets.") and kind.__name__ == "Dataset":
        return [len(thing), sampled(described_rows(thing), len(thing))]
    if kind.__module__.startswith("datasets.iterable_dataset"):
        held = cast("dict[str, Any]", vars(thing))
        return [
            kind.__name__,
            _told({name: each for name, each in held.items() if not name.startswith("_")}),
        ]
    return [kind.__qualname__, getattr(thing, "__qualname__", "")]


def _opaque(thing: Any) -> bool:
    """Return whether a Hugging Face stream reads from a function of the user."""
    below = [getattr(thing, "ex_iterable", None), *(getattr(thing, "ex_iterables", None) or ())]
    made: Any = getattr(thing, "generate_examples_fn", None)
    module = getattr(made, "__module__", "") or ""
    own = made is not None and (
        not module.startswith("datasets.")
        or module.endswith("packaged_modules.generator.generator")
    )
    return own or any(_opaque(each) for each in below if each is not None)


def _by_column(columns: Any) -> list[Any] | None:
    if not isinstance(columns, Mapping) or not columns:
        return None
    table = cast("Mapping[str, Any]", columns)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _rows(table: Any) -> list[Any]:
    names = table.column_names
    return [
        dict(zip(names, row, strict=True))
        for row in zip(*map(exact_pylist, table.columns), strict=True)
    ]


def _batches(part: Any) -> Iterator[Any]:
    for table in part.iter(_BATCH):
        yield from _rows(table)


def _singles(batches: Any) -> Iterator[Any]:
    for batch in batches:
        if isinstance(batch, Mapping):
            yield {name: column[0] for name, column in cast("Mapping[str, Any]", batch).items()}
        else:
            yield batch  # a table of one row, where the format is tables


def _is_plain(feature: Any) -> bool:
    """Whether a feature's Arrow values are its Python values: nothing to decode, as in images and
    audio."""
    kind: str = type(feature).__name__
    if isinstance(feature, Mapping):
        inner = cast("Mapping[str, Any]", feature)
        return bool(inner) and all(map(_is_plain, inner.values()))
    return kind in ("Value", "ClassLabel") or (
        kind in ("List", "LargeList", "Sequence") and _is_plain(feature.feature)
    )
