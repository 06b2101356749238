"""Remarks of a plan are true, sorted by importance, and name groups before their sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock as ps
from cli_world import Penstock
from penstock.report import Row, open_target, shares
from penstock.report.remarks import collect_remarks


def row(
    name: str,
    asked: float,
    share: float,
    samples: int,
    epochs: float = 0.5,
    used_up: int | None = None,
) -> Row:
    return Row(name, 100, asked, share, samples, None, epochs, None, None, used_up, used_up)


def test_the_most_important_comes_first() -> None:
    found = [
        row("often", 0.2, 0.2, 200, 9.0),
        row("more", 0.3, 0.4, 400),
        row("fine", 0.1, 0.101, 101),
        row("less", 0.2, 0.1, 100, used_up=70),
        row("starved", 0.1, 0.0, 0),
        row("tiny", 1e-4, 0.0, 0),
        row("off", 0.0, 0.0, 0),
    ]
    told = collect_remarks(found)
    assert [source for source, _ in told] == ["starved", "less", "often", "tiny", "more", "off"]
    assert dict(told)["less"] == "used up at 70, gets 10.00% where 20.00% is requested"


def test_what_is_rounding_is_not_told() -> None:
    assert collect_remarks([row("a", 0.5, 0.4, 4), row("b", 0.5, 0.6, 6)]) == []
    assert collect_remarks([row("a", 0.02, 0.0, 0), row("b", 0.98, 1.0, 60)]) == []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in "abcd":
        rows = [json.dumps({"text": f"{name} {i}"}) for i in range(100)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    path = tmp_path / "mixture.yaml"
    path.write_text(
        "horizon: {samples: 600}\ngroups: {web: 3, code: 1}\nsources:\n"
        "  a: {path: a.jsonl, group: code}\n  b: {path: b.jsonl, group: web, weight: 1}\n"
        "  c: {path: c.jsonl, group: web, weight: 2, max_epochs: 1}\n  d: {path: d.jsonl, group: code}\n"
        "stages: [{until: 50%}, {weights: {d: 0}}]\n"
    )
    return path


def test_only_who_is_used_up_is_said_to_be(file: Path, penstock: Penstock) -> None:
    target = open_target(file)
    rows = {each.source: each for each in shares.rows(target, 600)}
    assert rows["d"].ends is not None and rows["d"].used_up is None, "its weight went to 0"
    assert rows["c"].samples == 100 and rows["c"].used_up == rows["c"].ends
    assert rows["a"].ends is None, "only the run ends"
    said = penstock("plan", file, "-o", file.parent / "plan.svg").output
    assert "c: used up at" in said and "d: used up" not in said
    drawn = (file.parent / "plan.svg").read_text()
    assert (
        "of 2 repeat, 1 used up</text>" in drawn
        and drawn.count("used up at") == 0
        and ">code: " in drawn
    )


def test_groups_come_first_and_sources_within(file: Path, penstock: Penstock) -> None:
    _, _, table = penstock("plan", file).output.partition("source ")
    assert [line.split()[0] for line in table.splitlines()[1:7]] == [
        "web",
        "b",
        "c",
        "code",
        "a",
        "d",
    ]
    rows = shares.insert_group_rows(shares.rows(open_target(file), 600))
    web, code = (each for each in rows if not each.source.startswith(" "))
    assert web.samples + code.samples == 600 and web.requested + code.requested == pytest.approx(1)
    assert web.requested == pytest.approx(0.75)


def test_ten_lines_at_most_unless_all(tmp_path: Path, penstock: Penstock) -> None:
    for i in range(15):
        (tmp_path / f"s{i:02d}.jsonl").write_text('{"x": 1}\n')
    (tmp_path / "m.yaml").write_text(
        "horizon: {samples: 300}\nsources:\n"
        + "".join(f"  s{i:02d}: {{path: s{i:02d}.jsonl}}\n" for i in range(15))
    )
    few, every = (penstock("plan", tmp_path / "m.yaml", *more).output for more in ((), ("--all",)))
    assert few.count("each of its samples is seen") == 9 and "and 6 more (--all prints them)" in few
    assert every.count("each of its samples is seen") == 15


@pytest.mark.parametrize(
    "rest",
    [
        "stop: all_exhausted",
        "horizon: {samples: 120}\nstop: all_exhausted",
        "horizon: {samples: 200}",
    ],
)
def test_of_a_run_that_was_changed(file: Path, penstock: Penstock, rest: str) -> None:
    file.write_text(
        f"sources: {{a: {{path: a.jsonl}}, b: {{path: b.jsonl}}}}\nbatch: {{size: 4, collate: list}}\n{rest}\n"
    )
    loader = ps.Loader(ps.load(file))
    steps = iter(loader)
    for _ in range(5):
        next(steps)
    loader.set_weights({"a": 1, "b": 0})
    ps.save(file.parent / "run", loader)
    found = json.loads(penstock("plan", file, "--state", file.parent / "run", "--json").stdout)
    assert [row["samples"] for row in found["sources"]][1] == 10
    assert all(
        row["share"] == pytest.approx(row["requested"]) and row["remarks"] == []
        for row in found["sources"]
    )
