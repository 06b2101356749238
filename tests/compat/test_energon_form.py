"""Samples of a prepared folder are built from data alone; its code never runs."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.compat.energon import form
from penstock.compat.energon.form import Fields
from penstock.errors import ConfigError, DataError
from prepared_folders import folder, put


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of the person who runs the tests is touched."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.mark.parametrize("name", ["../x.yaml", "/etc/passwd", "..", "", "sub/split.yaml"])
def test_forms_outside_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    root = folder(tmp_path / "x")
    (root / "x.yaml").write_text("split_parts: {}")
    with pytest.raises(ConfigError, match="must be the name of a file"):
        form.load(root, name)


CAPTIONS = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}


def test_classes_are_names_and_nothing_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder(
        tmp_path / "x",
        sample_type=CAPTIONS,
        field_map={"image": "jpg"},
        subflavors={"a": [1]},
        shuffle_over_epochs=2,
    )
    really, names = builtins.__import__, set[str]()

    def watched(name: str, *rest: Any) -> Any:
        names.add(name)
        return really(name, *rest)

    monkeypatch.setattr(builtins, "__import__", watched)
    about = form.load(root)
    assert not any(name.startswith("megatron") for name in names)
    assert (about.sample_type, about.code) == ("CaptioningSample", ())
    assert about.options == {"shuffle_over_epochs": 2}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}, "CrudeSample"),
        (
            {"__module__": "megatron.energon", "__class__": "CaptioningWebdataset"},
            "CaptioningSample",
        ),
        (
            {"sample_type": {"__module__": "megatron.energon.flavors", "__class__": "VQASample"}},
            "VQASample",
        ),
    ],
)
def test_all_ways_to_name_a_class(tmp_path: Path, settings: Any, name: str) -> None:
    assert form.load(folder(tmp_path / "x", **settings)).sample_type == name


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        (
            {
                "sample_type": CAPTIONS,
                "sample_loader": "sample_loader.py:load",
                "part_filter": "sample_loader.py:keep",
            },
            r"sample_loader\.py:load, sample_loader\.py:keep",
        ),
        (
            {
                "sample_type": {"__module__": "os", "__class__": "system"},
                "field_map": {"image": "jpg"},
            },
            r"os\.system",
        ),
        ({"__module__": "mine", "__class__": "Factory", "sample_type": CAPTIONS}, r"mine\.Factory"),
        ({"__module__": "megatron.energonx", "__class__": "Mine"}, r"megatron\.energonx\.Mine"),
    ],
)
def test_code_of_a_folder_is_never_run(tmp_path: Path, settings: Any, asked: str) -> None:
    root = folder(tmp_path / "x", **settings)
    ran = tmp_path / "ran"
    put(root, "sample_loader.py", f"open({str(ran)!r}, 'w')\nload = keep = dict")
    assert len(ps.read(root)) == 4  # the parts can be read all the same
    about = form.load(root)
    with pytest.raises(
        ConfigError,
        match=rf"refers to the code {asked}, which is never run unless you allow it: pass your own function",
    ):
        _ = about.fields
    assert not ran.exists()


def test_yaml_makes_no_objects(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    put(root, "dataset.yaml", "sample_type: !!python/object/apply:os.system ['touch ran']")
    with pytest.raises(DataError, match=r"dataset\.yaml: cannot be read"):
        form.load(root)


def test_fields() -> None:
    fields = Fields({"image": "jpg,png", "text": "json[lines][1],txt", "all": "json"})
    assert fields.parts == ["jpg", "json", "png", "txt"]
    sample = {"__key__": "7", "png": 1, "txt": "t", "json": {"lines": ["only one"]}}
    assert fields(sample) == {"image": 1, "text": "t", "all": {"lines": ["only one"]}}
    with pytest.raises(
        DataError,
        match=r"^7: the field 'image' maps to 'jpg,png', which is not in this sample.*parts are txt",
    ):
        fields({"__key__": "7", "txt": "t"})
    with pytest.raises(
        DataError, match="^7: the field 'text' is a value in 'json', which is still bytes: decode"
    ):
        fields({"__key__": "7", "png": b"", "json": b'{"lines": []}'})
    for wrong in ("", "[a]", "json[a", "json[a]b", "json[]", "json[a]]"):
        with pytest.raises(ConfigError, match="not a path to a part"):
            Fields({"x": wrong})


def test_without_a_field_map(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no field_map"):
        _ = form.load(folder(tmp_path / "x", sample_type=CAPTIONS)).fields


def test_a_missing_yaml_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path / "x", sample_type=CAPTIONS)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert len(ps.read(root)) == 4  # split.json and .info.json are enough for the parts
    with pytest.raises(ImportError, match=r"penstock-data\[yaml\]"):
        form.load(root)
