from __future__ import annotations

import errno
import gzip
import json
import pickle
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.base.progress import Progress
from penstock.errors import ConfigError, DataError, StorageError
from penstock.sources import convert, index_and_count_rows, line_index, lines, open_files
from penstock.sources.sums import compute_checksums

ROWS = [{"n": number, "text": "wörd \u2028 " * (number % 7)} for number in range(500)]


def write(path: Path, body: str | bytes) -> Path:
    path.write_bytes(body.encode() if isinstance(body, str) else body)
    return path


def rows(path: Path | Sequence[Path], **options: object) -> list[object]:
    source = open_files(path, **options)  # pyright: ignore[reportArgumentType]
    return source.read(np.arange(len(source)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(
        tmp_path / "code.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    )


def test_rows_come_back_in_any_order(data: Path) -> None:
    source = open_files(data)
    assert len(source) == len(ROWS)
    assert source.read(np.arange(len(ROWS))) == ROWS
    order = np.random.default_rng(1).integers(0, len(ROWS), 2000)
    assert source.read(order) == [ROWS[index] for index in order.tolist()]
    assert source.read(np.zeros(0, np.int64)) == []
    assert source.lengths() is None
    assert source.name == "code"
    assert source.describe() == {"format": "jsonl", "rows": 500, "columns": None}


def test_what_lines_may_look_like(tmp_path: Path) -> None:
    body = b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \t\n\n{"a": "\xc3\xa9\\n"}\n[3]\r\n"\xe2\x80\xa8"\n \x0b\x0c\nnull'
    assert rows(write(tmp_path / "x.jsonl", body)) == [{"a": 1}, {"a": "é\n"}, [3], "\u2028", None]


def test_text(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", b"\xef\xbb\xbfone\r\n\n  two \nth\rree\n")
    assert rows(path) == [{"text": "one"}, {"text": "  two "}, {"text": "th\rree"}]
    assert open_files(path).describe() == {"format": "text", "rows": 3, "columns": ["text"]}
    assert rows(path, columns=["text"])[0] == {"text": "one"}
    with pytest.raises(ConfigError, match="only the column 'text', not line"):
        open_files(path, columns=["line"])
    assert rows(write(tmp_path / "x.log", b"a\n\nb"), format="text") == [
        {"text": "a"},
        {"text": "b"},
    ]


def test_a_row_at_byte_three_without_a_mark(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "x.jsonl", b"\r\n\n7\n8")) == [7, 8]


@pytest.mark.parametrize("body", [b"", b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n \n", b" \n\n\r\n"])
def test_files_without_rows(tmp_path: Path, body: bytes) -> None:
    assert rows(write(tmp_path / "x.jsonl", body)) == []
    assert rows([write(tmp_path / "y.jsonl", b'{"a": 1}'), tmp_path / "x.jsonl"]) == [{"a": 1}]


@given(
    st.lists(
        st.sampled_from(
            [b"", b" ", b"a", b"bb ", b" c", b"\t\x0b", b"d" * 9, b"\r", b"\x08\x0e", b"\xc3\xa9"]
        )
    ),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.integers(1, 2),
    st.booleans(),
)
def test_the_index_is_that_of_a_plain_loop(
    pieces: list[bytes], end: bytes, ended: bool, words: int, many: bool
) -> None:
    body = end.join(pieces * (16 if many else 1)) + (end if ended else b"")  # tasks of two pieces
    expected: list[int] = []
    at = 0
    for line in body.split(b"\n"):
        if line.strip():
            expected.append(at)
        at += len(line) + 1
    with pytest.MonkeyPatch.context() as patch, tmp_file(body) as path:
        patch.setattr(line_index, "_CHUNK_BYTES", 8 * words)
        patch.setattr("penstock.sources.sums.BLOCK_BYTES", 8)
        if many:
            patch.setattr(line_index, "_MIN_THREADED_BYTES", 0)
            patch.setattr(line_index, "_CHUNKS_PER_TASK", 2)
            patch.setattr(line_index, "count_cores", lambda: 2)
            patch.setattr(line_index, "_MAX_SINGLE_CHECKS", 0)
        offsets, sums = line_index.find_row_offsets(path, lines.file_versions.stat_file(path))
    assert offsets.tolist() == [*expected, len(body)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sources.sums.BLOCK_BYTES", 8)
        assert sums.tolist() == [
            int(compute_checksums([body[at : at + 8]])[0]) for at in range(0, len(body), 8)
        ]


def test_an_index_takes_little_memory_beside_its_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.txt", b"1\n" * 1_000_000)
    monkeypatch.setattr(line_index, "_CHUNK_BYTES", 1 << 16)
    size = lines.file_versions.stat_file(path)
    tracemalloc.start()
    body, count = line_index.collect_row_offsets(path, size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 1_000_000
    assert peak < 1.5 * len(body) + (4 << 20)


def test_an_archive_has_no_more_lines_than_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.txt.gz", gzip.compress(b"1\n" * 50_000))
    monkeypatch.setattr(convert, "_LARGE", 100_000)
    with pytest.raises(DataError, match=r"x\.txt\.gz: its \d+ bytes unpack to more than .* lines"):
        open_files(path)
    assert len(open_files(write(tmp_path / "x.txt", b"1\n" * 50_000))) == 50_000


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt"])
def test_a_lack_of_memory_names_the_file_and_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_files(write(tmp_path / name, b"1\n2\n"))

    def fail(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(lines.LineFile, "read", lambda *_: fail(0))
    with pytest.raises(
        StorageError, match=rf"{name}: there is not enough memory: raise the"
    ) as told:
        source.read(np.arange(2))
    assert told.value.errno == errno.ENOMEM
    monkeypatch.setattr(lines, "open_lines", lambda *_, **__: fail(0))
    with pytest.raises(StorageError, match=rf"{name}: there is not enough memory"):
        open_files(tmp_path / name)


def test_a_large_array_is_an_error_that_says_one_row_per_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.json_memory.DECODED", 1 << 20)
    with pytest.raises(DataError, match=r"x\.json: its values .* write smaller rows, one per line"):
        open_files(write(tmp_path / "x.json", b"[" + b"{}," * 9_000 + b"{}]"))
    source = open_files(write(tmp_path / "y.json", b"[1,[" + b"[]," * 4_000 + b"[]]]"))
    assert source.read(np.arange(1)) == [1]
    with pytest.raises(DataError, match=r"y\.json, element 1: a copy of the row would take more"):
        source.read(np.arange(2))


class tmp_file:
    """A file that lives as long as a block; hypothesis and `tmp_path` do not mix."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __enter__(self) -> Path:
        import tempfile

        self._folder = tempfile.TemporaryDirectory()
        return write(Path(self._folder.name, "x.jsonl"), self._body)

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def test_rows_far_apart_and_rows_longer_than_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "choose_max_gap", lambda _: 50)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 300)
    expected = [{"n": number, "pad": "x" * (number * 37 % 700)} for number in range(200)]
    path = write(tmp_path / "x.jsonl", "\n\n".join(map(json.dumps, expected)))
    source = open_files(path)
    for order in (np.arange(200), np.arange(199, -1, -7), np.array([5, 5, 199, 0, 5])):
        assert source.read(order) == [expected[index] for index in order.tolist()]


def test_columns_are_keys(data: Path) -> None:
    assert rows(data, columns=["n"])[3] == {"n": 3}
    assert open_files(data, columns=["n"]).describe() == {
        "format": "jsonl",
        "rows": 500,
        "columns": ["n"],
    }
    with pytest.raises(
        DataError, match=r"code\.jsonl, line 1: no column 'z' in this row, which has n, text"
    ):
        rows(data, columns=["z"])
    path = write(data.parent / "y.jsonl", "[1]")
    with pytest.raises(
        DataError, match=r"y\.jsonl, line 1: columns= selects keys, .* it is a list"
    ):
        rows(path, columns=["z"])
    for wrong in ([], ["n", "n"], "n"):
        with pytest.raises(ConfigError, match="list of different names"):
            open_files(data, columns=wrong)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"a": 1', "not valid JSON: Expecting ',' delimiter at column 8"),
        (b'{"a": 1} {"a": 2}', "not valid JSON: Extra data at column 10"),
        (b'{"a": "\xff"}', "can't decode byte 0xff"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "Exceeds the limit"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, bad: bytes, reason: str) -> None:
    path = write(tmp_path / "x.jsonl", b'\xef\xbb\xbf{"a": 0}\r\n\r\n\n' + bad + b'\n{"a": 2}\n')
    source = open_files(path)
    with pytest.raises(
        DataError, match=rf"x\.jsonl, line 4: .*{reason}.*the line begins at byte 16"
    ) as caught:
        source.read(np.arange(3))
    assert caught.value.where == f"{path}, line 4"
    assert source.read(np.array([2, 0])) == [{"a": 2}, {"a": 0}]


def test_a_json_file_may_be_an_array_or_lines(tmp_path: Path) -> None:
    array = write(tmp_path / "a.json", '\ufeff [\n {"x": 1},\n {"x": 2, "y": 3}]\n')
    assert rows(array) == [{"x": 1}, {"x": 2, "y": 3}]
    assert rows(array, columns=["x"]) == [{"x": 1}, {"x": 2}]
    with pytest.raises(DataError, match=r"a\.json, element 0: no column 'y'"):
        rows(array, columns=["y"])
    assert not list(tmp_path.glob(".*penstock*"))
    assert rows(pickle.loads(pickle.dumps(array))) == rows(array)
    assert index_and_count_rows(array) == 2
    of_objects = write(tmp_path / "b.json", '{"x": 1}\n{"x": 2}\n')
    assert rows(of_objects) == [{"x": 1}, {"x": 2}]
    assert rows(write(tmp_path / "c.json", "[1, 2]\n[3]\n")) == [[1, 2], [3]]
    assert rows(write(tmp_path / "d.json", "[]")) == []
    assert rows(write(tmp_path / "e.json", " \n")) == []
    assert rows([array, of_objects]) == [{"x": 1}, {"x": 2, "y": 3}, {"x": 1}, {"x": 2}]


@pytest.mark.parametrize("body", ['[{"x": 1},\n{"x": 2}', '{\n  "x": 1\n}\n', "[" * 100_000])
def test_a_json_file_that_is_neither_is_refused_when_opened(tmp_path: Path, body: str) -> None:
    with pytest.raises(
        DataError, match=r"x\.json: the file is neither one array of rows nor one row per line"
    ):
        open_files(write(tmp_path / "x.json", body))


def test_an_array_that_was_pickled_or_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", "[1, 2, 3]")
    source = pickle.loads(pickle.dumps(open_files(path)))
    assert source.read(np.array([2, 0])) == [3, 1]
    write(path, "[1, 2, 3, 4]")
    with pytest.raises(DataError, match="changed while it was in use"):
        source.read(np.array([0]))


def test_files_are_chained_in_order(tmp_path: Path) -> None:
    for part in range(5):
        write(tmp_path / f"{part}.jsonl", "".join(f"{part * 10 + row}\n" for row in range(part)))
    source = open_files(str(tmp_path / "{4..0}.jsonl"))
    expected = [part * 10 + row for part in range(5) for row in range(part)]
    assert source.read(np.arange(len(source))) == expected
    order = np.random.default_rng(0).permutation(len(expected))
    assert source.read(order) == [expected[index] for index in order.tolist()]
    assert source.name == tmp_path.name


def test_pickling_and_threads(data: Path) -> None:
    source = open_files([data, write(data.parent / "d.jsonl", "1\n2\n3\n")])
    expected = [*ROWS, 1, 2, 3]
    source.read(np.arange(3))
    again = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 3000

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, len(expected), 200)
        return again.read(order) == [expected[index] for index in order.tolist()]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


def test_data_that_changes_under_a_run_is_refused(data: Path) -> None:
    source = open_files(data)
    source.read(np.arange(3))
    with data.open("a") as file:
        file.write('\n{"n": 500}\n')
    with pytest.raises(DataError, match=r"code\.jsonl: the file changed while it was in use"):
        source.read(np.arange(3))


def test_progress_counts_bytes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "_CHUNK_BYTES", 4096)
    seen: list[int] = []
    monkeypatch.setattr(Progress, "tell", lambda self, done: seen.append(done))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    line_index.make_index(data, data, cache=None)
    size = data.stat().st_size
    assert seen == [*range(4096, size, 4096), size]


def test_elements_of_an_array_are_not_shared_with_who_reads_next(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"tokens": [n], "id": n} for n in range(4)]))
    for columns in (None, ["tokens"]):
        source = open_files(tmp_path / "a.json", columns=columns)
        for row in source.read(np.arange(4)):
            row["tokens"].append(0)
        assert [row["tokens"] for row in source.read(np.arange(4))] == [[n] for n in range(4)]


def test_lines_are_read_up_to_a_limit_that_documents_fit_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines.LINE >= 128 << 20
    monkeypatch.setattr(lines, "LINE", 20)
    (tmp_path / "a.jsonl").write_text('"short"\n"0123456789012345678901"\n')
    source = open_files(tmp_path / "a.jsonl")
    assert source.read(np.array([0])) == ["short"]
    with pytest.raises(DataError, match=r"line 2: the line has 25 bytes: write rows of at most 20"):
        source.read(np.array([1]))
