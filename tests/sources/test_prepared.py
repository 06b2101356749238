"""Folders that Energon prepared: the samples and splits that Energon reads, and nothing that a folder may not ask for."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import penstock as ps
from archives import expected, some, write
from penstock.compat.energon import form
from penstock.errors import ConfigError, DataError
from penstock.media import Decode
from penstock.sources import open_files, prepared, tar_index
from penstock.testing import assert_resumes
from prepared_folders import folder, put


@pytest.fixture(scope="module")
def energon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders prepared by Energon, and `found.json`: what it reads from them."""
    for package in ("megatron", "PIL"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    out = tmp_path_factory.mktemp("energon")
    script = Path(__file__).with_name("energon_prepares.py")
    done = subprocess.run(
        [sys.executable, str(script), str(out)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def found(energon: Path) -> dict[str, Any]:
    return json.loads((energon / "found.json").read_text())


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def as_found(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        name: digest(value) if isinstance(value, bytes) else value for name, value in sample.items()
    }


# ---------------------------------------------------------------- as Energon reads


@pytest.mark.parametrize("folder", ["captions", "crude"])
def test_every_split_holds_what_energon_reads(
    energon: Path, found: dict[str, Any], folder: str
) -> None:
    about = prepared.load(energon / folder)
    assert list(about.splits) == list(found[folder])
    for split, theirs in found[folder].items():
        ds = ps.read(energon / folder, split=split)
        assert len(theirs) > 0
        assert [as_found(sample) for sample in ds] == theirs
        assert len(ds) == len(theirs)
    assert not list((energon / "captions").rglob(".*penstock*"))  # Energon's own indexes served


def test_the_field_map_makes_the_samples_that_energon_makes(
    energon: Path, found: dict[str, Any]
) -> None:
    about = form.load(energon / "captions")
    assert about.sample_type == "CaptioningSample"
    assert about.subflavors == {"language": "en"}
    assert about.fields.parts == ["jpg", "json", "png"]
    for split, theirs in found["decoded"].items():
        ds = ps.read(energon / "captions", split=split, columns=about.fields.parts).map(
            Decode("torchrgb")
        )
        made = [(sample["__key__"], about.fields(sample)) for sample in ds]
        ours = [
            [key, one["caption"], digest(one["image"].numpy().tobytes()), about.subflavors]
            for key, one in made
        ]
        assert ours == theirs


def test_excluded_samples_do_not_count(energon: Path) -> None:
    # Energon counts them: the `len` of its train split is 9 for the 5 samples it gives.
    about = prepared.load(energon / "crude")
    assert sum(about.counts[shard] for shard in about.splits["train"]) == 9
    assert len(ps.read(energon / "crude")) == 5
    assert {shard: sorted(keys) for shard, keys in about.excluded.items()} == {
        "b.tar": ["00002"],
        "a.tar": ["00004", "00005", "00006"],
        "sub/c.v1.tar": ["00009"],
    }


def test_prepared_json_lines(energon: Path, found: dict[str, Any]) -> None:
    ds = ps.read(energon / "rows.jsonl", format="energon")
    assert list(ds) == found["rows"]
    assert ds[8] == {"__key__": "8", "__shard__": "rows.jsonl", "json": {"n": 8, "text": "é" * 8}}
    index = energon / "rows.jsonl.idx"
    kept = index.read_bytes()
    for bad in (kept[:-8], kept[:-8] + np.asarray([5], "=u8").tobytes(), b""):
        index.write_bytes(bad)
        with pytest.raises(
            DataError, match=r"rows\.jsonl: .*rows\.jsonl\.idx is not the index of this file"
        ):
            ps.read(energon / "rows.jsonl", format="energon")
    index.write_bytes(kept)


def test_a_run_over_a_prepared_folder_resumes(energon: Path) -> None:
    ds = ps.read(energon / "captions").shuffle(seed=1).map(as_found)
    assert_resumes(lambda: ps.Loader(ds.batch(4, collate=list), workers=2), at_most=4)


def test_our_offsets_are_those_of_energon(energon: Path) -> None:
    for path in (energon / "captions").rglob("*.tar"):
        starts = tar_index.scan_headers(path, path.stat().st_size, str(path)).starts
        assert np.fromfile(f"{path}.idx", "=u8").tolist() == starts


# ---------------------------------------------------------------- folders made by hand


def keys(path: Path, **options: Any) -> list[str]:
    return [sample["__key__"] for sample in ps.read(path, **options)]


def test_splits_keep_their_order(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    assert (
        keys(root)
        == keys(root, split="train", format="energon")
        == ["00004", "00005", "00002", "00003"]
    )
    assert keys(root, split="val") == ["00000", "00001"]
    sample = ps.read(root)[0]
    assert sample == {**expected(some(6), "2.tar")[4]}
    assert list(ps.read(root, columns=["json"])[0]) == ["__key__", "__shard__", "json"]
    source = open_files(root)
    assert source.name == "x"
    assert source.describe() == {"format": "energon", "rows": 4, "columns": None}
    with pytest.raises(ConfigError, match="there is no split 'test'; there are train, val"):
        ps.read(root, split="test")


def test_the_older_files_are_read(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    (root / ".nv-meta/.info.json").rename(root / ".nv-meta/.info.yaml")
    (root / ".nv-meta/split.json").rename(root / ".nv-meta/split.yaml")
    put(root, "mine.yaml", yaml.safe_dump({"split_parts": {"train": ["1.tar"]}}))
    assert keys(root, split="val") == ["00000", "00001"]
    assert list(prepared.load(root, "mine.yaml").splits) == ["train"]


@pytest.mark.parametrize(
    ("exclude", "train"),
    [
        (["1.tar"], ["00004", "00005"]),
        (["{1,2}.tar/{00002,00005}"], ["00004", "00003"]),
        (["2.tar/0000{0..9}"], ["00002", "00003"]),
        (["2.tar", "1.tar/00002", "1.tar/00003"], []),
    ],
)
def test_what_is_excluded(tmp_path: Path, exclude: list[str], train: list[str]) -> None:
    assert keys(folder(tmp_path / "x", exclude=exclude)) == train


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (
            ["9.tar"],
            r"split\.json: the excluded name '9\.tar' is neither a shard nor a sample",
        ),
        (["9.tar/00001"], "the excluded name .* is neither"),
        (["1.tar/00007"], r"1\.tar: the excluded sample '00007' does not exist in this shard"),
        (["1.tar/{0..9999999}"], "means more than 1,000,000 names"),
    ],
)
def test_an_exclusion_that_excludes_nothing_is_an_error(
    tmp_path: Path, exclude: list[str], message: str
) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        ps.read(folder(tmp_path / "x", exclude=exclude))


@pytest.mark.parametrize(
    "name", ["../out.tar", "/etc/out.tar", "a/../../out.tar", "..\\out.tar", "a\0.tar"]
)
def test_shards_outside_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "out.tar", some(2))
    root = folder(tmp_path / "x", counts={name: 2}, splits={"train": [name]})
    with pytest.raises(DataError, match="does not lie below this folder: move it there"):
        ps.read(root)


@pytest.mark.parametrize("name", ["../x.yaml", "/etc/passwd", "..", "", "sub/split.yaml"])
def test_configs_outside_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    root = folder(tmp_path / "x")
    (root / "x.yaml").write_text("split_parts: {}")
    with pytest.raises(ConfigError, match="must be the name of a file"):
        prepared.load(root, name or "..")


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ("{", r"\.info\.json: cannot be read"),
        ("[]", r"\.info\.json: the file must be a mapping, not list"),
        ("{}", "shard_counts must be a mapping, not NoneType"),
        ({"shard_counts": {"0.tar": "2"}}, "the shard '0.tar' has '2' samples"),
        ({"shard_counts": {"0.tar": -1}}, "has -1 samples"),
        ({"shard_counts": {"0.tgz": 2}}, "'0.tgz' is no plain .tar: unpack it"),
        (
            {"shard_counts": {"0.tar": 2}},
            "the split 'train' names the shard '2.tar', which was not prepared",
        ),
        (
            {"shard_counts": {"0.tar": 2, "1.tar": 2, "2.tar": 7}},
            r"2\.tar: this shard holds 2 samples.*prepared with 7",
        ),
    ],
)
def test_a_list_of_shards_that_is_damaged(tmp_path: Path, info: Any, message: str) -> None:
    root = folder(tmp_path / "x")
    put(root, ".info.json", info)
    with pytest.raises(DataError, match=message):
        ps.read(root)


@pytest.mark.parametrize("splits", [{"train": "0.tar"}, {"train": {"0.tar": 1}}, []])
def test_a_split_that_is_no_list_of_shards(tmp_path: Path, splits: Any) -> None:
    root = folder(tmp_path / "x")
    put(root, "split.json", {"split_parts": splits})
    with pytest.raises(
        DataError,
        match=r"split\.json: (a list of names is required|split_parts must be a mapping)",
    ):
        ps.read(root)


def test_a_folder_that_was_not_prepared_to_its_end(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    (root / ".nv-meta/split.json").unlink()
    with pytest.raises(
        ConfigError, match=r"prepared incompletely: split\.yaml or split\.json is missing"
    ):
        ps.read(root)
    shutil.rmtree(root / ".nv-meta")
    assert len(ps.read(root)) == 6  # a folder of tars
    with pytest.raises(
        ConfigError, match=r"neither a folder that contains \.nv-meta nor a \.jsonl file"
    ):
        ps.read(root, format="energon")


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    calls: list[tuple[str, Callable[[], Any]]] = [
        (
            "split='train': .* has no split of this name; splits exist in folders",
            lambda: ps.read(root / "0.tar", split="train"),
        ),
        ("lengths= does not go with", lambda: ps.read(root, lengths="json")),
        ("where= does not go with", lambda: ps.read(root, where={"json": 1})),
        ("one folder or file at a time", lambda: ps.read([root, root], format="energon")),
        (
            "one folder or file at a time",
            lambda: ps.read([root, root / "0.tar"]),
        ),  # or its splits would be forgotten
    ]
    for message, call in calls:
        with pytest.raises(ConfigError, match=message):
            call()
