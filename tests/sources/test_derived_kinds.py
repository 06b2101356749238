"""All kinds of derived files keep one set of rules: damage, versions, processes, kills, full disks.

Each case opens some data, which makes derived files of one kind, and returns what it reads.
"""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archives import write as write_tar
from example_counts import pick_cases
from penstock.errors import DataError, StorageError
from penstock.sources import catalog, derived_files, index_files, open_files
from penstock.sources.cached_integers import CachedIntegers
from penstock.sources.derived_files import Kind
from penstock.sources.partition import read_values
from penstock.stores import storage
from penstock.stores.storage import LocalDisk

MANY = catalog.MIN_CATALOG_FILES


class Case(NamedTuple):
    """Recipe of a kind: makes its data, in a second version too, and uses it."""

    write: Callable[[Path, int], Any]
    use: Callable[[Path, Path | None], Any]
    suffix: str
    is_beside: bool = True
    is_content_checked: bool = False


def write_lines(folder: Path, version: int) -> None:
    text = "".join(f'{{"text": "{n % 3}", "n": {n}}}\n' for n in range(50 * version))
    (folder / "x.jsonl").write_text(text)


def write_packed(folder: Path, version: int) -> None:
    (folder / "x.txt.gz").write_bytes(gzip.compress(b"one\n" * version))


def write_csv(folder: Path, version: int) -> None:
    (folder / "x.csv").write_text("a\n" + "1\n" * version)


def write_lists(folder: Path, version: int) -> None:
    pq.write_table(pa.table({"a": [[1] * n for n in range(9 * version)]}), folder / "x.parquet")


def write_column(folder: Path, version: int) -> None:
    texts = [f"{n % 3}" for n in range(50 * version)]
    pq.write_table(pa.table({"a": texts}), folder / "x.parquet")


def write_tokens(folder: Path, version: int) -> None:
    np.asarray([5, 6, 0] * (10 * version), np.uint16).tofile(folder / "x.bin")


def write_archive(folder: Path, version: int) -> None:
    write_tar(folder / "x.tar", [(f"{n}.txt", b"x") for n in range(3 * version)])


def write_many(folder: Path, version: int) -> None:
    for n in range(MANY):
        (folder / f"{n:03}.jsonl").write_text(f"{n}\n" * version)


def read_all(path: Path, cache: Path | None, **options: Any) -> Any:
    source = open_files(path, cache=cache, **options)
    return [str(row) for row in source.read(np.arange(len(source)))]


def use_checksums(folder: Path, cache: Path | None) -> Any:
    index_files([folder / "x.parquet"], checksum=True, cache=cache)
    return read_all(folder / "x.parquet", cache)


def use_fact(folder: Path, cache: Path | None) -> Any:
    path, made = folder / "x.jsonl", list[int]()
    stats = [derived_files.file_versions.stat_file(path)]

    def make() -> int:
        made.append(1)
        return path.read_text().count("\n")

    return derived_files.load_fact([path], stats, "lines", make, cache)


def use_integers(folder: Path, cache: Path | None) -> Any:
    lines = (folder / "x.jsonl").read_text().splitlines()
    make = lambda: np.arange(2_000) + len(lines)  # noqa: E731
    return CachedIntegers({"lines": len(lines)}, make, cache)[0:2_000].tolist()


def use_lengths(folder: Path, cache: Path | None) -> Any:
    with derived_files.merge_logs():
        source = open_files(folder / "x.jsonl", lengths=Words(), cache=cache)
        return np.asarray(source.lengths()).tolist()


def use_values(folder: Path, cache: Path | None) -> Any:
    with derived_files.merge_logs():
        values = read_values(open_files(folder / "x.parquet", cache=cache), ["a"])
    assert values is not None
    return [[*map(list, values.distinct)], values.codes.tolist()]


class Words:
    """Counts the words of texts."""

    counted, lasting = "words", True

    def counts(self, samples: list[Any]) -> list[int]:
        return [len(sample["text"].split()) for sample in samples]


CASES = {
    Kind.LINES: Case(write_lines, lambda f, c: read_all(f / "x.jsonl", c), "lines"),
    Kind.COPY: Case(write_packed, lambda f, c: read_all(f / "x.txt.gz", c), "stamp", False),
    Kind.CSV_TABLE: Case(write_csv, lambda f, c: read_all(f / "x.csv", c), "stamp", False),
    Kind.LENGTHS: Case(write_lines, use_lengths, "lengths-*"),
    Kind.SELECTED_ROWS: Case(
        write_lines, lambda f, c: read_all(f / "x.jsonl", c, where={"text": "1"}), "rows", False
    ),
    Kind.FACT: Case(write_lines, use_fact, "known", False),
    Kind.CATALOG: Case(write_many, read_all, "files"),
    Kind.CHECKSUMS: Case(write_lists, use_checksums, "sums"),
    Kind.DOCUMENT_ENDS: Case(
        write_tokens,
        lambda f, c: read_all(f / "x.bin", c, format="tokens", dtype="uint16", eos=0),
        "documents-*",
    ),
    Kind.INTEGERS: Case(write_lines, use_integers, "stamp", False),
    Kind.COLUMN_VALUES: Case(write_column, use_values, "values", False),
    Kind.TAR_INDEX: Case(write_archive, lambda f, c: read_all(f / "x.tar", c), "tar"),
}
KEYED = (Kind.FACT, Kind.CATALOG, Kind.INTEGERS)
"""Kinds whose fingerprint is a hash of a key."""


@pytest.fixture(params=CASES, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def folder(kind: Kind, tmp_path: Path, home: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    CASES[kind].write(folder, 1)
    return folder


def use(kind: Kind, folder: Path, cache: Path | None = None) -> Any:
    return CASES[kind].use(folder, cache)


def list_derived(kind: Kind, *roots: Path) -> list[Path]:
    """Return the derived files of a kind."""
    found = [path for root in roots for path in root.rglob(f"*.penstock-{CASES[kind].suffix}")]
    found = [path for path in found if path.suffix != ".tmp"]  # the leftover of a killed process
    return [path for path in found if (header := read_header(path)) and header.kind == kind]


def read_header(path: Path) -> derived_files.Header | None:
    return derived_files.decode_header(path.read_bytes()[: derived_files.HEADER_BYTES])


def test_every_kind_has_a_case() -> None:
    assert {*CASES} == {*Kind} - {Kind.CATALOG_CHECK}  # which belongs to catalogs


def test_a_file_is_made_once(kind: Kind, folder: Path, home: Path) -> None:
    expected = use(kind, folder)
    (path,) = list_derived(kind, folder, home)
    assert path.is_relative_to(folder) == CASES[kind].is_beside
    made = path.stat().st_ino
    assert use(kind, folder) == expected and path.stat().st_ino == made


def damage(path: Path, at: int) -> None:
    """Flip a bit, in a new file: another process may map the old one."""
    body = bytearray(path.read_bytes())
    body[at] ^= 4
    replace(path, bytes(body))


def replace(path: Path, body: bytes) -> None:
    path.with_name("new").write_bytes(body)
    path.with_name("new").replace(path)


@pytest.mark.parametrize("at", [0, 20, 90, -1], ids=["magic", "header", "checksum", "body"])
def test_damage_in_the_cache_is_made_good_with_one_line(
    kind: Kind, folder: Path, tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    expected = use(kind, folder, cache)
    (path,) = list_derived(kind, cache)
    whole = path.read_bytes()
    damage(path, at)
    assert use(kind, folder, cache) == expected
    (record,) = caplog.records
    assert record.getMessage() == f"damaged, so this is made again: {path}"
    assert path.read_bytes()[96:] == whole[96:]
    assert use(kind, folder, cache) == expected and len(caplog.records) == 1


@pytest.mark.parametrize("cut", [0, 50, 96, -1])
def test_a_file_that_was_cut_off_in_the_cache_is_made_good(
    kind: Kind, folder: Path, tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    expected = use(kind, folder, cache)
    (path,) = list_derived(kind, cache)
    replace(path, path.read_bytes()[:cut])
    assert use(kind, folder, cache) == use(kind, folder, cache) == expected
    assert len(caplog.records) == 1


@pytest.mark.parametrize("at", [0, 20, 90, -1], ids=["magic", "header", "checksum", "body"])
def test_damage_beside_the_data_is_an_error_that_names_the_file(
    kind: Kind, folder: Path, at: int
) -> None:
    if not CASES[kind].is_beside:
        return
    expected = use(kind, folder)
    (path,) = list_derived(kind, folder)
    damage(path, at)
    before = path.read_bytes()
    with pytest.raises(DataError, match="is damaged, or Penstock did not write it") as caught:
        use(kind, folder)
    assert str(path) in str(caught.value) and path.read_bytes() == before
    path.unlink()
    assert use(kind, folder) == expected


@pytest.mark.parametrize("version", [1, 2, 4, 1 << 31])
def test_a_file_of_another_version_is_made_again_with_one_line(
    kind: Kind, folder: Path, home: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected = use(kind, folder)
    (path,) = list_derived(kind, folder, home)
    whole = path.read_bytes()
    replace(path, whole[:8] + version.to_bytes(4, "little") + whole[12:40])
    assert use(kind, folder) == expected
    (record,) = caplog.records
    assert "by another version of Penstock, so this is done again" in record.getMessage()
    assert path.read_bytes()[96:] == whole[96:]
    assert use(kind, folder) == expected and len(caplog.records) == 1


def test_changed_data_is_derived_from_again(
    kind: Kind, folder: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = use(kind, folder)
    CASES[kind].write(folder, 2)
    second = use(kind, folder)
    assert first != second
    assert len(caplog.records) <= 1
    if kind not in (Kind.FACT, Kind.INTEGERS):  # their names contain what they follow from
        assert caplog.records[0].getMessage().startswith("changed since indexed or converted")
    shutil.rmtree(home / ".cache", ignore_errors=True)
    for path in folder.glob(".*penstock*"):
        path.unlink()
    assert use(kind, folder) == second


# ---------------------------------------------------------------- disks


class Disk(LocalDisk):
    """A disk that is full, or on which a folder is read-only."""

    def __init__(self, number: int, closed: Path | None = None) -> None:
        self._number, self._closed = number, closed

    @contextmanager
    def create(self, target: Path, alone: bool, /) -> Iterator[BinaryIO]:
        if self._closed is None:
            with super().create(target, alone) as file:
                yield file
                raise OSError(self._number, os.strerror(self._number))
        if self._closed in target.parents:
            raise OSError(self._number, os.strerror(self._number))
        with super().create(target, alone) as file:
            yield file


def test_a_full_disk_is_an_error_or_leaves_the_file_out(
    kind: Kind, folder: Path, home: Path
) -> None:
    with storage.override_world(disk=Disk(errno.ENOSPC)):
        if kind.optional and kind != Kind.SELECTED_ROWS:  # which needs an index, too
            full = use(kind, folder)
        else:
            with pytest.raises(StorageError, match="No space left on device"):
                use(kind, folder)
            full = None
    assert not [path for root in (folder, home) for path in root.rglob(".*tmp")]
    assert not list_derived(kind, folder, home)
    assert full in (None, use(kind, folder))


def test_a_read_only_folder_of_data_uses_the_cache(kind: Kind, folder: Path, home: Path) -> None:
    names = sorted(os.listdir(folder))
    with storage.override_world(disk=Disk(errno.EROFS, folder)):
        expected = use(kind, folder)
        assert use(kind, folder) == expected
    assert sorted(os.listdir(folder)) == names
    assert len(list_derived(kind, home)) == 1
    assert use(kind, folder) == expected


def test_a_read_only_cache_is_an_error_or_leaves_the_file_out(
    kind: Kind, folder: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with storage.override_world(disk=Disk(errno.EACCES, cache)):
        if kind.optional and kind != Kind.SELECTED_ROWS:
            assert use(kind, folder, cache) == use(kind, folder)
        else:
            with pytest.raises(StorageError, match="Permission denied"):
                use(kind, folder, cache)
    assert not list_derived(kind, cache)


# ---------------------------------------------------------------- processes

PROCESS = """
import json, os, signal, sys
from contextlib import contextmanager
from pathlib import Path
import test_derived_kinds as kinds
from penstock.stores import storage

kind, folder, cache, dies = kinds.Kind(int(sys.argv[1])), *map(Path, sys.argv[2:4]), sys.argv[4]
if sys.argv[5]:
    del os.O_TMPFILE  # as where a file system has no nameless files

class Log(storage.LocalDisk):
    written = []

    @contextmanager
    def create(self, target, alone, /):
        with super().create(target, alone) as file:
            self.written.append(str(target))
            yield file
            if dies and target.name.endswith(dies):
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)

print(flush=True)
sys.stdin.readline()
with storage.override_world(disk=Log()):
    value = kinds.use(kind, folder, cache)
print(json.dumps([value, Log.written]), flush=True)
"""


def start(
    kind: Kind, folder: Path, cache: Path, dies: str = "", named: str = ""
) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(int(kind)), str(folder), str(cache), dies, named],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.slow  # three processes a kind
@pytest.mark.parametrize("kind", pick_cases(CASES, 4), ids=lambda kind: kind.name, indirect=True)
def test_of_processes_that_come_at_once_one_makes_the_file(
    kind: Kind, folder: Path, tmp_path: Path
) -> None:
    expected, cache = use(kind, folder, tmp_path / "own"), tmp_path / "cache"
    processes = [start(kind, folder, cache) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert [value for value, _ in answers] == [expected] * 3
    written = [path for _, paths in answers for path in paths if not path.endswith("-looked")]
    assert len(written) == len({*written}) > 0


@pytest.mark.slow  # a process a kind
@pytest.mark.parametrize(
    "kind,named",
    pick_cases(zip(CASES, itertools.cycle(["", "named"])), 3)
    + pick_cases(zip(CASES, itertools.cycle(["named", ""])), len(CASES)),
    indirect=["kind"],
)
def test_a_killed_writer_leaves_nothing_that_is_read(
    kind: Kind, folder: Path, tmp_path: Path, named: str
) -> None:
    expected, cache = use(kind, folder, tmp_path / "own"), tmp_path / "cache"
    (own,) = list_derived(kind, tmp_path / "own")
    names = [own.name.removesuffix(".penstock-stamp"), own.name]
    for name in dict.fromkeys(names):
        process = start(kind, folder, cache, name, named)
        process.communicate("\n", timeout=120)
        assert process.returncode == -signal.SIGKILL
        assert not list_derived(kind, cache)
    assert use(kind, folder, cache) == expected
    assert len(list(cache.rglob(".*.tmp"))) == 0


# ---------------------------------------------------------------- locks


def test_a_lock_that_is_held_too_long_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(storage, "_WAIT_LOG_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    (tmp_path / "x.jsonl").write_text("1\n2\n")
    program = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "x.jsonl")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert read_all(tmp_path / "x.jsonl", None) == ["1", "2"]
        other.kill()
    waiting, leaving = (record.getMessage() for record in caplog.records)
    assert waiting.startswith("waiting for ") and "x.jsonl" in waiting
    assert "x.jsonl" in leaving and leaving.endswith("this process does the work itself")


def test_a_fact_may_need_a_fact_of_the_same_files(tmp_path: Path) -> None:
    """Digests read rows, and reading rows may compare the digest of a shard."""
    path = tmp_path / "x"
    path.write_text("1")
    stats = [derived_files.file_versions.stat_file(path)]
    taken = storage._FileLock._taken  # pyright: ignore[reportPrivateUsage]

    def outer() -> int:
        before = len(taken)
        value = derived_files.load_fact([path], stats, "inner", lambda: 3, tmp_path / "cache")
        assert len(taken) == before == 1, "the lock of the outer fact is still held"
        return value + 1

    assert derived_files.load_fact([path], stats, "outer", outer, tmp_path / "cache") == 4
