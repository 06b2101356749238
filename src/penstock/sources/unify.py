"""Columnar files whose schemas differ, read as of one schema: casts that change no value, and
columns that lack."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from ..engine.base.dtypes import EXACT
from ..errors import DataError
from . import sidecar
from .cached_facts import cached_fact
from .kinds import fits, kinds_of
from .rows import arrow, numpy_dtype

_LOG = logging.getLogger("penstock")
_LOGGED = set[str]()


@runtime_checkable
class Tabular(Protocol):
    """A file with columns of Arrow. `own` is the schema of those that are read, as the file has
    them."""

    own: Any

    def __len__(self) -> int: ...
    def column(self, name: str, /) -> Iterator[Any]: ...


class Seen(NamedTuple):
    """A column: its type in all files so far, the file with that type, and files by the numbers
    that they hold."""

    type: Any
    path: Path
    integers: bool
    floats: tuple[int, ...]


class Unified:
    """The schema that all files fit into, file by file."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._schemas: list[Any] = []
        self._paths: list[Path] = []

    def add(self, schema: Any, path: Path) -> None:
        """Take a file in.

        Raises:
            DataError: for a column whose types have none in common.
        """
        pa, number = arrow(), len(self._schemas)
        self._schemas.append(schema)
        self._paths.append(path)
        for field in schema:
            integer, floating = pa.types.is_integer(field.type), pa.types.is_floating(field.type)
            seen = self._seen.get(field.name, Seen(field.type, path, False, ()))
            try:
                both = common_type(seen.type, field.type)
            except TypeError:
                raise DataError(
                    f"its column {field.name!r} holds {field.type}, in {seen.path} it holds "
                    f"{seen.type}: write them "
                    "alike, pass columns= without it, or read them as two sources",
                    where=str(path),
                ) from None
            floats = (*seen.floats, number) if floating else seen.floats
            where = path if both != seen.type and both == field.type else seen.path
            self._seen[field.name] = Seen(both, where, seen.integers or integer, floats)

    def lacks(self, columns: Sequence[str]) -> bool:
        """Return whether one of these columns is in no file."""
        return bool(self._schemas) and any(name not in self._seen for name in columns)

    def schema(
        self, files: Sequence[Tabular], columns: Sequence[str] | None, cache: str | Path | None
    ) -> Any:
        """Return the schema of all files, of these columns; None if every file has it, or they are
        no tables.

        Raises:
            DataError: if no file has all columns, or a column that must have values is missing.
        """
        if not self._schemas:
            return None
        pa = arrow()
        widest = max(range(len(self._schemas)), key=lambda number: len(self._schemas[number].names))
        fields = list[Any]()
        for name in self._seen if columns is None else columns:
            kind = self._seen[name].type
            if (
                self._seen[name].integers
                and self._seen[name].floats
                and self._whole(name, files, cache)
            ):
                kind = _integers(name, self._schemas)
            fields.append(pa.field(name, kind))
        schema = pa.schema(fields)
        if all(_conforms(own, schema) for own in self._schemas):
            return None
        self._require_columns(widest)
        return schema

    def _require_columns(self, widest: int) -> None:
        whole, missing = self._schemas[widest], dict[str, Path]()
        for own, path in zip(self._schemas, self._paths, strict=True):
            lacks = [field for field in whole if field.name not in own.names]
            strange = set(own.names) - set(whole.names)
            if strange or not own.names or any(not field.nullable for field in lacks):
                raise DataError(
                    f"its columns are {', '.join(own.names)}, those of {self._paths[widest]} are "
                    f"{', '.join(whole.names)}: pass columns= with those that all files have, or "
                    "read them as two "
                    "sources",
                    where=str(path),
                )
            missing.update((field.name, path) for field in lacks if field.name not in missing)
        for name, path in missing.items():
            said = f"{path} and perhaps others have no column {name!r}: its values are None"
            if said not in _LOGGED:
                _LOGGED.add(said)
                _LOG.warning("%s", said)

    def _whole(self, name: str, files: Sequence[Tabular], cache: str | Path | None) -> bool:
        """Return whether the floats of a column are whole numbers in all files: pandas makes them
        of integers."""
        floats = self._seen[name].floats
        paths = [self._paths[number] for number in floats]

        def made() -> bool:
            return all(
                _is_whole(piece) for number in floats for piece in files[number].column(name)
            )

        return bool(
            cached_fact(
                paths, [sidecar.stat(path) for path in paths], f"whole numbers {name}", made, cache
            )
        )


def _is_whole(piece: Any) -> bool:
    values = piece.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
    return bool(
        (np.isfinite(values) & (np.abs(values) <= EXACT) & (np.floor(values) == values)).all()
    )


def _integers(name: str, schemas: Sequence[Any]) -> Any:
    """The integer type of a column that is of floats in some files: int64, or uint64 if that is the
    only one."""
    pa = arrow()
    kinds = {schema.field(name).type for schema in schemas if name in schema.names}
    integers = {kind for kind in kinds if pa.types.is_integer(kind)}
    return pa.uint64() if integers == {pa.uint64()} else pa.int64()


def common_type(one: Any, other: Any) -> Any:
    """Return the type that holds the values of two; what is stored otherwise alone keeps the first.

    Raises:
        TypeError: if there is none.

    >>> import pyarrow as pa
    >>> common_type(pa.int32(), pa.uint32()), common_type(pa.int64(), pa.float32())
    (DataType(int64), DataType(double))
    """
    pa, types = arrow(), arrow("pyarrow.types")
    mine, theirs = (kinds_of(pa.schema([("x", kind)]), ["x"])["x"] for kind in (one, other))
    if fits(theirs, mine):
        return one
    if fits(mine, theirs):
        return other
    if types.is_integer(one) and types.is_integer(other):
        found = np.result_type(numpy_dtype(one), numpy_dtype(other))
        return pa.from_numpy_dtype(found) if found.kind in "iu" else pa.int64()
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in (one, other)):
        return pa.from_numpy_dtype(
            np.result_type(numpy_dtype(one), numpy_dtype(other), _wide(one, other))
        )
    if types.is_struct(one) and types.is_struct(other):
        fields = {field.name: field for field in one}
        if len(fields) < one.num_fields or len({field.name for field in other}) < other.num_fields:
            raise TypeError("two fields of one name")
        if not (
            fields.keys() <= {field.name for field in other}
            or fields.keys() >= {field.name for field in other}
        ):
            raise TypeError("each has fields that the other lacks")
        for field in other:
            if field.name not in fields and not field.nullable:
                raise TypeError("a field without nulls is missing")
            known = fields.get(field.name)
            kind = field.type if known is None else common_type(known.type, field.type)
            fields[field.name] = pa.field(field.name, kind)
        if any(not field.nullable for field in one if other.get_field_index(field.name) < 0):
            raise TypeError("a field without nulls is missing")
        return pa.struct([pa.field(name, field.type) for name, field in fields.items()])
    if all(types.is_list(kind) or types.is_large_list(kind) for kind in (one, other)):
        item = common_type(one.value_type, other.value_type)
        return (
            pa.large_list(item)
            if types.is_large_list(one) or types.is_large_list(other)
            else pa.list_(item)
        )
    raise TypeError(f"{one} and {other}")


def _wide(one: Any, other: Any) -> type[np.floating[Any]]:
    """Integers beside floats come as float64, as those of samples do; among themselves floats keep
    the wider type."""
    integer = arrow("pyarrow.types").is_integer
    return np.float64 if integer(one) or integer(other) else np.float16


def has_schema(file: object, schema: Any) -> bool:
    """Return whether the columns of a file need no cast, and stand in this order."""
    return isinstance(file, Tabular) and _conforms(file.own, schema)


def _conforms(own: Any, schema: Any) -> bool:
    return own.names == schema.names and not casts(own, schema)


def casts(own: Any, schema: Any) -> dict[str, Any]:
    """Return the types to which columns of a file must be cast."""
    have, want = kinds_of(own, own.names), kinds_of(schema, schema.names)
    names = [name for name in own.names if name in want and not fits(have[name], want[name])]
    return {name: schema.field(name).type for name in names}


class Conform:
    """Makes batches of a file ones of the schema of all files."""

    def __init__(self, own: Any, schema: Any | None, path: Path) -> None:
        pa, self._path = arrow(), path
        self.names: list[str] = (
            own.names if schema is None else [name for name in schema.names if name in own.names]
        )
        types = {} if schema is None else casts(own, schema)
        self._casts: Mapping[str, Any] = {
            name: readable_type(types.get(name, own.field(name).type))
            for name in self.names
            if name in types or readable_type(own.field(name).type) != own.field(name).type
        }
        fields = list[Any]()
        for field in own if schema is None else schema:
            kept = field.name in own.names and field.name not in self._casts
            kind = self._casts.get(field.name) or readable_type(field.type)
            fields.append(own.field(field.name) if kept else pa.field(field.name, kind))
        self.schema = pa.schema(fields)
        self.changes = bool(self._casts) or len(self.names) < len(fields)

    def __call__(self, batch: Any) -> Any:
        """Return a record batch, or a table, with all columns."""
        if not self.changes:
            return batch
        columns = [
            self.column(name, self._of(batch, name), batch.num_rows) for name in self.schema.names
        ]
        made = cast("Any", type(batch))
        return made.from_arrays(columns, schema=self.schema)

    def _of(self, batch: Any, name: str) -> Any:
        return batch.column(name) if name in self.names else None

    def column(self, name: str, column: Any, rows: int) -> Any:
        """Return one column; of nulls where the file has none of the name."""
        pa = arrow()
        if column is None:
            return pa.nulls(rows, self.schema.field(name).type)
        kind = self._casts.get(name)
        if kind is None:
            return column
        try:
            if isinstance(column, pa.ChunkedArray):
                return pa.chunked_array(
                    [cast_exactly(chunk, kind) for chunk in column.chunks], kind
                )
            return cast_exactly(column, kind)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"the column {name!r} is {column.type} here and {kind} over all files, and a value "
                "does not fit: "
                f"{error}",
                where=str(self._path),
            ) from error


@cache
def readable_type(kind: Any) -> Any:
    """Return the type as which a column is read: without views, as polars writes them, and without
    run-end encoding.

    Arrow takes no rows from these, and does not tell the bytes of a slice of them.

    >>> import pyarrow as pa
    >>> readable_type(pa.list_view(pa.string_view())), readable_type(pa.int8())
    (ListType(list<item: large_string>), DataType(int8))
    """
    pa, types = arrow(), arrow("pyarrow.types")
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_run_end_encoded(kind):
        return readable_type(kind.value_type)
    if types.is_struct(kind):
        fields = [field.with_type(readable_type(field.type)) for field in kind]
        return pa.struct(fields) if fields != list(kind) else kind
    if types.is_map(kind):
        key, item = readable_type(kind.key_type), readable_type(kind.item_type)
        return (
            pa.map_(key, item, kind.keys_sorted)
            if (key, item) != (kind.key_type, kind.item_type)
            else kind
        )
    if isinstance(kind, pa.ListViewType):
        return pa.list_(readable_type(kind.value_type))
    if isinstance(kind, pa.LargeListViewType):
        return pa.large_list(readable_type(kind.value_type))
    if (
        types.is_nested(kind)
        and hasattr(kind, "value_type")
        and (item := readable_type(kind.value_type)) != kind.value_type
    ):
        if types.is_fixed_size_list(kind):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if types.is_large_list(kind) else pa.list_(item)
    return kind


def cast_exactly(column: Any, kind: Any) -> Any:
    """Return an array as another type; fields of structs go by their names.

    Raises:
        ArrowInvalid: if a value would change.
    """
    pa: Any = arrow()
    types: Any = arrow("pyarrow.types")
    if column.type.equals(kind):
        return column
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    elif types.is_run_end_encoded(column.type):
        column = arrow("pyarrow.compute").run_end_decode(column)
    elif isinstance(column.type, (pa.ListViewType, pa.LargeListViewType)):
        column = _of_list_view(column)
    if types.is_struct(kind) and types.is_struct(column.type):
        own = {field.name: place for place, field in enumerate(column.type)}
        below = column.flatten()
        parts = [
            cast_exactly(below[own[field.name]], field.type)
            if field.name in own
            else pa.nulls(len(column), field.type)
            for field in kind
        ]
        gone = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=gone)
    if hasattr(kind, "value_type") and hasattr(column, "offsets"):
        offsets = column.offsets
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        values = cast_exactly(column.values.slice(first, last - first), kind.value_type)
        places = pa.array(
            offsets.to_numpy() - first, pa.int64() if types.is_large_list(kind) else pa.int32()
        )
        made = pa.LargeListArray if types.is_large_list(kind) else pa.ListArray
        gone = column.is_null() if column.null_count else None
        return made.from_arrays(places, values, type=kind, mask=gone)
    if "list_view" in str(column.type):  # which Arrow casts wrongly, see below
        raise pa.ArrowNotImplementedError(
            f"{column.type} is not read: write it with lists in place of views"
        )
    return column.cast(kind)


def _of_list_view(column: Any) -> Any:
    """Return views of lists as lists. A cast of Arrow loses values behind null lists."""
    pa = arrow()
    sizes = arrow("pyarrow.compute").list_value_length(column).fill_null(0).to_numpy()
    large = isinstance(column.type, pa.LargeListViewType)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int64() if large else pa.int32())
    gone = column.is_null() if column.null_count else None
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(
        offsets, column.flatten(), mask=gone
    )
