"""The command line: what it prints, how it fails, and what it says where an extra is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock.cli
from penstock.cli.app import app

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache of the person who runs the tests is touched."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_help_names_the_commands() -> None:
    done = RUNNER.invoke(app, ["--help"])
    assert done.exit_code == 0
    assert "demo" in done.output
    assert "index" in done.output


def test_index_counts_rows_and_leaves_an_index(tmp_path: Path) -> None:
    for name, rows in (("a", 3), ("b", 5)):
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n' * rows)
    done = RUNNER.invoke(app, ["index", f"{tmp_path}/*.jsonl", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {str(tmp_path / "a.jsonl"): 3, str(tmp_path / "b.jsonl"): 5}
    assert len(list(tmp_path.glob(".*.penstock-lines"))) == 2


def test_index_refuses_what_is_not_there(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["index", f"{tmp_path}/*.jsonl"])
    assert done.exit_code == 2
    assert "matches no file" in done.output


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "penstock.cli.app", raising=False)
    with pytest.raises(SystemExit, match=r"pip install 'penstock\[cli\]'"):
        penstock.cli.main()


def test_the_demo_without_tokenizers_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for name in ("penstock.demo.story", "penstock.demo.pipeline"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    done = RUNNER.invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "pip install 'penstock[demo]'" in done.output
