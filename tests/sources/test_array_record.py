"""ArrayRecord files that their own package wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreign_formats import example, example_rows
from penstock.errors import ConfigError, DataError
from penstock.sources import index_and_count_rows, open_files
from penstock.testing.asserts import describe_difference

module: Any = pytest.importorskip("array_record.python.array_record_module")


def write(path: Path, records: Sequence[bytes], options: str = "group_size:1") -> Path:
    writer = module.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.mark.parametrize(
    "options", ["group_size:1", "group_size:7", "group_size:4,uncompressed", "brotli:5"]
)
def test_records_of_every_way_of_writing(options: str, tmp_path: Path) -> None:
    records = [bytes([i]) * (i * 97) for i in range(40)]
    source = open_files(write(tmp_path / "a.array_record", records, options))
    assert [row["__record__"] for row in source.read(np.arange(40)[::-1])] == records[::-1]


def test_examples_in_them(tmp_path: Path) -> None:
    rows = example_rows(6)
    for part in range(2):
        records = [example(row) for row in rows[3 * part : 3 * part + 3]]
        write(tmp_path / f"set-train.array_record-0000{part}-of-00002", records)
    source = open_files(tmp_path / "set*", columns=["tokens", "id"])
    assert not describe_difference(
        source.read(np.arange(6)), [{"tokens": row["tokens"], "id": row["id"]} for row in rows]
    )
    write(tmp_path / "b.array_record", [b"none"])
    with pytest.raises(DataError, match=r"b\.array_record, record 0: it is no tf\.train\.Example"):
        open_files(tmp_path / "b.array_record", columns=["x"]).read(np.array([0]))


def test_what_is_none_and_what_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.array_record").write_bytes(b"nothing of the kind" * 9)
    with pytest.raises(
        DataError,
        match=r"a\.array_record: the file cannot be read: it is damaged, was cut off, or is no",
    ):
        open_files(tmp_path / "a.array_record")
    assert len(open_files(write(tmp_path / "b.array_record", []))) == 0
    with pytest.raises(ConfigError, match="array_record files carry their own index"):
        index_and_count_rows(tmp_path / "b.array_record")
