"""Column types as far as values tell them apart, compared between files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ..arrays.columnar import import_arrow
from ..errors import DataError


class CompositeType(NamedTuple):
    """A type built from others: fields of a struct by name, or the parts of a list or map."""

    of: str
    parts: tuple[tuple[str, ColumnType], ...]

    def __str__(self) -> str:
        parts = (f"{name}: {kind}" if name else str(kind) for name, kind in self.parts)
        return f"{self.of}<{', '.join(parts)}>"


ColumnType: TypeAlias = str | CompositeType

SeenColumnTypes: TypeAlias = dict[str, tuple[ColumnType, Path]]
"""The type of each column, and a file with that type."""


@runtime_checkable
class TypedFile(Protocol):
    """A file that knows the types of its columns."""

    @property
    def types(self) -> Mapping[str, ColumnType]: ...


def describe_column_types(schema: Any, columns: Sequence[str]) -> dict[str, ColumnType]:
    """Return the types of Arrow columns, regardless of how they are stored.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"x": pa.large_list(pa.large_string())})
    >>> {name: str(kind) for name, kind in describe_column_types(schema, ["x"]).items()}
    {'x': 'list<string>'}
    """
    kinds = {name: schema.field(name).type for name in columns}
    return {
        name: _describe_type(kind.value_type if hasattr(kind, "index_type") else kind)
        for name, kind in kinds.items()
    }


def _describe_type(arrow_type: Any) -> ColumnType:
    types: Any = import_arrow("pyarrow.types")
    if types.is_struct(arrow_type):
        return CompositeType(
            "struct", tuple((field.name, _describe_type(field.type)) for field in arrow_type)
        )
    if types.is_map(arrow_type):
        return CompositeType(
            "map",
            (("", _describe_type(arrow_type.key_type)), ("", _describe_type(arrow_type.item_type))),
        )
    if types.is_fixed_size_list(arrow_type):
        return CompositeType(
            f"fixed_size_list[{arrow_type.list_size}]",
            (("", _describe_type(arrow_type.value_type)),),
        )
    view_types = import_arrow().ListViewType, import_arrow().LargeListViewType
    if (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or isinstance(arrow_type, view_types)
    ):
        return CompositeType("list", (("", _describe_type(arrow_type.value_type)),))
    if isinstance(arrow_type, import_arrow().JsonType):
        return _describe_type(arrow_type.storage_type)
    return _LOGICAL_TYPES.get(str(arrow_type), str(arrow_type))


_LOGICAL_TYPES = {
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
}


def require_compatible_types(
    types: Mapping[str, ColumnType], path: Path, seen: SeenColumnTypes
) -> None:
    """Compare the column types of a file with those seen so far.

    A column without values has no type; the first file with values determines it.

    Raises:
        DataError: A column has another type.
    """
    for name, kind in types.items():
        other, seen_path = seen.setdefault(name, (kind, path))
        if is_compatible_type(kind, other):
            continue
        if not is_compatible_type(other, kind):
            raise DataError(
                f"its column {name!r} holds {kind}, in {seen_path} it holds {other}: write both "
                "with one type, pass columns= without it, or read them as two sources",
                where=str(path),
            )
        seen[name] = kind, path


def is_compatible_type(left: ColumnType, right: ColumnType) -> bool:
    """Return whether a type equals another one, or is a null or an empty list of it."""
    if isinstance(left, str) or isinstance(right, str):
        return left in ("null", right)
    if (left.of, [name for name, _ in left.parts]) != (right.of, [name for name, _ in right.parts]):
        return False
    return all(
        is_compatible_type(part, other_part)
        for (_, part), (_, other_part) in zip(left.parts, right.parts, strict=True)
    )
