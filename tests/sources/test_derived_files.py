from __future__ import annotations

import errno
import fcntl
import gzip
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from archives import write as write_tar
from penstock.engine.base.progress import Progress
from penstock.errors import ConfigError, DataError, StorageError
from penstock.sources import (
    derived_files,
    file_versions,
    index_and_count_rows,
    index_files,
    open_files,
)
from penstock.stores import storage
from penstock.stores.storage import LocalDisk, Stat


class Failing(LocalDisk):
    """A disk on which the n-th effect fails (from 0), or on which a folder is read-only."""

    def __init__(self, nth: int = -1, error: int = errno.EIO, closed: Path | None = None) -> None:
        self._left, self._error, self._closed = nth, error, closed

    def _effect(self, path: Path) -> None:
        if self._closed is not None and self._closed in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        self._left -= 1
        if self._left == -1:
            raise OSError(self._error, os.strerror(self._error))

    @contextmanager
    def create(self, target: Path, alone: bool, /) -> Iterator[BinaryIO]:
        self._effect(target)
        with super().create(target, alone) as file:
            yield file
            self._effect(target)

    def sync(self, path: Path, /) -> None:
        self._effect(path)
        super().sync(path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "code.jsonl"
    path.parent.mkdir()
    path.write_text("".join(f"{number}\n" for number in range(100)))
    return path


def beside(data: Path) -> Path:
    return data.with_name(f".{data.name}.penstock-lines")


def whole(path: Path, cache: Path | None = None) -> list[int]:
    source = open_files(path, cache=cache)
    return source.read(np.arange(len(source)))


def age(path: Path, seconds: float = 5) -> None:
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + int(seconds * 1e9)))


def test_the_index_is_made_once_beside_the_data(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole(data) == list(range(100))
    assert beside(data).stat().st_size == 96 + 8 * 101 + 4
    monkeypatch.setattr(
        "penstock.sources.line_index.find_row_offsets", lambda *_: pytest.fail("made again")
    )
    assert whole(data) == list(range(100))


def test_index_lines_takes_what_open_files_takes(data: Path) -> None:
    data.with_name("more.jsonl").write_text("1\n2\n")
    assert (
        index_and_count_rows(data.parent)
        == index_and_count_rows(str(data.parent / "*.jsonl"), rebuild=True)
        == 102
    )
    data.with_name("x.parquet").touch()
    with pytest.raises(ConfigError, match="carry their own index"):
        index_and_count_rows(data.with_name("x.parquet"))
    data.with_name("x.json").write_text("[1,\n2]")
    assert index_and_count_rows(data.with_name("x.json"), format="text") == 2


def test_a_changed_file_is_logged_once_for_all_that_is_derived_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "x.jsonl"

    def read(rows: int) -> int:
        caplog.clear()
        data.write_text('{"a": "x"}\n' * rows)
        assert len(ps.read(data)) == rows
        return len(ps.read(data, where={"a": "x"}))

    assert read(3) == 3 and not caplog.records
    for rows in (5, 7):
        assert read(rows) == rows
        said = [record.getMessage() for record in caplog.records]
        assert said == [f"changed since indexed or converted, so this is done again: {data}"]


def stale_size(data: Path) -> None:
    data.write_text("1\n2\n")


def stale_time(data: Path) -> None:
    age(data)


def older(data: Path) -> None:
    age(data, -1e6)


@pytest.mark.parametrize("change", [stale_size, stale_time, older])
def test_a_stale_index_is_made_again(
    data: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    whole(data)
    change(data)
    rows = len(data.read_text().split())
    for _ in range(2):
        assert len(whole(data)) == rows == index_and_count_rows(data)
    said = [record.getMessage() for record in caplog.records]
    assert said == (
        [f"changed since indexed or converted, so this is done again: {data}"]
        * (change is stale_size)
    )
    before = beside(data).read_bytes()
    open_files(data)
    assert beside(data).read_bytes() == before


def test_files_that_changed_are_logged_in_one_line(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [data.with_name(f"{number}.jsonl") for number in range(7)]
    for rows in (3, 4):
        for path in files:
            path.write_text("1\n" * rows)
        assert len(open_files(files)) == 7 * rows
    (record,) = caplog.records
    assert record.getMessage().endswith(f"{files[4]} and 2 more")


def test_a_folder_that_was_copied_is_read_without_a_word(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tar(data.with_name("x.tar"), [("a.txt", b"a"), ("b.txt", b"b")])
    pq.write_table(pa.table({"x": [1, 2]}), data.with_name("x.parquet"))
    index_and_count_rows(data.with_name("x.tar"))
    index_files([data.with_name("x.parquet")], checksum=True)
    whole(data)
    there = tmp_path / "there"
    there.mkdir()
    for path in data.parent.iterdir():
        shutil.copyfile(path, there / path.name)
        age(there / path.name)
    assert whole(there / data.name) == list(range(100))
    assert [len(open_files(there / f"x.{name}")) for name in ("tar", "parquet")] == [2, 2]
    assert not caplog.records


def test_checksums_of_a_rewritten_file_are_made_again(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = data.with_name("x.parquet")
    for value in (1, 2):  # files of one size
        pq.write_table(pa.table({"x": [value]}), path)
        age(path, value)
        index_files([path], checksum=True)
        assert open_files(path).read(np.array([0])) == [{"x": value}]
    assert len(caplog.records) == 1


def read_header(body: bytes) -> derived_files.Header:
    header = derived_files.decode_header(body)
    assert header is not None
    return header


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda body: b"",
    "header only": lambda body: body[:96],
    "short": lambda body: body[:-8],
    "long": lambda body: body + b"\0" * 8,
    "foreign": lambda body: b"PK" + body[2:],
    "other kind": lambda body: read_header(body)._replace(kind=3).encode() + body[96:],
    "flipped": lambda body: body[:40] + bytes([body[40] ^ 1]) + body[41:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_index_is_refused(data: Path, damage: Callable[[bytes], bytes]) -> None:
    whole(data)
    beside(data).write_bytes(damage(beside(data).read_bytes()))
    with pytest.raises(DataError, match="damaged, or Penstock did not write it") as caught:
        open_files(data)
    assert str(beside(data)) in str(caught.value)
    index_and_count_rows(data, rebuild=True)
    assert whole(data) == list(range(100))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_no_index(data: Path, make: Callable[[Path], None]) -> None:
    make(beside(data))
    with pytest.raises(DataError, match="damaged, or Penstock did not write it"):
        open_files(data)
    make(other := data.with_name("other"))
    with pytest.raises(DataError, match="damaged, or Penstock did not write it"):
        derived_files.read_body(other, derived_files.Kind.LINES, data)


@pytest.mark.parametrize("value", [3, 5, 0, 2**63 - 1, 2**64 - 1, 10**6])
def test_offsets_that_are_not_of_this_file_are_never_rows(data: Path, value: int) -> None:
    whole(data)
    rows, kept = derived_files.read_body(beside(data), derived_files.Kind.LINES, data)
    body = (
        bytes(kept[:8]) + value.to_bytes(8, "little") + bytes(kept[16:])
    )  # made to deceive: its digest is right
    file = derived_files.place_index(derived_files.Kind.LINES, data, "lines", None)
    derived_files.store(file, file.read_fingerprint(), rows, body, False)
    source = open_files(data)
    with pytest.raises(DataError, match="do not fit this file"):
        source.read(np.array([0, 1]))


@given(st.binary(max_size=200), st.integers(0, 100))
def test_decode_takes_any_bytes(noise: bytes, place: int) -> None:
    good = derived_files.Header(derived_files.Kind.LINES, Stat(10, -5, 7, -1), 3, 32, 9).encode()
    assert derived_files.decode_header(good) == (
        derived_files.Kind.LINES,
        (10, -5, 7, -1),
        3,
        32,
        9,
    )
    assert derived_files.decode_header(noise) is None
    spoiled = good[:place] + noise + good[place + len(noise) :]
    assert derived_files.decode_header(spoiled) == (
        derived_files.decode_header(good) if spoiled[:96] == good else None
    )


def test_a_lock_of_others_is_waited_for_by_name_and_not_at_all_with_a_cache(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    program = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as theirs:
        assert theirs.stdin is not None and theirs.stdout is not None
        theirs.stdout.readline()

        def info(text: str, *args: object) -> None:
            said.append(text % args)
            theirs.kill()

        monkeypatch.setattr(logging.getLogger("penstock"), "info", info)
        try:
            assert whole(data, tmp_path / "cache") == list(range(100)) and not said
            monkeypatch.setattr(storage, "_WAIT_LOG_SECONDS", 0.0)
            assert whole(data) == list(range(100))
        finally:
            theirs.kill()
    assert len(said) == 1 and str(data) in said[0] and "end it" not in said[0]
    if (locks := Path("/proc/locks")).exists() and locks.read_text():  # no sandbox that tells none
        assert f"process {theirs.pid} (" in said[0]


def test_another_thread_that_indexes_a_file_is_waited_for_without_a_word(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of a warning would be an error here; where the system tells no locks nobody knows whose they are."""
    waited = threading.Event()

    def tell(path: Path, whole: Callable[[Path], None] = storage._log_lock_holder) -> None:
        whole(path)
        waited.set()

    monkeypatch.setattr(storage, "_WAIT_LOG_SECONDS", 0.0)
    monkeypatch.setattr(storage, "_log_lock_holder", tell)
    said = list[str]()
    monkeypatch.setattr(logging.getLogger("penstock"), "info", lambda text, *_: said.append(text))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with data.open() as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        if (
            not (locks := Path("/proc/locks")).exists() or not locks.read_text()
        ):  # a sandbox that tells none
            return
        index = threading.Thread(target=index_and_count_rows, args=(data,))
        index.start()
        assert waited.wait(60)
    index.join()
    assert not said and whole(data) == list(range(100))


def test_a_read_only_folder_uses_the_cache(data: Path, home: Path) -> None:
    with storage.override_world(disk=Failing(closed=data.parent)):
        assert whole(data) == list(range(100))
        assert whole(data) == list(range(100))
    assert not beside(data).exists()
    (kept,) = (home / ".cache" / "penstock").rglob("*.penstock-lines")
    assert whole(data) == list(range(100))
    data.write_text("7\n")
    with storage.override_world(disk=Failing(closed=data.parent)):
        assert whole(data) == whole(data) == [7]
    assert kept.exists() and not beside(data).exists()


def test_a_stale_index_in_a_read_only_folder_is_made_again_in_the_cache(data: Path) -> None:
    whole(data)
    data.write_text("7\n")
    before = beside(data).read_bytes()
    with storage.override_world(disk=Failing(closed=data.parent)):
        assert whole(data) == whole(data) == [7]
    assert beside(data).read_bytes() == before


def test_a_cache_that_was_given_is_used(data: Path, tmp_path: Path) -> None:
    assert whole(data, tmp_path / "cache") == list(range(100))
    assert not beside(data).exists()
    assert len(list((tmp_path / "cache").rglob("*.penstock-lines"))) == 1
    assert index_and_count_rows(data, cache=tmp_path / "cache") == 100


def test_a_read_only_cache_is_said(data: Path, tmp_path: Path) -> None:
    with (
        storage.override_world(disk=Failing(closed=tmp_path)),
        pytest.raises(
            StorageError,
            match=r"penstock-lines cannot be written \(Permission denied\).*cache=FOLDER",
        ),
    ):
        open_files(data, cache=tmp_path / "cache")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("home", ["file/home", "/proc/none"])
def test_a_home_that_cannot_be_written_names_the_settings_of_the_cache(
    name: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("PENSTOCK_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    text = b"a\n1\n" if name == "a.csv" else b'{"a": 1}\n'
    path = tmp_path / "data" / name
    path.parent.mkdir()
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with (
        storage.override_world(disk=Failing(closed=path.parent)),
        pytest.raises(
            StorageError,
            match=r"cannot be written \(.*\): make its folder writable, or give cache=.*PENSTOCK_CACHE",
        ),
    ):
        ps.read(path)


def test_a_stale_index_in_a_read_only_folder_is_not_hidden(data: Path) -> None:
    whole(data)
    age(data)
    with (
        storage.override_world(disk=Failing(closed=data.parent)),
        pytest.raises(StorageError, match="cannot be written"),
    ):
        index_and_count_rows(data, rebuild=True)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_every_effect_of_writing_an_index_may_fail(data: Path, error: int) -> None:
    for nth in range(3):
        with (
            storage.override_world(disk=Failing(nth, error)),
            pytest.raises(StorageError, match="cannot be written"),
        ):
            open_files(data)
        assert [path.name for path in data.parent.iterdir()] == ["code.jsonl"]
    with storage.override_world(disk=Failing(99)):
        assert whole(data) == list(range(100))


def test_an_index_that_goes_while_it_is_needed_is_named(data: Path) -> None:
    source = pickle.dumps(open_files(data))
    beside(data).unlink()
    with pytest.raises(StorageError, match=r"penstock-lines.*: .*No such file"):
        pickle.loads(source).read(np.arange(2))


def test_data_that_changes_while_it_is_indexed_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grow(progress: Progress, done: int) -> None:
        with data.open("a") as file:
            file.write("100\n")

    monkeypatch.setattr(Progress, "tell", grow)
    with pytest.raises(DataError, match="changed while it was in use"):
        open_files(data)
    assert not beside(data).exists()


@pytest.mark.parametrize("moment", range(8))
def test_an_index_that_another_process_replaces_is_not_damaged(
    data: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    index, fresh = beside(data), data.with_name("fresh")
    whole(data)
    stale = index.read_bytes()
    data.write_text("1\n2\n")
    whole(data)
    index.replace(fresh)
    index.write_bytes(stale)
    calls, stat_file = [0], file_versions.stat_file

    def stat_and_replace(path: Path) -> Stat:
        """Replace the index before or after the n-th question about a file."""
        if calls[0] == moment and fresh.exists():
            fresh.replace(index)
        result = stat_file(path)
        if calls[0] + 1 == moment and fresh.exists():
            fresh.replace(index)
        calls[0] += 2
        return result

    monkeypatch.setattr(file_versions, "stat_file", stat_and_replace)
    assert whole(data) == [1, 2]


def test_nothing_is_kept_in_folders_of_the_system_or_of_others(
    data: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived_files, "_SYSTEM_FOLDERS", (data.parent,))
    assert whole(data) == list(range(100))
    assert [one.name for one in data.parent.iterdir()] == [data.name]
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(home))
    if os.geteuid() == 0:
        os.chown(data.parent, 65534, -1)
        assert derived_files.index_path(data, home / "other", "lines").is_relative_to(home)
        assert derived_files.index_path(data, None, "tar").is_relative_to(home)


def test_a_file_that_moved_keeps_an_index_that_can_check_it_and_no_other(
    data: Path, tmp_path: Path
) -> None:
    whole(data)
    made = beside(data).stat().st_ino
    times = data.stat().st_mtime_ns
    copy = tmp_path / "copy"
    copy.write_bytes(data.read_bytes())
    os.replace(copy, data)
    os.utime(data, ns=(times, times))
    assert whole(data) == list(range(100))
    assert beside(data).stat().st_ino == made
    data.write_bytes(data.read_bytes().replace(b"57", b"58"))
    os.utime(data, ns=(times, times))
    with pytest.raises(
        DataError, match=r"code\.jsonl: bytes 0 to 4,095 changed since the file was indexed"
    ):
        whole(data)


def test_a_file_that_is_swapped_during_a_run_is_noticed_though_its_size_and_time_are_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.tar"
    write_tar(path, [("1.txt", b"one")])
    source, times = open_files(path), path.stat().st_mtime_ns
    os.link(path, tmp_path / "backup")  # changes ctime, and nothing else
    assert source.read(np.arange(1))[0]["txt"] == b"one"
    write_tar(tmp_path / "y", [("1.txt", b"two")])
    os.utime(tmp_path / "y", ns=(times, times))
    os.replace(tmp_path / "y", path)
    with pytest.raises(DataError, match="changed while it was in use"):
        source.read(np.arange(1))
    assert open_files(path).read(np.arange(1))[0]["txt"] == b"two"


@pytest.mark.parametrize("name", ["na\udcffme", "n" * 240])
def test_files_of_any_name_are_read(tmp_path: Path, name: str) -> None:
    for suffix, body in {
        "jsonl": b'{"a": 1}\n',
        "csv": b"a\n1\n",
        "jsonl.gz": gzip.compress(b'{"a": 1}\n'),
    }.items():
        path = tmp_path / f"{name}.{suffix}"
        path.write_bytes(body)
        for _ in range(2):
            assert open_files(path).read(np.arange(1)) == [{"a": 1}]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / f"{name}.parquet")
    assert open_files(tmp_path / f"{name}.parquet", where={"a": [1]}).read(np.arange(1)) == [
        {"a": 1}
    ]


@pytest.mark.parametrize("time", [-1 << 40, 1 << 62, 9_223_372_037 * 10**9, 15 * 10**18])
def test_files_of_any_time_are_indexed(tmp_path: Path, time: int) -> None:
    path = write_tar(tmp_path / "x.tar", [("1.txt", b"abc")])
    (lines := tmp_path / "x.jsonl").write_text('{"x": 1}\n')
    for file in (path, lines):
        try:
            os.utime(file, ns=(0, time))
        except OverflowError:
            pytest.skip("the file system has no such time")
        assert index_and_count_rows(file) == 1
        before = storage.world.store.stat(str(file))
        assert len(open_files(file)) == 1
        assert storage.world.store.stat(str(file)) == before


def test_a_killed_writer_without_nameless_files_is_swept_away(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")  # as where a file system has no such files
    left = data.with_name(f".{beside(data).name}.tmp")
    left.write_bytes(b"half")
    assert whole(data) == list(range(100))
    assert sorted(one.name for one in data.parent.iterdir()) == [beside(data).name, data.name]
