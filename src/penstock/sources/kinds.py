"""The types of columns, as far as their values tell, compared from file to file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ..errors import DataError
from .rows import arrow


class Made(NamedTuple):
    """A type that is made of others: fields of a struct by their names, what lists hold without
    one."""

    of: str
    parts: tuple[tuple[str, Kind], ...]

    def __str__(self) -> str:
        return f"{self.of}<{', '.join(f'{name}: {kind}' if name else str(kind) for name, kind in self.parts)}>"


Kind: TypeAlias = str | Made

Kinds: TypeAlias = dict[str, tuple[Kind, Path]]
"""The type of each column, and the file that has it."""


@runtime_checkable
class Typed(Protocol):
    """A file that tells the types of its columns, as far as their values tell."""

    @property
    def types(self) -> Mapping[str, Kind]: ...


def kinds_of(schema: Any, columns: Sequence[str]) -> dict[str, Kind]:
    """The types of columns of Arrow: how they are stored makes no difference.

    >>> import pyarrow as pa
    >>> {name: str(kind) for name, kind in kinds_of(pa.schema({"x": pa.large_list(pa.large_string())}), ["x"]).items()}
    {'x': 'list<string>'}
    """
    kinds = {name: schema.field(name).type for name in columns}
    return {
        name: _kind(kind.value_type if hasattr(kind, "index_type") else kind)
        for name, kind in kinds.items()
    }


def _kind(kind: Any) -> Kind:
    types: Any = arrow("pyarrow.types")
    if types.is_struct(kind):
        return Made("struct", tuple((field.name, _kind(field.type)) for field in kind))
    if types.is_map(kind):
        return Made("map", (("", _kind(kind.key_type)), ("", _kind(kind.item_type))))
    if types.is_fixed_size_list(kind):
        return Made(f"fixed_size_list[{kind.list_size}]", (("", _kind(kind.value_type)),))
    views = arrow().ListViewType, arrow().LargeListViewType
    if types.is_list(kind) or types.is_large_list(kind) or isinstance(kind, views):
        return Made("list", (("", _kind(kind.value_type)),))
    return _STORED.get(str(kind), str(kind))


_STORED = {
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
}


def compare(types: Mapping[str, Kind], path: Path, seen: Kinds) -> None:
    """Refuse a file that holds a column as another type than was seen; one that is empty throughout
    has none, and the first file that tells more settles it for the others.
    """
    for name, kind in types.items():
        other, where = seen.setdefault(name, (kind, path))
        if fits(kind, other):
            continue
        if not fits(other, kind):
            raise DataError(
                f"its column {name!r} holds {kind}, in {where} it holds {other}: write them alike, "
                "pass "
                "columns= without it, or read them as two sources",
                where=str(path),
            )
        seen[name] = kind, path


def fits(one: Kind, other: Kind) -> bool:
    """Whether a type is another one, of which nothing but nulls or empty lists was seen."""
    if isinstance(one, str) or isinstance(other, str):
        return one in ("null", other)
    if (one.of, [name for name, _ in one.parts]) != (other.of, [name for name, _ in other.parts]):
        return False
    return all(
        fits(mine, theirs) for (_, mine), (_, theirs) in zip(one.parts, other.parts, strict=True)
    )
