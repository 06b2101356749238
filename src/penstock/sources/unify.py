"""Columnar files with different schemas, read with one: lossless casts and missing columns."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from ..arrays.casts import cast_exactly
from ..arrays.columnar import import_arrow
from ..errors import DataError
from ..types import MAX_EXACT_FLOAT_INT
from . import derived_files, file_versions
from .decoded_sizes import ROWS_PER_PIECE, require_small_column
from .kinds import describe_column_types, is_compatible_type
from .rows import to_numpy_dtype

_LOGGER = logging.getLogger("penstock")
_LOGGED_MESSAGES = set[str]()


@runtime_checkable
class TabularFile(Protocol):
    """A file with Arrow columns; `file_schema` is the schema of the selected columns in the file."""

    file_schema: Any

    def __len__(self) -> int: ...
    def column(self, name: str, /) -> Iterator[Any]: ...


class MergedColumn(NamedTuple):
    """The type of a column in all files so far, and a file with that type.

    `integers` is true if a file stores integers; `floats` numbers the files that store floats.
    """

    type: Any
    path: Path
    integers: bool
    floats: tuple[int, ...]


class UnifiedSchema:
    """The common schema of files, built file by file."""

    def __init__(self) -> None:
        self._seen: dict[str, MergedColumn] = {}
        self._schemas: list[Any] = []
        self._paths: list[Path] = []

    def add(self, schema: Any, path: Path) -> None:
        """Add a file.

        Raises:
            DataError: A column has types without a common type.
        """
        pa, number = import_arrow(), len(self._schemas)
        self._schemas.append(schema)
        self._paths.append(path)
        for field in schema:
            integer, floating = pa.types.is_integer(field.type), pa.types.is_floating(field.type)
            column = self._seen.get(field.name, MergedColumn(field.type, path, False, ()))
            try:
                common = find_common_type(column.type, field.type)
            except TypeError:
                raise DataError(
                    f"its column {field.name!r} holds {field.type}, in {column.path} it holds "
                    f"{column.type}: write both with one type, pass columns= without it, or read "
                    "them as two sources",
                    where=str(path),
                ) from None
            floats = (*column.floats, number) if floating else column.floats
            type_path = path if common != column.type and common == field.type else column.path
            self._seen[field.name] = MergedColumn(
                common, type_path, column.integers or integer, floats
            )

    def lacks(self, columns: Sequence[str]) -> bool:
        """Return whether no file has one of these columns."""
        return bool(self._schemas) and any(name not in self._seen for name in columns)

    def schema(
        self, files: Sequence[TabularFile], columns: Sequence[str] | None, cache: str | Path | None
    ) -> Any:
        """Return the common schema of these columns, or `None` if no file needs a conversion.

        Files that are no tables need none.

        Raises:
            DataError: No file has all columns, or a column without nulls is missing.
        """
        if not self._schemas:
            return None
        pa = import_arrow()
        widest = max(range(len(self._schemas)), key=lambda number: len(self._schemas[number].names))
        fields = list[Any]()
        for name in self._seen if columns is None else columns:
            column_type = self._seen[name].type
            if (
                self._seen[name].integers
                and self._seen[name].floats
                and self._are_whole_numbers(name, files, cache)
            ):
                column_type = _choose_integer_type(name, self._schemas)
            fields.append(pa.field(name, column_type))
        schema = pa.schema(fields)
        if all(_matches_schema(file_schema, schema) for file_schema in self._schemas):
            return None
        self._require_columns(widest, columns is not None)
        return schema

    def _require_columns(self, widest: int, chosen: bool) -> None:
        widest_schema, missing = self._schemas[widest], dict[str, Path]()
        for file_schema, path in zip(self._schemas, self._paths, strict=True):
            own = set(file_schema.names)
            absent = [field for field in widest_schema if field.name not in own]
            extra = own - set(widest_schema.names)
            no_columns = not chosen and not file_schema.names
            if extra or no_columns or any(not field.nullable for field in absent):
                raise DataError(
                    f"its columns are {', '.join(file_schema.names)}, those of {self._paths[widest]} are "
                    f"{', '.join(widest_schema.names)}: pass columns= with those that all files "
                    "have, or read them as two sources",
                    where=str(path),
                )
            missing.update((field.name, path) for field in absent if field.name not in missing)
        for name, path in missing.items():
            message = f"{path} and perhaps others have no column {name!r}: its values are None"
            if message not in _LOGGED_MESSAGES:
                _LOGGED_MESSAGES.add(message)
                _LOGGER.warning("%s", message)

    def _are_whole_numbers(
        self, name: str, files: Sequence[TabularFile], cache: str | Path | None
    ) -> bool:
        """Return whether the floats of a column are whole numbers in all files.

        pandas converts integers with missing values to such floats.
        """
        floats = self._seen[name].floats
        paths = [self._paths[number] for number in floats]

        def compute() -> bool:
            return all(
                _is_whole(piece) for number in floats for piece in files[number].column(name)
            )

        return bool(
            derived_files.load_fact(
                paths,
                [file_versions.stat_file(path) for path in paths],
                f"whole numbers {name}",
                compute,
                cache,
            )
        )


def _is_whole(piece: Any) -> bool:
    values = piece.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
    return bool(
        (
            np.isfinite(values)
            & (np.abs(values) <= MAX_EXACT_FLOAT_INT)
            & (np.floor(values) == values)
        ).all()
    )


def _choose_integer_type(name: str, schemas: Sequence[Any]) -> Any:
    """Return the integer type of a column that some files store as floats.

    It is int64, or uint64 if all integers are.
    """
    pa = import_arrow()
    types = {schema.field(name).type for schema in schemas if name in schema.names}
    integers = {arrow_type for arrow_type in types if pa.types.is_integer(arrow_type)}
    return pa.uint64() if integers == {pa.uint64()} else pa.int64()


def find_common_type(left: Any, right: Any) -> Any:
    """Return the type that represents the values of two types.

    If the types differ in storage alone, the result is the first.

    Raises:
        TypeError: There is no such type.

    >>> import pyarrow as pa
    >>> find_common_type(pa.int32(), pa.uint32()), find_common_type(pa.int64(), pa.float32())
    (DataType(int64), DataType(double))
    """
    if left == right:
        return left
    pa, types = import_arrow(), import_arrow("pyarrow.types")
    left_kind, right_kind = (
        describe_column_types(pa.schema([("x", kind)]), ["x"])["x"] for kind in (left, right)
    )
    if is_compatible_type(right_kind, left_kind):
        return left
    if is_compatible_type(left_kind, right_kind):
        return right
    if types.is_integer(left) and types.is_integer(right):
        dtype = np.result_type(to_numpy_dtype(left), to_numpy_dtype(right))
        return pa.from_numpy_dtype(dtype) if dtype.kind in "iu" else pa.int64()
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in (left, right)):
        return pa.from_numpy_dtype(
            np.result_type(
                to_numpy_dtype(left), to_numpy_dtype(right), _choose_float_type(left, right)
            )
        )
    if types.is_struct(left) and types.is_struct(right):
        fields = {field.name: field for field in left}
        if len(fields) < left.num_fields or len({field.name for field in right}) < right.num_fields:
            raise TypeError("two fields have the same name")
        if not (
            fields.keys() <= {field.name for field in right}
            or fields.keys() >= {field.name for field in right}
        ):
            raise TypeError("each has fields that the other lacks")
        for field in right:
            if field.name not in fields and not field.nullable:
                raise TypeError("a field without nulls is missing")
            known_field = fields.get(field.name)
            kind = (
                field.type
                if known_field is None
                else find_common_type(known_field.type, field.type)
            )
            fields[field.name] = pa.field(field.name, kind)
        if any(not field.nullable for field in left if right.get_field_index(field.name) < 0):
            raise TypeError("a field without nulls is missing")
        return pa.struct([pa.field(name, field.type) for name, field in fields.items()])
    if all(types.is_list(kind) or types.is_large_list(kind) for kind in (left, right)):
        item = find_common_type(left.value_type, right.value_type)
        return (
            pa.large_list(item)
            if types.is_large_list(left) or types.is_large_list(right)
            else pa.list_(item)
        )
    raise TypeError(f"{left} and {right}")


def has_null_type(arrow_type: Any) -> bool:
    """Return whether a type is null, or contains null, as of a column or lists without values.

    >>> import pyarrow as pa
    >>> has_null_type(pa.list_(pa.null())), has_null_type(pa.struct({"x": pa.int8()}))
    (True, False)
    """
    return import_arrow("pyarrow.types").is_null(arrow_type) or any(
        has_null_type(arrow_type.field(number).type) for number in range(arrow_type.num_fields)
    )


def _choose_float_type(left: Any, right: Any) -> type[np.floating[Any]]:
    """Return the narrowest float type of a result: float64 beside integers, as for samples."""
    integer = import_arrow("pyarrow.types").is_integer
    return np.float64 if integer(left) or integer(right) else np.float16


def has_schema(file: object, schema: Any) -> bool:
    """Return whether the columns of a file need no cast, and have this order."""
    return isinstance(file, TabularFile) and _matches_schema(file.file_schema, schema)


def _matches_schema(file_schema: Any, schema: Any) -> bool:
    return file_schema.names == schema.names and not find_required_casts(file_schema, schema)


def find_required_casts(file_schema: Any, schema: Any) -> dict[str, Any]:
    """Return the types to which columns of a file must be cast."""
    have, want = (
        describe_column_types(file_schema, file_schema.names),
        describe_column_types(schema, schema.names),
    )
    names = [
        name
        for name in file_schema.names
        if name in want and not is_compatible_type(have[name], want[name])
    ]
    return {name: schema.field(name).type for name in names}


class SchemaConverter:
    """Converts batches of a file to the common schema of all files."""

    def __init__(self, file_schema: Any, schema: Any | None, path: Path) -> None:
        pa, self._path = import_arrow(), path
        # Each access of `schema.names` builds a list, which takes long for thousands of columns.
        own = {field.name: field for field in file_schema}
        common = own if schema is None else {field.name: field for field in schema}
        self._own = frozenset(own)
        self.names = [name for name in common if name in own]
        types = {} if schema is None else find_required_casts(file_schema, schema)
        readable = {
            name: choose_readable_type(types.get(name, own[name].type)) for name in self.names
        }
        self._casts: Mapping[str, Any] = {
            name: type_
            for name, type_ in readable.items()
            if name in types or type_ != own[name].type
        }
        fields = [
            own[name]
            if name in own and name not in self._casts
            else pa.field(name, self._casts.get(name) or choose_readable_type(field.type))
            for name, field in common.items()
        ]
        self.schema = pa.schema(fields)
        self.changes = bool(self._casts) or len(self.names) < len(fields)

    def __call__(self, batch: Any) -> Any:
        """Return a record batch, or a table, with all columns."""
        if not self.changes:
            return batch
        packed: int = batch.get_total_buffer_size()
        columns = [
            self.column(name, self._of(batch, name), batch.num_rows, packed)
            for name in self.schema.names
        ]
        batch_type = cast("Any", type(batch))
        return batch_type.from_arrays(columns, schema=self.schema)

    def _of(self, batch: Any, name: str) -> Any:
        return batch.column(name) if name in self._own else None

    def nulls(self, name: str, rows: int) -> Iterator[Any]:
        """Yield the pieces of a column that the file lacks."""
        for start in range(0, rows, ROWS_PER_PIECE):
            yield self.column(name, None, min(rows - start, ROWS_PER_PIECE))

    def column(self, name: str, column: Any, rows: int, packed: int | None = None) -> Any:
        """Return one column, of nulls if the file lacks it.

        Args:
            name: Name of the column.
            column: The Arrow array, or `None`.
            rows: Number of its rows.
            packed: Bytes of the columns that are decoded together; by default those of this one.

        Raises:
            DataError: A value does not fit the type, or the column would take too much memory.
        """
        pa = import_arrow()
        target = self._casts.get(name) if column is not None else self.schema.field(name).type
        if target is None:
            return column
        own: int = 0 if column is None else column.get_total_buffer_size()
        together = own if packed is None else packed
        require_small_column(column, target, rows, name, self._path, together)
        if column is None:
            return pa.nulls(rows, target)
        try:
            if isinstance(column, pa.ChunkedArray):
                return pa.chunked_array(
                    [cast_exactly(chunk, target) for chunk in column.chunks], target
                )
            return cast_exactly(column, target)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"the column {name!r} is {column.type} here and {target} over all files, and a "
                f"value does not fit: {error}",
                where=str(self._path),
            ) from error


@cache
def choose_readable_type(arrow_type: Any) -> Any:
    """Return the type to read a column as: no views, run-end encoding or JSON texts.

    Polars writes views. Arrow cannot take rows from these types, or tell the bytes of their slices.
    DuckDB writes JSON texts, which Arrow cannot compare.

    >>> import pyarrow as pa
    >>> choose_readable_type(pa.list_view(pa.string_view())), choose_readable_type(pa.int8())
    (ListType(list<item: large_string>), DataType(int8))
    """
    pa, types = import_arrow(), import_arrow("pyarrow.types")
    if types.is_string_view(arrow_type):
        return pa.large_string()
    if types.is_binary_view(arrow_type):
        return pa.large_binary()
    if types.is_run_end_encoded(arrow_type):
        return choose_readable_type(arrow_type.value_type)
    if isinstance(arrow_type, pa.JsonType):
        return choose_readable_type(arrow_type.storage_type)
    if types.is_struct(arrow_type):
        fields = [field.with_type(choose_readable_type(field.type)) for field in arrow_type]
        return pa.struct(fields) if fields != list(arrow_type) else arrow_type
    if types.is_map(arrow_type):
        key, item = (
            choose_readable_type(arrow_type.key_type),
            choose_readable_type(arrow_type.item_type),
        )
        return (
            pa.map_(key, item, arrow_type.keys_sorted)
            if (key, item) != (arrow_type.key_type, arrow_type.item_type)
            else arrow_type
        )
    if isinstance(arrow_type, pa.ListViewType):
        return pa.list_(choose_readable_type(arrow_type.value_type))
    if isinstance(arrow_type, pa.LargeListViewType):
        return pa.large_list(choose_readable_type(arrow_type.value_type))
    if (
        types.is_nested(arrow_type)
        and hasattr(arrow_type, "value_type")
        and (item := choose_readable_type(arrow_type.value_type)) != arrow_type.value_type
    ):
        if types.is_fixed_size_list(arrow_type):
            return pa.list_(item, arrow_type.list_size)
        return pa.large_list(item) if types.is_large_list(arrow_type) else pa.list_(item)
    return arrow_type
