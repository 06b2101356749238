"""Lance datasets, written by their own package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ConfigError, DataError
from penstock.sources import open_files

lance: Any = pytest.importorskip("lance")


def write(path: Path, numbers: range, mode: str = "create") -> Path:
    table = pa.table({"x": list(numbers), "list": [[i] * (i % 3) for i in numbers]})
    lance.write_dataset(table, str(path), mode=mode, max_rows_per_file=7)
    return path


def test_versions_come_and_the_one_that_was_opened_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lance", range(20))
    first = open_files(path)
    write(path, range(20, 30), "append")
    lance.dataset(str(path)).delete("x = 3")
    second = open_files(path)
    assert [row["x"] for row in first.read(np.arange(20))] == list(range(20)) and len(first) == 20
    assert [row["x"] for row in second.read(np.arange(29))] == [x for x in range(30) if x != 3]
    assert first.digest() != second.digest() and first.name == second.name == "a"


def test_columns_order_and_repeats(tmp_path: Path) -> None:
    source = open_files(write(tmp_path / "a.lance", range(20)), columns=["list"])
    assert [row["list"].tolist() for row in source.read(np.array([8, 1, 8]))] == [
        [8, 8],
        [1],
        [8, 8],
    ]
    with pytest.raises(ConfigError, match=r"there is no column 'y'; the columns are x, list"):
        open_files(tmp_path / "a.lance", columns=["y"])


def test_several_of_them_are_one_source(tmp_path: Path) -> None:
    for part in range(2):
        write(tmp_path / f"{part}.lance", range(5 * part, 5 * part + 5))
    source = open_files(tmp_path / "*.lance", where={"x": {"min": 3}}, cache=tmp_path / "cache")
    assert [row["x"] for row in source.read(np.arange(7))] == list(range(3, 10))


def test_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    for name, values in (("a", [1]), ("b", ["1"])):
        table, path = pa.table({"x": values}), tmp_path / f"{name}.lance"
        lance.write_dataset(table, str(path))
    with pytest.raises(DataError, match=r"its column 'x' holds string, in .* it holds int64"):
        open_files(tmp_path / "*.lance")
