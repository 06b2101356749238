"""Many files: one process of a machine looks at them, none has an index of its own, and no change goes unseen."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import archives
import penstock as ps
from helpers import through_json
from penstock.engine.base import machine
from penstock.errors import ConfigError, DataError
from penstock.sources import catalog, count_catalog_rows, index_and_count_rows, open_files
from penstock.stores import storage
from penstock.stores.storage import LocalDisk, LocalStore

MANY = 40


class Counting(LocalStore):
    """Counts what is asked of data files; of what we keep ourselves nothing."""

    def __init__(self) -> None:
        self.stats = self.reads = 0

    def stat(self, path: str, /) -> storage.Stat:
        self.stats += "penstock" not in Path(path).name
        return super().stat(path)

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        self.reads += "penstock" not in Path(path).name
        return super().read(path, start, length)


def jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def packed(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("x\n" + "".join(f"{row['x']}\n" for row in rows))


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([("x", pa.int64())])), path)


def arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    feather.write_feather(
        pa.Table.from_pylist(rows, pa.schema([("x", pa.int64())])), str(path), compression=None
    )


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "jsonl": jsonl,
    "jsonl.gz": packed,
    "json": jsonl,
    "csv": csv,
    "parquet": parquet,
    "arrow": arrow,
}


def written(
    folder: Path, suffix: str = "jsonl", files: int = MANY
) -> tuple[Path, list[dict[str, Any]]]:
    """Files of 1, 2, 3, 1, ... rows, and all their rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list[dict[str, Any]]()
    for number in range(files):
        mine = [{"x": len(rows) + row} for row in range(number % 3 + 1)]
        WRITERS[suffix](folder / f"{number:05}.{suffix}", mine)
        rows += mine
    return folder, rows


def all_of(source: Any) -> list[Any]:
    return source.read(np.arange(len(source)))


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this process another one, as far as a catalog can tell."""
    numbers = iter(range(1_000_000, 2_000_000))

    def become() -> None:
        number = next(numbers)
        monkeypatch.setattr(machine, "get_pid", lambda: number)

    return become


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("suffix", WRITERS)
def test_rows_are_those_of_the_files(
    tmp_path: Path, suffix: str, other: Callable[[], None]
) -> None:
    folder, rows = written(tmp_path / "data", suffix)
    source = open_files(folder, cache=tmp_path / "cache")
    assert all_of(source) == rows
    other()
    store = Counting()
    with storage.override_world(store=store):
        again = open_files(folder, cache=tmp_path / "cache")
        described = again.describe()
    assert (store.stats, store.reads) == (catalog._CHECKED_FILES, 0)
    assert described == source.describe()
    order = np.random.default_rng(0).permutation(len(rows))
    assert again.read(order) == [rows[index] for index in order.tolist()]
    assert all_of(pickle.loads(pickle.dumps(again))) == rows


def test_text_and_its_columns(tmp_path: Path) -> None:
    for number in range(MANY):
        (tmp_path / f"{number:02}.txt").write_text(f"\ufeffone {number}\n\ntwo\n")
    assert all_of(open_files(tmp_path))[:2] == [{"text": "one 0"}, {"text": "two"}]
    assert open_files(tmp_path).describe() == {
        "format": "text",
        "rows": 2 * MANY,
        "columns": ["text"],
    }
    with pytest.raises(ConfigError, match="only the column 'text'"):
        open_files(tmp_path, columns=["line"])


def test_columns_of_lines_are_no_part_of_the_catalog(tmp_path: Path) -> None:
    folder, rows = written(tmp_path / "data")
    assert all_of(open_files(folder, columns=["x"])) == all_of(open_files(folder)) == rows
    assert len(list(folder.glob(".*"))) == 1


def test_columns_of_tables_take_the_order_of_the_first(tmp_path: Path) -> None:
    for number in range(MANY):
        table = pa.table({"a": [number], "b": [-number]})
        pq.write_table(
            table.select(["b", "a"] if number == 7 else ["a", "b"]),
            tmp_path / f"{number:02}.parquet",
        )
    assert [list(row) for row in all_of(open_files(tmp_path))][6:9] == [["a", "b"]] * 3
    assert all_of(open_files(tmp_path, columns=["b"]))[7] == {"b": -7}
    pq.write_table(pa.table({"a": [1], "c": [1]}), tmp_path / "99.parquet")
    with pytest.raises(
        DataError, match=r"99\.parquet: its columns are a, c, those of .*00\.parquet are a, b"
    ):
        open_files(tmp_path)


def test_archives(tmp_path: Path) -> None:
    for number in range(MANY):
        archives.write(tmp_path / f"{number:02}.tar", [("a.txt", b"%d" % number)])
    source = open_files(tmp_path)
    assert [row["txt"] for row in all_of(source)] == [b"%d" % number for number in range(MANY)]


def test_where_and_lengths_go_through_a_catalog(tmp_path: Path) -> None:
    for number in range(MANY):
        pq.write_table(
            pa.table({"x": [number], "t": [list(range(number))]}), tmp_path / f"{number:02}.parquet"
        )
    source = open_files(tmp_path, where={"x": {"min": 38}}, lengths="t")
    assert [row["x"] for row in all_of(source)] == [38, 39]
    found = source.lengths()
    assert found is not None and found[:].tolist() == [38, 39]


# ---------------------------------------------------------------- what is kept


def test_tiny_files_have_no_indexes_of_their_own_and_large_ones_do(tmp_path: Path) -> None:
    folder, rows = written(tmp_path / "data")
    big = [{"x": row} for row in range(20_000)]
    jsonl(folder / "big.jsonl", big)
    assert all_of(open_files(folder)) == rows + big
    kept = sorted(path.name for path in folder.glob(".*"))
    assert len(kept) == 2 and ".big.jsonl.penstock-lines" in kept


def test_few_files_have_no_catalog(tmp_path: Path) -> None:
    folder, _ = written(tmp_path / "data", files=catalog.MIN_CATALOG_FILES - 1)
    open_files(folder)
    assert not list(folder.glob(".*penstock-files"))


def test_where_nothing_can_be_kept_files_are_read_all_the_same(tmp_path: Path) -> None:
    class Closed(LocalDisk):
        def write(self, path: Path, data: bytes, /) -> None:
            raise PermissionError(13, "Permission denied")

    folder, rows = written(tmp_path / "data")
    with storage.override_world(disk=Closed()):
        assert all_of(open_files(folder)) == rows


def test_a_damaged_catalog_is_refused_and_made_again(tmp_path: Path) -> None:
    folder, rows = written(tmp_path / "data")
    open_files(folder)
    (kept,) = folder.glob(".*penstock-files")
    body = bytearray(kept.read_bytes())
    for damaged in (bytes(body[:100]), bytes(body[:-1]) + bytes([body[-1] ^ 1]), b""):
        kept.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged, or Penstock did not write it: delete it"):
            open_files(folder)
    assert index_and_count_rows(folder, rebuild=True) == len(rows)
    assert all_of(open_files(folder)) == rows


def test_an_index_made_ahead_is_the_one_that_is_used(
    tmp_path: Path, other: Callable[[], None]
) -> None:
    folder, rows = written(tmp_path / "data")
    assert count_catalog_rows(sorted(folder.glob("*.jsonl")), "jsonl", None) is None
    assert index_and_count_rows(folder) == len(rows)
    other()
    store = Counting()
    with storage.override_world(store=store):
        open_files(f"{folder}/*.jsonl")
    assert (store.stats, store.reads) == (catalog._CHECKED_FILES, 0)
    assert count_catalog_rows(sorted(folder.glob("*.jsonl")), "jsonl", None) == len(rows)


# ---------------------------------------------------------------- what changes


def grown(folder: Path) -> Path:
    path = folder / "00007.jsonl"
    path.write_text('{"x": -1}\n' * 9)
    return path


def test_a_catalog_of_files_that_changed_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, rows = written(tmp_path / "data")
    open_files(folder)
    path = grown(folder)
    for _ in range(2):
        assert len(open_files(folder)) == index_and_count_rows(folder) == len(rows) - 2 + 9
    (record,) = caplog.records
    assert record.getMessage().endswith(f"done again: {path}")
    os.utime(path, ns=(0, 0))
    assert len(open_files(folder)) == len(rows) - 2 + 9 and len(caplog.records) == 1


def test_tables_that_changed_are_looked_at_anew(tmp_path: Path) -> None:
    folder, rows = written(tmp_path / "data", "parquet")
    open_files(folder)
    parquet(folder / "00007.parquet", [{"x": 0}] * 9)
    assert len(open_files(folder)) == len(rows) - 2 + 9


def test_who_trusts_another_one_finds_a_change_when_he_reads(
    tmp_path: Path, other: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_CHECKED_FILES", 1)
    folder, rows = written(tmp_path / "data")
    open_files(folder)
    grown(folder)
    other()
    source = open_files(folder)
    assert source.read(np.arange(3)) == rows[:3]
    with pytest.raises(DataError, match=r"00007\.jsonl: the file changed while it was in use"):
        all_of(source)
    assert len(open_files(folder)) == len(rows) - 2 + 9


def test_who_trusts_another_one_looks_at_some_files(
    tmp_path: Path, other: Callable[[], None]
) -> None:
    folder, rows = written(tmp_path / "data")
    open_files(folder)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".jsonl":
            jsonl(path, [{"x": 5}])
    other()
    assert all_of(open_files(folder)) == [{"x": 5}] * MANY != rows


def test_who_ended_is_not_trusted(tmp_path: Path, other: Callable[[], None]) -> None:
    folder, rows = written(tmp_path / "data")
    other()
    open_files(folder)
    grown(folder)
    other()
    assert len(all_of(open_files(folder))) == len(rows) - 2 + 9


def test_after_a_minute_the_files_are_looked_at_again(
    tmp_path: Path, other: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = written(tmp_path / "data")
    open_files(folder)
    now = storage.read_wall_time()
    for late, stats in (
        (59, catalog._CHECKED_FILES),
        (61, MANY),
        (-5, MANY),
    ):  # a process that compares all files writes the note again
        other()
        monkeypatch.setattr(storage, "read_wall_time", lambda at=now + late: at)
        store = Counting()
        with storage.override_world(store=store):
            open_files(folder)
        assert store.stats == stats


def test_another_set_of_files_has_another_catalog(tmp_path: Path) -> None:
    folder, rows = written(tmp_path / "data")
    assert len(open_files(folder)) == len(rows)
    jsonl(folder / "more.jsonl", [{"x": 0}])
    assert len(open_files(folder)) == len(rows) + 1


# ---------------------------------------------------------------- who looks

RANK = """
import json, os, sys
from pathlib import Path
import penstock as ps
from penstock.stores import storage
from penstock.engine.base import seams
from test_catalog import Counting

real, looked = os.stat, 0
def stat(path, *args, **options):
    global looked
    looked += str(path).endswith(".jsonl")
    return real(path, *args, **options)
os.stat = stat

store = Counting()
with storage.override_world(store=store):
    it = iter(ps.read(sys.argv[1], cache=sys.argv[2], name="m").shuffle())
    opened = store.reads
    sample = next(it)
    state = it.state_dict()
print(json.dumps([looked, opened, store.reads, sample, state]), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow  # four processes
def test_one_of_four_ranks_touches_the_files_and_the_others_none(tmp_path: Path) -> None:
    files = 1_000
    folder, _ = written(tmp_path / "data", files=files)
    command = [sys.executable, "-c", RANK, f"{folder}/*.jsonl", str(tmp_path / "cache")]
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    for makes in (True, False):
        pipe = subprocess.PIPE
        ranks = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=where)
            for _ in range(4)
        ]
        said = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout]
        for rank in ranks:
            rank.communicate(timeout=300)
        looked, opened, reads = (sorted(one[place] for one in said) for place in range(3))
        assert opened[:3] == [0, 0, 0] and opened[3] == (files if makes else 0)
        # One makes the catalog, one (the same or another) the digest of 64 rows; else each reads its own sample.
        assert looked[1] < 20 and looked[3] >= files
        assert looked[2] < 300 and reads[1] < 5
        assert all(one[3:] == said[0][3:] for one in said)
    assert len(list((tmp_path / "cache").rglob("*penstock*"))) < 10


def test_a_run_over_many_files_resumes_in_another_process(
    tmp_path: Path, other: Callable[[], None]
) -> None:
    folder, rows = written(tmp_path / "data")
    make = lambda: iter(ps.read(folder, name="m").shuffle())  # noqa: E731
    whole = list(make())
    assert sorted(row["x"] for row in whole) == [row["x"] for row in rows]
    it = make()
    first = [next(it) for _ in range(11)]
    state = through_json(it.state_dict())
    other()
    again = make()
    again.load_state_dict(state)
    assert first + list(again) == whole
