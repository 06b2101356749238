"""A pretraining on one page: 60 sources, three stages, held-out parts, caps, tokens; what is answered about it is what
its run gives.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from example_counts import rounds
from penstock.mixture_files import lint, read_model
from penstock.report import Target, open_target, shares
from penstock.report.blame import blame
from penstock.report.step_ranges import RangeMeter
from penstock.sources import JoinedFiles
from penstock.sources.select import SelectedRows

GROUPS = {"web": 30, "code": 16, "math": 8, "wiki": 6}
LENGTH, BATCH = 64, 8

HEAD = """\
# A curriculum of three stages, annealed at its end.
seed: 2026
unit: tokens
horizon: {steps: STEPS}
split: {held_out: 2%}
max_epochs: 40
groups: {web: 85, code: 12, math: 3, wiki: 0}
"""
STAGES = """\
stages:
  - {name: warm-up, until: 10%, interpolation: linear, weights: {code: 10}}
  - {name: stable, until: 60%}
  - {name: mid, until: 80%, weights: {web: 75, code: 15, math: 10}}
  - {name: anneal, interpolation: cosine, weights: {web: 40, code: 25, math: 25, wiki: 10, web_00: 0}}
pack: {length: 64}
batch: {size: 8, collate: stack}
"""


def curriculum(folder: Path, steps: int) -> Path:
    """The data, 30 to 400 documents of 5 to 90 tokens a source, and the file."""
    rng, lines = np.random.default_rng(7), [HEAD.replace("STEPS", str(steps)), "sources:\n"]
    for group, many in GROUPS.items():
        for i in range(many):
            name, rows = f"{group}_{i:02d}", int(rng.integers(30, 400))
            sizes = rng.integers(5, 90, rows)
            flat = rng.integers(0, 1000, int(sizes.sum()), dtype=np.int32)
            offsets: Any = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
            ids = pa.ListArray.from_arrays(offsets, cast("Any", flat))
            pq.write_table(
                pa.table({"tokens": ids, "site": [f"{i}-{row % 40}" for row in range(rows)]}),
                folder / f"{name}.parquet",
            )
            more = f", weight: {1 + i % 5}" if group != "math" else ""
            more += ", max_epochs: 2.5" if i == 3 else ""
            more += ", split: {held_out: 5%, column: site}" if i == 1 else ""
            lines.append(
                f"  {name}: {{path: {name}.parquet, columns: [tokens], lengths: tokens, group: {group}{more}}}\n"
            )
    path = folder / "curriculum.yaml"
    path.write_text("".join([*lines, STAGES]))
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: Any) -> Path:
    steps = rounds(150, 5_000)
    return curriculum(tmp_path_factory.mktemp("curriculum"), steps)


@pytest.fixture(scope="module")
def target(path: Path) -> Target:
    return open_target(path)


def test_it_is_one_page_without_mistakes(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 120
    model, problems = read_model(path)
    assert model is not None and not problems and len(model.sources) == 60
    assert [str(problem) for problem in lint(path) if problem.severity == "error"] == []
    ps.dump(model, path.parent / "again.yaml")
    assert read_model(path.parent / "again.yaml") == (model, [])


def test_every_answer_is_what_the_run_gives(target: Target) -> None:
    plan, steps = target.plan, target.horizon(None)
    seen = dict.fromkeys(plan.sources, 0)
    where = dict[tuple[str, int], set[int]]()
    audit = _by_step(plan.audit(range(steps)).table().to_pylist())
    begun, part = Counter[tuple[str, int]](), range(steps // 2, steps // 2 + steps // 10)
    within = dict.fromkeys(plan.sources, 0)
    with ps.Loader(target.dataset) as loader:
        given = 0
        for step, batch in enumerate(loader):
            keys = loader.keys()
            assert [sample.key for sample in plan.at(step)] == keys
            assert [(line["source"], line["epoch"], line["index"]) for line in audit[step]] == keys
            for sample in plan.at(step):
                seen[sample.source] += (sample.stop or 0) - (sample.start or 0)
                where.setdefault((sample.source, sample.index), set()).add(step)
                begun[sample.source, sample.index] += sample.start == 0
                within[sample.source] += (
                    (sample.stop or 0) - (sample.start or 0) if step in part else 0
                )
            assert batch["tokens"].shape == (BATCH, LENGTH)
            if step % 50 == 49:
                assert plan.counts(step + 1, unit="tokens") == seen
            given += 1
    assert given == steps == plan.size, "it ends at its horizon"
    # Over rows of packed tokens of 60 sources one `find` takes seconds: 3 in a usual run.
    for source, index in sorted(where)[:: max(1, len(where) // rounds(3, 40))]:
        assert plan.find(source, index, range(steps)) == sorted(where[source, index])
    told = plan.seen(steps)
    assert told.repeats() == dict(sorted(Counter(n for n in begun.values() if n).items()))
    assert sum(told.documents.values()) == sum(n > 0 for n in begun.values())
    here = RangeMeter(target).measure(part).share  # what blame compares
    assert here == pytest.approx(np.asarray(list(within.values())) / sum(within.values()))
    assert all(one.here > one.usual for one in blame(target, part) if "first drawn" in one.text)
    rows = {row.source: row for row in shares.rows(target, steps)}
    assert {name: row.tokens for name, row in rows.items()} == seen
    total = sum(seen.values())
    assert all(row.share == pytest.approx(seen[name] / total) for name, row in rows.items())


def _by_step(lines: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found = dict[int, list[dict[str, Any]]]()
    for line in lines:
        found.setdefault(line["step"], []).append(line)
    return found


def test_what_is_held_out_is_never_trained_on(path: Path, target: Target) -> None:
    held_out = ps.load(path, part="held_out")
    # What is told apart by a column is numbered among the rows that are read.
    trained, kept = (
        {
            (sample.source, sample.index)
            for sample in plan.at(slice(0, plan.size))
            if not sample.source.endswith("01")
        }
        for plan in (target.plan, held_out.plan)
    )
    assert len(kept) > 100 and not kept & trained


def test_stage_after_stage_has_what_it_asks(target: Target) -> None:
    plan, steps = target.plan, target.horizon(None)

    def share(first: float, last: float) -> dict[str, float]:
        a, b = (plan.counts(int(steps * part), unit="tokens") for part in (first, last))
        drawn = {
            group: sum(b[name] - a[name] for name in b if name.startswith(group))
            for group in GROUPS
        }
        return {group: count / sum(drawn.values()) for group, count in drawn.items()}

    near = lambda **asked: pytest.approx(asked, abs=0.04)  # noqa: E731
    assert share(0.1, 0.6) == near(web=85 / 98, code=10 / 98, math=3 / 98, wiki=0)
    assert share(0.6, 0.8) == near(web=0.75, code=0.15, math=0.1, wiki=0)
    # From 75, 15, 10, 0 to 40, 25, 25, 10 along a cosine, in the second half of which it is 82% of the way on average.
    assert share(0.9, 1) == near(web=0.463, code=0.232, math=0.223, wiki=0.082)


def test_asked_is_the_integral_of_what_was_asked(target: Target) -> None:
    """Stage by stage, in tokens: what sources give that are not used up is what they are asked for."""
    steps = target.horizon(None)
    rows = shares.rows(target, steps)
    off = {row.source: row.share - row.requested for row in rows if row.ends is None}
    assert sum(row.requested for row in rows) == pytest.approx(1)
    assert max(abs(gap) for gap in off.values()) < 0.012, off


@pytest.mark.slow  # plans 60 sources
def test_loading_and_planning_read_no_sample(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a sample was read")

    for source in (JoinedFiles, SelectedRows):
        monkeypatch.setattr(source, "read", never)
    ds = ps.load(path)
    assert len(ds) and ds.plan.at(len(ds) - 1) and ds.plan.find("web_05", 3) is not None
    shares.rows(open_target(path), 20)
