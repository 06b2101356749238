"""Folders that `save_to_disk` of Hugging Face's `datasets` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, DataError
from penstock.sources import open_files

datasets: Any = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def made(count: int = 30) -> Any:
    return datasets.Dataset.from_dict(
        {
            "x": list(range(count)),
            "text": [f"ü{i}" for i in range(count)],
            "list": [[i] * (i % 3) for i in range(count)],
        }
    )


def test_what_the_package_itself_reads(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "d", num_shards=4)
    ds, theirs = ps.read(tmp_path / "d"), datasets.load_from_disk(str(tmp_path / "d"))
    assert len(ds) == len(theirs) == 30 and ds.plan.sources == ("d",)
    for index in (7, 0, 29, 13):
        row = ds[index]
        assert {**row, "list": row["list"].tolist()} == theirs[index]


def test_files_that_are_not_of_it_are_left_out(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "d")
    saved = datasets.load_from_disk(str(tmp_path / "d"))
    saved.map(lambda row: {"y": 1})  # leaves a cache-*.arrow beside the data
    assert list(tmp_path.glob("d/cache-*.arrow"))
    assert [row["x"] for row in ps.read(tmp_path / "d")] == list(range(30))


def test_selections_lengths_and_columns_of_arrow_files_work(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "d", num_shards=2)
    cache = tmp_path / "cache"
    assert [
        row["x"]
        for row in ps.read(tmp_path / "d", columns=["x"], where={"x": {"min": 25}}, cache=cache)
    ] == [
        25,
        26,
        27,
        28,
        29,
    ]
    lengths = open_files(tmp_path / "d", lengths="list").lengths()
    assert lengths is not None and lengths[:].tolist() == [i % 3 for i in range(30)]


def test_splits(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": made(), "test": made().select([5, 3])}).save_to_disk(
        tmp_path / "d"
    )
    assert [row["x"] for row in ps.read(tmp_path / "d", split="test")] == [5, 3]
    assert (
        len(ps.read(tmp_path / "d", split="train")) == 30 == len(ps.read(tmp_path / "d" / "train"))
    )
    assert open_files(tmp_path / "d", split="test").name == "d"
    with pytest.raises(ConfigError, match="d holds the splits train, test: choose one with split="):
        ps.read(tmp_path / "d")
    for split in ("dev", "..", "d/train", ""):
        with pytest.raises(ConfigError, match="has no split of this name"):
            ps.read(tmp_path / "d", split=split)


def test_pictures_and_arrays_are_what_is_stored(tmp_path: Path) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    features = {
        "image": datasets.Image(),
        "grid": datasets.Array2D((2, 2), "int64"),
        "label": datasets.ClassLabel(2),
    }
    rows = {"image": [image.new("RGB", (2, 2))], "grid": [np.arange(4).reshape(2, 2)], "label": [1]}
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).save_to_disk(
        tmp_path / "d"
    )
    row = ps.read(tmp_path / "d")[0]
    assert (
        row["image"]["bytes"][:4] == b"\x89PNG"
        and row["grid"] == [[0, 1], [2, 3]]
        and row["label"] == 1
    )


def test_a_list_of_files_that_cannot_be_is_refused(tmp_path: Path) -> None:
    made().save_to_disk(tmp_path / "d")
    state = tmp_path / "d" / "state.json"
    whole = json.loads(state.read_text())
    for files, reason in (
        ([{"filename": "../x.arrow"}], "does not lie below this folder"),
        ([{"filename": "x.arrow"}], "the file 'x.arrow' is missing"),
        ([{}], "does not list its files"),
        ("x", "does not list its files"),
    ):
        state.write_text(json.dumps({**whole, "_data_files": files}))
        with pytest.raises(DataError, match=reason):
            ps.read(tmp_path / "d")
    state.write_text(json.dumps({**whole, "_indices_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(ConfigError, match="a file of indices selects the rows"):
        ps.read(tmp_path / "d")
    state.write_text("{")
    with pytest.raises(DataError, match=r"state\.json: cannot be read"):
        ps.read(tmp_path / "d")


def test_a_damaged_head_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """The length with which a stream begins asks for no memory, and names that are no text are ours to refuse."""
    made().save_to_disk(tmp_path / "d")
    file = next((tmp_path / "d").glob("*.arrow"))
    body = file.read_bytes()
    names = [body.index(f"{name}\0".encode()) for name in ("text", "list")]
    for at, bit in [*((at, 5) for at in range(8)), *((at + 2, 7) for at in names)]:
        file.write_bytes(body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :])
        with pytest.raises(DataError, match=file.name):
            open_files(tmp_path / "d", cache=tmp_path / "cache")
