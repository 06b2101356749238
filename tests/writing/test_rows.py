"""Rows in their order into files: streams, and a disk that fails. What EasyData asks of it is tested with its face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.base.seams import pretend
from penstock.testing.simulate import TornDisk
from penstock.writing import write_rows
from penstock.writing.rows import ROW_FORMATS
from writing_disk import Over


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_a_stream_is_written_in_its_order(format: Any, tmp_path: Path) -> None:
    ds = ps.from_sequence(range(500)).filter(lambda x: x % 3).map(lambda x: {"x": x, "text": str(x)})
    files = write_rows(ds, tmp_path / "out", format, max_bytes=1_000)
    assert len(files) > 3
    assert list(ps.read(tmp_path / "out")) == list(ds)
    with pytest.raises(ps.ConfigError, match="overwrite=True takes them away"):
        write_rows(ds, tmp_path / "out", format)


@pytest.mark.parametrize("how", ["kill", "error", "full"])
def test_what_is_there_is_whole_whatever_fails(how: Any) -> None:
    rows = [{"x": i} for i in range(30)]

    def written(disk: TornDisk) -> None:
        with pretend(disk=disk, store=Over(disk)):
            write_rows(rows, "/out", "jsonl", max_bytes=100, overwrite=True)

    plain = TornDisk(0)
    written(plain)
    want = {path: plain.read(path) for path in plain.paths()}
    assert [json.loads(line) for data in want.values() for line in data.splitlines()] == rows
    for n in range(1, plain.effects + 1):
        disk = TornDisk(n, fail_at=n, how=how)
        with pytest.raises(BaseException):  # noqa: B017 - the end of the process is no Exception
            written(disk)
        disk.crash()
        files = [path for path in disk.paths() if path.suffix == ".jsonl"]
        assert all(disk.read(path) == want[path] for path in files), n


@pytest.mark.parametrize("counts", [None, [1_000, 1_500]])
@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("value", [2**64, "\ud800", {"\ud800": 1}])
def test_what_no_column_holds_is_refused_by_the_number_of_its_row(
    value: Any, format: Any, counts: Any, tmp_path: Path
) -> None:
    rows = [{"n": number, "x": value if number == 2_100 else None} for number in range(2_500)]
    with pytest.raises(ps.DataError, match="row 2100: the field 'x' cannot be one column"):
        write_rows(rows, tmp_path, format, counts=counts)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_name_that_is_no_utf8_is_refused(format: Any, tmp_path: Path) -> None:
    with pytest.raises(ps.DataError, match=r"the field '\\ud800' cannot be one column"):
        write_rows([{"\ud800": 1}], tmp_path, format)
