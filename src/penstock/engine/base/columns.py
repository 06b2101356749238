"""Columnar encoding of large JSON mappings: the names once, then each field as a list.

The state of 500 sources has many mappings with the same names and the same fields. Written out,
names are most of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ...errors import StateError
from ...types import Json

MIN_ENCODED_ENTRIES = 100  # entries from which a mapping is encoded; smaller mappings stay readable
_NAMES_KEY = "@names"
_MAX_VALUES = 1 << 22  # limit on names times fields; a larger state is corrupted


def encode_columns(tree: Json, tables: list[list[str]]) -> Json:
    """Encode the large mappings of a tree by columns; add each list of names to `tables` once.

    >>> names = [f"s{i}" for i in range(100)]
    >>> tables = []
    >>> encode_columns({name: {"rows": 7, "of": name} for name in names}, tables)
    {'@names': 0, 'fields': {'rows': {'all': 7}, 'of': 'names'}}
    >>> tables == [names]
    True
    """
    if isinstance(tree, dict):
        if len(tree) < MIN_ENCODED_ENTRIES and _NAMES_KEY not in tree:
            return {name: encode_columns(value, tables) for name, value in tree.items()}
        names = list(tree)
        return {
            _NAMES_KEY: _intern_names(names, tables),
            **_wrap_column(_encode_column(list(tree.values()), names, tables)),
        }
    if isinstance(tree, list | tuple):
        if len(tree) >= MIN_ENCODED_ENTRIES and all(type(value) is str for value in tree):
            return {_NAMES_KEY: _intern_names(cast("list[str]", list(tree)), tables)}
        return [encode_columns(value, tables) for value in tree]
    return tree


def decode_columns(tree: Any, tables: Any) -> Json:
    """Decode a tree that `encode_columns` encoded; raise `StateError` if it is corrupted.

    >>> decode_columns({"@names": 0, "fields": {"rows": {"all": 7}, "of": "names"}}, [["a", "b"]])
    {'a': {'rows': 7, 'of': 'a'}, 'b': {'rows': 7, 'of': 'b'}}
    """
    if isinstance(tree, list):
        return [
            decode_columns(value, tables) if isinstance(value, list | dict) else value
            for value in cast("list[Any]", tree)
        ]
    if not isinstance(tree, dict):
        return tree
    mapping = cast("dict[str, Any]", tree)
    if _NAMES_KEY not in mapping:
        return {
            name: decode_columns(value, tables) if isinstance(value, list | dict) else value
            for name, value in mapping.items()
        }
    try:
        names = tables[mapping[_NAMES_KEY]]
        if len(mapping) == 1:
            return list(names)
        ((kind, column),) = ((name, value) for name, value in mapping.items() if name != _NAMES_KEY)
        return dict(
            zip(
                names,
                _decode_column(names if kind == "names" else {kind: column}, names, tables),
                strict=True,
            )
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state has columns that do not fit its names ({error!r}), so it is damaged; load "
            "another state"
        ) from error


def _intern_names(names: list[str], tables: list[list[str]]) -> int:
    if names not in tables:
        tables.append(names)
    return tables.index(names)


def _wrap_column(column: Json) -> dict[str, Json]:
    return {"names": True} if column == "names" else cast("dict[str, Json]", column)


def _encode_column(values: Sequence[Any], names: Sequence[str], tables: list[list[str]]) -> Json:
    first = values[0] if values else None
    if isinstance(first, dict) and first:
        fields = list(cast("dict[str, Any]", first))
        if all(
            isinstance(value, dict) and list(cast("dict[str, Any]", value)) == fields
            for value in values
        ):
            return {
                "fields": {
                    name: _encode_column([value[name] for value in values], names, tables)
                    for name in fields
                }
            }
    if isinstance(first, str) and values == names:
        return "names"
    if isinstance(first, str | int | None) and all(
        type(value) is type(first) and value == first for value in values
    ):
        return {"all": first}
    return {"each": [encode_columns(value, tables) for value in values]}


def _decode_column(column: Any, names: list[str], tables: Any) -> list[Any]:
    """Return the values of a column, one for each name."""
    if column == "names" or column is names:
        return list(names)
    ((kind, content),) = column.items()
    match kind:
        case "all" if isinstance(content, str | int | None):
            return [content] * len(names)
        case "each" if len(content) == len(names):
            return cast("list[Any]", decode_columns(content, tables))
        case "fields" if len(content) * len(names) < _MAX_VALUES:
            columns = [_decode_column(field, names, tables) for field in content.values()]
            return [
                dict(zip(content, values, strict=True)) for values in zip(*columns, strict=True)
            ]
        case _:
            raise ValueError(f"{kind} of {len(names)} names")
