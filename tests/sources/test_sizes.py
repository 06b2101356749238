"""Lengths of lists without reading rows: Parquet and Arrow, kept, checked, and used by packing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import penstock as ps

DOCUMENTS = [list(range(n)) for n in (3, 0, 7, 12, 1, 5, 9, 4)]


def write(path: Path, documents: list[list[int]] = DOCUMENTS, kind: pa.DataType | None = None) -> Path:
    column = pa.array(documents, kind or pa.list_(pa.int32()))
    table = pa.table({"ids": column, "name": [f"d{i}" for i in range(len(documents))]})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3)
    else:
        with pa.OSFile(str(path), "wb") as out, ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    return path


def lengths(path: Path | list[Path], **options: object) -> list[int]:
    found = ps.read(path, lengths="ids", **options).flow.source.lengths()  # type: ignore[arg-type,union-attr]
    assert found is not None and found[:].dtype == np.int64
    return found[:].tolist()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64())])
def test_lengths_are_those_of_the_rows(tmp_path: Path, suffix: str, kind: pa.DataType) -> None:
    first, second = write(tmp_path / f"a.{suffix}", kind=kind), write(tmp_path / f"b.{suffix}", [[1, 2]], kind)
    assert lengths([first, second]) == [len(ids) for ids in DOCUMENTS] + [2]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("method", ["concat_split", "best_fit"])
def test_packing_is_planned_from_them(tmp_path: Path, suffix: str, method: Any) -> None:
    path = write(tmp_path / f"a.{suffix}")
    ds = ps.read(path, columns=["ids"], lengths="ids").shuffle(seed=3).pack(16, method=method)
    rows = [ds[i] for i in range(len(ds))]
    tokens = np.concatenate([row["ids"][row["segment_ids"] > 0] for row in rows])
    assert sorted(tokens.tolist()) == sorted(token for ids in DOCUMENTS for token in ids)


def test_parquet_keeps_its_lengths_beside_the_data_or_in_a_cache(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    expected = lengths(path)
    kept = tmp_path / ".a.parquet.penstock-lengths-ids"
    assert kept.exists()
    made = kept.stat().st_mtime_ns
    assert lengths(path) == expected and kept.stat().st_mtime_ns == made
    kept.unlink()
    assert lengths(path, cache=tmp_path / "cache") == expected
    assert not kept.exists() and list((tmp_path / "cache").rglob("*lengths-ids"))


def test_a_stale_file_of_lengths_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    lengths(path)
    write(path, DOCUMENTS[::-1])
    os.utime(path, ns=(1, 1))
    with pytest.raises(ps.DataError, match=r"a\.parquet.*another version|another version.*a\.parquet"):
        lengths(path)


def test_a_damaged_file_of_lengths_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    lengths(path)
    kept = tmp_path / ".a.parquet.penstock-lengths-ids"
    body = bytearray(kept.read_bytes())
    body[-8] ^= 1
    kept.write_bytes(bytes(body))
    with pytest.raises(ps.DataError, match="damaged"):
        lengths(path)


def test_what_has_no_lengths_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    with pytest.raises(ps.ConfigError, match="lengths='name': the column holds string"):
        ps.read(path, lengths="name").flow.source.lengths()  # type: ignore[union-attr]
    with pytest.raises(ps.ConfigError, match="no column 'idz'"):
        ps.read(path, lengths="idz").flow.source.lengths()  # type: ignore[union-attr]
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"ids": [1]}\n')
    with pytest.raises(ps.ConfigError, match="only Parquet and Arrow"):
        ps.read(lines, lengths="ids").flow.source.lengths()  # type: ignore[union-attr]


def test_a_row_without_a_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ids": pa.array([[1], None], pa.list_(pa.int32()))}), path)
    with pytest.raises(ps.DataError, match="rows without a list"):
        lengths(path)
