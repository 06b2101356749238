from __future__ import annotations

import datetime
import errno
import gzip
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from penstock.errors import DataError, StorageError
from penstock.sources import convert, index_and_count_rows, open_files
from penstock.sources import csv as csv_module
from penstock.stores import storage
from penstock.stores.storage import LocalDisk

zstandard: Any = pytest.importorskip("zstandard")

BODY = "".join(
    f'{{"n": {number}, "text": "wörd {number * 7919}"}}\n' for number in range(3000)
).encode()


def zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(body)


PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd, ".zstd": zstd}


@pytest.fixture(params=PACKERS)
def suffix(request: pytest.FixtureRequest) -> str:
    return request.param


def packed(folder: Path, suffix: str, body: bytes = BODY, name: str = "code.jsonl") -> Path:
    path = folder / f"{name}{suffix}"
    path.write_bytes(PACKERS[suffix](body))
    return path


def whole(path: Path | list[Path], **options: Any) -> list[Any]:
    source = open_files(path, **options)
    return source.read(np.arange(len(source)))


def kept(home: Path) -> list[str]:
    return sorted(path.name for path in (home / ".cache" / "penstock").rglob("*") if path.is_file())


def age(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def test_archives_are_unpacked_once(
    tmp_path: Path, home: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path, suffix)
    rows = whole(path)
    assert [row["n"] for row in rows] == list(range(3000))
    assert kept(home) == [
        f".code.jsonl{suffix}.penstock-lines",
        "code.jsonl",
        "code.jsonl.penstock-stamp",
    ]
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    monkeypatch.setattr(convert, "_unpack_members", lambda *_: pytest.fail("unpacked again"))
    source = pickle.loads(pickle.dumps(open_files(path)))
    assert source.read(np.array([2999, 0, 17])) == [rows[2999], rows[0], rows[17]]
    assert source.name == "code"


def test_members_and_padding(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(
        PACKERS[suffix](b"one\ntw") + PACKERS[suffix](b"") + PACKERS[suffix](b"o\nthree")
    )
    assert [row["text"] for row in whole(path)] == ["one", "two", "three"]
    if suffix == ".gz":
        path.write_bytes(path.read_bytes() + b"\0" * 512)
        index_and_count_rows(path, rebuild=True)
        assert len(whole(path)) == 3


@pytest.mark.parametrize("cut", [0, 1, 10, -9, -1])
def test_a_truncated_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, home: Path, suffix: str, cut: int
) -> None:
    path = packed(tmp_path, suffix)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=rf"code\.jsonl{suffix}: the archive ends too early"):
        open_files(path)
    assert kept(home) == []


def test_a_damaged_archive_is_refused(tmp_path: Path, home: Path, suffix: str) -> None:
    path = packed(tmp_path, suffix)
    body = path.read_bytes()
    for bad in (
        b"no archive at all",
        body[:200] + bytes(200) + body[400:],
        body + b"junk after the end",
    ):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=rf"code\.jsonl{suffix}: damaged archive"):
            open_files(path)
    assert kept(home) == []


@pytest.mark.parametrize("before", [b"", zstd(BODY)])
def test_a_window_that_is_too_large_is_no_damage(before: bytes, tmp_path: Path, home: Path) -> None:
    def long(log: int) -> bytes:
        parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=log)
        stream = zstandard.ZstdCompressor(
            compression_params=parameters
        ).compressobj()  # which tells no size
        return stream.compress(BODY) + stream.flush()

    path = tmp_path / "code.jsonl.zst"
    path.write_bytes(before + long(28))
    with pytest.raises(
        DataError, match=r"code\.jsonl\.zst: it may be intact: .*--long=31 code\.jsonl\.zst"
    ):
        open_files(path)
    assert kept(home) == []
    path.write_bytes(before + long(27))
    assert len(whole(path)) == 3000 * (2 if before else 1)


def test_a_stale_copy_is_made_again_and_a_spoiled_one_refused(
    tmp_path: Path, home: Path, suffix: str
) -> None:
    path = packed(tmp_path, suffix)
    whole(path)
    packed(tmp_path, suffix, BODY * 2)
    assert len(whole(path)) == 6000
    (copy,) = (home / ".cache" / "penstock").rglob("code.jsonl")
    copy.write_bytes(b"{}\n")
    with pytest.raises(
        DataError, match=rf"{copy}, kept for this file, is damaged, or Penstock did not write it"
    ):
        open_files(path)
    copy.unlink()
    assert len(whole(path)) == 6000


def test_the_disk_is_asked_before_it_is_filled(tmp_path: Path, home: Path, suffix: str) -> None:
    class Full(LocalDisk):
        def free(self, path: Path, /) -> int:
            return 10

    with (
        storage.override_world(disk=Full()),
        pytest.raises(StorageError, match=r"0 MiB free.*cache= a folder on another disk"),
    ):
        open_files(packed(tmp_path, suffix))
    assert kept(home) == []


def test_the_disk_is_asked_again_on_the_way(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Filling(LocalDisk):
        left = iter([1 << 40, 1 << 40, 1 << 20])  # before it begins, at its first piece, on the way

        def free(self, path: Path, /) -> int:
            return next(self.left)

    monkeypatch.setattr(convert, "_SPACE_CHECK_BYTES", 4 << 20)
    bomb = packed(tmp_path, ".gz", bytes(120 << 20), "x.txt")
    with (
        storage.override_world(disk=Filling()),
        pytest.raises(StorageError, match=r"1 MiB free, \d+ MiB are needed"),
    ):
        open_files(bomb)
    assert kept(home) == []


def test_every_effect_of_unpacking_may_fail(tmp_path: Path, home: Path, suffix: str) -> None:
    class Failing(LocalDisk):
        def __init__(self, nth: int) -> None:
            self.left = nth

        def _effect(self) -> None:
            self.left -= 1
            if self.left == -1:
                raise OSError(errno.EIO, "Input/output error")

        def sync(self, path: Path, /) -> None:
            self._effect()
            super().sync(path)

        def replace(self, source: Path, target: Path, /) -> None:
            self._effect()
            super().replace(source, target)

        @contextmanager
        def create(self, target: Path, alone: bool, /) -> Iterator[BinaryIO]:
            self._effect()
            with super().create(target, alone) as file:
                yield file
                self._effect()

    path = packed(tmp_path, suffix)
    for nth in range(50):
        disk = Failing(nth)
        try:
            with storage.override_world(disk=disk):
                rows = whole(path)
        except StorageError:
            assert not [name for name in kept(home) if name.endswith(".tmp")]
            continue
        assert disk.left >= 0
        break
    else:
        pytest.fail("never came to an end")
    assert [row["n"] for row in rows] == list(range(3000)) == [row["n"] for row in whole(path)]
    assert nth > 6


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path, ".zst")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImportError, match=r"zstandard.*penstock-data\[zstd\]"):
        open_files(path)


def test_a_json_array_in_an_archive(tmp_path: Path, suffix: str) -> None:
    assert whole(packed(tmp_path, suffix, b"[1,\n 2]", "x.json")) == [1, 2]


# ---------------------------------------------------------------- CSV

CSV = (
    "\ufeffid,text,score,day,flag,none\r\n"
    '1,"two\nlines, ""quoted""",0.5,2024-02-29,true,\r\n'
    "2,,,2024-03-01,false,\r\n"
    ",ünï,1e3,,,\n"
)
ROWS = [
    {
        "id": 1,
        "text": 'two\nlines, "quoted"',
        "score": 0.5,
        "day": datetime.date(2024, 2, 29),
        "flag": True,
    },
    {"id": 2, "text": "", "score": None, "day": datetime.date(2024, 3, 1), "flag": False},
    {"id": None, "text": "ünï", "score": 1000.0, "day": None, "flag": None},
]


@pytest.fixture(params=["", ".gz", ".zst", ".zstd"])
def csv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / f"x.csv{request.param}"
    path.write_bytes(PACKERS[request.param](CSV.encode()) if request.param else CSV.encode())
    yield path


def test_csv_is_typed(csv: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert whole(csv) == [{**row, "none": None} for row in ROWS]
    assert kept(home) == [f"{csv.name}.arrow", f"{csv.name}.arrow.penstock-stamp"]
    monkeypatch.setattr(
        csv_module, "_convert_until_types_fit", lambda *_: pytest.fail("converted again")
    )
    source = open_files(csv, columns=["score", "id"])
    assert pickle.loads(pickle.dumps(source)).read(np.array([2, 0])) == [
        {"score": 1000.0, "id": None},
        {"score": 0.5, "id": 1},
    ]
    assert source.describe() == {"format": "csv", "rows": 3, "columns": ["score", "id"]}
    assert index_and_count_rows(csv) == 3


def test_csv_that_was_exported_again_is_converted_again(
    csv: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = whole(csv)
    age(csv)
    assert whole(csv) == rows and not caplog.records
    body = CSV.replace("0.5", "0.7").encode()
    csv.write_bytes(PACKERS[csv.suffix](body) if csv.suffix != ".csv" else body)
    assert whole(csv)[0]["score"] == 0.7 and len(caplog.records) == 1


def test_a_column_that_changes_its_type_late_is_that_type_throughout(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,2\n" * 400_000 + "x,2.5\n")
    source = open_files(path)
    assert source.read(np.array([0, 400_000])) == [{"a": "1", "b": 2.0}, {"a": "x", "b": 2.5}]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        (b"", "Empty CSV file"),
        (b"a,a\n1,2\n", "the header names a twice"),
        (b"a;b\n1;2\n", r"'a;b' has no comma.*pandas.read_csv\(path, sep=';'\)"),
        (b"path\tsentence\n1\t2\n", r"separated by '\\t'.* read its lines with format='text'"),
        (b"a,b\n1,\xff\n", "the column 'b' contains bytes that are not UTF-8"),
    ],
)
def test_csv_that_cannot_be_read_is_named(
    tmp_path: Path, home: Path, body: bytes, reason: str
) -> None:
    (tmp_path / "x.csv").write_bytes(body)
    with pytest.raises(DataError, match=rf"x\.csv: .*{reason}"):
        open_files(tmp_path / "x.csv")
    assert kept(home) == []


def test_a_truncated_csv_archive_is_refused(tmp_path: Path, suffix: str, home: Path) -> None:
    path = packed(tmp_path, suffix, CSV.encode() * 50, "x.csv")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(
        DataError, match=rf"x\.csv{suffix}: the file cannot be read: .*[Tt]runcated"
    ):
        open_files(path)
    assert kept(home) == []


def test_the_types_of_columns_are_settled_over_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [
        "n,s,f,d,e\n007,a,1,2024-02-29,\n",
        "n,s,f,d,e\nx,2,1.5,2024-02-29 10:00:00,\n",
        "n,s,f,d,e\n1,,2,,\n",
    ]
    for number, body in enumerate(bodies):
        (tmp_path / f"{number}.csv").write_text(body)
    moment = datetime.datetime
    expected = [
        {"n": "007", "s": "a", "f": 1.0, "d": moment(2024, 2, 29), "e": None},
        {"n": "x", "s": "2", "f": 1.5, "d": moment(2024, 2, 29, 10), "e": None},
        {"n": "1", "s": "", "f": 2.0, "d": None, "e": None},
    ]
    assert whole(tmp_path / "*.csv") == expected
    assert whole([tmp_path / f"{number}.csv" for number in range(3)]) == expected
    monkeypatch.setattr(
        csv_module, "_convert_until_types_fit", lambda *_: pytest.fail("converted again")
    )
    assert whole(tmp_path / "*.csv") == expected


def test_many_csv_files_have_the_same_types_late_as_early(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02d}.csv").write_text(f"n\n{number if number else 'x'}\n")
    rows = ["x", *map(str, range(1, 40))]
    for _ in range(2):
        assert [row["n"] for row in whole(tmp_path / "*.csv")] == rows


@pytest.mark.parametrize(
    "body",
    [
        'a,b\n1,"x\n2,y\n',
        'a,b\n1,x\n2,"y',
        'a\n"x""\n',
        'a,b\n1,"',
        'a,b\n1,"3\n4,5\n',
        'a,b\n1,5" disk\n2,"x\n3,y\n',
    ],
)
def test_a_quote_that_is_not_closed_is_an_error(tmp_path: Path, body: str) -> None:
    (tmp_path / "x.csv").write_text(body)
    with pytest.raises(DataError, match=r"x\.csv: a quote is not closed"):
        open_files(tmp_path / "x.csv")


def test_a_row_of_csv_beyond_the_limit_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_module, "CSV_ROW", 8 << 20)
    for size in (9 << 20, 20 << 20):  # Arrow reads a row that spans two blocks, and no longer one
        (tmp_path / "x.csv").write_text("a,b\n1," + "x" * size + "\n")
        with pytest.raises(DataError, match="a row takes more than 8 MiB: .*Parquet"):
            open_files(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("a,b\n1," + "x" * (7 << 20) + "\n")
    assert len(open_files(tmp_path / "x.csv").read(np.arange(1))[0]["b"]) == 7 << 20


@pytest.mark.parametrize(
    "body",
    ['a,b\n1,x"y\n2,z\n', 'a,b\n1,""\n', 'a,b\n1,"x"', 'a,b\n1,"x"\n', 'a\n"""x"""\n', 'a\nx"\n'],
)
def test_quotes_that_are_closed_or_mean_nothing(tmp_path: Path, body: str) -> None:
    (tmp_path / "x.csv").write_text(body)
    assert whole(tmp_path / "x.csv")


@pytest.mark.parametrize("body", ["a,b\n", "a,b\r", "a,b", '"a","b"'])
def test_an_empty_table(tmp_path: Path, body: str) -> None:
    (tmp_path / "x.csv").write_text(body)
    assert open_files(tmp_path / "x.csv").describe() == {
        "format": "csv",
        "rows": 0,
        "columns": ["a", "b"],
    }


def test_a_header_without_a_newline_beside_files_with_rows(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b")
    (tmp_path / "1.csv").write_text("a,b\n1,x")
    assert whole(tmp_path / "*.csv") == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize("body", ['text\n"Dear all,"', 'x\n"hello\n"', 'x,y\n1,","', 'x\n""""'])
def test_a_last_value_that_ends_in_what_ends_values_is_closed(body: str, tmp_path: Path) -> None:
    import csv as plain

    (tmp_path / "x.csv").write_bytes(body.encode())
    found = [{name: str(value) for name, value in row.items()} for row in whole(tmp_path / "x.csv")]
    assert found == [*plain.DictReader(body.splitlines(keepends=True))]


def test_rows_of_a_csv_file_may_be_as_long_as_lines(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1," + "x" * (3 << 20) + "\n2,y\n")
    assert [len(row["b"]) for row in whole(tmp_path / "x.csv")] == [3 << 20, 1]


@pytest.mark.parametrize("few", [[], ["7"] * 200_000])
def test_whole_numbers_of_csv_are_not_rounded(few: list[str], tmp_path: Path) -> None:
    ids = ["18446744073709551615", "18446744073709551614"]
    (tmp_path / "x.csv").write_text(
        "\n".join(["id,score", *(f"{one},1e300" for one in [*few, *ids])])
    )
    found = whole(tmp_path / "x.csv")
    assert [row["id"] for row in found[-2:]] == ids and found[0]["score"] == 1e300


@pytest.mark.parametrize(
    "texts",
    [
        [" 9007199254740993", "1.5"],
        ["9007199254740993\t", "1e3"],
        ["99999999999999999999999 ", "1"],
        ["0xfedcba9876543210", "1"],
        ["1", "0XFEDCBA9876543210 "],
        [*["7"] * 200_000, "0xFFFFFFFFFFFFFFFF"],
    ],
)
def test_whole_numbers_beside_spaces_and_hexadecimal_ones_are_not_changed(
    texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("\n".join(["id,x", *(f"{text},1" for text in texts)]))
    assert [row["id"] for row in whole(tmp_path / "x.csv")] == texts


def test_negative_and_small_hexadecimal_numbers_stay_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id\n-1\n0x10\n")
    assert [row["id"] for row in whole(tmp_path / "x.csv")] == [-1, 16]


def test_whole_numbers_before_the_first_fraction_are_not_rounded(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,x\n" + "9007199254740993,1\n" * 100_000 + "1.5,2\n")
    assert [row["id"] for row in whole(tmp_path / "x.csv")[-2:]] == ["9007199254740993", "1.5"]


@pytest.mark.parametrize(
    ("one", "kind"), [("9007199254740993", str), ("-9223372036854775807", str), ("4", float)]
)
def test_whole_numbers_of_one_file_are_not_rounded_for_fractions_of_another(
    one: str, kind: Any, tmp_path: Path
) -> None:
    for number, text in enumerate(["1.5", one, ""]):
        (tmp_path / f"{number}.csv").write_text(f"id,x\n{text},1\n")
    for _ in range(2):
        assert [row["id"] for row in whole(tmp_path / "*.csv")][:2] == [kind("1.5"), kind(one)]
