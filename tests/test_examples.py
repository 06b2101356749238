"""Every example runs, in a fresh interpreter and an empty folder, and stays short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import imports_a_framework, slow_if

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert EXAMPLES


def case(path: Path) -> Any:
    """An example, marked slow if it imports a framework."""
    return pytest.param(
        path, id=path.stem, marks=slow_if(imports_a_framework(path.read_text(encoding="utf-8")))
    )


@pytest.mark.parametrize("path", [case(path) for path in EXAMPLES])
def test_example_runs(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 75
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_outside_package_passes_its_own_tests(tmp_path: Path) -> None:
    package = EXAMPLES[0].parent / "outside_package"
    root = package.parent.parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, str(package / "tests")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (root / "src", package / "src"))),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
