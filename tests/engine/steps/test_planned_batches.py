"""Global batches that change at planned steps: `Loader(global_batch_size=Schedule(...))`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json
from penstock.engine.base.step_plan import NumberPlan, iter_equal_steps, resolve_rows
from penstock.integrations.losses import count_loss_tokens

Key = tuple[str, int, int]
RAMP = ps.Schedule({0: 4, 3: 8, 7: 16}, unit="steps")


def numbers() -> ps.Dataset:
    flows = {
        name: ps.from_sequence(range(n), name=name).shuffle() for name, n in (("a", 50), ("b", 31))
    }
    return ps.mix(flows, {"a": 2, "b": 1})  # fmt: skip


def documents(name: str, n: int) -> ps.Dataset:
    lengths = np.random.default_rng(len(name) + n).integers(1, 40, n)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    return ps.from_tokens(np.arange(begins[-1]), begins, name=name).shuffle()


def packed(length: int | ps.Schedule) -> ps.Dataset:
    flows = {"a": documents("a", 40), "b": documents("b", 25)}
    return ps.mix(flows, {"a": 2, "b": 1}).pack(length)


def open_ranks(ds: ps.Dataset, ranks: int, ramp: Any = RAMP, **options: Any) -> list[ps.Loader]:
    return [
        ps.Loader(ds, global_batch_size=ramp, rank=rank, world_size=ranks, **options)
        for rank in range(ranks)
    ]


def take(loaders: Sequence[ps.Loader], steps: int) -> list[Counter[Key]]:
    """The samples of the next steps, over all ranks."""
    its, out = [iter(loader) for loader in loaders], list[Counter[Key]]()
    for _ in range(steps):
        for it in its:
            next(it)
        out.append(Counter(key for loader in loaders for key in loader.keys()))
    return out


def in_order(ds: ps.Dataset, sizes: Sequence[int]) -> list[Counter[Key]]:
    """The samples of steps of these sizes, cut from the rows of the dataset one after the other."""
    samples = ds.plan.at(slice(0, sum(sizes)))
    keys = [Counter[Key]() for _ in range(sum(sizes))]
    for sample in samples:
        keys[sample.position][sample.key] += 1
    ends = np.cumsum(sizes).tolist()
    return [sum(keys[end - n : end], start=Counter()) for end, n in zip(ends, sizes, strict=True)]


def sizes_of(ramp: ps.Schedule, steps: int, length: int = 1) -> list[int]:
    """The rows of each step, one step at a time."""
    out, tokens = list[int](), 0
    points = dict(ramp.numbers or ())
    for step in range(steps):
        at = step if ramp.unit == "steps" else tokens
        out.append(int(points[max(point for point in points if point <= at)]))
        tokens += out[-1] * length
    return out


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_batches_change_at_their_steps_on_any_ranks_and_after_a_resume(ranks: int) -> None:
    wanted = in_order(numbers(), sizes_of(RAMP, 12))
    assert [each.total() for each in wanted] == [4] * 3 + [8] * 4 + [16] * 5
    for cut in (0, 2, 3, 5, 7, 11):
        loaders = open_ranks(numbers(), ranks)
        assert take(loaders, cut) == wanted[:cut]
        states = [through_json(loader.state_dict()) for loader in loaders]
        assert all(state == states[0] for state in states)
        later = open_ranks(numbers(), 4 // ranks)
        for loader in later:
            loader.load_state_dict(states[0])
        assert take(later, 12 - cut) == wanted[cut:]
        plan = numbers().batch(global_batch_size=RAMP).plan.for_state(states[0])
        assert plan.next_step == plan.position == cut
        assert [Counter(s.key for s in plan.at(step=step)) for step in range(12)] == wanted
        assert plan.find("a", 3, steps=range(12)) == [
            step for step, keys in enumerate(wanted) if {("a", 0, 3), ("a", 1, 3)} & {*keys}
        ]
        audit = plan.audit(range(cut)).table().to_pylist()
        rows = Counter((each["step"], each["source"], each["index"]) for each in audit)
        assert rows == Counter(
            (step, name, index)
            for step, keys in enumerate(wanted[:cut])
            for (name, _, index) in keys.elements()
        )


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_workers_change_nothing(executor: Literal["threads", "processes"]) -> None:
    wanted = in_order(numbers(), sizes_of(RAMP, 12))
    with ps.Loader(numbers(), global_batch_size=RAMP, workers=2, executor=executor) as loader:
        assert take([loader], 12) == wanted


def test_an_epoch_may_hold_several_stages() -> None:
    wanted = in_order(numbers(), sizes_of(RAMP, 12))
    with ps.Loader(numbers(), global_batch_size=RAMP, epoch_length=5) as loader:
        run = [[Counter(loader.keys()) for _ in loader] for _ in range(2)]
    assert run == [wanted[:5], wanted[5:10]]


def test_seeks_over_borders_find_the_steps() -> None:
    wanted = in_order(numbers(), sizes_of(RAMP, 14))
    loader = ps.Loader(numbers(), global_batch_size=RAMP)
    for step in (5, 2, 9, 0, 7, 3, 11):
        loader.seek(step)
        assert take([loader], 3) == wanted[step : step + 3]
        state = through_json(loader.state_dict())
        plan = numbers().batch(global_batch_size=RAMP).plan.for_state(state)
        assert plan.next_step == step + 3
        told = [Counter(s.key for s in plan.at(step=at)) for at in range(14)]
        assert told[step:] == wanted[step:]
        assert all(keys in (wanted[at], Counter()) for at, keys in enumerate(told[:step]))
        again = ps.Loader(numbers(), global_batch_size=RAMP)
        again.load_state_dict(state)
        assert take([again], 14 - step - 3) == wanted[step + 3 :]


ramps = st.dictionaries(st.integers(1, 9), st.sampled_from([2, 4, 6]), max_size=3).map(
    lambda later: ps.Schedule({0: 4, **later}, unit="steps") if later else 4
)


@examples(25)
@given(ramps=st.lists(ramps, min_size=2, max_size=4), data=st.data())
def test_a_run_keeps_its_steps_when_it_takes_other_ramps(
    ramps: list[Any], data: st.DataObject
) -> None:
    endless = ps.from_sequence(range(5000), name="d").repeat()
    given: list[list[int]] = []
    state, went_back = None, False
    for ramp in ramps:
        ds = endless.batch(global_batch_size=ramp)
        loader = ps.Loader(ds)
        if state is not None:
            loader.load_state_dict(state)
        it = iter(loader)
        for back in (False, True):
            for _ in range(data.draw(st.integers(0, 6), label="steps")):
                next(it)
                given.append(sorted(key[2] for key in loader.keys()))
            if back and given and data.draw(st.booleans(), label="back"):
                step = data.draw(st.integers(0, len(given)), label="to")
                loader.seek(step)
                went_back |= step < len(given)
                del given[step:]
                it = iter(loader)
        state = through_json(loader.state_dict())
        plan = ds.plan.for_state(state)
        planned = [
            sorted(sample.index for sample in plan.at(step=step)) for step in range(len(given))
        ]
        assert planned == given
        assert sorted(index for rows in given for index in rows) == list(
            range(sum(map(len, given)))
        )
        if not went_back:  # else it counts what was given before too
            assert plan.counts(step=len(given)) == {"d": sum(map(len, given))}
        ahead = sorted(sample.index for sample in plan.at(step=len(given)))
        fresh = ps.Loader(ds)
        fresh.load_state_dict(state)
        next(iter(fresh))
        assert sorted(key[2] for key in fresh.keys()) == ahead


def test_a_run_may_take_a_ramp_or_leave_it() -> None:
    """Steps from a state on have the sizes that the loader plans for their numbers."""
    samples = in_order(numbers(), [1] * 200)
    for before, after, sizes in (
        (RAMP, 8, [4, 4, 4, 8, 8, 8]),
        (8, RAMP, [8, 8, 8, 8, 8, 16, 16, 16]),
        (RAMP, ps.Schedule({0: 2, 6: 6}, unit="steps"), [4, 4, 4, 2, 2, 2, 6, 6]),
    ):
        cut = 3 if before == RAMP else 5
        sizes = sizes if before == RAMP else [8] * 5 + [8, 8, 16]
        (loader,) = open_ranks(numbers(), 1, before)
        run = take([loader], cut)
        (later,) = open_ranks(numbers(), 1, after)
        later.load_state_dict(through_json(loader.state_dict()))
        run += take([later], len(sizes) - cut)
        assert [each.total() for each in run] == sizes
        assert sum(run, start=Counter()) == sum(samples[: sum(sizes)], start=Counter())
        plan = numbers().batch(global_batch_size=after).plan.for_state(later.state_dict())
        told = [Counter(s.key for s in plan.at(step=at)) for at in range(len(sizes))]
        assert told == run


RAMPS = {
    "steps": (ps.Schedule({0: 16, 2: 32, 9: 64}, unit="steps"), RAMP),
    "tokens": (ps.Schedule({0: 16, 600: 32, 3_000: 64}, unit="tokens"), RAMP),
    "both in tokens": (
        ps.Schedule({0: 16, 600: 32, 3_000: 64}, unit="tokens"),
        ps.Schedule({0: 4, 900: 8, 4_000: 12}, unit="tokens"),
    ),
    "one length": (24, ps.Schedule({0: 4, 900: 8, 4_000: 12}, unit="tokens")),
}


@pytest.mark.parametrize("case", RAMPS)
def test_row_lengths_and_batches_change_together(case: str) -> None:
    length, ramp = RAMPS[case]
    ds = packed(length)
    (alone,), shapes, its = open_ranks(ds, 1, ramp), list[tuple[int, int]](), list[Any]()
    keys = list[Counter[Key]]()
    for _, batch in zip(range(14), alone, strict=False):
        shapes.append(batch["tokens"].shape)
        its.append(batch["tokens"])
        keys.append(Counter(alone.keys()))
    tokens = step = 0
    for step, (rows, columns) in enumerate(shapes):
        for plan, number in ((length, columns), (ramp, rows)):
            if isinstance(plan, ps.Schedule):
                at = step if plan.unit == "steps" else tokens
                points = dict(plan.numbers or ())
                assert number == points[max(point for point in points if point <= at)]
        tokens += rows * columns
    flat = np.concatenate([batch.ravel() for batch in its])
    one = ps.Loader(packed(len(flat)).batch(1))
    assert np.array_equal(next(iter(one))["tokens"][0], flat)
    for cut in (0, 3, 5, 10, 13):
        pair = open_ranks(packed(length), 2, ramp)
        take(pair, cut)
        four = open_ranks(packed(length), 4, ramp)
        for loader in four:
            loader.load_state_dict(through_json(pair[0].state_dict()))
        assert take(four, 14 - cut) == keys[cut:]
    plan = ds.batch(global_batch_size=ramp).plan
    for at in range(14):
        assert {s.key for s in plan.at(step=at, world_size=4)} == {*keys[at]}
    assert sum(plan.counts(step=14, unit="tokens").values()) == tokens


@pytest.mark.parametrize("change", ["weights", "exclude", "seek", "load"])
@pytest.mark.parametrize("every", [1, 2])
def test_changes_at_every_step_keep_the_planned_batches(change: str, every: int) -> None:
    """At a border they went on with the batches before it."""
    for ranks in (1, 2):
        loaders, out = open_ranks(numbers(), ranks), list[Counter[Key]]()
        while len(out) < 12:
            if len(out) % every == 0:
                for loader in loaders:
                    if change == "weights":
                        loader.set_weights({"a": 2, "b": 1})
                    elif change == "exclude":
                        loader.exclude([("a", len(out))])
                    elif change == "seek":
                        loader.seek(len(out))
                    else:
                        loader.load_state_dict(through_json(loader.state_dict()))
            out += take(loaders, 1)
        assert [each.total() for each in out] == sizes_of(RAMP, 12)
        plan = numbers().batch(global_batch_size=RAMP).plan
        plan = plan.for_state(through_json(loaders[0].state_dict()))
        assert [Counter(s.key for s in plan.at(step=step)) for step in range(12)] == out


def test_loss_tokens_follow_the_steps_of_a_ramp() -> None:
    length, ramp = RAMPS["tokens"]
    loader = ps.Loader(packed(length), global_batch_size=ramp)
    planned = [loader.loss_tokens(steps=k) for k in range(13)]
    counts = [count_loss_tokens(batch) for _, batch in zip(range(12), loader, strict=False)]
    assert planned == [sum(counts[:k]) for k in range(13)]


def test_weights_change_within_a_ramp() -> None:
    def run(ranks: int) -> tuple[list[Counter[Key]], Any]:
        loaders = open_ranks(numbers(), ranks)
        out = take(loaders, 5)
        for loader in loaders:
            loader.set_weights({"a": 1, "b": 5})
        return out + take(loaders, 4), through_json(loaders[0].state_dict())

    out, state = run(1)
    assert run(4)[0] == out
    pair = open_ranks(numbers(), 2)
    for loader in pair:
        loader.load_state_dict(state)
    out += take(pair, 4)
    plan = numbers().batch(global_batch_size=RAMP).plan.for_state(state)
    assert [Counter(s.key for s in plan.at(step=step)) for step in range(13)] == out
    assert [each.total() for each in out] == sizes_of(RAMP, 13)


@examples(40)
@given(st.data())
def test_random_ramps_cut_the_rows_of_a_run(data: st.DataObject) -> None:
    unit: Any = data.draw(st.sampled_from(["steps", "tokens"]))
    borders = sorted(data.draw(st.sets(st.integers(1, 20 if unit == "steps" else 900), max_size=4)))
    batches = data.draw(st.lists(st.integers(1, 5), min_size=len(borders) + 1, max_size=5))
    ramp = ps.Schedule(
        {at: 2 * n for at, n in zip([0, *borders], batches, strict=False)}, unit=unit
    )
    length = data.draw(st.integers(5, 30))
    steps, ds = 16, packed(length)
    wanted = in_order(ds, sizes_of(ramp, steps, length))
    loaders, at = open_ranks(packed(length), data.draw(st.sampled_from([1, 2])), ramp), 0
    while at < steps:
        more = data.draw(st.integers(1, steps - at))
        assert take(loaders, more) == wanted[at : at + more]
        at += more
        state = through_json(loaders[-1].state_dict())
        loaders = open_ranks(packed(length), data.draw(st.sampled_from([1, 2])), ramp)
        for loader in loaders:
            loader.load_state_dict(state)
    plan = ds.batch(global_batch_size=ramp).plan.for_state(state)
    assert [Counter(s.key for s in plan.at(step=step)) for step in range(steps)] == wanted


# ---------------------------------------------------------------- runs that end

FRACTIONS = ps.Schedule({0: 4, 0.25: 8, 0.6: 12}, unit="fraction")


def walk_fractions(plan: ps.Schedule, rows: int, batches: Sequence[int]) -> list[int]:
    """The number of each step of these sizes, one step at a time."""
    points, row, out = dict(plan.numbers or ()), 0, list[int]()
    for batch in batches:
        out.append(int(points[max(at for at in points if Fraction(str(at)) * rows <= row)]))
        row += batch
    return out


@pytest.mark.parametrize("rows", [100, 117, 96, 4])
@pytest.mark.parametrize("ramp", [RAMP, FRACTIONS], ids=["steps", "fractions"])
def test_a_limit_ends_a_run_with_its_last_whole_step(rows: int, ramp: ps.Schedule) -> None:
    sizes = list[int]()
    while True:
        planned = sizes_of(RAMP, len(sizes) + 1)
        if ramp is FRACTIONS:
            planned = walk_fractions(ramp, rows, [*sizes, 1])
        if sum(sizes) + planned[-1] > rows:
            break
        sizes.append(planned[-1])
    wanted, ds = in_order(numbers(), sizes), numbers().limit(rows)
    plan = ds.batch(global_batch_size=ramp).plan
    assert plan.size == len(sizes) and plan.at(step=len(sizes)) == ()
    assert [Counter(s.key for s in plan.at(step=at)) for at in range(len(sizes))] == wanted
    assert plan.counts(step=len(sizes) + 9) == plan.counts(step=len(sizes))
    for ranks in (1, 2, 4):
        for cut in sorted({0, 1, len(sizes) // 2, len(sizes) - 1, len(sizes)}):
            loaders = open_ranks(ds, ranks, ramp)
            assert [len(loader) for loader in loaders] == [len(sizes)] * ranks
            assert take(loaders, cut) == wanted[:cut]
            state = through_json(loaders[0].state_dict())
            later = open_ranks(ds, 4 // ranks, ramp)
            for loader in later:
                loader.load_state_dict(state)
            assert plan.for_state(state).next_step == cut
            assert plan.for_state(state).size == len(sizes)
            assert take(later, len(sizes) - cut) == wanted[cut:]
            assert all(next(iter(loader), None) is None for loader in later)
            ended = through_json(later[0].state_dict())
            with pytest.raises(ps.ConfigError, match="the run has ended"):
                iter(later[0])
            longer = open_ranks(numbers().limit(rows + 64), 1, RAMP)
            longer[0].load_state_dict(ended, on_mismatch="adopt")
            if ramp is RAMP:
                assert take(longer, 2)[-1].total() == sizes_of(RAMP, len(sizes) + 2)[-1]


def test_row_lengths_follow_fractions_of_a_run() -> None:
    lengths = ps.Schedule({0: 8, 0.3: 16, 0.75: 32}, unit="fraction")
    for rows in (120, 97):
        ds = packed(lengths).limit(rows)
        loader = ps.Loader(ds, global_batch_size=FRACTIONS)
        shapes = [batch["tokens"].shape for batch in loader]
        batches = [shape[0] for shape in shapes]
        assert batches == walk_fractions(FRACTIONS, rows, batches)
        assert [shape[1] for shape in shapes] == walk_fractions(lengths, rows, batches)
        assert loader.state_dict()["step"] == len(shapes) == len(loader)
        plan = ds.batch(global_batch_size=FRACTIONS).plan
        tokens = np.cumsum([many * length for many, length in shapes]).tolist()
        told = [sum(plan.counts(step=n + 1, unit="tokens").values()) for n in range(len(shapes))]
        assert told == tokens


def test_changes_near_the_end_of_a_run_keep_its_steps() -> None:
    for change in ("weights", "exclude", "seek", "skip"):
        ds = numbers().limit(100)
        (loader,), out = open_ranks(ds, 1), list[Counter[Key]]()
        for step in range(8):
            if change == "weights":
                loader.set_weights({"a": 1, "b": step})
            elif change == "exclude":
                loader.exclude([("a", step)])
            elif change == "seek":
                loader.seek(step)
            out += take([loader], 1)
        plan = ds.batch(global_batch_size=RAMP).plan.for_state(through_json(loader.state_dict()))
        if change == "skip":
            plan = plan.skip(steps=range(8, 9))
            (loader,) = open_ranks(ds, 1)
            loader.load_state_dict(plan.state)
            out += take([loader], 1)
            assert plan.size == 9
        else:
            out += take([loader], 2)
            assert plan.size == 10
        assert next(iter(loader), None) is None
        told = [Counter(s.key for s in plan.at(step=at)) for at in range(len(out) + 2)]
        assert told == [*out, Counter(), Counter()]
        with pytest.raises(ps.ConfigError, match="the run ends after"):
            loader.seek(40)


@given(st.data())
def test_stretches_are_those_of_a_walk_by_steps(data: st.DataObject) -> None:
    def draw() -> NumberPlan:
        at = sorted(data.draw(st.sets(st.integers(1, 200), max_size=5)))
        numbers = data.draw(st.lists(st.integers(1, 9), min_size=len(at) + 1, max_size=6))
        unit: Any = data.draw(st.sampled_from(["steps", "rows", "tokens"]))
        return NumberPlan(tuple(zip([0, *at], numbers, strict=False)), unit)

    rows, lengths = draw(), draw()
    found = [*iter_equal_steps(rows, lengths)]
    row = tokens = 0
    for step in range(205):
        here = [each for each in found if each.step <= step][-1]
        assert here.row + (step - here.step) * here.rows == row
        many, length = (plan.number_at((step, row, tokens)) for plan in (rows, lengths))
        assert here.tokens + (step - here.step) * here.rows * here.length == tokens
        assert (here.rows, here.length) == (many, length)
        row, tokens = row + many, tokens + many * length
    by_step = dict(resolve_rows(rows, lengths))
    assert by_step[max(step for step in by_step if step <= found[-1].step)] == found[-1].rows


REFUSED: dict[str, tuple[Any, str]] = {
    "an end": (lambda: ps.from_sequence(range(9)).batch(global_batch_size=RAMP), "add .repeat"),
    "weights": (
        lambda: numbers().batch(global_batch_size=ps.Schedule({0: {"a": 1}}, unit="steps")),
        "give numbers by steps or tokens",
    ),
    "samples": (
        lambda: numbers().batch(global_batch_size=ps.Schedule({0: 4})),
        "give numbers by steps or tokens",
    ),
    "tokens of samples": (
        lambda: numbers().batch(global_batch_size=ps.Schedule({0: 4}, unit="tokens")),
        "need rows of equal length",
    ),
    "a stream": (
        lambda: numbers().filter(bool).batch(global_batch_size=RAMP),
        "filter",
    ),
    "ranks": (
        lambda: open_ranks(numbers(), 8),
        "global_batch_size=4 is not a multiple of world_size=8",
    ),
    "batches before": (
        lambda: open_ranks(numbers().batch(4), 1),
        "has batches already",
    ),
    "batches of batches": (
        lambda: numbers().batch(2).batch(global_batch_size=RAMP),
        "has batches already",
    ),
    "batches of steps": (
        lambda: numbers().batch(global_batch_size=RAMP).batch(2),
        "are the steps of a run",
    ),
    "a batch of nothing": (
        lambda: ps.Schedule({0: 4, 3: 0}, unit="steps"),
        "point at step 3 is the number 0",
    ),
    "numbers beside weights": (
        lambda: ps.Schedule([(0, 4), (3, {"a": 1})], unit="steps"),
        "step 3 has weights, unlike the first one",
    ),
    "fractions of no run": (
        lambda: numbers().batch(global_batch_size=FRACTIONS),
        "which has none; add .limit",
    ),
    "fractions of no packed run": (
        lambda: packed(ps.Schedule({0: 8, 0.5: 16}, unit="fraction")).batch(global_batch_size=4),
        "which has none; add .limit",
    ),
    "fractions beyond the run": (
        lambda: ps.Schedule({0: 4, 1.5: 8}, unit="fraction"),
        "a fraction is a number from 0 to 1",
    ),
    "other lengths in a padded step": (
        lambda: ps.Loader(
            packed(ps.Schedule({0: 8, 3: 16}, unit="steps")).limit(50),
            global_batch_size=RAMP,
            remainder="pad",
        ),
        "gives them another length",
    ),
    "no loader": (
        lambda: [*islice(numbers().batch(global_batch_size=RAMP), 1)],
        "penstock.Loader",
    ),
    "an index": (lambda: numbers().batch(global_batch_size=RAMP)[0], "change by global step"),
    "a position": (
        lambda: numbers().batch(global_batch_size=RAMP).plan.at(3),
        "change by global step",
    ),
    "one source per step": (
        lambda: ps.Loader(
            ps.mix(
                {name: documents(name, 9) for name in "ab"}, one_source_per="global_step"
            ),
            global_batch_size=RAMP,
        ),
        "give the rows as a number",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_uses_are_errors(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(ps.ConfigError, match=message):
        make()
