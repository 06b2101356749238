"""Hugging Face datasets: streams read shard by shard, and tables read in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np

from ..errors import ConfigError
from ..types import Digest, Ints, Json
from .digests import digest_code, digest_few_rows, digest_value, sample_fixed_indices
from .rows import to_exact_pylist

_BATCH_ROWS = 256  # rows converted at a time
_LEAF_TYPES = ("ArrowExamplesIterable", "ExamplesIterable")
"""Iterables that only read, so that their shards can be read separately."""


def is_stream(value: Any) -> bool:
    """Return whether a value is a `datasets.IterableDataset`, without importing that library."""
    classes = (cls for cls in type(value).__mro__ if cls.__module__.startswith("datasets."))
    return any(cls.__name__ == "IterableDataset" for cls in classes)


class HubStream:
    """A `datasets.IterableDataset` as shards that can be opened at a row.

    A dataset that only reads files is opened shard by shard, so going to a row costs at most one shard.
    In Arrow tables, skipped rows are not decoded. A dataset with steps of its own (`map`, `shuffle`,
    `take`) is one shard, and going to a row runs its steps again. `identity` is the user's version of
    the samples.

    >>> from datasets import Dataset
    >>> stream = HubStream(Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset(num_shards=3))
    >>> stream.names(), list(stream.open("1", 0))
    (['0', '1', '2'], [{'x': 2}])
    """

    def __init__(self, dataset: Any, identity: str | int | None = None) -> None:
        self._dataset, self.identity = dataset, identity
        iterable = getattr(dataset, "_ex_iterable", None)
        only_reads = (
            type(iterable).__name__ in _LEAF_TYPES
            and not dataset._distributed
            and not dataset._formatting
        )
        self._shards = int(dataset.num_shards) if only_reads else 1
        refuse_cut_off(dataset)
        self._tables = (
            only_reads
            and bool(getattr(iterable, "iter_arrow", None))
            and _is_plain(dataset.features)
        )

    def names(self) -> Sequence[str]:
        """Return the numbers of the shards."""
        return [str(number) for number in range(self._shards)]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        """Return an iterator over the rows of a shard, from a row on."""
        part = self._dataset.shard(self._shards, int(name)) if self._shards > 1 else self._dataset
        to_discard = 0 if can_skip(part) else row
        part = part.skip(row) if row and not to_discard else part
        # Not `iter(part)`, which in a torch DataLoader worker yields that worker's share only.
        return (
            _iterate_rows(part.with_format("arrow"))
            if self._tables
            else islice(_unbatch_single_rows(part.iter(1)), to_discard, None)
        )

    def digest(self) -> Digest:
        """Return a digest of the data, of the steps, and of the seeds that order it.

        If functions of a user make or change the samples, the digest also has the text `functions`.
        It has a line for each function: its name and the digest of its code.
        """
        if self.identity is not None:
            return {"identity": str(self.identity)}
        parts = [
            _identify_stream(self._dataset._ex_iterable),
            _identify_stream(getattr(self._dataset, "_shuffling", None)),
        ]
        if self._dataset._distributed is not None:
            parts.append([self._dataset._distributed.rank, self._dataset._distributed.world_size])
        digest = {
            "steps": digest_value([*parts, int(getattr(self._dataset, "epoch", 0)), self._shards])
        }
        functions = [function for function, _ in _find_user_functions(self._dataset._ex_iterable)]
        if functions:
            digest["functions"] = "\n".join(
                f"{_get_name(function)} {digest_code(function)}" for function in functions
            )
        return digest

    @property
    def unknown(self) -> bool:
        """True if a user's function chooses the samples, so that their order cannot be identified.

        Such functions are generators, filters, and batched maps, which may drop or add samples.
        """
        return self.identity is None and any(
            chooses for _, chooses in _find_user_functions(self._dataset._ex_iterable)
        )

    def describe(self) -> Json:
        """Return the type of the stream and its number of shards."""
        return {"type": "datasets.IterableDataset", "shards": self._shards}


def can_skip(value: Any) -> bool:
    """Return whether `skip(n)` skips the first n samples.

    A stream split by node skips before it is split.
    """
    return callable(getattr(value, "skip", None)) and getattr(value, "_distributed", None) is None


def make_stored_row_reader(dataset: Any) -> Callable[[Ints], list[Any]]:
    """Return a reader of the stored rows of a map-style `datasets.Dataset`.

    It decodes and transforms nothing, and names files beside the data without their folder. Rows
    therefore do not depend on their place, and cost little.
    """
    stored = dataset.with_format("arrow")
    return lambda indices: [
        _strip_folders(stored[index : index + 1].to_pylist()[0]) for index in indices.tolist()
    ]


def _strip_folders(value: Any) -> Any:
    if isinstance(value, list):
        return [_strip_folders(part) for part in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    mapping = cast("dict[str, Any]", value)
    if mapping.keys() == {"bytes", "path"}:
        return {**mapping, "path": (mapping["path"] or "").rpartition("/")[2]}
    return {name: _strip_folders(part) for name, part in mapping.items()}


def refuse_cut_off(dataset: Any) -> None:
    """Raise `ConfigError` for columns that `datasets` truncates: times of day in nanoseconds."""
    schema: Any = getattr(dataset.features, "arrow_schema", ())
    for field in schema:
        if any(name in str(field.type) for name in ("time64[ns]", "date64")):
            raise ConfigError(
                f"the column {field.name!r} is {field.type}, which `datasets` truncates silently: "
                "store it as int64, or remove it (remove_columns)"
            )


def make_slice_reader(dataset: Any) -> Callable[[int, int], list[Any] | None]:
    """Return a function that reads rows `start` to `stop` of a map-style `datasets.Dataset`.

    It reads plain columns without a format from the Arrow table, and others through the dataset's own
    slice. The function returns `None` if those are no mappings, as with formats that return tables.
    """
    refuse_cut_off(dataset)
    format = dataset.format
    is_unformatted = format["type"] is None and set(format["columns"]) == set(dataset.column_names)
    if is_unformatted and dataset._indices is None and _is_plain(dataset.features):
        table = dataset.data
        return lambda start, stop: _table_to_rows(table.fast_slice(start, stop - start))
    return lambda start, stop: _columns_to_rows(dataset[start:stop])


def find_stored_table(value: Any) -> tuple[Any, Ints | None] | None:
    """Return the stored `pyarrow.Table` of a map-style `datasets.Dataset`, and its rows in order.

    The rows are `None` if they are all rows of the table. The result is `None` for a dataset whose
    samples differ from its stored columns: with a format, a transform, images or audio.
    """
    is_unformatted = value.format["type"] is None and [*value.format["columns"]] == [
        *value.column_names
    ]
    if not is_unformatted or not _is_plain(value.features):
        return None
    table = value.data.table.replace_schema_metadata()
    if value._indices is None:
        return table, None
    return table, value._indices.column(0).to_numpy().astype(np.int64)


_ARRAY_FORMATS = ("numpy", "torch", "jax", "tensorflow")
_TABLE_FORMATS = ("arrow", "pandas", "polars")
_NULLS_KEEP_TYPE = ("string", "binary", "float", "double")


def has_array_format(dataset: Any) -> bool:
    """Return whether a `datasets.Dataset` gives arrays or tensors (`with_format("torch")`)."""
    return dataset.format["type"] in _ARRAY_FORMATS


def requires_single_rows(dataset: Any) -> bool:
    """Return whether several rows of a `datasets.Dataset` must be read one by one.

    In formats of arrays, a null turns the integers of all rows that are read together into
    rounded floats. In formats of tables, one row is a table, and several rows are dicts.
    """
    if dataset.format["type"] in _TABLE_FORMATS:
        return True
    columns: Any = map(dataset.data.column, dataset.format["columns"])
    return has_array_format(dataset) and any(
        column.null_count and not str(column.type).endswith(_NULLS_KEEP_TYPE) for column in columns
    )


_SAMPLED_ENTRIES = 64  # entries of a list that identify it


def _identify_stream(value: Any) -> Any:
    """Return the identity of a Hugging Face stream.

    It contains the steps with their numbers and generator states, and some rows or file names.
    """
    kind = type(cast(object, value))
    if isinstance(value, str):
        return value.split("/")[-2:]
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, dict):
        return {
            str(name): _identify_stream(part)
            for name, part in cast("dict[Any, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return [
            len(items),
            *(
                _identify_stream(items[index])
                for index in sample_fixed_indices(len(items), _SAMPLED_ENTRIES).tolist()
            ),
        ]
    if kind.__module__.startswith("datasets.") and kind.__name__ == "Dataset":
        return [len(value), digest_few_rows(make_stored_row_reader(value), len(value))]
    if kind.__module__.startswith("datasets.iterable_dataset"):
        attributes = cast("dict[str, Any]", vars(value))
        return [
            kind.__name__,
            _identify_stream(
                {name: part for name, part in attributes.items() if not name.startswith("_")}
            ),
        ]
    version = getattr(value, "version", None) if callable(value) else None
    names = [kind.__qualname__, getattr(value, "__qualname__", "")]
    return [*names, version] if isinstance(version, int | str) else names


def _find_user_functions(iterable: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the user's functions in a Hugging Face stream, innermost first.

    Yields:
        A function with its arguments, and whether it chooses the samples: their number and order.
    """
    for source in (
        getattr(iterable, "ex_iterable", None),
        *(getattr(iterable, "ex_iterables", None) or ()),
    ):
        if source is not None:
            yield from _find_user_functions(source)
    for name in ("generate_examples_fn", "generate_tables_fn"):
        generator: Any = getattr(iterable, name, None)
        config = getattr(getattr(generator, "__self__", None), "config", None)
        config_generator: Any = getattr(config, "generator", None)
        generator = config_generator if callable(config_generator) else generator
        if generator is not None and _is_users(generator):
            # Other arguments are part of the steps, without the folders of files.
            arguments = cast("dict[str, Any]", getattr(iterable, "kwargs", None) or {})
            yield (
                _bind({key: arg for key, arg in arguments.items() if callable(arg)}, generator),
                True,
            )
    function: Any = getattr(iterable, "function", None)
    if function is None:
        return
    # A filter has its function in `mask_function`, and in `function` a wrapper around it.
    mask: Any = getattr(iterable, "mask_function", None)
    arguments = cast("dict[str, Any]", getattr(iterable, "fn_kwargs", None) or {})
    if _is_users(function if mask is None else mask):
        is_filter = "Filtered" in type(iterable).__name__
        chooses = is_filter or bool(getattr(iterable, "batched", False))
        yield _bind(arguments, function if mask is None else mask), chooses


def _bind(arguments: Mapping[str, Any], function: Any) -> Any:
    """Return a function with its keyword arguments, or the function itself if it has none."""
    return partial(function, **arguments) if arguments else function


def _is_users(function: Any) -> bool:
    """Return whether a function, or a function among its bound arguments, is not of `datasets`."""
    if isinstance(function, partial):
        bound = cast("partial[Any]", function)
        return any(map(_is_users, (bound.func, *filter(callable, bound.args))))
    module = getattr(function, "__module__", None) or type(function).__module__
    return not str(module).startswith("datasets.")


def _get_name(function: Any) -> str:
    """Return the name of a function, without its bound arguments."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _columns_to_rows(columns: Any) -> list[Any] | None:
    if not isinstance(columns, Mapping) or not columns:
        return None
    table = cast("Mapping[str, Any]", columns)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _table_to_rows(table: Any) -> list[Any]:
    names = table.column_names
    return [
        dict(zip(names, row, strict=True))
        for row in zip(*map(to_exact_pylist, table.columns), strict=True)
    ]


def _iterate_rows(part: Any) -> Iterator[Any]:
    for table in part.iter(_BATCH_ROWS):
        yield from _table_to_rows(table)


def _unbatch_single_rows(batches: Any) -> Iterator[Any]:
    for batch in batches:
        if isinstance(batch, Mapping):
            yield {name: column[0] for name, column in cast("Mapping[str, Any]", batch).items()}
        else:
            yield batch  # formats of tables yield a table of one row


def _is_plain(feature: Any) -> bool:
    """Return whether Arrow values of a feature equal its Python values; images need decoding."""
    feature_type: str = type(feature).__name__
    if isinstance(feature, Mapping):
        inner = cast("Mapping[str, Any]", feature)
        return bool(inner) and all(map(_is_plain, inner.values()))
    return feature_type in ("Value", "ClassLabel") or (
        feature_type in ("List", "LargeList", "Sequence") and _is_plain(feature.feature)
    )
