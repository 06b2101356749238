"""The demo itself, short: killed, resumed, compared."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from penstock.demo.story import Settings, demo


def test_the_demo_proves_an_equal_stream(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    outcome = demo(Settings(tmp_path, steps=100, workers=(0, 2, 1), save_every=10), console)
    found = outcome.as_json()
    assert found["equal_stream"] is True
    assert found["steps_equal"] == 100
    assert found["steps_done_twice_equal"] > 0
    assert 50 <= found["killed_at"] < 100
    assert found["resumed_from"] < found["killed_at"]
    assert json.loads(json.dumps(found))["tokens"] > 100 * 8 * 1_000
    ElementTree.parse(outcome.picture)
    outcome.tell(console)
    assert "100 of 100 steps equal" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
