"""The examples in docstrings run, module by module."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(name)
    outcome = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL)
    assert outcome.failed == 0, capsys.readouterr().out
    assert outcome.attempted
