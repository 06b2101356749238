"""The rehearsal of many ranks, small: every machine asks for every listing and every index once, whoever else there is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # many ranks over a simulated store

SOURCES, MACHINES, RANKS = 3, 2, 2
_KEPT = 30  # seconds for which a version that was told is taken for granted


def script() -> Any:
    path = Path(__file__).parent.parent / "tools" / "many_ranks.py"
    spec = importlib.util.spec_from_file_location("many_ranks", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_machine_asks_once_for_what_its_ranks_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = script()
    words = [
        "--home",
        str(tmp_path / "home"),
        "--rows",
        "9_000_000",
        "--latency",
        "0.001",
        "--run",
        "1,0",
    ]
    words += ["--sources", str(SOURCES), "--machines", str(MACHINES), "--ranks", str(RANKS)]
    monkeypatch.setattr("sys.argv", ["many_ranks", *words])
    found = many.rehearsed(
        many.arguments(words)
    )  # which compares every batch with the plan, and all of them with it
    assert [one["ranks"] for one in found] == [[2, 3], [0, 1]]
    for one in found:
        assert one["of"] == MACHINES * RANKS
        assert one["requests"]["index"] == SOURCES, "one read of each index"
        assert 0 < one["requests"]["data"] <= SOURCES * many.BATCH * RANKS
        if one["launch_to_last_batch_s"] < _KEPT:
            assert one["requests"]["list"] == SOURCES, "one listing of each folder"
            # Answers of fsspec tell no version: a look follows each read.
            assert one["requests"]["stat"] == one["requests"]["index"] + one["requests"]["data"]
