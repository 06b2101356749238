"""Samples as members of an archive: what is read again is what was written, and what would not be is refused."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from archives import samples
from example_counts import examples
from penstock.media import Decode
from penstock.writing.tar import TarEncoder, encode_header

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
)  # fmt: skip
PIECES = WORDS.filter(
    lambda word: word and not set("./") & set(word) and not (word[:2] == "__" == word[-2:])
)
KEYS = st.lists(PIECES, min_size=1, max_size=3).map("/".join) | st.text(
    "ab/", min_size=90, max_size=300
).map(lambda text: f"x{text}x")
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "txt": WORDS,
        "seg.json": PLAIN,
        "cls": st.integers(-9, 9),
        "bin": st.binary(max_size=1100),
        "npy": st.lists(st.integers(0, 9), max_size=5).map(np.asarray),
    },
).filter(bool)


@examples(200)
@given(
    name=st.text(max_size=110) | st.text("ab/.", min_size=95, max_size=105),
    size=st.integers(0, 1 << 36),
)
def test_headers_are_those_of_python(name: str, size: int) -> None:
    about = tarfile.TarInfo(name)
    about.size = size
    assume("\0" not in name)
    assert encode_header(name, size) == about.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


@examples(60)
@given(wanted=st.dictionaries(KEYS, PARTS, min_size=1, max_size=5))
def test_what_is_read_is_what_was_written(
    wanted: dict[str, dict[str, Any]], tmp_path_factory: Any
) -> None:
    encoder, path = TarEncoder(), tmp_path_factory.mktemp("tar") / "a.tar"
    body = [
        encoder(i, {"__key__": key, **parts})[0] for i, (key, parts) in enumerate(wanted.items())
    ]
    path.write_bytes(encoder.file(body))
    found = list(map(Decode(None), samples(path)))
    assert [sample.pop("__key__") for sample in found] == list(wanted)
    for sample, parts in zip(found, wanted.values(), strict=True):
        assert sample.pop("__shard__") == "a.tar"
        np.testing.assert_equal(sample, parts)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (7, "it is a int; a tar takes mappings"),
        ({"__key__": "a", "__source__": "b"}, "no part"),
        ({"__key__": "a.b", "txt": ""}, "a key has no dot"),
        ({"__key__": "", "txt": ""}, "another key or part"),
        ({"__key__": "a/", "txt": ""}, "another key or part"),
        ({"__key__": "__x__/a", "txt": ""}, "another key or part"),
        ({"__key__": "a\0b", "txt": ""}, "another key or part"),
        ({"__key__": "a", "b/c": "b"}, "another key or part"),
        ({"__key__": "a", "txt": "\ud800"}, "surrogates"),
        ({"__key__": "a\ud800", "txt": ""}, "surrogates"),
        (
            {"__key__": "a", "png": np.zeros(3)},
            "a ndarray is not bytes; name the part .txt, .json, .npy",
        ),
        (
            {"__key__": "a", "cls": "cat"},
            "a .cls holds a whole number, and this is a str; rename it to .txt or .json",
        ),
        ({"__key__": "a", "id": "2-7"}, "a .id holds a whole number"),
        ({"__key__": "a", "index": 1.5}, "a .index holds a whole number, and this is a float"),
        ({"__key__": "a", "json": float("nan")}, "JSON compliant"),
        ({"__key__": "a", "npy": [object()]}, "Object arrays"),
    ],
)
def test_what_would_not_come_back_is_refused(sample: Any, said: str) -> None:
    with pytest.raises(ps.DataError, match=said):
        TarEncoder()(0, sample)


def test_a_key_that_comes_again_is_refused() -> None:
    encoder = TarEncoder()
    encoder(0, {"__key__": "a", "txt": ""})
    with pytest.raises(ps.DataError, match="leave out '__key__'"):
        encoder(1, {"__key__": "a", "txt": ""})


def test_what_was_read_can_be_written(tmp_path: Path) -> None:
    encoder = TarEncoder()
    body = encoder.file([encoder(3, {"txt": "a cat", "img.png": b"png"})[0]])
    (tmp_path / "a.tar").write_bytes(body)
    again = TarEncoder()
    assert again.file([again(0, samples(tmp_path / "a.tar")[0])[0]]) == body


@pytest.mark.parametrize("value", ["bfloat16", [1, "a"], ("a", 1.5)], ids=str)
def test_an_array_that_would_be_read_as_another_one_is_refused(value: Any) -> None:
    if value == "bfloat16":
        value = np.ones(2, pytest.importorskip("ml_dtypes").bfloat16)
    with pytest.raises(ps.DataError, match="convert it in a map|numbers beside text"):
        TarEncoder()(0, {"npy": value})


def test_records_and_text_are_written_as_arrays() -> None:
    for value in (
        np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        np.array(["a", "bc"]),
        ["a", "bc"],
    ):
        TarEncoder()(0, {"npy": value})
