"""Plans: what they say of a step is what a run delivers, and every question is the inverse or the sum of that."""

from __future__ import annotations

import copy
import pickle
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.plan import Exhaustion
from penstock.errors import ConfigError, IndexedError
from relative_time import clocked
from trees import begun, delivered, documents, numbers, trees

FAR = 10**12


class Virtual:
    """A source of any length whose samples must never be read."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def read(self, indices: Any, /) -> list[Any]:
        raise AssertionError("a plan read data")

    def lengths(self) -> None:
        return None

    def describe(self) -> str:
        return f"virtual {self.n}"


def many(n: int, block_size: int = 1000, **options: Any) -> ps.Dataset:
    rng = np.random.default_rng(0)
    flows = {
        f"s{i}": ps.from_sequence(Virtual(10**6 * (1 + i % 7) + i)).shuffle() for i in range(n)
    }
    weights = dict(zip(flows, (rng.pareto(1.2, n) + 1e-3).tolist(), strict=True))
    return ps.mix(flows, weights, seed=1, block_size=block_size, **options)


# ---------------------------------------------------------------- laws


@given(ds=trees())
@examples(40)
def test_at_is_what_a_loader_delivers(ds: ps.Dataset) -> None:
    got = delivered(ds, 30)
    plan = ds.plan
    assert [[sample.key for sample in plan.at(p)] for p in range(len(got))] == got
    assert [sample.key for sample in plan.at(slice(0, len(got)))] == [
        key for keys in got for key in keys
    ]


@given(ds=trees(), low=st.integers(0, 60), width=st.integers(0, 40))
@examples(100)
def test_find_is_the_exact_inverse_of_at(ds: ps.Dataset, low: int, width: int) -> None:
    plan = ds.plan
    if plan.size == 0:
        return
    where = dict[tuple[str, int], set[int]]()
    for sample in plan.at(slice(low, low + width)):
        where.setdefault((sample.source, sample.index), set()).add(sample.position)
    for source in plan.sources:
        for index in range(12):
            try:
                found = plan.find(source, index, within=range(low, low + width))
            except IndexError:
                break
            assert found == sorted(where.get((source, index), set())), (source, index)


@given(ds=trees(), position=st.integers(0, 150))
@examples(100)
def test_counts_are_a_tally_of_all_positions_before(ds: ps.Dataset, position: int) -> None:
    plan = ds.plan
    if plan.size == 0:
        return
    assert plan.counts(position) == begun(plan, position)
    columns = plan.at(slice(0, position))
    if columns.start is not None and columns.stop is not None:
        tokens = np.zeros(len(plan.sources), np.int64)
        np.add.at(tokens, columns.source, columns.stop - columns.start)
        found = plan.counts(position, "tokens")
        assert found == {
            name: n for name, n in zip(plan.sources, tokens.tolist(), strict=True) if name in found
        }


@given(ds=trees(), horizon=st.sampled_from([None, 25]))
@examples(60)
def test_exhaustions_are_the_first_repeat_and_the_last_sample(
    ds: ps.Dataset, horizon: int | None
) -> None:
    plan = ds.plan
    found = plan.exhaustion(horizon)
    stop = plan.size if plan.size is not None else 400
    seen = plan.at(slice(0, stop))
    begun, filled = np.ones((2, len(seen)), np.bool_)
    if seen.start is not None and seen.stop is not None:  # packed: parts of documents
        begun, filled = seen.start == 0, seen.stop > seen.start
    for leaf, (repeats, ends) in enumerate((e.repeats, e.ends) for e in found.values()):
        mine = (seen.source == leaf) & begun
        position, index = seen.position[mine], seen.index[mine]
        once = int(plan._distinct_samples[leaf])
        first = set(position[once : once + 1].tolist())
        if first and seen.start is not None:  # rows hold their documents in no order
            first.add(int(position[np.argsort(seen.epoch[mine], kind="stable")][once:].min()))
            drawn = list(zip(seen.epoch[mine].tolist(), index.tolist(), strict=True))
            if len({*drawn}) < len(drawn):  # nor do the copies of a document in one pass
                first.update(position[once - 1 :].tolist())
        if repeats is not None:
            assert repeats in first if first else plan.size is None and repeats >= stop
        elif first:
            assert horizon is not None and max(first) >= horizon
        position = seen.position[(seen.source == leaf) & filled]
        if ends is not None:
            assert len(position) and position[-1] + 1 == ends
        elif plan.size is not None and len(position) and position[-1] + 1 < stop:
            assert horizon is not None and position[-1] >= horizon
        assert len(set(index[:once].tolist())) <= once


# ---------------------------------------------------------------- cases


def test_a_fixed_set_of_repeated_samples_knows_how_many_differ() -> None:
    """Before, a share of a selection with copies had none, and so never repeated."""
    copies = numbers(1, "a").select([0, 0, 0, 0])
    _, held_out = copies.split("40%", seed=1)
    assert held_out.plan.exhaustion()["a"].repeats == 1
    assert numbers(4, "a").repeat().slice(0, 8, 2).plan.exhaustion()["a"].repeats == 2
    assert numbers(9, "a").repeat_each(2).slice(0, 6).plan.exhaustion()["a"].repeats == 3
    assert numbers(9, "a").repeat().limit(10**12).plan.exhaustion()["a"].repeats == 9


def test_packed_rows_name_the_tokens_they_hold() -> None:
    ds = documents(40, "docs").shuffle(seed=1).pack(16)
    for position, row in enumerate(ds):
        told = [
            sample.index
            for sample in ds.plan.at(position)
            for _ in range(sample.start or 0, sample.stop or 0)
        ]
        assert row["tokens"][: len(told)].tolist() == told
    assert [sample.start for sample in ds.map(len).batch(2).plan.at(0)] == [
        sample.start for p in range(2) for sample in ds.plan.at(p)
    ]


def test_what_is_drawn_of_a_shuffled_input_is_counted_pass_by_pass() -> None:
    """Every pass draws the first samples of a new order, which are of other sources than those of the last."""
    two = ps.from_sequence(range(30)).concat(ps.from_sequence(range(50))).shuffle(seed=4)
    plan = (
        ps.mix({"two": two, "one": numbers(20, "one")}, stop="first_exhausted", seed=3)
        .repeat()
        .plan
    )
    for position in range(0, 440, 10):
        assert plan.counts(position) == begun(plan, position)


def test_a_pass_of_other_documents_is_no_pass_of_more_rows() -> None:
    """A mixture that takes part of an input in each pass gives other documents in each, in as many rows."""
    flows = {name: documents(7, name).shuffle() for name in "ab"}
    ds = ps.mix(flows, stop="first_exhausted", max_epochs={"a": 0.5, "b": 1}, block_size=1).pack(8)
    got = delivered(ds, 3 * len(ds))
    assert [[sample.key for sample in ds.plan.at(p)] for p in range(3 * len(ds))] == got
    assert [key[1] for key in got[0]] != [key[1] for key in got[len(ds)]]


def test_tokens_are_counted_where_lengths_are_known() -> None:
    docs = documents(40, "docs").shuffle(seed=1)
    total = int(docs.tree.input.source.lengths()[:].sum())  # type: ignore[union-attr]
    assert docs.plan.counts(80, "tokens") == {"docs": 2 * total}
    packed = docs.pack(16)
    assert packed.plan.counts(3, "tokens") == {"docs": 48}
    assert packed.plan.counts(len(packed), "tokens") == {"docs": total}
    with pytest.raises(ConfigError, match="no source knows"):
        numbers(3, "a").plan.counts(1, "tokens")
    with pytest.raises(ConfigError, match="'samples' or 'tokens'"):
        docs.plan.counts(1, "bytes")  # pyright: ignore[reportArgumentType]


def test_a_step_of_many_ranks_is_what_the_ranks_get() -> None:
    ds = ps.mix({"a": numbers(50, "a").shuffle(), "b": numbers(30, "b").shuffle()}, seed=3).batch(3)
    ranks = [delivered(ds, 12, rank=rank, world_size=4) for rank in range(4)]
    for step in range(12):
        want = [key for rank in ranks for key in rank[step]]
        assert sorted(sample.key for sample in ds.plan.at(step=step, world_size=4)) == sorted(want)


def test_exhaustion_of_caps_and_stop_rules() -> None:
    flows = {"a": numbers(10, "a"), "b": numbers(4, "b")}
    one = ps.mix(flows, {"a": 1, "b": 1}, block_size=1, max_epochs={"b": 1.5}).plan
    assert one.exhaustion() == {"a": Exhaustion(16, None), "b": Exhaustion(9, 11)}
    assert one.exhaustion(horizon=12) == {"a": Exhaustion(None, None), "b": Exhaustion(9, 11)}
    once = ps.mix(flows, {"a": 1, "b": 1}, block_size=1, stop="all_exhausted").batch(2).plan
    assert once.exhaustion() == {"a": Exhaustion(None, None), "b": Exhaustion(None, 4)}


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_exhaustions_look_at_few_passes_of_a_nested_mixture_that_is_packed(stop: Any) -> None:
    """Its passes differ in tokens, and the search must not add up millions of them."""
    inner = ps.mix({"a": documents(30, "a"), "b": documents(41, "b")}, {"a": 1, "b": 2}, stop=stop)
    plan = (
        ps.mix({"inner": inner.repeat(), "c": documents(17, "c")}, {"inner": 2, "c": 1})
        .pack(16)
        .plan
    )
    started = time.process_time()
    found = plan.exhaustion()
    assert time.process_time() - started < 10
    assert all(exhaustion.repeats and exhaustion.ends is None for exhaustion in found.values())


def test_epochs_of_a_slice_are_those_of_what_is_left() -> None:
    ds = numbers(100, "a").shuffle(seed=1)[:20].repeat()
    assert ds.plan.epochs(50) == {"a": 2.5}
    assert numbers(4, "b").repeat(3).plan.epochs(8) == {"b": 2.0}


def test_a_table_has_one_row_for_each_sample() -> None:
    ds = ps.mix({"a": numbers(5, "a"), "b": numbers(5, "b")}, block_size=1).batch(2)
    table = ds.plan.table(10, 13)
    assert table.column_names == ["position", "source", "epoch", "index"]
    rows = [
        (row["position"], row["source"], row["epoch"], row["index"]) for row in table.to_pylist()
    ]
    assert rows == [(p, *sample.key) for p in range(10, 13) for sample in ds.plan.at(p)]
    assert ds.plan.at(slice(10, 13)).table().equals(table)
    packed = documents(10, "docs").pack(8).plan.table(0, 2)
    assert packed.column_names == ["position", "source", "epoch", "index", "start", "stop"]
    assert ds.plan.table(3, 3).num_rows == 0


def test_differences_are_told() -> None:
    def plan(weight: float) -> Any:
        flows = {"a": numbers(500, "a").shuffle(), "b": numbers(500, "b").shuffle()}
        return ps.mix(
            flows, ps.Schedule([(0, {"a": 1, "b": 1}), (300, {"a": 1, "b": weight})]), block_size=10
        ).plan

    same, found = plan(1).diff(plan(1)), plan(1).diff(plan(4), within=range(1000))
    assert not same and "no difference" in str(same)
    first = next(p for p in range(1000) if plan(1).at(p)[0].key != plan(4).at(p)[0].key)
    assert found and found.first == first >= 300
    assert found.here == (plan(1).at(first)[0].key,) and found.there == (plan(4).at(first)[0].key,)
    a = {name: plan(1).counts(1000)[name] for name in "ab"}
    b = {name: plan(4).counts(1000)[name] for name in "ab"}
    assert found.counts == {name: (a[name], b[name]) for name in "ab"}
    assert f"position {first}" in str(found) and f"{b['b'] - a['b']:+,}" in str(found)


def test_a_difference_of_grouping_or_of_a_source_is_a_difference() -> None:
    ds = numbers(20, "a")
    assert ds.batch(2).plan.diff(ds.batch(3).plan).first == 0
    assert ds.plan.diff(numbers(20, "b").plan).counts == {"a": (20, 0), "b": (0, 20)}
    packed = documents(20, "a")
    assert packed.pack(8).plan.diff(packed.pack(9).plan).first == 0


def test_what_comes_before_a_filter_can_be_asked() -> None:
    with pytest.raises(IndexedError, match="filter.*take the plan of the dataset before"):
        assert numbers(9, "a").filter(bool).plan
    with pytest.raises(IndexedError, match="not known beforehand"):
        assert numbers(9, "a").pack(4).plan


def test_questions_that_make_no_sense_are_refused() -> None:
    plan = numbers(9, "wiki").plan
    with pytest.raises(ConfigError, match="no source 'wikis'; did you mean 'wiki'"):
        plan.find("wikis", 1)
    with pytest.raises(IndexError, match="'wiki' has no sample 9; give an index below 9"):
        plan.find("wiki", 9)
    with pytest.raises(ConfigError, match="one by one"):
        plan.find("wiki", 1, within=range(0, 9, 2))
    with pytest.raises(IndexError, match="count from 0"):
        plan.at(-1)
    with pytest.raises(ConfigError, match="and a stop if"):
        numbers(9, "wiki").repeat().plan.at(slice(3, None))
    with pytest.raises(ConfigError, match="takes a position, a slice of positions, or step="):
        plan.at()  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="at least 0"):
        plan.at(step=-1)
    assert plan.find("wiki", 3) == [3] and len(plan.at(slice(None))) == 9


def test_positions_behind_the_end_are_those_of_the_next_pass() -> None:
    ds = numbers(7, "a").shuffle(seed=1).batch(2)
    assert [sample.epoch for sample in ds.plan.at(len(ds))] == [1, 1]
    assert len(ds.plan.find("a", 3, within=range(3 * len(ds)))) == 3


@pytest.mark.parametrize("window", [1, 4, 5, 7])
@pytest.mark.parametrize("mixed", [False, True])
def test_windows_over_what_never_ends_are_asked_and_edited(window: int, mixed: bool) -> None:
    """They reach over the ends of passes, so nothing of a pass is where it was."""
    one = (
        ps.mix({"a": numbers(6, "x"), "b": numbers(9, "y")}, {"a": 1, "b": 2}, seed=1)
        if mixed
        else numbers(6, "a")
    )
    ds = (one if mixed else one.repeat()).shuffle(3, window=window)
    told = [ds.plan.at(p)[0].key for p in range(90)]
    assert delivered(ds, 90) == [[key] for key in told]
    for start, stop in ((0, 90), (3, 61), (17, 18)):
        for source, _, index in set(told):
            places = [p for p in range(start, stop) if told[p][::2] == (source, index)]
            assert ds.plan.find(source, index, within=range(start, stop)) == places
    for position in range(0, 90, 7):
        given = Counter(source for source, _, _ in told[:position])
        assert ds.plan.counts(position) == {name: given[name] for name in ds.plan.sources}
    if not mixed:
        edited = ds.plan.exclude([("a", 2)])
        assert [edited.at(p)[0].index for p in range(50)] == [
            key[2] for key in told if key[2] != 2
        ][:50]
        assert edited.find("a", 2, within=range(50)) == []


# ---------------------------------------------------------------- far away


@pytest.mark.parametrize("options", [{}, {"block_size": 1}])
def test_at_and_find_take_milliseconds_at_any_position(options: dict[str, Any]) -> None:
    plan = many(500, **options).batch(8).plan
    for start in (0, FAR):
        told = [plan.at(start + 10_000 * i)[i % 8] for i in range(15)]

        def find(i: int, told: Any = told) -> None:
            sample = told[i]
            around = range(max(0, sample.position - 1000), sample.position + 1000)
            assert sample.position in plan.find(sample.source, sample.index, within=around)

        assert clocked(lambda i, start=start: plan.at(start + 30_011 * i), 15) < 10
        assert clocked(find, 15) < 10
        assert clocked(lambda i, start=start: plan.counts(start + 30_011 * i), 15) < 10


def test_nothing_is_read_and_the_sums_hold_far_away() -> None:
    plan = many(50).batch(8).plan
    counts = plan.counts(FAR)
    assert sum(counts.values()) == 8 * FAR
    sample = plan.at(FAR)[3]
    assert plan.counts(FAR + 1)[sample.source] > counts[sample.source]
    assert plan.epochs(FAR)["s0"] == counts["s0"] / 10**6
    assert all(e.repeats is not None and e.ends is None for e in plan.exhaustion().values())


@pytest.mark.parametrize(
    ("ask", "needle"),
    [
        (lambda plan: plan.counts("x"), "the plan before position 'x': give a whole number"),
        (lambda plan: plan.counts(1.5), "the plan before position 1.5"),
        (lambda plan: plan.at("x"), "plan.at('x')"),
        (lambda plan: plan.at(range(3)), "plan.at(range(0, 3)) takes a position, a slice"),
        (lambda plan: plan.find("letters", "x"), "the index 'x'"),
        (lambda plan: plan.find("letters", 0, within=3), "plan.find(within=3): give a range"),
        (lambda plan: plan.skip(3), "plan.skip(3): give a range"),
        (lambda plan: plan.diff(ps.from_sequence(range(3))), "plan.diff: Dataset is no plan"),
        (lambda plan: plan.exclude(["letters"]), "'letters' is not a key"),
        (lambda plan: plan.exclude([("letters", 1.5)]), "exclude: 1.5: give a whole number"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(ask: Any, needle: str) -> None:
    with pytest.raises(ps.ConfigError) as refused:
        ask(ps.from_sequence("abcd", name="letters").plan)
    assert needle in str(refused.value)


def test_the_first_place_in_what_never_ends() -> None:
    flows = {
        "a": numbers(9, "a").shuffle(seed=1),
        "b": numbers(1_000, "b").shuffle(seed=2),
        "once": numbers(5, "once"),
    }
    plan = ps.mix(flows, {"a": 5, "b": 1, "once": 1}, max_epochs={"once": 0.6}).batch(4).plan
    assert plan.size is None
    for name, index in (("a", 3), ("b", 999), ("once", 2)):
        (first,) = plan.find(name, index)
        assert (
            plan.find(name, index, within=range(first + 1))
            == [first]
            == [next(plan.iter_find(name, index))]
        )
    assert plan.find("once", 4) == [] == list(plan.iter_find("once", 4)), (
        "past its cap it never comes"
    )


@pytest.mark.parametrize("method", ["concat_split", "best_fit"])
def test_first_repeats_of_packed_rows_that_never_end(method: Any) -> None:
    flows = {
        "few": documents(300, "few").shuffle(seed=1),
        "many": documents(3_000, "many").shuffle(seed=2),
    }
    flows["capped"] = documents(50, "capped")
    packed = ps.mix(flows, {"few": 1, "many": 2, "capped": 1}, max_epochs={"capped": 2}).pack(
        64, method
    )
    plan = packed.batch(2).plan
    found, seen = plan.exhaustion(), plan.at(slice(0, 2_000))
    for leaf, (name, one) in enumerate(found.items()):
        mine = seen.source == leaf
        assert one.repeats == int(seen.position[mine & (seen.epoch >= 1)][0]), name
        assert one.ends == (int(seen.position[mine][-1]) + 1 if name == "capped" else None), name


def test_first_repeats_above_batches_that_are_repeated_each() -> None:
    """The copies of a batch lie behind it, not behind each of its samples."""
    plan = ps.mix({"a": numbers(2, "a")}).batch(2, collate=list).repeat_each(2).plan
    assert plan.exhaustion() == {"a": Exhaustion(1, None)}


class TwoToOne:
    """A rule without known counts."""

    def size(self, sizes: Any, /) -> None:
        return None

    def at(self, positions: Any, /) -> Any:
        turn, place = np.divmod(positions, 3)
        return np.where(place < 2, 0, 1), np.where(place < 2, 2 * turn + place, turn)

    def describe(self) -> Any:
        return "two to one"


def partly_drawn(rare: int = 5) -> ps.Dataset:
    """Two sources of documents; each pass draws other documents than the pass before."""
    flows = {"a": documents(12, "a").shuffle(), "b": documents(rare, "b").shuffle()}
    return ps.mix(flows, seed=1, stop="first_exhausted")


COUNTED_ONE_BY_ONE: dict[str, Callable[[], ps.Dataset]] = {
    "packed pass by pass": lambda: partly_drawn().pack(9, "first_fit").repeat(),
    "packed in a mixture": lambda: ps.mix(
        {"p": partly_drawn().pack(9, "first_fit"), "q": documents(5, "q").pack(9)}
    ),
    "remainders dropped": lambda: (
        numbers(9, "a").concat(numbers(5, "b")).shuffle().batch(3, True).repeat()
    ),
    "a rule without counts": lambda: ps.mix(
        {"a": numbers(9, "a"), "b": numbers(5, "b")}, rule=TwoToOne()
    ),
}


@pytest.mark.parametrize("name", COUNTED_ONE_BY_ONE)
@pytest.mark.parametrize("horizon", [None, 9])
def test_first_repeats_of_endless_plans_that_are_counted_one_by_one(
    name: str, horizon: int | None
) -> None:
    """They counted up to position 2^49."""
    plan = COUNTED_ONE_BY_ONE[name]().plan
    seen = plan.at(slice(0, 200))
    for leaf, told in enumerate(plan.exhaustion(horizon).values()):
        begun = seen.position[
            (seen.source == leaf) & (True if seen.start is None else seen.start == 0)
        ]
        repeats = int(begun[plan._distinct_samples[leaf]])
        assert told == Exhaustion(repeats if horizon is None or repeats < horizon else None, None)


def test_a_source_that_repeats_late_where_counting_is_slow_needs_a_horizon() -> None:
    plan = partly_drawn(20_000).pack(9, "first_fit").repeat().plan
    with pytest.raises(
        ConfigError, match=r"'b': no repeat in the first [0-9,]+ positions.*horizon="
    ):
        plan.exhaustion()
    assert plan.exhaustion(100)["b"] == Exhaustion(None, None)


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_a_copy_of_a_plan_gives_its_answers(
    copied: Callable[[Any], Any], asked_before: bool
) -> None:
    """Parts of a tree are compiled by their identities, which copies do not share."""
    ds = ps.mix({"a": numbers(9, "a").shuffle(), "b": numbers(5, "b")}).batch(2, collate=list)
    loader = ps.Loader(ds)
    next(iter(loader))
    plan = ds.plan.for_state(loader.state_dict()).skip(range(3, 4))
    if asked_before:
        plan.at(step=2)
    again = copied(plan)
    assert again.at(step=5) == plan.at(step=5)
    assert again.seen(step=5).documents == plan.seen(step=5).documents
    assert again.skip(range(5, 6)).at(7) == plan.skip(range(5, 6)).at(7)
    assert again.state == plan.state and again.records == plan.records


def never_from(endless: Any, tokens: bool = False) -> list[int]:
    source = documents(10, "a") if tokens else numbers(10, "a")
    return endless(source).plan.find("a", 7)


@pytest.mark.parametrize(
    "endless",
    [
        lambda a: a.limit(4).repeat(),
        lambda a: a[:4].shuffle().repeat().batch(3),
        lambda a: a.shard(0, 2).repeat(),
        lambda a: a.select([1, 2]).repeat(),
        lambda a: a.shuffle().repeat().plan.exclude([("a", 7)]).dataset,
        lambda a: ps.mix({"a": a.limit(3), "b": numbers(2, "b")}),
        lambda a: ps.mix({"a": a, "b": numbers(2, "b")}).limit(4).repeat(),
        lambda a: a.repeat().limit(4).repeat(reshuffle=False),
    ],
)
def test_a_sample_that_never_comes_in_an_endless_dataset_is_found_nowhere(endless: Any) -> None:
    assert never_from(endless) == []


@pytest.mark.parametrize("method", ["concat_split", "best_fit", "first_fit"])
def test_a_document_that_never_comes_is_in_no_packed_row(method: Any) -> None:
    assert never_from(lambda a: a.limit(4).pack(64, method).repeat(), tokens=True) == []
    empty = ps.from_tokens(np.arange(9), [0, 4, 4, 9], name="a").pack(4, method).repeat()
    assert empty.plan.find("a", 1) == []


def test_a_search_in_passes_that_differ_ends_and_asks_for_a_range() -> None:
    def ending(a: ps.Dataset) -> ps.Dataset:
        return ps.mix({"a": a, "b": numbers(2, "b")}, stop="first_exhausted").repeat()

    with pytest.raises(ConfigError, match=r"give a range to search, such as within=range"):
        never_from(ending)
    assert len(never_from(lambda a: ending(a.shuffle()))) == 1


def test_a_sample_that_comes_late_is_found_without_listing_what_comes_first() -> None:
    weights = ps.Schedule([(0, {"a": 0, "b": 1}), (10**9, {"a": 1, "b": 1})])
    mixed = ps.mix({"a": numbers(10, "a"), "b": numbers(2, "b")}, weights)
    assert mixed.plan.find("a", 7)[0] > 10**9
