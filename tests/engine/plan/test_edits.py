"""Edits of a plan: what a run delivers after them is what the edited plan says, and nothing else is disturbed."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json
from penstock.engine.changes.edits import Change, Exclude, Skipped, changed, locate_mixture
from penstock.engine.mixing import SetWeights
from penstock.engine.plan import Plan
from penstock.engine.runtime.seal import seal
from penstock.engine.steps.step import Builder
from penstock.engine.steps.tally import Tally
from penstock.errors import ConfigError, StateError
from trees import begun, delivered, documents, numbers, packable, trees

Key = tuple[str, int, int]


def told(plan: Plan[Any], start: int, stop: int) -> list[list[Key]]:
    return [[sample.key for sample in plan.at(p)] for p in range(start, stop)]


def long_run() -> ps.Dataset:
    """A schedule, a source that drops out at its cap, and packed rows in batches."""
    flows = {
        "code": documents(9000, "code"),
        "text": documents(12000, "text"),
        "math": documents(900, "math"),
    }
    late = ps.Schedule(
        [(0, {"code": 3, "text": 5, "math": 2}), (20_000, {"code": 5, "text": 5, "math": 1})],
        "linear",
    )
    shuffled = {name: flow.shuffle() for name, flow in flows.items()}
    return ps.mix(shuffled, late, seed=7, block_size=100, max_epochs={"math": 1.5})


# ---------------------------------------------------------------- the whole story


def test_a_run_with_everything_that_can_happen_is_what_the_plan_says() -> None:
    """2,000 steps through batch: a schedule, an exhausted source, a cap, changed weights, and an edit on the way."""
    ds = long_run().batch(16, collate=list)
    with ps.Loader(ds, workers=2) as loader:
        run, got = iter(loader), list[list[Key]]()
        for _ in range(700):
            next(run)
            got.append(loader.keys())
        loader.set_weights({"code": 1, "text": 1, "math": 1})
        for _ in range(300):
            next(run)
            got.append(loader.keys())
        state = through_json(loader.state_dict())
    plan = ds.plan.for_state(state)
    assert plan.position == 1000 and told(plan, 0, 1000) == got
    coming = [sample for sample in plan.at(slice(1000, 2000)) if sample.source == "text"]
    bad = [coming[i].key for i in range(0, len(coming), len(coming) // 100)][:100]
    edited = plan.skip(range(1200, 1210)).exclude(bad)
    got += delivered(ds, 1000, edited.state, workers=2)
    assert told(edited, 0, 2000) == got
    assert not {key[::2] for key in bad} & {key[::2] for keys in got[1000:] for key in keys}
    assert edited.exhaustion()["math"].ends is not None
    rng = np.random.default_rng(1)
    seen = dict[tuple[str, int], list[int]]()
    for step, keys in enumerate(got):
        for source, _, index in keys:
            seen.setdefault((source, index), []).append(step)
    for source in ("code", "text", "math"):
        for index in rng.integers(0, 900, 70).tolist():
            where = edited.find(source, index, within=range(2000))
            assert where == sorted(set(seen.get((source, index), []))), (source, index)


def test_a_packed_run_is_what_the_plan_says_before_and_after_an_edit() -> None:
    ds = long_run().limit(24_000).pack(64).batch(2)
    state = states(ds, 400)
    weights = {"code": 1, "text": 3, "math": 1}
    change = Change(locate_mixture(ds.tree, weights), 0, SetWeights(20_000, weights)).to_json()
    state = seal(
        {**{key: value for key, value in state.items() if key != "check"}, "changes": [change]}
    )
    got = delivered(ds, 400)
    plan = ds.plan.for_state(state)
    assert plan.position == 400 and told(plan, 0, 400) == got
    bad = sorted({sample.key for sample in plan.at(slice(410, 600)) if sample.source == "code"})[
        :100
    ]
    edited = plan.exclude(bad).skip(range(420, 430))
    assert told(edited, 0, 400) == got
    rest = len(edited.dataset) - 400
    after = delivered(ds, rest, edited.state)
    assert told(edited, 400, 400 + rest) == after
    drawn = plan.diff(ds.plan, within=range(plan.size or 0))
    assert drawn.first is not None and drawn.first > 400 and drawn.counts, (
        "the weights were not changed"
    )
    assert not {key[::2] for key in bad} & {key[::2] for keys in after for key in keys}


def states(ds: ps.Dataset, steps: int, **options: Any) -> Any:
    with ps.Loader(ds, **options) as loader:
        for _ in range(steps):
            run = iter(loader)
            next(run)
        return through_json(loader.state_dict())


# ---------------------------------------------------------------- what is not disturbed


@pytest.mark.parametrize("packed", [False, True])
def test_an_exclusion_holds_from_the_next_row_on_after_the_batch_has_changed(packed: bool) -> None:
    rows = documents(40, "text").repeat().pack(16) if packed else numbers(40, "text").repeat()
    saved = states(rows.batch(2, collate=list), 2)
    plan = rows.batch(3, collate=list).plan.for_state(saved)
    following = [sample for sample in plan.rows().at(slice(4, 6)) if sample.start in (None, 0)]
    edited = plan.exclude(following)
    given = [sample.key for sample in edited.rows().at(slice(4, 30))]
    assert following, "nothing begins in the next rows"
    assert not {sample.key for sample in following} & set(given)
    assert [s.key for s in edited.rows().at(slice(0, 4))] == [
        s.key for s in plan.rows().at(slice(0, 4))
    ]


def test_an_exclusion_disturbs_no_other_source_and_no_step() -> None:
    ds = long_run()
    plan = ds.plan.for_state(states(ds, 500))
    columns = plan.at(slice(500, 3000))
    text = plan._leaf("text")
    bad = [("text", int(i)) for i in columns.index[columns.source == text][:300:3]]
    edited = plan.exclude(bad)
    after = edited.at(slice(500, 3000))
    assert (after.source == columns.source).all(), "which source a step draws from has changed"
    others = columns.source != text
    assert (after.index[others] == columns.index[others]).all()
    kept = [i for i in columns.index[~others].tolist() if ("text", i) not in bad]
    assert after.index[~others].tolist()[: len(kept)] == kept, (
        "the rest of the source is not in its order"
    )
    assert edited.counts(3000) == plan.counts(3000)
    differ = plan.diff(edited, within=range(3000))
    assert (
        differ.first == next(p for p in range(500, 3000) if plan.at(p)[0].key[::2] in bad)
        and not differ.counts
    )


def test_a_skip_leaves_out_the_steps_and_nothing_else() -> None:
    ds = long_run().batch(4, collate=list)
    plan = ds.plan.for_state(states(ds, 20))
    edited = plan.skip(range(30, 40)).skip(range(25, 26))
    want = told(plan, 0, 200)
    del want[30:40]
    del want[25:26]
    assert told(edited, 0, 150) == want[:150]
    assert told(edited, 20, 150) == delivered(ds, 130, edited.state)


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("later_first", [False, True])
def test_two_skips_meet_at_the_end_of_a_pass(drained: bool, later_first: bool) -> None:
    """Before, both shortened the first pass, and the run repeated its last steps."""
    ds = ps.from_sequence(range(36), name="x").batch(4, collate=list)
    want = [[*range(4 * n, 4 * n + 4)] for n in (*range(8), *range(2, 9))]
    with ps.Loader(ds) as loader:
        given = list(islice(loader, 4))
        plan = ds.plan.for_state(loader.state_dict())
        if later_first:
            loader.load_state_dict(plan.skip(steps=range(9, 11)).skip(steps=range(8, 9)).state)
        else:
            loader.load_state_dict(plan.skip(steps=range(8, 9)).state)
        given += loader if drained else islice(loader, 4)
        if not later_first:
            plan = ds.plan.for_state(loader.state_dict()).skip(steps=range(8, 10))
            assert plan.next_step == plan.position == 8
            loader.load_state_dict(plan.state)
        given += loader
        given += loader if len(given) == 8 else ()
        assert given == want
        plan = ds.plan.for_state(loader.state_dict())
    assert [[sample.index for sample in plan.at(step=n)] for n in range(15)] == want
    assert plan.next_step == 15 and plan.seen().samples == {"x": 60}


@given(
    ds=trees(),
    steps=st.integers(0, 12),
    skip=st.integers(0, 6),
    many=st.integers(0, 4),
    pick=st.integers(0, 99),
)
@examples(80)
def test_an_edited_run_goes_on_as_the_edited_plan_says(
    ds: Any, steps: int, skip: int, many: int, pick: int
) -> None:
    assume(ds.plan.size is None or ds.plan.size > steps)
    state, before = states(ds, steps), told(ds.plan, 0, steps)
    plan = ds.plan.for_state(state)
    source = plan.sources[pick % len(plan.sources)]
    try:
        edited = plan.exclude([(source, pick % plan._rows(plan._leaf(source)))])
    except ConfigError as error:
        assert any(
            why in str(error)
            for why in ("left out", "order of", "later pass", "past cannot change")
        )
        edited = plan
    low = steps + skip
    if edited.size is None or low + many < edited.size:
        edited = edited.skip(range(low, low + many))
    assert told(edited, 0, steps) == before, "what was delivered has changed"
    rest = 25 if edited.size is None else max(0, min(25, edited.size - steps))
    assert delivered(ds, rest, edited.state) == told(edited, steps, steps + rest)
    assert edited.counts(steps + rest) == begun(edited, steps + rest)
    for sample in list(edited.at(slice(0, steps + rest)))[::7]:
        assert sample.position in edited.find(
            sample.source, sample.index, within=range(steps + rest)
        )


@given(
    ds=trees(), pick=st.lists(st.integers(0, 11), min_size=1, max_size=4), low=st.integers(0, 40)
)
@examples(80)
def test_find_and_counts_hold_for_an_edited_dataset(ds: Any, pick: list[int], low: int) -> None:
    source = ds.plan.sources[-1]
    rows = ds.plan._rows(len(ds.plan.sources) - 1)
    try:
        plan = ds.plan.exclude([(source, i % rows) for i in pick]).dataset.plan
    except ConfigError as error:
        assert "left out" in str(error)
        return
    if plan.size == 0:
        return
    columns = plan.at(slice(low, low + 40))
    for leaf, name in enumerate(plan.sources):
        for index in range(plan._rows(leaf)):
            mine = columns.position[(columns.source == leaf) & (columns.index == index)]
            assert plan.find(name, index, within=range(low, low + 40)) == sorted(set(mine.tolist()))
    assert not {i % rows for i in pick} & set(
        columns.index[columns.source == len(plan.sources) - 1].tolist()
    )
    assert plan.counts(low) == begun(plan, low)


# ---------------------------------------------------------------- details


def test_edits_stay_in_every_later_state_and_can_be_added_to() -> None:
    ds = ps.mix(
        {"a": numbers(30, "a").shuffle(), "b": numbers(40, "b").shuffle()}, block_size=10, seed=1
    ).batch(2)
    one = ds.plan.for_state(states(ds, 5)).exclude([("a", 3)])
    with ps.Loader(ds) as loader:
        loader.load_state_dict(one.state)
        run = iter(loader)
        for _ in range(10):
            next(run)
        loader.set_weights({"a": 1, "b": 5})
        saved = loader.state_dict()
    two = ds.plan.for_state(saved).exclude([("a", 3), ("a", 4), ("b", 7)]).skip(range(20, 25))
    assert len(two.state["changes"]) == 5
    assert delivered(ds, 100, two.state) == told(two, 15, 115)
    assert told(two, 0, 15) == told(ds.plan.for_state(saved), 0, 15)


def test_weights_are_set_at_the_right_place_after_a_skip() -> None:
    ds = ps.mix({"a": numbers(30, "a"), "b": numbers(40, "b")}, block_size=1).batch(2)
    with ps.Loader(ds) as loader:
        loader.load_state_dict(ds.plan.for_state(states(ds, 2)).skip(range(3, 6)).state)
        run = iter(loader)
        for _ in range(4):
            next(run)
        assert loader.set_weights({"a": 0, "b": 1}) == 2 * (6 + 3)
        assert {key[0] for _ in range(5) if next(run) is not None for key in loader.keys()} == {"b"}


@pytest.mark.parametrize("change", ["weights", "exclude", "adopt"])
def test_a_change_at_the_row_of_a_skip_leaves_the_skipped_samples_out(change: str) -> None:
    def mixture(weights: dict[str, int]) -> ps.Dataset:
        return ps.mix({"a": numbers(100, "a"), "b": numbers(100, "b")}, weights, seed=4)

    ds = mixture({"a": 1, "b": 1})
    plan = ds.plan.for_state(states(ds, 4))
    past = [key for keys in told(plan, 0, 8) for key in keys]  # given, and skipped
    plan = plan.skip(range(4, 8))
    kept = {"a": [*range(100)], "b": [*range(100)]}
    if change == "exclude":
        plan, kept["a"] = plan.exclude([("a", 5)]), [i for i in range(100) if i != 5]
    then = mixture({"a": 1, "b": 9}) if change == "adopt" else ds
    with ps.Loader(then) as loader:
        loader.load_state_dict(plan.state, on_mismatch="adopt" if change == "adopt" else "error")
        if change == "weights":
            assert loader.set_weights({"a": 1, "b": 9}) == 8
        run = iter(loader)
        coming = [key for _ in range(30) if next(run) is not None for key in loader.keys()]
    for name in "ab":
        first = sum(source == name for source, *_ in past)
        delivered = [index for source, _, index in coming if source == name]
        assert delivered == kept[name][first : first + len(delivered)]


def test_a_plan_of_a_run_in_a_later_pass() -> None:
    ds = numbers(10, "a").shuffle(seed=1).batch(3)
    with ps.Loader(ds) as loader:
        for _ in loader:
            pass
        run = iter(loader)
        next(run)
        state = loader.state_dict()
        rest = [loader.keys() for _ in run]
    plan = ds.plan.for_state(state)
    assert plan.position == 5 and told(plan, 5, 8) == rest
    assert plan.skip(range(7, 7)) is plan


def test_the_edited_dataset_is_a_dataset() -> None:
    ds = ps.mix({"a": numbers(30, "a").shuffle(), "b": numbers(40, "b").shuffle()}, seed=1).batch(2)
    plan = ds.plan.exclude([("a", 0, 3), ("b", 5)]).skip(range(2, 4))
    assert delivered(plan.dataset, 50) == told(plan, 0, 50)
    assert "gap" in json.dumps(ps.Loader(plan.dataset).state_dict())


def test_samples_are_left_out_after_the_input_that_gave_the_last_one_has_left() -> None:
    flows = {name: ps.from_sequence(range(50), name=name).shuffle(seed=1) for name in "abc"}
    loader = ps.Loader(ps.mix(flows, {"a": 1, "b": 1, "c": 2}, seed=3))
    run = iter(loader)
    while next(run) is not None and loader.keys()[0][0] != "c":
        pass
    ds = ps.mix({name: flows[name] for name in "ab"}, {"a": 1, "b": 1}, seed=3)
    going_on = ps.Loader(ds)
    going_on.load_state_dict(loader.state_dict(), on_mismatch="adopt")
    plan = ds.plan.for_state(going_on.state_dict())
    with pytest.raises(ps.StateError, match="the mixture no longer has"):
        plan.at(plan.position - 1)
    gone = plan.at(plan.position)[0]
    edited = plan.exclude([gone])
    at = plan.position
    given = [
        [each.key for each in one.at(slice(at, at + 60)) if each.source == gone.source]
        for one in (plan, edited)
    ]
    assert len(given[1]) > 20
    left = [key for key in given[0] if key[2] != gone.index]
    assert given[1][: len(left)] == left


def test_samples_are_left_out_where_the_past_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind passes of another length, of which the present mixture knows nothing."""
    ds = ps.mix(
        {name: ps.from_sequence(range(9), name=name) for name in "ab"}, {"a": 1, "b": 2}, seed=2
    )
    loader = ps.Loader(ds)
    next(iter(loader))
    plan = ds.plan.for_state(loader.state_dict())
    want = plan.exclude([("a", 5)]).at(slice(0, 20))

    def untold(*_: object) -> None:
        raise ps.StateError("a change of the run altered the length of a pass")

    monkeypatch.setattr("penstock.engine.plan.questions.Questions.counts", untold)
    assert [*plan.exclude([("a", 5)]).at(slice(0, 20))] == [*want]


def test_edits_that_make_no_sense_are_refused() -> None:
    ds = numbers(6, "wiki").shuffle(seed=1)
    plan = ds.plan.for_state(states(ds, 2))
    with pytest.raises(ConfigError, match="the past cannot change; give positions from 2 on"):
        plan.skip(range(1, 3))
    with pytest.raises(ConfigError, match="no source 'w'"):
        plan.exclude([("w", 1)])
    with pytest.raises(IndexError, match="'wiki' has no sample 6"):
        plan.exclude([("wiki", 6)])
    with pytest.raises(ConfigError, match="every sample of 'wiki' is left out"):
        plan.exclude([("wiki", i) for i in range(6)])
    with pytest.raises(ConfigError, match="does not belong to a run"):
        assert ds.plan.state
    with pytest.raises(StateError, match="another pipeline"):
        ds.batch(2).plan.for_state(plan.state)
    mixed = ds.concat(numbers(4, "b")).shuffle(seed=2)
    with pytest.raises(ConfigError, match="a shuffle over several sources"):
        mixed.plan.for_state(states(mixed, 3)).exclude([("wiki", 1)])
    assert ("wiki", 1) not in [
        key[::2] for keys in told(mixed.plan.exclude([("wiki", 1)]), 0, 9) for key in keys
    ]


def test_a_damaged_edit_is_refused() -> None:
    ds = numbers(6, "a")
    body = {k: v for k, v in states(ds, 1).items() if k != "check"}
    good = [
        {"skip": 3, "count": 1},
        {"exclude": "a", "since": 2, "indices": [1], "replanned": [0, 1], "row": 1},
    ]
    ps.Loader(ds).load_state_dict(seal({**body, "changes": good}))
    no_pass = (-1, 0.0, True, None, 1 << 60)
    wrong = [{**good[1], "replanned": [epoch]} for epoch in no_pass]
    wrong += [{"former": [[epoch, 3]], "until": 1} for epoch in no_pass]
    wrong += [{**good[1], "row": -1}, {"mask": "a", "row": -1, "indices": [1]}, {"mask": "a"}]
    for edit in ({"skip": "x", "count": 1}, {"exclude": "a", "since": 0}, {"skip": 3}, *wrong):
        with pytest.raises(StateError, match="damaged"):
            ps.Loader(ds).load_state_dict(seal({**body, "changes": [edit]}))


def test_golden_edits() -> None:
    """The first keys of an edited run. If this fails, runs under way would change: an ORDER break."""
    flows = {"a": numbers(20, "a").shuffle(), "b": numbers(15, "b").shuffle()}
    ds = ps.mix(flows, {"a": 2, "b": 1}, seed=5, block_size=6)
    plan = ds.plan.exclude([("a", 3), ("a", 11), ("b", 0)]).skip(range(4, 7))
    got = [(source, index) for [(source, _, index)] in told(plan, 0, 24)]
    assert got == GOLDEN


GOLDEN = [
    ("b", 7),
    ("a", 8),
    ("a", 19),
    ("a", 1),
    ("a", 6),
    ("b", 8),
    ("b", 3),
    ("a", 18),
    ("a", 7),
    ("b", 4),
    ("a", 16),
    ("a", 17),
    ("a", 2),
    ("b", 13),
    ("a", 5),
    ("a", 9),
    ("b", 14),
    ("a", 4),
    ("a", 10),
    ("b", 9),
    ("a", 15),
    ("b", 11),
    ("a", 12),
    ("a", 14),
]


def test_samples_left_out_of_repeats_that_are_shuffled_together() -> None:
    ds = numbers(12, "a").repeat(2, reshuffle=False).shuffle(seed=1)
    plan = ds.plan.exclude([("a", 6), ("a", 7)]).dataset.plan
    seen = [sample.index for sample in plan.at(slice(0, 80))]
    kept = [sample.index for sample in ds.plan.at(slice(0, 100)) if sample.index not in (6, 7)]
    assert seen == kept[:80]
    assert plan.find("a", 3, within=range(80)) == [p for p, index in enumerate(seen) if index == 3]


@pytest.mark.parametrize("steps,pack", [(3, False), (12, True), (29, False)])
def test_a8_samples_that_come_again_are_excluded_from_the_beginning_only(
    steps: int, pack: bool
) -> None:
    """A regression test: excluded samples of `mix.limit(n).repeat()` came back in later passes."""
    make = documents if pack else numbers
    flows = {"a": make(9, "a").shuffle(), "b": make(7, "b").shuffle()}
    ds = ps.mix(flows, {"a": 2, "b": 1}, seed=3).limit(12).repeat()
    bad = sorted({key for [key] in told(ds.plan, 0, 12)})[::4]
    with pytest.raises(ConfigError, match="excluded from the start only"):
        ds.plan.for_state(states(ds, steps)).exclude(bad)
    edited = ds.plan.exclude(bad)
    rest = told(edited, 0, 100)
    assert delivered(edited.dataset, 100) == rest
    assert not {key[::2] for [key] in rest} & {key[::2] for key in bad}
    for source, _, index in {key for [key] in rest}:
        found = edited.find(source, index, within=range(100))
        assert found == [p for p in range(100) if rest[p][0][::2] == (source, index)]


def test_a_limited_run_with_exclusions_ends_with_its_pass() -> None:
    flows = {"a": numbers(9, "a").shuffle(), "b": numbers(7, "b").shuffle()}
    ds = ps.mix(flows, {"a": 2, "b": 1}, seed=3).limit(12)
    plan = ds.plan.for_state(states(ds, 5)).exclude([told(ds.plan, 8, 9)[0][0]])
    with ps.Loader(ds) as loader:
        loader.load_state_dict(plan.state)
        rest = [loader.keys() for _ in loader]
        assert rest == told(plan, 5, 12) and rest != told(ds.plan, 5, 12)
        with pytest.raises(ConfigError, match="it ended with its first pass"):
            list(loader)


def ends_before_an_input(kind: str) -> ps.Dataset:
    a, b = numbers(7, "a"), numbers(5, "b").repeat()
    if kind == "zip":
        return a.zip(b)
    return ps.mix({"a": a, "b": b}, seed=1, stop="first_exhausted")


@pytest.mark.parametrize("kind", ["zip", "mix"])
def test_samples_of_an_endless_input_are_excluded_in_the_first_pass_only(kind: str) -> None:
    """A regression test: delivered samples of earlier passes changed, as each pass begins the input
    again, and excluded samples came in the next pass."""
    ds = ends_before_an_input(kind)
    size = ds.plan.size
    assert size is not None
    plan = ds.plan.for_state(states(ds, 4)).exclude([("b", 2)])
    with ps.Loader(ds) as loader:
        loader.load_state_dict(plan.state)
        rest = [loader.keys() for _ in loader]
        assert rest == told(plan, 4, size)
        assert all(("b", 2) not in [key[::2] for key in keys] for keys in rest)
        with pytest.raises(ConfigError, match="it ended with its first pass"):
            iter(loader)
    with ps.Loader(ds) as loader:
        whole = len(list(loader))
        next(iter(loader))
        second = ds.plan.for_state(through_json(loader.state_dict()))
    with pytest.raises(ConfigError, match="excluded from the start only"):
        second.exclude([("b", 2)])
    changed = second.exclude([("a", 1)])
    assert told(changed, 0, whole) == told(ds.plan, 0, whole)
    assert ("a", 1) not in [
        key[::2] for keys in told(changed, 2 * whole, 3 * whole) for key in keys
    ]


def passes_of(ds: Any, state: Any, many: int) -> list[list[Key]]:
    """The keys of what is left of the pass in which a state stands, and of the passes that follow."""
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state)
        return [[key for _ in loader for key in loader.keys()] for _ in range(many)]


@given(
    ds=trees(), batch=st.sampled_from([None, 2, 3]), into=st.integers(0, 5), lap=st.integers(0, 2),
    start=st.integers(0, 8), many=st.integers(1, 4),
)  # fmt: skip
@examples(40)
@packable()
def test_positions_are_left_out_of_one_pass(
    ds: Any, batch: int | None, into: int, lap: int, start: int, many: int
) -> None:
    """The run stands in its second pass; a range of that pass, or of one that is to come, is left out."""
    ds = ds if batch is None else ds.batch(batch, collate=list)
    size = ds.plan.size or 0
    assume(into < size and start + many < size and (lap or start >= into))
    with ps.Loader(ds) as loader:
        first = [key for _ in loader for key in loader.keys()]
        for _, _ in zip(range(into), loader, strict=False):
            first += loader.keys()
        state = loader.state_dict()
    plan = ds.plan.for_state(state)
    begin = (1 + lap) * size + start
    edited = plan.skip(range(begin, begin + many))
    before, after = passes_of(ds, state, 5), passes_of(ds, edited.state, 5)
    assert [*after[:lap], *after[lap + 1 :]] == [*before[:lap], *before[lap + 1 :]]
    gone = [sample.key for sample in plan.at(slice(begin, begin + many))]
    if batch is None:
        head = len(plan.at(slice((1 + lap) * size + (0 if lap else into), begin)).position)
        assert after[lap] == before[lap][:head] + before[lap][head + len(gone) :]
    else:
        assert sorted(after[lap] + gone) == sorted(before[lap])
    run = [*first, *(key for one in after[:4] for key in one)]
    keys = list[Key]()
    steps = 0
    while len(keys) < len(run):
        keys, steps = [*keys, *told(edited, steps, steps + 1)[0]], steps + 1
    assert keys == run and 5 * size - many <= steps <= 5 * size
    source, _, index = after[2][-1]
    within = range(size, steps)
    held = [p for p in within if (source, index) in {sample.key[::2] for sample in edited.at(p)}]
    assert edited.find(source, index, within=within) == held


def test_a8_a_skip_leaves_the_past_alone() -> None:
    """Positions of a later pass were taken out of the earlier ones, too."""
    ds = numbers(10, "a").shuffle(seed=1)
    with pytest.raises(
        ConfigError, match="only positions of the first pass can be skipped before a run"
    ):
        ds.plan.skip(range(15, 18))
    endless = ds.repeat()
    edited = endless.plan.for_state(states(endless, 13)).skip(range(15, 18))
    assert told(edited, 0, 15) == told(endless.plan, 0, 15)
    assert told(edited, 15, 40) == told(endless.plan, 18, 43)
    assert delivered(endless, 20, edited.state) == told(edited, 13, 33)


@pytest.mark.parametrize("keys", [("a", 3), ["a", 0, 3], "a", 5, None, "one"])
def test_one_key_is_no_list_of_keys(keys: Any) -> None:
    plan = ps.from_sequence("abcdef", name="a").plan
    given: Any = plan.at(0)[0] if keys == "one" else keys
    with pytest.raises(
        ps.ConfigError, match=r"give a list, even of one key: \[\(source, index\)\]"
    ):
        plan.exclude(given)


class _Alternate:
    def size(self, sizes: Any) -> int | None:
        return None

    def at(self, positions: Any) -> Any:
        return positions % 2, positions // 2

    def describe(self) -> dict[str, Any]:
        return {"rule": "alternate"}


def test_a_mixture_by_a_rule_has_no_weights() -> None:
    mixed = ps.mix({"a": ps.from_sequence("abc"), "b": ps.from_sequence("123")}, rule=_Alternate())
    for ds in (mixed.batch(2), ps.concat(mixed.limit(4), ps.from_sequence("xyz"))):
        with pytest.raises(
            ps.ConfigError,
            match=r"mix\(rule=\) draws by a rule without weights",
        ):
            ps.Loader(ds).set_weights({"a": 1, "b": 2})


def test_the_next_step_is_known_where_passes_have_several_lengths() -> None:
    ds = ps.from_sequence(range(17), name="x").shuffle(seed=1).batch(3, collate=list)
    with ps.Loader(ds) as loader:
        for _ in range(2):
            list(loader)
        next(iter(loader))
        edited = ds.plan.for_state(loader.state_dict()).skip(range(14, 16))
        loader.load_state_dict(edited.state)
        for _ in range(2):
            list(loader)
        next(iter(loader))
        plan = ds.plan.for_state(loader.state_dict())
    assert plan.next_step == 13 + 3 + 6 + 1
    assert plan.seen().samples == {"x": 2 * 17 + 11 + 17 + 3}


def test_a_run_keeps_something_of_its_passes() -> None:
    ds = ps.from_sequence(range(6), name="x").batch(3, collate=list)
    with ps.Loader(ds) as loader:
        list(loader)
        plan = ds.plan.for_state(loader.state_dict())
    with pytest.raises(ps.ConfigError, match="the range is a whole pass"):
        plan.skip(steps=range(2, 4))
    with pytest.raises(ps.ConfigError, match="the range is a whole pass"):
        plan.skip(range(2, 4))
    assert plan.skip(steps=range(2, 3)).size == 1


def test_a_pass_without_items_has_none_to_skip() -> None:
    """The state of such a plan could not be read any more."""
    rows = ps.from_sequence(range(3), name="rows").batch(4, drop_remainder=True, collate=list)
    loader = ps.Loader(rows, remainder="pad")
    next(iter(loader))
    plan = rows.plan.for_state(loader.state_dict())
    with pytest.raises(IndexError, match="position 4 of a plan of 0"):
        plan.skip(range(4, 6))
    with pytest.raises(IndexError, match="of a plan of 0"):
        rows.plan.skip(range(2))


@pytest.mark.parametrize("skipped", [range(3), range(2, 5), range(300)])
def test_tokens_before_a_position_are_of_samples_that_are_not_skipped(skipped: range) -> None:
    sizes = np.random.default_rng(0).integers(1, 20, 50)
    ends = np.cumsum(sizes)
    tokens = ps.from_tokens(np.arange(ends[-1]), np.concatenate([[0], ends]), name="a")
    rows = tokens.shuffle().repeat().tree
    step = changed(rows, [Skipped(skipped.start, len(skipped)), Skipped(7, 2)])
    builder = Builder(step)
    op, lengths = builder.op(step), builder.lengths
    kept = sizes[op.locate(np.arange(60)).index]
    for position in (0, 1, 2, 3, 5, 7, 8, 60):
        out = np.zeros(1, np.int64)
        op.tokens(position, lengths, out)
        assert out.tolist() == [kept[:position].sum()]


@pytest.mark.parametrize("length", [3, 300])
def test_counts_are_of_what_is_left_between_skips(length: int) -> None:
    mixture = ps.mix({name: numbers(50, name) for name in "ab"}, {"a": 3, "b": 1}, seed=1)
    step = changed(mixture.tree, [Skipped(7, length), Skipped(20, 2)])
    op = Builder(step).op(step)
    for start, stop in ((0, 7), (0, 8), (7, 20), (6, 21), (0, 400)):
        tally = Tally(2)
        op.count(tally, start, stop)
        given = np.bincount(op.locate(np.arange(start, stop)).leaf, minlength=2)
        assert tally.samples.tolist() == given.tolist()


def test_a_sample_that_is_excluded_again_stays_excluded() -> None:
    """It is left out from the first exclusion on, whatever comes later."""
    step = numbers(10, "a").repeat().tree
    once, twice = (
        changed(step, [Exclude("a", since, (4,)) for since in begins]) for begins in ([3], [3, 17])
    )
    positions = np.arange(40)
    kept = Builder(once).op(once).locate(positions).index.tolist()
    assert kept == [value for value in [*range(10)] * 5 if value != 4][:40]
    assert Builder(twice).op(twice).locate(positions).index.tolist() == kept


# ---------------------------------------------------------------- states of a pipeline with more maps


def map_samples(ds: ps.Dataset) -> ps.Dataset:
    maps = ds.random_map(lambda x, rng: x).map_with_index(lambda i, x: x)
    return maps.with_source(lambda x, source, epoch, index: x)


@pytest.mark.parametrize(
    "ds,above",
    [
        (long_run(), map_samples(long_run())),
        (long_run().batch(16, collate=list), long_run().batch(16, collate=list).map(len).map(str)),
        (
            long_run().batch(global_batch_size=16, collate=list),
            long_run().batch(global_batch_size=16, collate=list).map(len),
        ),
    ],
    ids=["samples", "batches", "global batches"],
)
def test_a_state_of_a_pipeline_with_more_maps_is_answered_and_changed(
    ds: ps.Dataset, above: ps.Dataset
) -> None:
    with ps.Loader(above) as loader:
        run = iter(loader)
        for _ in range(20):
            next(run)
        loader.set_weights({"code": 1, "text": 5, "math": 1})
        for _ in range(20):
            next(run)
        state = through_json(loader.state_dict())
    plan, own = ds.plan.for_state(state), above.plan.for_state(state)
    assert told(plan, 0, 80) == told(own, 0, 80)
    assert plan.counts(80) == own.counts(80) and plan.position == own.position
    edited = plan.skip(range(45, 50))
    assert told(edited, 40, 60) == delivered(above, 20, edited.state)
    assert told(edited, 45, 46) == told(plan, 50, 51) != told(plan, 45, 46)


def test_other_steps_above_are_named_one_by_one() -> None:
    ds = ps.from_sequence(range(100), name="a").batch(4, collate=list)
    with ps.Loader(ds.map(sum).repeat(2)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with pytest.raises(ps.StateError) as caught:
        ds.plan.for_state(state)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert lines == ["  repeat(): only in the saved run", "  map(sum): only in the saved run"]
