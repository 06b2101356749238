"""Saved at any position and resumed anywhere, the rest is the same: every step, and random trees of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note

import penstock as ps
from example_counts import examples, rounds
from helpers import numbers
from oracle import endless
from penstock.engine.changes.edits import Edit
from penstock.engine.runtime.run_options import RunOptions
from penstock.engine.runtime.session import Session
from penstock.engine.runtime.states import SavedState
from penstock.engine.steps.step import Step
from penstock.testing import assert_resumes, build, pipelines, recipes, show
from penstock.types import Json

Stage = Callable[[], ps.Dataset]


def docs(n: int) -> ps.Dataset:
    return numbers(n).map(recipes.document)


def pairs(n: int) -> ps.Dataset:
    return numbers(n).map(lambda x: {"a": np.full(x % 4, x), "b": np.full(x % 3, x)})


def stream(n: int, name: str = "s") -> ps.Dataset:
    return ps.from_iterable(lambda: iter(range(n)), name=name)


def three(stop: Any, **options: Any) -> Stage:
    def make() -> ps.Dataset:
        flows = {
            "a": numbers(5).shuffle(seed=1),
            "b": numbers(9, "b").shuffle(seed=2),
            "c": numbers(4, "c"),
        }
        return ps.mix(flows, {"a": 3, "b": 2, "c": 1}, stop=stop, **options)

    return make


def two_streams() -> ps.Dataset:
    flows = {
        "a": stream(7, "a").filter(recipes.most),
        "b": numbers(9, "b").shuffle(seed=1).flat_map(recipes.twice),
    }
    return ps.mix(flows, {"a": 1, "b": 2}, stop="all_exhausted", block_size=4)


def scheduled() -> ps.Dataset:
    schedule = ps.Schedule([(0, {"a": 1, "b": 1}), (7, {"a": 1, "b": 3}), (20, {"a": 1, "b": 0})])
    return ps.mix(
        {"a": numbers(6).shuffle(seed=3), "b": numbers(5, "b")}, schedule, block_size=3
    ).limit(40)


STAGES: list[tuple[str, Stage]] = [
    ("from_sequence", lambda: numbers(9)),
    ("from_sequence of arrays", lambda: ps.from_sequence(np.arange(12).reshape(6, 2))),
    ("from_iterable", lambda: stream(9)),
    ("shuffle", lambda: numbers(9).shuffle(seed=1)),
    ("shuffle in blocks", lambda: numbers(30).shuffle(seed=1, block=(4, 2))),
    ("repeat", lambda: numbers(5).shuffle(seed=1).repeat(3)),
    ("repeat the same", lambda: numbers(5).shuffle(seed=1).repeat(3, reshuffle=False)),
    ("repeat for ever", lambda: numbers(5).shuffle(seed=1).repeat()),
    ("repeat a stream", lambda: stream(4).filter(recipes.even).repeat(3)),
    ("slice", lambda: numbers(12).shuffle(seed=1)[2:11:3]),
    ("shard", lambda: numbers(12).shard(1, 3)),
    ("limit", lambda: numbers(12).limit(5)),
    ("limit a stream", lambda: stream(12).limit(5)),
    ("skip", lambda: numbers(12).shuffle(seed=1).skip(5)),
    ("skip in a stream", lambda: stream(12).skip(5)),
    ("skip of what never ends", lambda: numbers(5).shuffle(seed=1).repeat().skip(7)),
    ("select", lambda: numbers(12).shuffle(seed=1).select([7, 0, 7, -1, 3])),
    ("concat", lambda: numbers(4).concat(numbers(3, "b").shuffle(seed=1))),
    ("concat streams", lambda: stream(4).concat(numbers(3, "b"), stream(2, "c"))),
    ("zip", lambda: numbers(6).zip(numbers(8, "b").shuffle(seed=1))),
    ("zip streams", lambda: stream(6).filter(recipes.most).zip(numbers(8, "b"))),
    ("map", lambda: numbers(6).map(recipes.double)),
    ("map of many", lambda: numbers(6).map(recipes.doubles, batched=4)),
    ("rename", lambda: numbers(6).map(recipes.mapping).rename({"x": "y"})),
    (
        "map_with_index",
        lambda: numbers(6).shuffle(seed=1).map_with_index(recipes.split_by_position),
    ),
    (
        "map_with_index of a stream",
        lambda: stream(9).filter(recipes.even).map_with_index(recipes.split_by_position),
    ),
    ("random_map", lambda: numbers(6).shuffle(seed=1).random_map(recipes.noisy)),
    ("random_map of a stream", lambda: stream(9).filter(recipes.even).random_map(recipes.noisy)),
    ("filter", lambda: numbers(12).filter(recipes.even)),
    ("filter that keeps nothing", lambda: numbers(12).filter(lambda x: False)),
    ("flat_map", lambda: numbers(9).flat_map(recipes.spread)),
    ("skip", lambda: numbers(9).map(recipes.refuse_thirds, may_skip=True)),
    (
        "skip in a batch",
        lambda: numbers(12).map(recipes.refuse_thirds, may_skip=True).batch(3, collate=list),
    ),
    ("batch", lambda: numbers(10).shuffle(seed=1).batch(3)),
    ("batch, rest dropped", lambda: numbers(10).batch(3, drop_remainder=True)),
    ("batch of a stream", lambda: numbers(10).filter(recipes.most).batch(3)),
    ("rebatch", lambda: numbers(11).batch(4).rebatch(3)),
    ("shuffle_buffer", lambda: numbers(12).shuffle_buffer(5)),
    ("shuffle_buffer larger than a pass", lambda: numbers(6).shuffle_buffer(50)),
    ("shuffle_buffer of a stream", lambda: stream(12).flat_map(recipes.spread).shuffle_buffer(4)),
    (
        "bucket_by_length",
        lambda: numbers(12).bucket_by_length([2, 4, 6], 3, size=recipes.size, collate=list),
    ),
    ("batch_by_tokens", lambda: numbers(12).batch_by_tokens(12, size=recipes.size, collate=list)),
    ("pack end to end", lambda: docs(9).pack(8)),
    ("pack first fit", lambda: docs(9).pack(8, method="first_fit")),
    ("pack best fit", lambda: docs(9).pack(8, method="best_fit")),
    ("pack features end to end", lambda: pairs(9).pack_features({"a": 5, "b": 3})),
    (
        "pack features, first fit",
        lambda: pairs(9).pack_features({"a": 9, "b": 9}, "first_fit", open_rows=2),
    ),
    ("pack of a stream", lambda: docs(12).filter(recipes.even).pack(8)),
    ("pack, then batch", lambda: docs(12).shuffle(seed=1).pack(8).batch(2, collate=list)),
    ("with_source", lambda: numbers(5).map(recipes.mapping).shuffle(seed=1).with_source()),
    ("seed", lambda: numbers(9).shuffle().shuffle_buffer(3).seed(4)),
    ("mix, restart", three("restart", block_size=1)),
    ("mix, first_exhausted", three("first_exhausted", block_size=1)),
    ("mix, all_exhausted", three("all_exhausted", block_size=1)),
    ("mix, all_exhausted_oversample", three("all_exhausted_oversample", block_size=1)),
    ("mix in blocks", three("all_exhausted", block_size=5)),
    ("mix with caps", three("restart", block_size=5, max_epochs={"a": 1.5, "b": 1, "c": 2})),
    (
        "mix of mixes",
        lambda: ps.mix({"x": three("all_exhausted")(), "y": numbers(6, "y")}, stop="all_exhausted"),
    ),
    ("mix of streams", two_streams),
    ("mix on a schedule", scheduled),
    (
        "everything",
        lambda: (
            two_streams().shuffle_buffer(4).map(recipes.document).pack(8).batch(2, collate=list)
        ),
    ),
]
ENDLESS = {"repeat for ever", "skip of what never ends", "mix, restart"}


@pytest.mark.parametrize("name,make", STAGES, ids=[name for name, _ in STAGES])
def test_every_step_resumes(name: str, make: Stage) -> None:
    """At three positions and around the ends of passes; in `make soak` at every position."""
    steps = 24 if name in ENDLESS else None
    assert_resumes(make, steps=steps, at_most=rounds(3, 64))
    assert_resumes(lambda: ps.Loader(make()), steps=steps, at_most=rounds(1, 24))  # over two passes


@examples(300)
@given(pipelines())
def test_random_pipelines_resume(recipe: Any) -> None:
    note(show(recipe))
    assert_resumes(lambda: build(recipe), steps=12 if endless(recipe) else None, at_most=6)


@examples(60)
@given(pipelines(3))
def test_random_pipelines_resume_in_a_loader(recipe: Any) -> None:
    note(show(recipe))
    assert_resumes(
        lambda: ps.Loader(build(recipe)), steps=14 if endless(recipe) else None, at_most=6
    )


@examples(30)
@given(pipelines(3, endless=False))
def test_random_pipelines_resume_in_lanes(recipe: Any) -> None:
    note(show(recipe))
    assert_resumes(lambda: ps.Loader(build(recipe), lanes=3), at_most=6)


class Note:
    """Keeps a text beside the position of a run."""

    key = "note"

    def __init__(self, text: str | None = None) -> None:
        self.text = text

    def to_json(self, session: Session) -> Json | None:
        return self.text

    def load(self, state: SavedState, session: Session, adopting: bool) -> Note:
        note: Any = state.sections.get("note")
        if note == "unreadable":
            raise ps.StateError("the note cannot be read")
        return Note(note)

    def merge(self, states: Sequence[SavedState]) -> list[SavedState]:
        return [replace(state, sections=states[0].sections) for state in states]

    def open_items(self, state: SavedState) -> tuple[int, Sequence[tuple[int, int]]]:
        return 1, []

    def replay(self, tree: Step, edits: Sequence[Edit], log: Sequence[Any]) -> tuple[Edit, ...]:
        return tuple(edits)


def test_a_section_of_another_package_is_saved_and_loaded_with_the_run() -> None:
    def session(section: Note | None) -> Session:
        return Session(numbers(9).compiled, RunOptions(), None, section)

    run, again = session(Note("first")), session(Note())
    assert [run.out.next() for _ in range(4)] == [0, 1, 2, 3]
    state = run.state()
    assert state["note"] == "first" and "note" not in session(Note()).state()
    again.load(state, "error")
    assert again.out.next() == 4 and again.state()["note"] == "first"
    run.section = Note("unreadable")
    with pytest.raises(ps.StateError, match="cannot be read"):
        again.load(run.state(), "error")
    assert again.out.next() == 5 and again.state()["note"] == "first"
    with pytest.raises(ps.StateError, match=r"sections \['note'\]"):
        session(None).load(state, "error")
