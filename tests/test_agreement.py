"""Every answer about a run agrees with the items that its ranks received, after any changes.

Answers name samples, steps, ranks and rows.

A run has several segments. Each has its number of ranks, its batches and its `remainder`, and may
seek another step. Between two segments the state passes through JSON, and steps are skipped,
samples excluded or weights set. The delivered items are the reference.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import penstock as ps
from example_counts import examples
from penstock.cli.app import app
from penstock.saves import write_state
from random_runs import (
    ADOPTIONS,
    CHANGES,
    PIPELINES,
    ROW_LENGTHS,
    Key,
    Run,
    Segment,
    countable,
    draw_segments,
    keys_of,
    make_run,
    seen_in,
)

runs = given(
    name=st.sampled_from(sorted(PIPELINES)),
    segments=draw_segments((*CHANGES, *ADOPTIONS, *ROW_LENGTHS)),
)


@examples(100)
@runs
@countable()
def test_at_names_what_the_ranks_were_given_in_a_step(name: str, segments: list[Segment]) -> None:
    run = make_run(name, segments)
    plan = run.plan
    named = [sorted(sample.key for sample in plan.at(step=step)) for step in range(len(run.given))]
    assert named == list(map(keys_of, run.given))


@examples(100)
@runs
@countable()
def test_the_audit_names_ranks_and_rows(name: str, segments: list[Segment]) -> None:
    run = make_run(name, segments)
    lines = run.plan.audit(range(len(run.given))).table().to_pylist()
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    named = [dict[int, list[Any]]() for _ in run.given]
    for line in lines:
        named[line["step"]].setdefault(line["rank"], []).append(line)
    for step, ranks in zip(run.given, named, strict=True):
        assert {rank: keys for rank, keys in enumerate(step) if keys} == {
            rank: [(line["source"], line["epoch"], line["index"]) for line in lines]
            for rank, lines in ranks.items()
        }
        for mine in ranks.values():
            assert any(word in name for word in ("batched", "packed", "zipped")) or [
                line["row"] for line in mine
            ] == [*range(len(mine))]


@examples(100)
@runs
@countable()
def test_seen_and_counts_are_of_what_was_given(name: str, segments: list[Segment]) -> None:
    run = make_run(name, segments)
    plan, made = run.plan, len(run.given)
    for step in {made, made // 2}:
        want = run.seen_before(step)
        assert seen_in(plan.seen(step=step)) == want
        if step == made:
            assert seen_in(plan.seen()) == want
        counts = Counter[str]()
        for (source, _), times in want.items():
            counts[source] += times
        assert +Counter(plan.counts(step=step)) == counts


@examples(100)
@runs
@countable()
def test_seen_and_counts_are_of_the_positions_that_are_delivered(
    name: str, segments: list[Segment]
) -> None:
    """By positions: of the plan as it is, and with what was skipped in it."""
    plan = make_run(name, segments).plan
    for position in (0, 5, 31):
        with countable():
            given = Counter((s.source, s.index) for s in plan.at(slice(0, position)) if not s.start)
            assert seen_in(plan.seen(position)) == given


@examples(100)
@runs
@countable()
def test_find_names_the_steps_in_which_a_sample_was_given(
    name: str, segments: list[Segment]
) -> None:
    run = make_run(name, segments)
    plan, steps = run.plan, range(len(run.given) // 3, len(run.given))
    for source in plan.sources:
        for index in (0, 3, 4):
            here = [
                step
                for step in steps
                if any((source, index) == (s, i) for s, _, i in keys_of(run.given[step]))
            ]
            assert plan.find(source, index, steps=steps) == here


# ---------------------------------------------------------------- the command line


SOURCES = {"a": 23, "b": 7, "c": 11}
FILES = {
    "restarts": "",
    "ends": "stop: first_exhausted\n",
    "horizon": "horizon: {samples: 90}\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agreement")
    for name, rows in SOURCES.items():
        (path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"i": i}) + "\n" for i in range(rows))
        )
    return path


def mixture(folder: Path, name: str, kind: str, batch: str = "") -> Path:
    path = folder / name
    sources = "".join(
        f"  {name}: {{path: {name}.jsonl, weight: {rows}}}\n" for name, rows in SOURCES.items()
    )
    path.write_text(f"sources:\n{sources}seed: 3\n{batch}{FILES[kind]}")
    return path


def penstock(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(*arguments: Any) -> Any:
    result = penstock(*arguments)
    with countable():
        if result.exit_code:
            raise ps.StateError(result.output)
    return json.loads(result.stdout)


@examples(60)
@given(
    kind=st.sampled_from(sorted(FILES)),
    segments=draw_segments(),
    size=st.integers(1, 4),
    ranks=st.integers(1, 4),
)
def test_the_command_line_answers_for_the_run(
    kind: str, segments: list[Segment], size: int, ranks: int, folder: Path
) -> None:
    """Answer by the run, for files that name other batches and ranks."""
    note(f"{kind}: {segments}, then size {size}, ranks {ranks}")
    rows = mixture(folder, "rows.yaml", kind)
    run = Run(lambda _: ps.load(rows))
    with countable():
        for segment in segments:
            run.live(segment)
    assume(run.given)
    path = mixture(
        folder, "mixture.yaml", kind, f"batch: {{size: {size}, ranks: {ranks}, collate: list}}\n"
    )
    made, named, state = len(run.given), list(map(keys_of, run.given)), folder / "state.json"
    state.write_text(json.dumps(run.states[0] if isinstance(run.states, list) else run.states))

    at = said("at", path, 0, "--to", made, "--state", state, "--json")["samples"]
    by_step = [
        sorted((s["source"], s["epoch"], s["index"]) for s in at if s["step"] == n)
        for n in range(made)
    ]
    assert by_step == named

    assume(any(named))
    source, _, index = next(keys for keys in [*named[made // 2 :], *named] if keys)[0]
    asked = ("find", path, source, index, "--to", made, "--state", state, "--json")
    here = [n for n, keys in enumerate(named) if any((s, i) == (source, index) for s, _, i in keys)]
    assert said(*asked)["samples"][0]["steps"] == here

    seen = said("seen", path, "--state", state, "--before", made, "--json")
    want = Counter(
        source for (source, _), times in run.seen_before(made).items() for _ in range(times)
    )
    assert {one["source"]: one["samples"] for one in seen["sources"] if one["samples"]} == want

    lines = penstock("audit", path, "--steps", f"0:{made}", "--state", state)
    assert lines.exit_code == 0, lines.output
    audit = [json.loads(line) for line in lines.stdout.splitlines()]
    for n, step in enumerate(run.given):
        mine = {rank: list(keys) for rank, keys in enumerate(step) if keys}
        found = dict[int, list[Key]]()
        for line in audit:
            if line["step"] == n:
                found.setdefault(line["rank"], []).append(
                    (line["source"], line["epoch"], line["index"])
                )
        assert found == mine

    again = penstock("replay", path, "--steps", f"0:{made}", "--state", state)
    assert again.exit_code == 0, again.output
    values = [json.loads(line) for line in again.stdout.splitlines()]
    assert all(line["value"] == {"i": line["index"]} for line in values)
    assert [
        sorted((v["source"], v["epoch"], v["index"]) for v in values if v["step"] == n)
        for n in range(made)
    ] == named

    if kind == "restarts":  # an edit leaves out the step of the run that it names
        plan, states = run.plan, Path(mkdtemp(dir=folder))
        write_state(states, json.loads(state.read_text()), 0, 1)
        assert penstock("edit", path, states, "--skip", f"{made + 1}:{made + 2}").exit_code == 0
        edited = run.dataset().plan.for_state(states)
        steps = [
            [sample.key for sample in one.at(step=made + n)]
            for n, one in ((2, plan), (1, edited), (0, edited))
        ]
        assert steps[0] == steps[1] and steps[2] == [sample.key for sample in plan.at(step=made)]
