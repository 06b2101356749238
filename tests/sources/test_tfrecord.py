"""TFRecord files: their checksums, their index, and the examples in them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from foreign_formats import example, example_rows, message, record, varint, write_tfrecord
from penstock.errors import ConfigError, DataError
from penstock.sources import index_and_count_rows, open_files, tfrecord
from penstock.sources.crc32c import compute_crc32c
from penstock.sources.example import ExampleDecoder
from penstock.testing.asserts import describe_difference

RECORDS = [b"", b"a", b"abc", bytes(1000), b"long " * 400]


def rows(path: Path, **options: Any) -> list[Any]:
    source = open_files(path, **options)
    return source.read(np.arange(len(source)))


def plain(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@examples(40)
@given(st.lists(st.integers(0, 900), max_size=12), st.integers(0, 1 << 30), st.integers(1, 90))
def test_sums_are_those_of_the_definition(sizes: list[int], seed: int, times: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [rng.bytes(size) for size in sizes]
    ends = np.cumsum([0, *sizes], dtype=np.int64)
    data = np.frombuffer(b"".join(pieces), np.uint8)
    want = [plain(piece) for piece in pieces]
    got = compute_crc32c(data, np.tile(ends[:-1], times), np.tile(ends[1:], times))
    assert got.tolist() == want * times


def test_the_sums_that_the_standard_gives() -> None:
    # RFC 3720, B.4
    for data, want in [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ]:
        found = compute_crc32c(np.frombuffer(data, np.uint8), np.array([0]), np.array([32]))
        assert found.tolist() == [want]


def test_records_as_they_are(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    assert rows(path, columns=["__record__"]) == [{"__record__": each} for each in RECORDS]
    with pytest.raises(
        DataError, match=r"a\.tfrecord, byte 16: .*no tf\.train\.Example.*columns=\['__record__'\]"
    ):
        rows(path)


@pytest.mark.parametrize("chunk", [17, 100, 1 << 20])
def test_records_that_lie_over_the_ends_of_chunks(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfrecord, "_CHUNK_BYTES", chunk)
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS * 3)
    assert [row["__record__"] for row in rows(path, columns=["__record__"])] == RECORDS * 3
    whole = path.read_bytes()
    ends = np.cumsum([len(record(each)) for each in RECORDS * 3])
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        if length in {0, *ends.tolist()}:
            continue
        with pytest.raises(DataError, match=r"a\.tfrecord.*cut off"):
            index_and_count_rows(path, rebuild=True)


def test_a_claimed_length_is_no_memory(tmp_path: Path) -> None:
    length = struct.pack("<Q", 1 << 60)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(
        record(b"first") + record(b"")[:0] + length + record(length)[12:][8:] + bytes(100)
    )
    with pytest.raises(
        DataError, match=r"a\.tfrecord, byte 21: the file is cut off: a record has 1,152,9"
    ):
        open_files(path)
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(
        DataError, match=r"a\.tfrecord, byte 0: .*its checksum does not match its bytes"
    ):
        open_files(path)


def test_sums_are_checked_again_where_a_record_is_read(tmp_path: Path) -> None:
    import os

    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    source = open_files(path, columns=["__record__"])
    body, stat = bytearray(path.read_bytes()), path.stat()
    body[len(body) // 2] ^= 4
    path.write_bytes(body)
    os.utime(path, ns=(0, stat.st_mtime_ns))  # as where the disk itself changed a bit
    assert source.read(np.array([3]))[0]["__record__"] == RECORDS[3]
    with pytest.raises(
        DataError, match=r"a\.tfrecord, byte \d+: .*its checksum does not match its bytes"
    ):
        source.read(np.array([3, 4]))


def test_a_file_that_was_cut_between_two_records_is_told_by_its_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", RECORDS)
    assert len(open_files(path, columns=["__record__"])) == 5
    write_tfrecord(path, RECORDS[:3])
    assert len(open_files(path)) == 3
    assert "changed since indexed" in caplog.text and str(path) in caplog.text


def test_packed_files_and_names_with_numbers(tmp_path: Path) -> None:
    for part in range(2):
        data = b"".join(record(example(row)) for row in example_rows(6)[3 * part : 3 * part + 3])
        (tmp_path / f"set-train.tfrecord-0000{part}-of-00002").write_bytes(data)
        (tmp_path / f"{part}.tfrecord.gz").write_bytes(gzip.compress(data))
    cache = tmp_path / "cache"
    for pattern in ("set-train.*", "*.gz"):
        assert not describe_difference(rows(tmp_path / pattern, cache=cache), example_rows(6))
    (tmp_path / "x.tfrecord").write_bytes((tmp_path / "0.tfrecord.gz").read_bytes())
    with pytest.raises(
        DataError, match=r"x\.tfrecord: the file is compressed: rename it x\.tfrecord\.gz"
    ):
        rows(tmp_path / "x.tfrecord")


def test_many_files_and_none(tmp_path: Path) -> None:
    for part in range(40):
        write_tfrecord(
            tmp_path / f"{part:02d}.tfrecord",
            [example(row) for row in example_rows(40)[part : part + 1]],
        )
    assert not describe_difference(rows(tmp_path, cache=tmp_path / "cache"), example_rows(40))
    (tmp_path / "empty.tfrecords").write_bytes(b"")
    assert rows(tmp_path / "empty.tfrecords") == []


def test_columns(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [example(row) for row in example_rows(4)])
    found = rows(path, columns=["words", "__record__"])
    assert [list(row) for row in found] == [["words", "__record__"]] * 4
    assert found[2] == {
        "words": ["ü0".encode(), "ü1".encode()],
        "__record__": example(example_rows(4)[2]),
    }
    with pytest.raises(
        DataError,
        match=r"a\.tfrecord, byte 0: .*no column 'nowhere' in this row, which has id, image",
    ):
        rows(path, columns=["nowhere"])
    with pytest.raises(ConfigError, match="columns"):
        rows(path, columns=[])


def feature(kind: int, *values: bytes) -> bytes:
    return message(kind, b"".join(values))


def entry(name: str, value: bytes) -> bytes:
    return message(1, message(1, name.encode()) + message(2, value))


def test_numbers_that_are_not_packed_and_lists_in_pieces() -> None:
    ints = feature(
        3, b"\x08" + varint(5), b"\x08" + varint(-1), message(1, varint(7) + varint(300))
    )
    floats = feature(2, b"\x0d" + struct.pack("<f", 0.5), message(1, struct.pack("<2f", 1, 2)))
    found = ExampleDecoder()(message(1, entry("i", ints) + entry("f", floats) + entry("none", b"")))
    want = {"f": np.array([0.5, 1, 2], np.float32), "i": np.array([5, -1, 7, 300]), "none": None}
    assert not describe_difference(found, want)


def test_the_last_of_two_features_of_a_name_counts_and_unknown_fields_do_not() -> None:
    unknown = varint(9 << 3) + varint(1) + message(10, b"x") + varint(11 << 3 | 1) + bytes(8)
    found = ExampleDecoder()(
        message(
            1, entry("x", feature(3, message(1, b"\1"))) + entry("x", feature(1, message(1, b"b")))
        )
        + unknown
    )
    assert found == {"x": [b"b"]}


def test_a_sequence_example() -> None:
    steps = b"".join(message(1, feature(3, message(1, varint(step)))) for step in range(3))
    found = ExampleDecoder()(
        message(1, entry("id", feature(1, message(1, b"a")))) + message(2, entry("steps", steps))
    )
    assert not describe_difference(
        found, {"id": [b"a"], "steps": [np.array([step]) for step in range(3)]}
    )


@given(st.binary(max_size=60))
def test_any_bytes_are_an_example_or_an_error(data: bytes) -> None:
    try:
        assert isinstance(ExampleDecoder()(data), dict)
    except ValueError as error:
        assert "no tf.train.Example" in str(error)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)])
def test_integers_of_every_length(value: int) -> None:
    found = ExampleDecoder()(message(1, entry("x", feature(3, message(1, varint(value) * 3)))))
    assert found["x"].tolist() == [value] * 3
