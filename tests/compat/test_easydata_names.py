"""Names, submodules, methods and fields of EasyData, compared with the recorded API."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


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
