"""The page of keys of other tools' files has what the converters do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from penstock.compat.mixtures import KINDS, convert_with_keys

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def keys() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keys", ROOT / "tools" / "conversion_keys.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_keys_of_the_converters(keys: ModuleType) -> None:
    page = (ROOT / "docs" / "converting.md").read_text()
    message = "run python tools/conversion_keys.py --markdown, and put it behind Keys by format"
    assert page.partition("## Keys by format\n\n")[2].rstrip() == keys.format_markdown(), message
    assert [kind for kind in KINDS if f"### {kind}\n" not in page] == []


def test_the_lists_agree_with_a_conversion(keys: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "base_model: m\ndatasets: [{path: a/b, type: alpaca, split: train}]\nsequence_len: 64\n"
        "micro_batch_size: 1\nnum_epochs: 2\nval_set_size: 0.1\nlearning_rate: 1\nstreaming: true\n"
    )
    outcomes = keys.collect_keys("axolotl")
    found = convert_with_keys(path, ranks=1).keys
    names = {key.key.rpartition(".")[2] for key in found.carried}
    assert names <= {*outcomes["carried"][""]}
    assert {key.key for key in found.harmless} <= {*outcomes["harmless"][""]}
    lost = {key for group in outcomes["lost"].values() for key in group}
    assert {"streaming"} == {key.key for key in found.reported} & lost
