"""The demo itself, short: killed, resumed, compared, and held against its plan."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from example_counts import is_soak
from helpers import through_json
from penstock.cli.demo import story
from penstock.cli.demo.journal import JournalReader
from penstock.cli.demo.queries import query_plan
from penstock.cli.demo.story import DemoSettings, demo
from penstock.report import open_target

pytestmark = pytest.mark.slow  # three runs in processes, one of which is killed


@pytest.mark.skipif(not is_soak(), reason="`make demo` does the same: `make soak`")
def test_a17_the_demo_proves_an_equal_stream_however_late_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PENSTOCK_PROGRESS", "0"
    )  # a slow machine would tell of it where only errors belong
    first = tmp_path / "runs" / "first.jsonl"
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / ".code.parquet.penstock-lengths-tokens").write_bytes(
        b"kept by an earlier demo"
    )

    def late(seconds: float) -> None:
        """Look again only when the first run has done all it does."""
        while not first.exists() or first.read_bytes().count(b"\n") < 74:
            assert not first.with_suffix(".err").read_text()
            time.sleep(0.01)
        time.sleep(seconds)

    monkeypatch.setattr(story, "time", SimpleNamespace(sleep=late, monotonic=time.monotonic))
    console = Console(file=io.StringIO(), width=100)
    outcome = demo(DemoSettings(tmp_path, steps=100, workers=(0, 2, 1), save_every=25), console)
    found = outcome.as_json()
    assert found["equal_stream"] is True
    assert found["steps_equal"] == 100
    assert found["steps_done_twice_equal"] > 0
    assert (found["killed_at"], found["resumed_from"]) == (74, 50)
    assert (
        found["steps_as_planned"] == 100
        and found["documents_as_planned"] == found["documents_asked"] > 100
    )
    assert through_json(found)["tokens"] == 100 * 8 * 1_024
    report = outcome.report.read_text()
    assert report.count("<svg") == 6 and "As planned" in report and "As it ran" in report
    outcome.tell(console)
    said = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "100 of 100 steps equal" in said and "100 of 100 steps match the plan" in said
    assert "What is in step" in said

    # The check can fail: a step with another document, and a document at another step, are found.
    tail = JournalReader(tmp_path / "runs" / "untouched.jsonl")
    records = list(tail.more())
    changed = replace_key(records, 40)
    answers = query_plan(open_target(outcome.mixture), changed, 50)
    assert answers.wrong_steps == [40] and not answers.hold


def replace_key(records: list, step: int) -> list:
    record = records[step]
    source, epoch, index = record.keys[0]
    other = record._replace(keys=[[source, epoch, index + 1], *record.keys[1:]])
    return [*records[:step], other, *records[step + 1 :]]
