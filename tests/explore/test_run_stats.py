"""Stats files of runs: what loaders append, what readers return after kills, and the displays."""

from __future__ import annotations

import json
import re
import sys
from io import StringIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import penstock as ps
from penstock.engine.base import seams
from penstock.explore import run_stats
from penstock.explore.live_stats import (
    LineDisplay,
    NotebookDisplay,
    StatsScreen,
    format_line,
    open_display,
    render_html,
)
from penstock.explore.run_reporter import count_tokens
from penstock.explore.run_stats import RankStats, StatsFollower, read_stats, summarize


class Clock:
    """Scheduler whose time a test sets."""

    def __init__(self, real: Any) -> None:
        self.time, self._real = 100.0, real

    def now(self) -> float:
        return self.time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(seams.world.sched)
    monkeypatch.setattr(seams.world, "sched", clock)
    monkeypatch.setattr(run_stats, "read_clock", lambda: 1_700_000_000 + clock.time)
    return clock


def mixture() -> ps.Dataset:
    rows = [{"tokens": np.arange(5)}] * 30
    sources = {"web": ps.from_sequence(rows), "code": ps.from_sequence(rows)}
    return ps.mix(sources, stop="all_exhausted").batch(4)


def take(path: Path, clock: Clock, steps: int, state: Any = None, **options: Any) -> Any:
    """Take steps of two seconds; leave the loader open, as a killed process does."""
    loader = ps.Loader(mixture(), stats=path, **options)
    if state:
        loader.load_state_dict(state)
    for _ in islice(loader, steps):
        clock.time += 2
    return loader


def test_a_file_holds_a_start_and_bounded_records(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "run" / "stats.jsonl"
    with take(path, clock, 5, profile=True) as loader:
        for _ in islice(loader, 3):
            clock.time += 0.1  # faster than a record a second
    start, *records = map(json.loads, path.read_text().splitlines())
    assert (start["kind"], start["format"], start["world_size"]) == ("start", "penstock-stats", 1)
    assert start["sources"] == ["code", "web"] and start["steps"] == 15
    assert [record["kind"] for record in records] == ["record"] * 5 + ["end"]
    last = records[-1]
    assert (last["step"], last["items"], last["rows"], last["tokens"]) == (8, 8, 32, 160)
    assert last["samples"] == {"web": 16, "code": 16} and last["reason"] == "closed"
    assert records[2]["samples_per_s"] == 2.0 and last["work"][0]["items"] > 0
    summary = read_stats(path).summary()
    assert (summary["status"], summary["step"], summary["sessions"]) == ("closed", 8, 1)
    assert summary["shares"] == {"web": 0.5, "code": 0.5}


def test_a_killed_run_continues_the_file(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "stats.jsonl"
    killed = take(path, clock, 4)
    state = killed.state_dict()
    follower = StatsFollower(tmp_path)
    assert follower.poll().summary()["step"] == 3  # the line before the fourth item
    with path.open("ab") as file:
        file.write(b'{"kind":"record","session":"torn')  # torn by the kill
    assert follower.poll().summary()["step"] == 3
    with take(path, clock, 2, state):
        pass
    summary = follower.poll().summary()
    assert (summary["step"], summary["sessions"], summary["status"]) == (6, 2, "closed")
    assert sum(summary["samples"].values()) == 3 * 4 + 2 * 4
    assert summary == read_stats(path).summary()
    assert sum(line.startswith('{"kind":"start"') for line in path.read_text().splitlines()) == 2
    killed.close()


def test_every_rank_has_a_file_and_the_summary_adds_them(tmp_path: Path, clock: Clock) -> None:
    for rank in range(2):
        take(tmp_path / "stats.jsonl", clock, 3, rank=rank, world_size=2).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["stats.jsonl", "stats.rank1.jsonl"]
    summary = read_stats(tmp_path / "stats.rank1.jsonl").summary()
    assert (summary["ranks"], summary["world_size"], summary["step"]) == (2, 2, 3)
    assert sum(summary["samples"].values()) == 2 * 3 * 4
    assert set(summary["waited_by_rank"]) == {"0", "1"}


def test_large_lines_are_written_less_often(tmp_path: Path, clock: Clock) -> None:
    names = [f"a_source_with_a_long_name_{i}" for i in range(300)]
    ds = ps.mix({name: ps.from_sequence([1] * 9) for name in names}).batch(4)
    path = tmp_path / "stats.jsonl"
    with ps.Loader(ds, stats=path) as loader:
        for _ in islice(loader, 200):
            clock.time += 0.5
    assert path.stat().st_size < 100 * 1_000 + 3 * 20_000
    assert read_stats(path).summary()["step"] == 200


def test_a_long_history_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_stats, "_MAX_RECORDS", 100)
    rank = RankStats()
    rank.take({"kind": "start", "session": "s"})
    for step in range(1_000):
        rank.take(make_record("s", step))
    steps = [record["step"] for record in rank.records]
    assert len(steps) <= 100 and steps[0] == 0 and steps[-20:] == list(range(980, 1_000))
    assert steps == sorted(steps)


def make_record(session: str, step: int, **more: Any) -> dict[str, Any]:
    numbers = {"elapsed_s": step, "step": step, "items": step, "waited_s": 0, "first_s": 0}
    return {
        **{"kind": "record", "session": session, "time": step, "epoch": 0, **numbers},
        **{"samples": {"web": step}, "tokens": None, "resident_bytes": {"run": 5}},
        **more,
    }


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b"{}",
        b'{"kind":"record"}',
        b'{"kind":"start","session":3}',
        b"[" * 9_000,
    ],
)
def test_readers_skip_corrupted_lines(tmp_path: Path, clock: Clock, line: bytes) -> None:
    path = tmp_path / "stats.jsonl"
    take(path, clock, 2).close()
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, *lines[1:], line]) + b"\n")
    assert read_stats(path).summary()["step"] == 2


def test_wrong_paths_are_errors(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    for path, said in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "no stats file in this folder"),
        (tmp_path / "other.jsonl", "not a stats file"),
    ):
        with pytest.raises(ps.ConfigError, match=said):
            StatsFollower(path)
    with pytest.raises(ps.ConfigError, match="name a file in it"):
        ps.Loader(mixture(), stats=tmp_path)


def test_a_full_disk_never_stops_the_run(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    loader = ps.Loader(mixture(), stats=tmp_path / "stats.jsonl")
    reporter: Any = loader._reporter
    reporter._recorder._file._file.close()  # every later write fails
    for _ in loader:
        clock.time += 2
    loader.close()
    assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1


def test_a_run_whose_process_is_gone_has_ended(tmp_path: Path, clock: Clock) -> None:
    loader = take(tmp_path / "stats.jsonl", clock, 3)
    clock.time += 60
    assert read_stats(tmp_path).summary()["status"] == "running"  # slow, and alive on this host
    stats = read_stats(tmp_path)
    stats.ranks[0].start["pid"] = 1 << 30
    assert stats.summary()["status"] == "ended"
    stats.ranks[0].start["host"] = "elsewhere"
    assert stats.summary()["status"] == "stale"
    assert "no record for" in format_line(stats.summary())
    loader.close()


# ---------------------------------------------------------------- displays


def summary_of(names: list[str], **more: Any) -> dict[str, Any]:
    rank = RankStats()
    rank.take({"kind": "start", "session": "s", "world_size": 1, "steps": 2_000, "time": 0})
    rank.take(make_record("s", 500))
    rank.take(make_record("s", 1_000, samples=dict.fromkeys(names, 7), **more))
    return {**summarize({0: rank}, "run/stats.jsonl"), "status": "running", "age_s": 0.0}


@pytest.mark.parametrize("names", [["web"], [f"source {i}" * 9 for i in range(500)]])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 5), (200, 60)])
def test_the_screen_fits_every_terminal(names: list[str], width: int, height: int) -> None:
    summary = summary_of(names, warnings=["a long warning " * 30])
    out = StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True)
    console.print(StatsScreen(summary), end="")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    assert "step 1,000 of 2,000" in "\n".join(lines) or width < 21
    if len(names) > 1 and height > 10:
        assert any(" others " in line for line in lines)


def test_displays_escape_names_from_data() -> None:
    summary = summary_of(["<script>alert(1)</script>", "\x1b[2Jweb"])
    page = render_html(summary)
    assert "<script" not in page and "&lt;script&gt;" in page
    out = StringIO()
    Console(file=out, width=80, height=24).print(StatsScreen(summary))
    assert "\x1b" not in out.getvalue() and "[2Jweb" in out.getvalue()


def test_a_notebook_replaces_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list[Any]()
    handle = SimpleNamespace(update=shown.append)

    def display(content: Any, display_id: bool) -> Any:
        shown.append(content)
        return handle

    fake = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
    monkeypatch.setitem(sys.modules, "IPython", fake)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))  # type: ignore[arg-type]
    opened = open_display()
    assert isinstance(opened, NotebookDisplay)
    opened.update(summary_of(["web"]))
    opened.close(summary_of(["web"]))
    assert len(shown) == 2 and "<progress" in shown[1]._repr_html_()
    assert repr(shown[1]).startswith("step 1,000 of 2,000")


def test_progress_in_a_pipe_is_lines(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    assert isinstance(open_display(), LineDisplay)
    with ps.Loader(mixture(), progress=True) as loader:
        for _ in loader:
            clock.time += 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 + 1  # every ten seconds, and at the end
    assert lines[0].startswith("step 5 of 15, ") and "samples/s" in lines[0]
    assert lines[-1].startswith("closed  step 15 of 15")
    assert "\x1b" not in "".join(lines)


def test_only_rank_0_shows_progress(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with ps.Loader(mixture(), progress=True, rank=1, world_size=2) as loader:
        for _ in loader:
            clock.time += 20
    assert capsys.readouterr().err == ""


def test_tokens_are_counted_by_shape_on_a_device() -> None:
    device = SimpleNamespace(shape=(2, 8), dtype="torch.int64", device="cuda:0")
    assert count_tokens({"tokens": device, "segment_ids": device}) == 16
    torch = pytest.importorskip("torch")
    segments = torch.tensor([[1, 1, 0]])
    assert count_tokens({"tokens": segments, "segment_ids": segments}) == 2
