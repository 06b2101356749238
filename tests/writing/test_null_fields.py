"""Fields that are null in every row, at any depth, are written and read back by every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.arrays.casts import cast_table

CALL: dict[str, Any] = {"function": {"name": "f", "strict": None}, "id": None}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "q", "tool_calls": None, "name": None},
    {"role": "assistant", "content": None, "tool_calls": None, "name": None},
]
CALLS = [
    {"role": "user", "content": "q", "tool_calls": None, "name": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL], "name": None},
]
ROWS: dict[str, list[Any]] = {
    "in a list of structs": [{"messages": MESSAGES}] * 3,
    "deeper": [{"messages": CALLS}] * 3,
    "until later": [{"messages": MESSAGES}] * 1_500 + [{"messages": CALLS}],
    "a field more later": [{"messages": MESSAGES}] * 1_500
    + [{"messages": [{**MESSAGES[0], "weight": 1}]}],
    "whole column": [{"a": 1, "b": None}] * 3,
    "list": [{"a": [None, None], "b": [[None]]}] * 3,
    "struct": [{"a": {"b": None, "c": {"d": None}}}] * 3,
}


def pad_fields(value: Any, example: Any) -> Any:
    """Return a value with null for the keys that only the example has."""
    if isinstance(value, dict) and isinstance(example, dict):
        return {key: pad_fields(value.get(key), example[key]) for key in example}
    if isinstance(value, list) and isinstance(example, list) and example:
        return [pad_fields(item, example[0]) for item in value]
    return value


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.feather"])
@pytest.mark.parametrize("kind", ROWS)
def test_fields_without_values_are_written(kind: str, name: str, tmp_path: Path) -> None:
    rows = ROWS[kind]
    ps.from_sequence(rows).write(tmp_path / name)
    found = list(ps.read(tmp_path / name))
    example = found[0] if kind == "a field more later" else rows[0]
    assert found == [pad_fields(row, example) for row in rows]


@pytest.mark.parametrize("kind", ROWS)
def test_a_cast_to_equal_types_gives_equal_columns(kind: str) -> None:
    table = pa.Table.from_pylist(ROWS[kind])
    cast = cast_table(table, table.schema)
    cast.validate(full=True)
    assert cast.equals(table)
    (batch, *_) = table.to_batches()
    assert cast_table(batch, batch.schema).equals(batch)
