"""Row lengths and global batches that change during the run of a mixture file: by stages and tables."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from chat_cases import bare_bpe
from cli_world import Penstock
from cli_world import penstock as penstock  # a fixture
from example_counts import examples, is_soak
from helpers import through_json
from penstock.mixture_files import lint
from penstock.report import open_target

SOURCES: dict[str, Any] = {
    "a": {"path": "a.parquet", "lengths": "ids", "weight": 3},
    "b": {"path": "b.parquet", "lengths": "ids", "weight": 1},
}
STAGES: dict[str, Any] = {
    "seed": 3,
    "unit": "tokens",
    "horizon": {"steps": 60},
    "sources": SOURCES,
    "pack": {"length": 32},
    "global_batch_size": 4,
    "stages": [
        {"name": "warm", "until": "25%", "weights": {"a": 1}},
        {"name": "main", "until": {"steps": 40}, "global_batch_size": 8},
        {"name": "long", "length": 64, "weights": {"b": 3}},
    ],
}
Shape = tuple[int, int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a.parquet` and `b.parquet` with tokens, `t.jsonl` with texts."""
    folder, rng = tmp_path_factory.mktemp("sizes"), np.random.default_rng(0)
    for name, count in (("a", 400), ("b", 250)):
        ids = [rng.integers(0, 99, n).tolist() for n in rng.integers(5, 60, count)]
        pq.write_table(pa.table({"ids": ids}), folder / f"{name}.parquet")
    bare_bpe().save(str(folder / "t.json"))
    (folder / "t.jsonl").write_text('{"text": "some words"}\n' * 30)
    return folder


def write(folder: Path, file: dict[str, Any], name: str = "mixture.yaml") -> Path:
    (folder / name).write_text(yaml.safe_dump(file, sort_keys=False))
    return folder / name


def read_shapes(path: Path, ranks: int = 1) -> list[Shape]:
    """Return the rows and the row length of each step of a run, over all ranks."""
    loaders = [ps.Loader(ps.load(path), rank=rank, world_size=ranks) for rank in range(ranks)]
    shapes = [[batch["ids"].shape for batch in loader] for loader in loaders]
    assert all(each == shapes[0] for each in shapes)
    return [(rows * ranks, length) for rows, length in shapes[0]]


def walk(file: dict[str, Any]) -> list[Shape]:
    """Return the same one step at a time, from the settings alone."""
    unit, most = next(iter(file["horizon"].items()))
    packed, shapes = "pack" in file, list[Shape]()
    done = {"steps": 0, "tokens": 0, "samples": 0}
    sizes = {
        "length": file["pack"]["length"] if packed else 1,
        "global_batch_size": file["global_batch_size"],
    }

    def is_past(place: Any) -> bool:
        if isinstance(place, str):
            return done[unit] >= ceil(Fraction(place.rstrip("%")) / 100 * most)
        ((of, number),) = place.items()
        return done[of] >= number

    def size(key: str) -> int:
        number = sizes[key]
        if not isinstance(number, dict):
            return number
        counted = number.get("unit", "steps")
        scale, counted = (most, unit) if counted == "fraction" else (1, counted)
        places = {ceil(Fraction(str(at)) * scale): size for at, size in number["points"].items()}
        return places[max(at for at in places if at <= done[counted])]

    stages = list(file.get("stages", ()))
    while done[unit] < most:
        while stages and "until" in stages[0] and is_past(stages[0]["until"]):
            stages.pop(0)
        sizes |= {key: value for key, value in stages[0].items() if key in sizes} if stages else {}
        rows, length = size("global_batch_size"), size("length")
        shapes.append((rows, length))
        done["steps"] += 1
        done["tokens"] += rows * length
        done["samples"] += rows
    return shapes


def test_a_file_is_the_pipeline_that_one_would_write(folder: Path) -> None:
    steps = np.asarray([0, 15, 40])
    tokens = [0, 15 * 4 * 32, 15 * 4 * 32 + 25 * 8 * 32]
    weights = [{"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 3}]
    sources = {
        name: ps.read(folder / f"{name}.parquet", lengths="ids", name=name).shuffle()
        for name in "ab"
    }
    rows = ps.mix(
        sources,
        ps.Schedule(dict(zip(tokens, weights, strict=True)), unit="tokens"),
        unit="tokens",
        seed=3,
        packed={"length": 64},
    ).pack(ps.Schedule({0: 32, 40: 64}, unit="steps"))
    batches = ps.Schedule({0: 4, int(steps[1]): 8}, unit="steps")
    by_hand = rows.limit(15 * 4 + 45 * 8).batch(global_batch_size=batches)
    loaded = ps.load(write(folder, STAGES))
    assert loaded.tree.description() == by_hand.tree.description()
    ps.dump(loaded, folder / "again.yaml")
    assert ps.load(folder / "again.yaml").tree.description() == by_hand.tree.description()
    assert read_shapes(folder / "again.yaml", 2) == walk(STAGES)


TABLES: dict[str, dict[str, Any]] = {
    "stages": STAGES,
    "steps": {
        "pack": {"length": {"points": {0: 32, 10: 48, 33: 64}}},
        "global_batch_size": {"points": {0: 4, 20: 12}},
        "horizon": {"steps": 50},
    },
    "tokens and fractions": {
        "pack": {"length": {"unit": "fraction", "points": {0: 32, 0.3: 48, 0.95: 64}}},
        "global_batch_size": {"unit": "tokens", "points": {0: 4, 5_001: 8}},
        "horizon": {"tokens": 20_001},
    },
    "a table beside stages of weights": {
        "pack": {"length": 16},
        "global_batch_size": {"unit": "fraction", "points": {0: 4, "0.5": 8}},
        "horizon": {"steps": 31},
        "stages": [{"until": "10%", "weights": {"a": 0}}, {"weights": {"a": 5}}],
    },
    "samples": {
        "global_batch_size": {"unit": "fraction", "points": {0: 4, 0.5: 12}},
        "horizon": {"samples": 160},
        "batch": {"collate": "list"},
    },
}


@pytest.mark.parametrize("case", TABLES)
def test_steps_have_the_sizes_of_the_file_on_any_ranks(case: str, folder: Path) -> None:
    file = {"sources": SOURCES, "unit": "tokens", **TABLES[case]}
    path = write(folder, file)
    assert lint(path) == []
    if "pack" not in file:
        shapes = [(len(batch), 1) for batch in ps.Loader(ps.load(path))]
        *wanted, last = walk(file)
        assert shapes == wanted and last == (12, 1)  # the run has only 8 samples of a step
        assert ps.load(path).plan.size == len(shapes)
        return
    wanted = walk(file)
    assert [read_shapes(path, ranks) for ranks in (1, 4)] == [wanted] * 2
    target = open_target(path)
    assert target.horizon(None) == target.end == len(wanted)
    tokens = [0, *np.cumsum([rows * length for rows, length in wanted]).tolist()]
    starts = [0, *np.cumsum([rows for rows, _ in wanted]).tolist()]
    for border in target.borders(len(wanted)):
        assert (border.batch, border.length) == wanted[border.step]
        assert (border.row, border.tokens) == (starts[border.step], tokens[border.step])
    changed = [n for n in range(1, len(wanted)) if wanted[n] != wanted[n - 1]]
    assert {*changed} <= {border.step for border in target.borders(len(wanted))}


@examples(25)
@given(data=st.data())
def test_random_stages_end_where_a_walk_ends_them(data: st.DataObject, folder: Path) -> None:
    unit = data.draw(st.sampled_from(["steps", "tokens"]))
    most = data.draw(st.integers(3, 40) if unit == "steps" else st.integers(500, 9_000))
    file: dict[str, Any] = {"sources": SOURCES, "horizon": {unit: most}, "pack": {"length": 24}}
    ends = sorted(data.draw(st.sets(st.integers(1, 99), max_size=4)))
    sizes = st.fixed_dictionaries(
        {},
        optional={
            "length": st.integers(10, 40),
            "global_batch_size": st.sampled_from([2, 4, 6, 8]),
            "weights": st.just({"a": 2}),
        },
    )
    stages = [{"until": f"{end}%", **data.draw(sizes)} for end in ends] + [data.draw(sizes)]
    stages[0].setdefault("length", 16)
    path = write(folder, {**file, "global_batch_size": 4, "stages": stages}, "random.yaml")
    problems = [problem for problem in lint(path) if problem.severity == "error"]
    if problems:  # a short run has no step in a short stage
        assert all("has no step" in problem.message for problem in problems), problems
        return
    wanted = walk(yaml.safe_load(path.read_text()))
    assert read_shapes(path) == wanted
    plan = ps.load(path).plan
    assert [len({s.position for s in plan.rows().at(step=n)}) for n in range(len(wanted))] == [
        rows for rows, _ in wanted
    ]


def test_weights_change_with_the_sizes(folder: Path) -> None:
    plan = ps.load(write(folder, STAGES)).plan
    counts = [plan.counts(step=step, unit="tokens") for step in (15, 40, 60)]
    shares = [
        (after["a"] - before["a"]) / sum(after[name] - before[name] for name in "ab")
        for before, after in zip([{"a": 0, "b": 0}, *counts], counts, strict=False)
    ]
    assert shares == pytest.approx([0.5, 0.5, 0.25], abs=0.02)


def test_a_run_is_killed_in_every_stage_and_resumed_on_other_ranks(folder: Path) -> None:
    path, run = write(folder, STAGES), list[Counter[Any]]()
    state: Any = None
    for ranks, until in ((1, 7), (4, 15), (2, 16), (4, 39), (1, 41), (2, 60)):
        loaders = [ps.Loader(ps.load(path), rank=rank, world_size=ranks) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        its = [iter(loader) for loader in loaders]
        while len(run) < until:
            assert len({next(it)["ids"].shape for it in its}) == 1
            run.append(Counter(key for loader in loaders for key in loader.keys()))
        state = through_json(loaders[-1].state_dict())
    plan = ps.load(path).plan.for_state(state)
    assert [Counter(s.key for s in plan.at(step=n)) for n in range(61)] == [*run, Counter()]
    assert plan.find("a", 17, steps=range(60)) == [
        n for n, keys in enumerate(run) if any(key[::2] == ("a", 17) for key in keys)
    ]


def test_commands_follow_the_stages(folder: Path, penstock: Penstock) -> None:
    path, state = write(folder, STAGES), folder / "state"

    def ask(*arguments: Any) -> Any:
        result = penstock(*arguments, "--json")
        assert result.exit_code in (0, 1), result.output
        return json.loads(result.output)

    told = ask("plan", path)
    assert [list(stage.values()) for stage in told["stages"]] == [
        [0, "warm", 0, 0, 32, 4],
        [15, "main", 60, 1_920, 32, 8],
        [40, "long", 260, 8_320, 64, 8],
    ]
    assert told["packing"]["fill"] == 1.0
    assert "long     40  260   8,320      64      8" in penstock("plan", path).output
    assert ask("run", path, "--state", state, "--steps", "33")["steps"] == 33
    dump = folder / "dump.jsonl"
    assert ask("plan", path, "--state", state)["stages"] == told["stages"]
    ask("edit", path, state, "--skip", "35:37", "--exclude", "b:3")
    told = ask("plan", path, "--state", state)
    assert (told["steps"], told["stages"][-1]["row"]) == (58, 260)
    samples = [
        [
            (s["source"], s["epoch"], s["index"])
            for s in ask("at", path, n, "--state", state)["samples"]
        ]
        for n in range(33, 58)
    ]
    assert ask("run", path, "--state", state, "--dump", dump)["steps"] == 25
    lines = [json.loads(line)["keys"] for line in dump.read_text().splitlines()]
    assert [Counter(map(tuple, keys)) for keys in lines] == [Counter(keys) for keys in samples]
    source, _, index = samples[9][0]
    found = ask("find", path, source, index, "--state", state)
    assert 42 in found["samples"][0]["steps"]
    other = {**STAGES, "stages": [*STAGES["stages"][:2], {**STAGES["stages"][2], "length": 48}]}
    told = ask("diff", path, write(folder, other, "other.yaml"))
    assert told["says"] == ["stage 3 length 64 -> 48"] and told["first"] == 40
    told = ask("simulate", path, "--set", "stages.long.length=48", "--set", "horizon.steps=50")
    assert told["changed"]["steps"] == 50
    row = folder / "row.txt"
    row.write_text(penstock("preview", path, "--at", "62", "-n", "1").output)
    assert row.read_text().startswith("row 62") and "int32[32]" in row.read_text()
    assert "int32[64]" in penstock("preview", path, "--at", "262", "-n", "1").output


def test_the_held_out_part_has_the_last_sizes(folder: Path) -> None:
    path = write(folder, {**STAGES, "split": {"held_out": 40}})
    batch = next(iter(ps.load(path, part="held_out")))
    assert batch["ids"].shape == (8, 64)


def test_a_longer_horizon_continues_a_run_of_stages(folder: Path) -> None:
    loader = ps.Loader(ps.load(write(folder, STAGES)))
    run = [loader.keys() for _ in loader]
    longer = ps.Loader(ps.load(write(folder, {**STAGES, "horizon": {"steps": 80}, "stages": [
        {**STAGES["stages"][0], "until": {"steps": 15}}, *STAGES["stages"][1:]
    ]})))  # fmt: skip
    longer.load_state_dict(through_json(loader.state_dict()), on_mismatch="adopt")
    assert len(run) == 60 and [batch["ids"].shape for batch in longer] == [(8, 64)] * 20


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "length": ({}, {"length": 48}),
    "batch": ({"global_batch_size": 12}, {}),
    "both": ({"global_batch_size": 12}, {"length": 48}),
    "weights": ({}, {"weights": {"b": 9}}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_another_file_continues_at_any_step(case: str, folder: Path) -> None:
    """Steps from the state on have the sizes of the new file, and the plan keeps the others."""
    middle, last = CHANGES[case]
    stages = [dict(stage) for stage in STAGES["stages"]]
    stages[1] |= middle
    stages[2] |= last
    before, after = write(folder, STAGES), write(folder, {**STAGES, "stages": stages}, "after.yaml")
    # The ends of stages, and within them; one of each in a usual run.
    for cut in (10, 15, 33, 40, 45) if is_soak() else (15, 33):
        loader = ps.Loader(ps.load(before))
        shapes = [batch["ids"].shape for _, batch in zip(range(cut), loader, strict=False)]
        later = ps.Loader(ps.load(after))
        later.load_state_dict(through_json(loader.state_dict()), on_mismatch="adopt")
        shapes += [batch["ids"].shape for batch in later]
        wanted = read_shapes(after)[cut:]
        assert shapes[cut:60] == wanted[: len(shapes) - cut]
        plan = ps.load(after).plan.for_state(through_json(later.state_dict()))
        tokens = [sum(plan.counts(step=n, unit="tokens").values()) for n in range(len(shapes) + 1)]
        assert tokens == [0, *np.cumsum([rows * length for rows, length in shapes]).tolist()]


def change(**settings: Any) -> dict[str, Any]:
    """Return the file with stages, with other settings; None removes one."""
    return {key: value for key, value in {**STAGES, **settings}.items() if value is not None}


def change_stage(number: int, **settings: Any) -> dict[str, Any]:
    stages = [dict(stage) for stage in STAGES["stages"]]
    stages[number] |= settings
    return change(stages=stages)


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no pack": (change(pack=None), "stages[2].length", "the file packs no rows: add pack"),
    "no batch": (
        change(global_batch_size=None),
        "stages[1].global_batch_size",
        "the file has no global_batch_size",
    ),
    "a batch of one rank": (
        change(global_batch_size=None, batch={"size": 4, "ranks": 2}),
        "stages[1].global_batch_size",
        "the file has no global_batch_size",
    ),
    "a method of whole documents": (
        change(pack={"length": 32, "method": "best_fit"}),
        "stages[2].length",
        "for method='concat_split'",
    ),
    "a multiple": (
        change(pack={"length": 32, "pad_to_multiple": 8}, stages=[{"length": 36}]),
        "stages[0].length",
        "must be a multiple of 8",
    ),
    "tables and stages": (
        change(pack={"length": {"points": {0: 32, 5: 48}}}),
        "stages",
        "give all of them in stages, or all in tables",
    ),
    "an end": (change(stop="all_exhausted"), "stop", "need a mixture without an end"),
    "a horizon in samples": (
        change(horizon={"samples": 900}),
        "horizon",
        "samples are counted before packing",
    ),
    "a share of no run": (
        change(horizon=None),
        "stages[0].until",
        "a percentage needs a horizon",
    ),
    "an end in samples": (
        change_stage(1, until={"samples": 200}),
        "stages",
        "counted in steps or tokens",
    ),
    "an empty stage": (
        change_stage(1, until={"steps": 15}),
        "stages",
        "stage 2 has no step: it begins at step 15, and ends at 15 steps",
    ),
    "text before tokens": (
        change(
            sources={"t": {"path": "t.jsonl"}},
            tokenize={"tokenizer": "t.json"},
            stages=[{"length": 36}],
        ),
        "tokenize",
        "add 'counted: true'",
    ),
    "lengths of one source": (
        change(one_source_per=4),
        "one_source_per",
        "row lengths that change need sources without an end",
    ),
    "batches of one source": (
        change(
            one_source_per="global_step", stages=[{"until": {"steps": 9}}, {"global_batch_size": 8}]
        ),
        "one_source_per",
        "give the rows as a number",
    ),
    "a table without a begin": (
        change(stages=None, pack={"length": {"points": {5: 32}}}),
        "pack.length.points",
        "the first number begins at 0",
    ),
    "a fraction of steps": (
        change(stages=None, pack={"length": {"points": {0: 32, 0.5: 64}}}),
        "pack.length.points",
        "a step is an integer",
    ),
    "no run for fractions": (
        change(
            stages=None,
            horizon=None,
            pack={"length": {"unit": "fraction", "points": {0: 32, 1: 64}}},
        ),
        "pack",
        "a share of the run needs a horizon in steps or tokens",
    ),
    "tokens of samples": (
        change(stages=None, pack=None, global_batch_size={"unit": "tokens", "points": {0: 4}}),
        "global_batch_size.unit",
        "add pack, or give steps",
    ),
    "one position twice": (
        change(stages=None, pack={"length": {"points": {"1_000": 8, "1000": 8, 0: 8}}}),
        "pack.length.points",
        "one position",
    ),
    "a negative length": (
        change(stages=None, pack={"length": {"points": {0: -4}}}),
        "pack.length.points.0",
        "at least 1",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_named_with_their_key(case: str, folder: Path) -> None:
    file, key, message = MISTAKES[case]
    path = write(folder, file)
    errors = [problem for problem in lint(path) if problem.severity == "error"]
    assert [problem.key for problem in errors] == [key], errors
    assert message in errors[0].message and errors[0].line > 0
    with pytest.raises(ps.ConfigError) as caught:
        ps.load(path)
    assert message in str(caught.value)


def test_sources_that_cannot_plan_rows_are_errors(folder: Path) -> None:
    unknown = {"a": {"path": "a.parquet"}}
    for sources, message in (
        (unknown, "the lengths of the samples are not known beforehand"),
        ({"a": {**SOURCES["a"], "max_epochs": 2}}, "every source stops at its max_epochs"),
    ):
        with pytest.raises(ps.ConfigError, match=message):
            ps.load(write(folder, change(sources=sources, unit=None, stages=[{"length": 36}])))


def test_stages_of_sizes_leave_the_weights(folder: Path) -> None:
    """Amounts, temperature and schedules go with stages that weigh nothing."""
    stages = [{"until": {"steps": 10}}, {"length": 64}]
    sources = {
        name: {key: source[key] for key in ("path", "lengths")} for name, source in SOURCES.items()
    }
    for settings in (
        {},
        {"temperature": 2.0},
        {"schedule": {"unit": "steps", "points": {0: {"a": 1, "b": 1}, 20: {"a": 1, "b": 3}}}},
    ):
        path = write(folder, change(stages=stages, sources=sources, **settings))
        assert read_shapes(path) == [(4, 32)] * 10 + [(4, 64)] * 50
        tables = change(stages=None, sources=sources, **settings)
        tables["pack"] = {"length": {"points": {0: 32, 10: 64}}}
        loaded = ps.load(path).tree.description()
        assert loaded == ps.load(write(folder, tables)).tree.description()


def test_fractions_place_weights_too(folder: Path) -> None:
    points = {0: {"a": 1, "b": 1}, 0.5: {"a": 1, "b": 9}}
    file = change(stages=None, schedule={"unit": "fraction", "points": points})
    file["sources"] = {name: {**source, "weight": None} for name, source in SOURCES.items()}
    for source in file["sources"].values():
        del source["weight"]
    counts = [ps.load(write(folder, file)).plan.counts(n, unit="tokens") for n in (30, 60)]
    assert counts[0]["a"] / sum(counts[0].values()) == pytest.approx(0.5, abs=0.03)
    late = {name: counts[1][name] - counts[0][name] for name in "ab"}
    assert late["a"] / sum(late.values()) == pytest.approx(0.1, abs=0.03)
    for horizon, message in ((None, "add a horizon"), ({"epochs": 2}, "add a horizon")):
        with pytest.raises(ps.ConfigError, match=message):
            ps.load(write(folder, {**file, "horizon": horizon} if horizon else {
                key: value for key, value in file.items() if key != "horizon"
            }))  # fmt: skip
    list(islice(ps.load(write(folder, file)), 2))
