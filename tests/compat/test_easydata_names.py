"""Names, submodules, methods and fields of EasyData, compared with the recorded API."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.compat import easydata
from penstock.compat.easydata.submodules import ALIASES

ROOT = Path(__file__).parents[2]
API = json.loads((ROOT / "tools/easydata_api.json").read_text(encoding="utf-8"))
REQUIRED: dict[str, dict[str, Any]] = {
    "BaseDatasetInform": {"data_files": "a.parquet"},
    "DatasetConfig": {"data_files": "a.parquet"},
    "DatasetMixture": {"informs": [easydata.TextDatasetInform(data_files="a.parquet")]},
    "PipelineConfig": {"datasets": [easydata.DatasetConfig("a.parquet")]},
    "TextDatasetInform": {"data_files": "a.parquet"},
    "TokenizerConfig": {"name_or_path": "a"},
    "VisualDatasetInform": {"data_files": "a.parquet"},
    "WeightSchedulePoint": {"step": 0, "weights": {"a": 1.0}},
}
CONFIGS = [
    name for name in API["fields"] if name.endswith(("Config", "Inform", "Mixture", "Point"))
]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location(
        "easydata_names", ROOT / "tools/easydata_names.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_counts(tool: Any) -> None:
    page = (ROOT / "docs/from_easydata.md").read_text(encoding="utf-8")
    assert tool.format_markdown() in page
    assert tool.format_refused() in page


def test_nothing_is_missing(tool: Any) -> None:
    assert {column: missing for column, (_, missing) in tool.compare().items() if missing} == {}


@pytest.mark.parametrize("submodule", ALIASES)
def test_submodules_export_the_names_of_easydata(submodule: str) -> None:
    module = importlib.import_module(f"penstock.compat.easydata.{submodule}")
    assert {*API["submodules"][submodule]} <= {*dir(module)}


@pytest.mark.parametrize("name", CONFIGS)
def test_defaults_of_easydata_may_be_written_out(name: str) -> None:
    kind, required = getattr(easydata, name), REQUIRED.get(name, {})
    given = {
        field: ast.literal_eval(default)
        for field, default in API["fields"][name].items()
        if field not in required and default is not None and "(" not in default
    }
    kind(**required, **given)
    for field, value in given.items():
        kind(**required, **{field: value})


@pytest.mark.parametrize("name", CONFIGS)
def test_fields_have_the_order_of_easydata(name: str) -> None:
    fields = [*API["fields"][name]]
    assert [*inspect.signature(getattr(easydata, name)).parameters][: len(fields)] == fields


@pytest.mark.parametrize("name", easydata.REFUSED_FIELDS)
def test_fields_without_effect_raise_an_error_that_says_what_to_use(name: str) -> None:
    kind, required = getattr(easydata, name), REQUIRED.get(name, {})
    for field, refusal in easydata.REFUSED_FIELDS[name].items():
        assert ast.literal_eval(API["fields"][name][field]) in refusal.accepted
        for value in refusal.accepted:
            kind(**required, **{field: value})
        with pytest.raises(ps.ConfigError, match=rf"{name}\({field}='x'\) would have no effect: "):
            kind(**required, **{field: "x"})


def test_the_package_owns_no_order_buffer_or_cursor() -> None:
    folder = Path(easydata.__file__).parent
    states = {"hub.py", "async_loader.py"}
    """Modules that keep a state of Hugging Face, or of the loader that they wrap."""
    banned = {"deque", "Queue", "SimpleQueue", "Thread", "default_rng", "permutation"}
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Name) or node.id not in banned, path
            assert not isinstance(node, ast.Attribute) or node.attr not in banned, path
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                assert not {"pull", "seek_to", "cursor", "up"} & names, path
                if {"state_dict", "_init_state_dict"} & names:
                    assert path.name in states
