"""MDS: every way in which a value is written, what is refused, and what its index may not say."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreign_formats import MDS, mds_rows, write_mds
from native_writers import streaming
from penstock.errors import ConfigError, DataError
from penstock.sources import index_files, open_files
from penstock.sources.mds import make_column_decoder
from penstock.sources.mds_index import ShardColumn
from penstock.testing.asserts import describe_difference


def _list(values: list[bytes], head: bytes = b"") -> bytes:
    return (
        head
        + struct.pack(f"<{len(values) + 1}I", len(values), *map(len, values))
        + b"".join(values)
    )


PIXELS = struct.pack("<3I", 3, 2, 3) + b"RGB" + bytes(range(18))
# What `streaming.base.format.mds.encodings.mds_encode` made of these values.
VALUES: list[tuple[str, bytes, Any]] = [
    ("bytes", b"\0\1", b"\0\1"),
    ("str", "ü".encode(), "ü"),
    ("int", b"\xfe" + b"\xff" * 7, -2),
    ("uint16", b"\1\2", np.uint16(513)),
    ("float64", struct.pack("<d", 1.5), np.float64(1.5)),
    ("str_int", b"1000000000000000000000", 10**21),
    ("str_float", b"0.1", 0.1),
    ("str_decimal", b"0.1428571", Decimal("0.1428571")),
    ("json", b'{"x": [1, null]}', {"x": [1, None]}),
    ("ndarray", bytes([17, 2 << 2, 2, 1, 5, 0, 6, 0]), np.array([[5], [6]], np.int16)),
    ("ndarray", bytes([8, 1 << 2 | 1, 0, 1]) + bytes(256), np.zeros(256, np.uint8)),
    ("ndarray:int32", bytes([1 << 2, 1, 7, 0, 0, 0]), np.array([7], np.int32)),
    ("ndarray:uint8:2,2", bytes([1, 2, 3, 4]), np.array([[1, 2], [3, 4]], np.uint8)),
    ("jpeg", b"\xff\xd8", b"\xff\xd8"),
    ("png", b"\x89PNG", b"\x89PNG"),
    ("pil", PIXELS, np.arange(18, dtype=np.uint8).reshape(2, 3, 3)),
    ("list[png]", _list([b"a", b"", b"bc"], bytes(4)), [b"a", b"", b"bc"]),
    ("jpeg_array", _list([b"a", b"bc"]), [b"a", b"bc"]),
    ("list[pil]", _list([PIXELS], bytes(4)), [np.arange(18, dtype=np.uint8).reshape(2, 3, 3)]),
]


@pytest.mark.parametrize(("encoding", "data", "value"), VALUES, ids=[each[0] for each in VALUES])
def test_values_of_every_encoding(encoding: str, data: bytes, value: Any) -> None:
    decode = make_column_decoder(ShardColumn("x", encoding, 0), Path("x.mds"))
    assert not describe_difference(decode(data), value)
    if encoding not in ("bytes", "str", "jpeg", "png", "str_int", "str_float", "str_decimal"):
        for cut in range(len(data)):
            with pytest.raises((ValueError, LookupError, struct.error)):
                decode(data[:cut])


def test_pictures_are_those_that_pillow_made(tmp_path: Path) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    for mode in (
        "L",
        "P",
        "I",
        "F",
        "I;16",
        "LA",
        "RGB",
        "YCbCr",
        "HSV",
        "LAB",
        "RGBA",
        "CMYK",
        "RGBX",
    ):
        made = image.new("RGB", (3, 2), (9, 60, 200)).convert(
            "L" if mode in ("I;16", "LAB") else mode
        )
        made = (
            image.frombytes(mode, (3, 2), bytes(range(36))[: 18 if mode == "LAB" else 12])
            if made.mode != mode
            else made
        )
        data = struct.pack("<3I", 3, 2, len(mode)) + mode.encode() + made.tobytes()
        assert not describe_difference(
            make_column_decoder(ShardColumn("x", "pil", 0), tmp_path)(data), np.asarray(made)
        ), mode


@pytest.mark.parametrize("width", [1, 8, 11])
def test_pictures_of_single_bits_are_those_that_pillow_made(tmp_path: Path, width: int) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    made = image.frombytes("1", (width, 3), bytes(range(120, 120 + 3 * -(-width // 8))))
    data = struct.pack("<3I", width, 3, 1) + b"1" + made.tobytes()
    decode = make_column_decoder(ShardColumn("x", "pil", 0), tmp_path)
    assert not describe_difference(decode(data), np.asarray(made))
    with pytest.raises(ValueError, match="cannot reshape"):
        decode(data[:-1])


def test_the_quality_of_a_jpeg_column_does_not_matter(tmp_path: Path) -> None:
    # `columns={"image": "jpeg:95"}` of MDSWriter; the index and each shard name the quality.
    rows = [{"image": bytes([255, 216, i]), "id": i} for i in range(6)]
    for folder, encoding in (("a", "jpeg:95"), ("b", "jpeg")):
        write_mds(tmp_path / folder, rows, {"image": encoding, "id": "int"})
    paths = [*(tmp_path / "a").glob("*.mds"), *(tmp_path / "b").glob("*.mds")]
    assert open_files(tmp_path / "a").read(np.arange(6)) == rows
    assert open_files(sorted(paths)).read(np.arange(12)) == rows * 2


def test_what_is_pickled_is_refused_by_name(tmp_path: Path) -> None:
    columns, rows = (
        {"code": "pkl", "id": "int"},
        [{"code": b"cos\nsystem\n.", "id": i} for i in range(3)],
    )
    folder = write_mds(tmp_path / "mds", rows, columns)
    with pytest.raises(
        ConfigError,
        match=r"shard\.00000\.mds: the column 'code' is pickled \(pkl\), and reading it may run",
    ):
        open_files(folder)
    assert open_files(folder, columns=["id"]).read(np.arange(3)) == [
        {"id": 0},
        {"id": 1},
        {"id": 2},
    ]


def changed(folder: Path, change: Any) -> Path:
    found = json.loads((folder / "index.json").read_text())
    change(found["shards"])
    (folder / "index.json").write_text(json.dumps(found))
    return folder


WRONG = {
    "outside": (
        lambda shards: shards[0]["raw_data"].update(basename="../x.mds"),
        "does not lie below this folder",
    ),
    "absolute": (
        lambda shards: shards[0]["raw_data"].update(basename="/etc/passwd"),
        "does not lie below this folder",
    ),
    "missing": (
        lambda shards: shards[1]["raw_data"].update(basename="y.mds"),
        "the file 'y.mds' is missing",
    ),
    "rows": (
        lambda shards: shards[0].update(samples=9),
        "it says it has 8 rows, its folder's index says 9",
    ),
    "many": (
        lambda shards: shards[0].update(samples=1 << 40),
        "its folder's index says 1,099,511,627,776",
    ),
    "none": (
        lambda shards: shards[1].update(samples=0),
        "it says it has 8 rows, its folder's index says 0",
    ),
    "less": (lambda shards: shards[0].update(samples=-1), "rows"),
    "bytes": (lambda shards: shards[0]["raw_data"].update(bytes=7), "its index.json says 7"),
    "version": (lambda shards: shards[0].update(version=3), "Penstock reads version 2"),
    "names": (lambda shards: shards[0]["column_names"].pop(), "is no index of MDS shards"),
    "renamed": (
        lambda shards: shards[0].update(column_names=list("abcdef")),
        "differ from those in its index.json|columns",
    ),
    "packed": (lambda shards: shards[0]["raw_data"].update(basename="x.mds.br"), "missing"),
    "text": (lambda shards: shards.__setitem__(0, "x"), "is no index of MDS shards"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_index_that_is_not_true_is_refused(wrong: str, tmp_path: Path) -> None:
    change, reason = WRONG[wrong]
    folder = changed(write_mds(tmp_path / "mds", mds_rows(20)), change)
    with pytest.raises(DataError, match=reason):
        source = open_files(folder)
        source.read(np.arange(len(source)))


def test_a_digest_in_the_index_is_compared_once(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "mds", mds_rows(20), hashes=["sha1", "xxh64"][:1])
    shard = folder / "shard.00001.mds"
    body = bytearray(shard.read_bytes())
    body[-1] ^= 1
    shard.write_bytes(body)
    source = open_files(folder, cache=tmp_path / "cache")
    assert len(source.read(np.arange(8))) == 8
    with pytest.raises(
        DataError, match=r"shard\.00001\.mds: its sha1 differs from the one in its index\.json"
    ):
        source.read(np.array([8]))
    with pytest.raises(
        DataError, match="sha1"
    ):  # and again, for nothing is kept of what is damaged
        source.read(np.array([8]))


def test_shards_of_folders_that_were_merged(tmp_path: Path) -> None:
    # As `streaming.base.util.merge_index` leaves them: an index above, whose names lead into the folders.
    listed = list[Any]()
    for part in range(2):
        folder = write_mds(tmp_path / "mds" / str(part), mds_rows(10))
        for shard in json.loads((folder / "index.json").read_text())["shards"]:
            shard["raw_data"]["basename"] = f"{part}/{shard['raw_data']['basename']}"
            listed.append(shard)
    (tmp_path / "mds" / "index.json").write_text(json.dumps({"shards": listed, "version": 2}))
    source = open_files(tmp_path / "mds")
    assert not describe_difference(source.read(np.arange(20)), mds_rows(10) + mds_rows(10))


@pytest.mark.parametrize("depth", [1, 3])
def test_an_index_above_the_folders_of_the_shards_is_enough(depth: int, tmp_path: Path) -> None:
    shards = list[Any]()
    for number in range(2):
        below = "/".join(["x"] * (depth - 1) + [str(number)])
        folder = tmp_path / "data" / below
        write_mds(folder, mds_rows(10))
        for shard in json.loads((folder / "index.json").read_text())["shards"]:
            shard["raw_data"]["basename"] = f"{below}/{shard['raw_data']['basename']}"
            shards.append(shard)
        (folder / "index.json").unlink()
    (tmp_path / "index.json").write_text('{"of": "another tool"}')
    (tmp_path / "data" / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    rows = open_files(tmp_path / "data").read(np.arange(20))
    assert not describe_difference(rows, mds_rows(10) + mds_rows(10))
    assert len(open_files(sorted(folder.glob("*.mds")))) == 10
    assert index_files([*folder.glob("*.mds")], checksum=True)
    shards[-1]["raw_data"]["basename"] = "elsewhere.mds"
    (tmp_path / "data" / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    with pytest.raises(DataError, match=r"index\.json does not list this shard"):
        open_files(sorted(folder.glob("*.mds")))


def test_an_index_json_that_is_data_is_read_as_data(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"x": 1}\n{"x": 2}\n')
    assert open_files(tmp_path).read(np.arange(2)) == [{"x": 1}, {"x": 2}]
    (tmp_path / "index.json").write_text('[{"x": 1}]')
    assert open_files(tmp_path).read(np.arange(1)) == [{"x": 1}]


def test_the_tool_writes_the_same_bytes(tmp_path: Path) -> None:
    tool = streaming()
    ours = write_mds(tmp_path / "ours", mds_rows(8))
    with tool.MDSWriter(out=str(tmp_path / "theirs"), columns=dict(MDS), size_limit=20000) as out:
        for row in mds_rows(8):
            out.write(row)
    for name in ("index.json", "shard.00000.mds"):
        assert (ours / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


def test_more_rows_than_a_shard_has_room_for_are_no_memory(tmp_path: Path) -> None:
    folder = changed(
        write_mds(tmp_path / "mds", mds_rows(20)),
        lambda shards: shards[0].update(samples=(1 << 32) - 1),
    )
    shard = folder / "shard.00000.mds"
    shard.write_bytes(b"\xff" * 4 + shard.read_bytes()[4:])
    with pytest.raises(
        DataError, match=r"shard\.00000\.mds: 1,\d+ bytes are too few for 4,294,967,295 rows"
    ):
        open_files(folder)


def test_a_dataset_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"index\.json lists no files: the dataset is empty"):
        open_files(write_mds(tmp_path / "mds", []))


def test_a_size_without_end_is_refused(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "mds", mds_rows(2))
    index = folder / "index.json"
    index.write_text(index.read_text().replace('"samples": 2', '"samples": 1e999'))
    with pytest.raises(DataError, match=r"index\.json.*is no index of MDS shards"):
        open_files(folder)


@pytest.mark.parametrize("packed", ["br", "bz2", "snappy"])
def test_a_compression_that_is_not_read_is_named(packed: str, tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "mds", mds_rows(3))
    (folder / "shard.00000.mds").rename(folder / f"shard.00000.mds.{packed}")
    changed(
        folder, lambda shards: shards[0].update(zip_data={"basename": f"shard.00000.mds.{packed}"})
    )
    with pytest.raises(
        ConfigError, match=f"does not read MDS compressed as {packed}: compress it as zstd or gz"
    ):
        open_files(folder)


def test_columns_that_shards_write_as_other_types_are_refused(tmp_path: Path) -> None:
    for name, encoding, value in (("a", "int", 1), ("b", "str_int", "2"), ("c", "str", "3")):
        write_mds(tmp_path / name, [{"x": value, "y": "same"}], {"x": encoding, "y": "str"})
    source = open_files([tmp_path / "a", tmp_path / "b"])
    assert [row["x"] for row in source.read(np.arange(2))] == [1, 2]  # both are integers of Python
    with pytest.raises(
        DataError,
        match=r"c.shard.00000\.mds: its column 'x' holds str, in .*00000\.mds it holds int:",
    ):
        open_files([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert len(open_files([tmp_path / "a", tmp_path / "c"], columns=["y"])) == 2
