"""Every answer about a run agrees with the items that its ranks received, after any changes.

Answers name samples, steps, ranks and rows.

A run has several segments. Each has its number of ranks, its batches and its `remainder`, and may
seek another step. Between two segments the state passes through JSON, and steps are skipped,
samples excluded or weights set. The delivered items are the reference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from hypothesis import assume, event, given, note
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import penstock as ps
from example_counts import examples
from helpers import through_json
from penstock.cli.app import app
from penstock.engine.runtime.saves import write_state

Key: TypeAlias = tuple[str, int, int]
Step: TypeAlias = list[list[Key] | None]
"""The keys of the item that each rank was given; None for a rank that had none."""


@dataclass(frozen=True)
class Life:
    """One process group: its topology, how many steps it takes, by how many it jumps after the first `jump_after` of
    them, and what is changed after all.
    """

    ranks: int
    batch: int
    drop: bool
    remainder: Any
    steps: int
    change: str
    jump_after: int = 0
    jump: int = 0


lives = st.builds(
    Life,
    ranks=st.integers(1, 4),
    batch=st.integers(1, 4),
    drop=st.booleans(),
    remainder=st.sampled_from(("drop", "pad", "keep")),
    steps=st.integers(1, 7),
    change=st.sampled_from(("", "", "", "skip positions", "skip steps", "exclude", "weights")),
    jump_after=st.integers(0, 7),
    jump=st.sampled_from((0, 0, 0, 1, 3, 11, -1, -2, -5, -100)),
)


def numbers(name: str, rows: int) -> ps.Dataset:
    return ps.from_sequence(range(rows), name=name)


def documents(name: str, rows: int) -> ps.Dataset:
    offsets = np.concatenate([[0], np.cumsum(np.random.default_rng(rows).integers(1, 20, rows))])
    return ps.from_tokens(np.arange(offsets[-1], dtype=np.int32), offsets, name=name)


def mixed(of: Callable[[str, int], ps.Dataset] = numbers, **options: Any) -> ps.Dataset:
    flows = {"a": of("a", 23).shuffle(), "b": of("b", 7), "c": of("c", 11).shuffle()}
    return ps.mix(flows, {"a": 3, "b": 1, "c": 2}, seed=4, **options)


ROWS: dict[str, Callable[[], ps.Dataset]] = {
    "one": lambda: numbers("x", 13).shuffle(),
    "endless": lambda: numbers("x", 13).shuffle().repeat(),
    "mixed": mixed,
    "ends": lambda: mixed(stop="first_exhausted"),
    "exhausted": lambda: mixed(stop="all_exhausted"),
    "capped": lambda: mixed(max_epochs={"a": 1.5, "b": 2.0, "c": 1.0}),
    "skipped": lambda: mixed().skip(3),
    "skipped at its end": lambda: mixed(stop="all_exhausted").skip(5),
    "skipped and limited": lambda: mixed().skip(3).limit(17),
    "each twice": lambda: mixed().repeat_each(2),
    "shuffled over": lambda: mixed(stop="all_exhausted").shuffle().repeat(),
    "batched within": lambda: (
        mixed(stop="all_exhausted").batch(2, drop_remainder=True, collate=list).repeat()
    ),
    "packed": lambda: mixed(documents).pack(16),
    "packed whole": lambda: documents("a", 60).shuffle().repeat().pack(24, method="best_fit"),
}


@dataclass
class Run:
    """The items delivered so far, by step, and the state after them. A step that was jumped over gave none. Where the run
    went back, `before` has the documents that the steps gave whose numbers are given again, and how far it went back.
    """

    rows: Callable[[], ps.Dataset]
    given: list[Step]
    states: Any = None
    life: Life | None = None
    before: list[tuple[int, Counter[tuple[str, int]]]] = field(
        default_factory=list[tuple[int, Counter[tuple[str, int]]]]
    )
    packed: bool = False

    def dataset(self, life: Life | None = None) -> ps.Dataset:
        life = life or self.life
        assert life is not None
        return self.rows().batch(life.batch, life.drop, collate=list)

    @property
    def plan(self) -> ps.Plan[ps.Dataset]:
        """That of the run, asked with the batches of its last life."""
        return self.dataset().plan.for_state(self.states)

    def live(self, life: Life) -> None:
        """Some steps on ranks, and a change."""
        self.life, passes = life, 0
        with ExitStack() as stack:
            options: Any = {"world_size": life.ranks, "remainder": life.remainder}
            made = [
                ps.Loader(self.dataset(life), rank=rank, **options) for rank in range(life.ranks)
            ]
            loaders = list(map(stack.enter_context, made))
            for loader in loaders if self.states else ():
                loader.load_state_dict(self.states)
            its, left = list(map(iter, loaders)), life.steps
            while passes < 2:
                if life.steps - left == life.jump_after and life.jump:
                    self.jump(life, loaders)
                    life = replace(life, jump=0)
                if not left:
                    break
                there = [next(it, None) is not None for it in its]
                if any(there):
                    keys = [
                        loader.keys() if one else None
                        for loader, one in zip(loaders, there, strict=True)
                    ]
                    self.given.append(cast("Step", keys))
                    left, passes = left - 1, 0
                if not all(there):  # the pass is over on all ranks, after what some were given
                    assert not any(next(it, None) is not None for it in its)
                    its, passes = list(map(iter, loaders)), passes + 1
            if life.change == "weights":
                with suppressed():
                    for loader in loaders:
                        loader.set_weights({"a": 1, "b": 2, "c": 3})
            self.states = through_json([loader.state_dict() for loader in loaders])
        if life.change and life.change != "weights":
            with suppressed():
                self.states = through_json(self.edited(life.change).state)

    def jump(self, life: Life, loaders: list[ps.Loader]) -> None:
        made = len(self.given)
        step = max(0, made + life.jump)
        states = through_json([loader.state_dict() for loader in loaders])
        with suppressed():
            for loader in loaders:
                loader.seek(step)
            gone, self.given[step:] = self.given[step:], [[]] * (step - made)
            if step < made:
                plan = self.dataset(life).plan.for_state(states)
                again = documents_of(plan, range(step, made)) if self.packed else samples_of(gone)
                self.before = [(min(step, one), known) for one, known in self.before] + [
                    (step, again)
                ]

    def seen_before(self, step: int) -> Counter[tuple[str, int]]:
        """The documents that were given before a step was given for the last time."""
        found = (
            documents_of(self.plan, range(step)) if self.packed else samples_of(self.given[:step])
        )
        return sum((known for first, known in self.before if first <= step), start=found)

    def edited(self, change: str) -> ps.Plan[ps.Dataset]:
        plan, made = self.plan, len(self.given)
        match change:
            case "skip positions":
                return plan.skip(range(plan.position + 1, plan.position + 3))
            case "skip steps":
                return plan.skip(steps=range(made + 1, made + 2))
            case _:
                coming = [
                    sample
                    for place in range(plan.position, plan.position + 9)
                    for sample in plan.at(place)
                ]
                return plan.exclude(coming[:1] + coming[5:6])


REFUSED = (
    "a pass has",  # fewer rows than a step takes
    "another number of positions",  # passes of several lengths
    "altered the length of a pass",
    "pack passes that hold the same documents",
    "fewer than a step of",  # passes that were made shorter than a step of before
)


@contextmanager
def suppressed() -> Iterator[None]:
    """Changes that cannot be made here are refused, and the run goes on without."""
    try:
        yield
    except (ps.ConfigError, ps.StateError):
        event("a change is refused")


@contextmanager
def countable() -> Iterator[None]:
    """Steps cannot be counted over passes of several lengths, which is said."""
    try:
        yield
    except (ps.ConfigError, ps.StateError, IndexError) as error:
        assume(not any(text in str(error) for text in REFUSED))
        raise


def lived(name: str, its: list[Life]) -> Run:
    note(f"{name}: {its}")
    run = Run(ROWS[name], [], packed="packed" in name)
    for life in its:
        run.live(life)
    assume(run.given)
    return run


def keys_of(step: Step) -> list[Key]:
    return sorted(key for keys in step for key in keys or ())


def samples_of(steps: list[Step]) -> Counter[tuple[str, int]]:
    return Counter((source, index) for step in steps for source, _, index in keys_of(step))


def documents_of(plan: ps.Plan[ps.Dataset], steps: range) -> Counter[tuple[str, int]]:
    """Documents that begin in some steps, by the audit's lines."""
    lines = plan.audit(steps).table().select(["source", "index", "start"]).to_pylist()
    return Counter((line["source"], line["index"]) for line in lines if not line["start"])


def seen_in(seen: Any) -> Counter[tuple[str, int]]:
    columns = zip(seen.names, seen.times, strict=True)
    return Counter(
        {(name, i): n for name, times in columns for i, n in enumerate(times.tolist()) if n}
    )


runs = given(name=st.sampled_from(sorted(ROWS)), its=st.lists(lives, min_size=1, max_size=3))


@examples(100)
@runs
@countable()
def test_at_names_what_the_ranks_were_given_in_a_step(name: str, its: list[Life]) -> None:
    run = lived(name, its)
    plan = run.plan
    told = [sorted(sample.key for sample in plan.at(step=step)) for step in range(len(run.given))]
    assert told == list(map(keys_of, run.given))


@examples(100)
@runs
@countable()
def test_the_audit_names_ranks_and_rows(name: str, its: list[Life]) -> None:
    run = lived(name, its)
    lines = run.plan.audit(range(len(run.given))).table().to_pylist()
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    told = [dict[int, list[Any]]() for _ in run.given]
    for line in lines:
        told[line["step"]].setdefault(line["rank"], []).append(line)
    for step, ranks in zip(run.given, told, strict=True):
        assert {rank: keys for rank, keys in enumerate(step) if keys} == {
            rank: [(line["source"], line["epoch"], line["index"]) for line in lines]
            for rank, lines in ranks.items()
        }
        for mine in ranks.values():
            assert (
                "batched" in name
                or "packed" in name
                or [line["row"] for line in mine] == [*range(len(mine))]
            )


@examples(100)
@runs
@countable()
def test_seen_and_counts_are_of_what_was_given(name: str, its: list[Life]) -> None:
    run = lived(name, its)
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
    name: str, its: list[Life]
) -> None:
    """By positions: of the plan as it is, and with what was skipped in it."""
    plan = lived(name, its).plan
    for position in (0, 5, 31):
        with countable():
            given = Counter((s.source, s.index) for s in plan.at(slice(0, position)) if not s.start)
            assert seen_in(plan.seen(position)) == given


@examples(100)
@runs
@countable()
def test_find_names_the_steps_in_which_a_sample_was_given(name: str, its: list[Life]) -> None:
    run = lived(name, its)
    plan, steps = run.plan, range(len(run.given) // 3, len(run.given))
    for source in plan.sources:
        for index in (0, 3, 5):
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
    its=st.lists(lives, min_size=1, max_size=3),
    size=st.integers(1, 4),
    ranks=st.integers(1, 4),
)
def test_the_command_line_answers_for_the_run(
    kind: str, its: list[Life], size: int, ranks: int, folder: Path
) -> None:
    """Answer by the run, for files that name other batches and ranks."""
    note(f"{kind}: {its}, then size {size}, ranks {ranks}")
    rows = mixture(folder, "rows.yaml", kind)
    run = Run(lambda: ps.load(rows), [])
    with countable():
        for life in its:
            run.live(life)
    assume(run.given)
    path = mixture(
        folder, "mixture.yaml", kind, f"batch: {{size: {size}, ranks: {ranks}, collate: list}}\n"
    )
    made, told, state = len(run.given), list(map(keys_of, run.given)), folder / "state.json"
    state.write_text(json.dumps(run.states[0] if isinstance(run.states, list) else run.states))

    at = said("at", path, 0, "--to", made, "--state", state, "--json")["samples"]
    by_step = [
        sorted((s["source"], s["epoch"], s["index"]) for s in at if s["step"] == n)
        for n in range(made)
    ]
    assert by_step == told

    assume(any(told))
    source, _, index = next(keys for keys in [*told[made // 2 :], *told] if keys)[0]
    asked = ("find", path, source, index, "--to", made, "--state", state, "--json")
    here = [n for n, keys in enumerate(told) if any((s, i) == (source, index) for s, _, i in keys)]
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
    ] == told

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
