"""Fixtures of the command line: a mixture file with its data, and a function to call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app

Penstock = Callable[..., Result]

MIXTURE = """\
sources:
  code: {path: code.jsonl, weight: 0.5}
  text: {path: text.jsonl, weight: 0.4}
  math: {path: math.jsonl, weight: 0.1, max_epochs: 0.5}
seed: 7
block_size: 100
batch: {size: 8, collate: list}
horizon: {steps: 300}
"""


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """A mixture of 2,900, 1,100 and 700 rows, 300 steps of 8 samples."""
    for name, rows in (("code", 2_900), ("text", 1_100), ("math", 250)):
        lines = [json.dumps({"text": f"{name} {i}"}) for i in range(rows)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "mixture.yaml"
    path.write_text(MIXTURE)
    return path


@pytest.fixture
def penstock() -> Penstock:
    """`penstock ARGUMENTS`, in this process."""
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments])
