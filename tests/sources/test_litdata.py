"""LitData: every way in which a leaf is written, the trees of items, chunks of tokens, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreign_formats import LEAVES, each_lit_row, lit_rows, write_litdata
from penstock.errors import ConfigError, DataError
from penstock.sources import open_files
from penstock.sources.litdata import make_leaf_decoder
from penstock.sources.litdata_json import decode_value
from penstock.testing.asserts import describe_difference

# What the serializers of litdata 0.2.76 made of these values.
VALUES: list[tuple[str, bytes, Any]] = [
    ("int", b"\xfe" + b"\xff" * 7, -2),
    ("float", struct.pack("<d", 0.1), 0.1),
    ("bool", b"\1", True),
    ("str", "ü".encode(), "ü"),
    ("text", b"a", "a"),
    ("bytes", b"\0", b"\0"),
    ("jpeg", b"\xff\xd8", b"\xff\xd8"),
    ("image:png", b"\x89P", b"\x89P"),
    ("no_header_numpy:2", struct.pack("<2i", 1, -2), np.array([1, -2], np.int32)),
    ("no_header_tensor:18", struct.pack("<2q", 1, -2), np.array([1, -2])),
    ("no_header_tensor:20", b"", np.zeros(0, np.uint16)),
    ("numpy", struct.pack("<4I4B", 4, 2, 2, 2, 1, 2, 3, 4), np.array([[1, 2], [3, 4]], np.uint8)),
    (
        "tensor",
        struct.pack(">4I", 1, 2, 1, 2) + struct.pack("<2f", 1, 2),
        np.array([[1, 2]], np.float32),
    ),
    ("tensor", struct.pack(">2I", 18, 0) + struct.pack("<q", 7), np.array(7)),
    ("json", b'["7",{"x":7}]', ["7", {"x": 7}]),
]


@pytest.mark.parametrize(("written", "data", "value"), VALUES, ids=[each[0] for each in VALUES])
def test_leaves_of_every_kind(written: str, data: bytes, value: Any) -> None:
    assert not describe_difference(make_leaf_decoder(written, Path("x.bin"))(data), value)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("05020000000100000061080700000000000000 010000006207 020000007878", {"a": 7, "b": "xx"}),
        ("01020000000100000061 00000000", ["a", ""]),
        ("0301000000 000000000000e03f", [0.5]),
        ("0402000000 0100", [True, False]),
        ("0602000000 01000000 0100000061 12 0500000000000000 10", [{"a": 5}, {"a": None}]),
        ("0b", None),
        ("0a01", True),
        ("00 05000000 5b312c325d", [1, 2]),
    ],
)
def test_nested_values(data: str, value: Any) -> None:
    whole = bytes.fromhex(data)
    assert decode_value(whole) == value
    for cut in range(1, len(whole)):
        with pytest.raises((ValueError, IndexError, struct.error)):
            decode_value(whole[:cut])


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUE)
def test_nested_values_of_the_tool(value: Any) -> None:
    serializers: Any = pytest.importorskip("litdata.streaming.serializers")
    assert not describe_difference(decode_value(serializers._nested_dumps(value)), value)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    try:
        decode_value(data)
    except (ValueError, IndexError, struct.error, RecursionError):
        return
    assert data


def test_trees_of_items_and_the_order_of_chunks(tmp_path: Path) -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    pair = {"type": "builtins.tuple", "context": None, "children_spec": [leaf, leaf]}
    whole = {"type": "builtins.list", "context": None, "children_spec": [pair, leaf]}
    rows = [{"a": i, "b": f"{i}", "c": bool(i % 2)} for i in range(25)]
    leaves = {"a": "int", "b": "str", "c": "bool"}
    folder = write_litdata(
        tmp_path / "lit", rows, leaves, chunk=2, data_spec=json.dumps([1, whole])
    )
    source = open_files(folder)  # its last chunk is chunk-0-12
    assert source.read(np.arange(25)) == [[(i, f"{i}"), bool(i % 2)] for i in range(25)]
    with pytest.raises(ConfigError, match="there is no column 'a'; its items are no mappings"):
        open_files(folder, columns=["a"])


def test_keys_of_items_are_of_the_kind_that_they_were(tmp_path: Path) -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    keys = [0, "one", 2, "0", None]
    spec = {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": [leaf] * 5}
    rows = [{name: i + place for place, name in enumerate("abcde")} for i in range(5)]
    folder = write_litdata(
        tmp_path / "lit", rows, dict.fromkeys("abcde", "int"), data_spec=json.dumps([1, spec])
    )
    assert open_files(folder).read(np.arange(2)) == [
        dict(zip(keys, range(i, i + 5), strict=True)) for i in range(2)
    ]
    assert open_files(folder, columns=["2", "one"]).read(np.array([3])) == [{2: 5, "one": 4}]
    assert open_files(folder, columns=["0"]).read(np.array([3])) == [{"0": 6}]
    with pytest.raises(ConfigError, match="there is no column '1'; the columns are 0, one, 2, 0"):
        open_files(folder, columns=["1"])


def test_chunks_of_tokens(tmp_path: Path) -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    folder = tmp_path / "lit"
    folder.mkdir()
    rows = [np.arange(i, dtype=np.int64) for i in range(6)]
    offsets = np.cumsum([0, *(row.nbytes for row in rows)]) + 32
    head = struct.pack("<I", 6) + offsets.astype("<u4").tobytes()
    (folder / "chunk-0-0.bin").write_bytes(head + b"".join(row.tobytes() for row in rows))
    config = {
        "data_format": ["no_header_tensor:18"],
        "data_spec": json.dumps([1, leaf]),
        "item_loader": "TokensLoader",
    }
    chunk = {"chunk_bytes": 0, "chunk_size": 6, "dim": 15, "filename": "chunk-0-0.bin"}
    (folder / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))
    assert not describe_difference(open_files(folder).read(np.arange(6)), rows)


def test_what_is_pickled_is_refused_by_name(tmp_path: Path) -> None:
    rows = [{"code": b"cos\nsystem\n.", "id": i} for i in range(3)]
    folder = write_litdata(tmp_path / "lit", rows, {"code": "pickle", "id": "int"})
    with pytest.raises(
        ConfigError,
        match=r"chunk-0-0\.bin: a leaf is pickled \(pickle\), and reading it may run any code",
    ):
        open_files(folder)
    assert open_files(folder, columns=["id"]).read(np.arange(3)) == [
        {"id": 0},
        {"id": 1},
        {"id": 2},
    ]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"compression": "zstd"}, r"index\.json: chunks with compression \(zstd\) cannot be read"),
        ({"encryption": {"algorithm": "fernet"}}, "chunks with encryption"),
        ({"data_format": ["int"]}, "1 formats for 5 leaves"),
        (
            {"data_format": ["int", "graph", "int", "int", "int"]},
            "a leaf is written as 'graph'; known are",
        ),
        (
            {"data_format": ["no_header_tensor:10", *["int"] * 4]},
            "arrays have the type number 10, which NumPy lacks",
        ),
        ({"data_spec": "{"}, "is no index of LitData"),
        (
            {"data_spec": '[1, {"type": "os.system", "context": "x", "children_spec": []}]'},
            "items contain os.system",
        ),
        (
            {
                "data_spec": '[1, {"type": "builtins.dict", "context": "[[1]]", "children_spec": []}]'
            },
            r"\[\[1\]\] are no keys of a dict",
        ),
    ],
)
def test_what_cannot_be_read_is_named(config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = write_litdata(tmp_path / "lit", lit_rows(3), **config)
    with pytest.raises((ConfigError, DataError), match=reason):
        open_files(folder).read(np.arange(3))


def test_the_tool_writes_the_same_bytes(tmp_path: Path) -> None:
    lit: Any = pytest.importorskip("litdata")
    ours = write_litdata(tmp_path / "ours", lit_rows(20))
    lit.optimize(each_lit_row, [20], str(tmp_path / "theirs"), num_workers=1, chunk_size=8)
    for part in sorted(ours.glob("*.bin")):
        assert part.read_bytes() == (tmp_path / "theirs" / part.name).read_bytes()
    theirs = json.loads((tmp_path / "theirs" / "index.json").read_text())
    mine = json.loads((ours / "index.json").read_text())
    assert theirs["chunks"] == mine["chunks"] and theirs["config"]["data_format"] == list(
        LEAVES.values()
    )
    assert json.loads(theirs["config"]["data_spec"]) == json.loads(mine["config"]["data_spec"])


def test_leaves_that_folders_write_as_other_types_are_refused(tmp_path: Path) -> None:
    ones = [{"x": 1, "y": "same"}]
    write_litdata(tmp_path / "a", ones, {"x": "int", "y": "str"})
    write_litdata(tmp_path / "b", ones, {"x": "int", "y": "text"})
    write_litdata(tmp_path / "c", [{"x": "1", "y": "same"}], {"x": "str", "y": "str"})
    source = open_files([tmp_path / "a", tmp_path / "b"])
    assert source.read(np.arange(2)) == ones * 2
    with pytest.raises(
        DataError, match=r"chunk-0-0\.bin: its column 'x' holds str, in .*0\.bin it holds int:"
    ):
        open_files([tmp_path / "a", tmp_path / "c"])
    assert len(open_files([tmp_path / "a", tmp_path / "c"], columns=["y"])) == 2
    write_litdata(tmp_path / "d", [{"x": 1, "z": "other"}], {"x": "int", "z": "str"})
    with pytest.raises(
        DataError, match=r"its columns are x, z, those of .*0\.bin are x, y: pass columns="
    ):
        open_files([tmp_path / "a", tmp_path / "d"])
    for name, kind in (("e", 1), ("f", 2)):
        write_litdata(
            tmp_path / name,
            [{"x": np.arange(4, dtype=f"i{2 * kind}")}],
            {"x": f"no_header_numpy:{kind}"},
        )
    with pytest.raises(
        DataError, match=r"its column 'x' holds int32\[\*\], in .* it holds int16\[\*\]"
    ):
        open_files([tmp_path / "e", tmp_path / "f"])
