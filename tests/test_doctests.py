"""The examples in docstrings run, module by module."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import imports_a_framework, slow_if

SOURCE = Path(__file__).resolve().parent.parent / "src"


def cases() -> Iterator[Any]:
    """The modules with examples, marked slow if they import a framework."""
    for path in sorted(SOURCE.rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        if ">>> " in code:
            name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(
                ".__init__"
            )
            yield pytest.param(name, id=name, marks=slow_if(imports_a_framework(code)))


@pytest.mark.parametrize("name", list(cases()))
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(name)
    outcome = doctest.testmod(
        module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    )
    assert outcome.failed == 0, capsys.readouterr().out
    assert outcome.attempted
