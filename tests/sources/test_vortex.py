"""Vortex files, written by their own package."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import ConfigError, DataError, StorageError
from penstock.sources import index_files, open_files
from penstock.stores import storage

vortex: Any = pytest.importorskip("vortex")


def write(path: Path, numbers: range) -> Path:
    table = pa.table(
        {"x": list(numbers), "text": [None if i % 5 == 0 else f"ü{i}" for i in numbers]}
    )
    vortex.io.write(table, str(path))
    return path


def test_columns_order_and_repeats(tmp_path: Path) -> None:
    source = open_files(write(tmp_path / "a.vortex", range(20)), columns=["text"])
    assert source.read(np.array([8, 5, 8])) == [{"text": "ü8"}, {"text": None}, {"text": "ü8"}]
    with pytest.raises(
        ConfigError, match=r"a\.vortex: there is no column 'y'; the columns are x, text"
    ):
        open_files(tmp_path / "a.vortex", columns=["y"])


def test_batches_stay_columns(tmp_path: Path) -> None:
    ds = ps.read(write(tmp_path / "a.vortex", range(20)), rows="columns")
    batches: Any = ds.shuffle(seed=1).batch(4, collate=lambda columns: columns)
    found = batches[0]["x"]
    assert found.dtype == np.int64 and len(set(found.tolist())) == 4


def test_several_of_them_are_one_source(tmp_path: Path) -> None:
    for part in range(2):
        write(tmp_path / f"{part}.vortex", range(5 * part, 5 * part + 5))
    source = open_files(tmp_path / "*.vortex", where={"x": {"min": 3}}, cache=tmp_path / "cache")
    assert [row["x"] for row in source.read(np.arange(7))] == list(range(3, 10))


def test_what_is_no_table_and_what_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.vortex").write_bytes(b"nothing of the kind" * 9)
    with pytest.raises(DataError, match=r"a\.vortex: cannot be read: [^\n]*$"):
        open_files(tmp_path / "a.vortex")
    vortex.io.write(vortex.array([1, 2]), str(tmp_path / "b.vortex"))
    with pytest.raises(DataError, match=r"b\.vortex: it holds i64, not a table of columns"):
        open_files(tmp_path / "b.vortex")
    assert len(open_files(write(tmp_path / "c.vortex", range(0)))) == 0


def test_a_flipped_bit_is_noticed_by_checksums(tmp_path: Path) -> None:
    path = write(tmp_path / "a.vortex", range(2000))
    index_files([path], checksum=True)
    body, stat = path.read_bytes(), storage.LocalStore().stat(str(path))

    class Rotten(storage.LocalStore):
        def stat(self, path: str, /) -> storage.Stat:
            return stat if path.endswith("a.vortex") else super().stat(path)

    with storage.override_world(store=Rotten()):
        path.write_bytes(bytes([body[0] ^ 1]) + body[1:200] + bytes([body[200] ^ 1]) + body[201:])
        with pytest.raises(
            DataError, match=r"a\.vortex: bytes 0 to 4,095 changed since the file was indexed"
        ):
            open_files(path).read(np.arange(2000))


def test_storage_that_fails_is_no_fault_of_the_sample(tmp_path: Path) -> None:
    path, numbers = tmp_path / "a.vortex", np.random.default_rng(0).integers(0, 1 << 62, 100_000)
    vortex.io.write(pa.table({"x": pa.array(numbers)}), str(path))
    gone = False

    class Gone(storage.LocalStore):
        def read(self, path: str, at: int = 0, size: int | None = None, /) -> bytes:
            if gone and path.endswith("a.vortex"):
                raise OSError(5, "Input/output error")
            return super().read(path, at, size)

    with storage.override_world(store=Gone()):
        source = open_files(path)
        gone = True
        with pytest.raises(StorageError, match=r"a\.vortex: Input/output error"):
            source.read(np.array([50_000]))
        gone = False
        assert source.read(np.array([50_000])) == [{"x": numbers[50_000]}]


def test_nothing_is_held_of_a_source_that_is_gone(tmp_path: Path) -> None:
    from weakref import ref

    source = open_files(write(tmp_path / "a.vortex", range(20)))
    source.read(np.arange(3))
    data = ref(source.files[0]._data)  # type: ignore[attr-defined]
    del source
    gc.collect()
    assert data() is None


def test_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    for name, values in (("a", [1]), ("b", ["1"])):
        table, path = pa.table({"x": values}), tmp_path / f"{name}.vortex"
        vortex.io.write(table, str(path))
    with pytest.raises(DataError, match=r"its column 'x' holds string, in .* it holds int64"):
        open_files(tmp_path / "*.vortex")
