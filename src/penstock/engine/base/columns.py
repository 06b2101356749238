"""Large mappings by columns: the names once, then every field of their entries as a list.

What a state tells of 500 sources are mappings with the same names, of entries with the same fields.
Written out, the names alone are most of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ...errors import StateError
from ...types import Json

MANY = 100  # entries from which on a mapping has columns: what is smaller stays easy to read
_MARK = "@names"
_MOST = 1 << 22  # values that names and fields give together; more is no state of ours


def folded(tree: Json, tables: list[list[str]]) -> Json:
    """The tree with its large mappings by columns. Lists of names are added to `tables`, each once.

    >>> names = [f"s{i}" for i in range(100)]
    >>> tables = []
    >>> folded({name: {"rows": 7, "of": name} for name in names}, tables)
    {'@names': 0, 'fields': {'rows': {'all': 7}, 'of': 'names'}}
    >>> tables == [names]
    True
    """
    if isinstance(tree, dict):
        if len(tree) < MANY and _MARK not in tree:
            return {name: folded(each, tables) for name, each in tree.items()}
        names = list(tree)
        return {
            _MARK: _place(names, tables),
            **_marked(_column(list(tree.values()), names, tables)),
        }
    if isinstance(tree, list | tuple):
        if len(tree) >= MANY and all(type(each) is str for each in tree):
            return {_MARK: _place(cast("list[str]", list(tree)), tables)}
        return [folded(each, tables) for each in tree]
    return tree


def unfolded(tree: Any, tables: Any) -> Json:
    """What was folded; an error where it was not folded like this.

    >>> unfolded({"@names": 0, "fields": {"rows": {"all": 7}, "of": "names"}}, [["a", "b"]])
    {'a': {'rows': 7, 'of': 'a'}, 'b': {'rows': 7, 'of': 'b'}}
    """
    if isinstance(tree, list):
        return [
            unfolded(each, tables) if isinstance(each, list | dict) else each
            for each in cast("list[Any]", tree)
        ]
    if not isinstance(tree, dict):
        return tree
    found = cast("dict[str, Any]", tree)
    if _MARK not in found:
        return {
            name: unfolded(each, tables) if isinstance(each, list | dict) else each
            for name, each in found.items()
        }
    try:
        names = tables[found[_MARK]]
        if len(found) == 1:
            return list(names)
        ((kind, column),) = ((name, each) for name, each in found.items() if name != _MARK)
        return dict(
            zip(
                names,
                _entries(names if kind == "names" else {kind: column}, names, tables),
                strict=True,
            )
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the state has columns that do not fit its names ({error!r}); it is damaged"
        ) from error


def _place(names: list[str], tables: list[list[str]]) -> int:
    if names not in tables:
        tables.append(names)
    return tables.index(names)


def _marked(column: Json) -> dict[str, Json]:
    return {"names": True} if column == "names" else cast("dict[str, Json]", column)


def _column(values: Sequence[Any], names: Sequence[str], tables: list[list[str]]) -> Json:
    first = values[0] if values else None
    if isinstance(first, dict) and first:
        fields = list(cast("dict[str, Any]", first))
        if all(
            isinstance(value, dict) and list(cast("dict[str, Any]", value)) == fields
            for value in values
        ):
            return {
                "fields": {
                    name: _column([value[name] for value in values], names, tables)
                    for name in fields
                }
            }
    if isinstance(first, str) and values == names:
        return "names"
    if isinstance(first, str | int | None) and all(
        type(one) is type(first) and one == first for one in values
    ):
        return {"all": first}
    return {"each": [folded(value, tables) for value in values]}


def _entries(column: Any, names: list[str], tables: Any) -> list[Any]:
    """The values of a column, one for each name."""
    if column == "names" or column is names:
        return list(names)
    ((kind, held),) = column.items()
    match kind:
        case "all" if isinstance(held, str | int | None):
            return [held] * len(names)
        case "each" if len(held) == len(names):
            return cast("list[Any]", unfolded(held, tables))
        case "fields" if len(held) * len(names) < _MOST:
            columns = [_entries(each, names, tables) for each in held.values()]
            return [dict(zip(held, values, strict=True)) for values in zip(*columns, strict=True)]
        case _:
            raise ValueError(f"{kind} of {len(names)} names")
