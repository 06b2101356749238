"""Random keys come from seed, source, kind of step, and its name or number; never from names of functions or classes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, note, reject
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.grouping import BatchByTokens
from penstock.errors import ConfigError, IndexedError, StateError
from penstock.types import Item
from trees import Tree, build, described, inserted, show, streams
from usage import FEW, answer, plain

Step = Callable[..., ps.Dataset]


def numbers(n: int = 30, name: str = "a") -> ps.Dataset:
    return ps.from_sequence(range(n), name=name)


def drawn(x: Any, rng: np.random.Generator) -> Any:
    return x, int(rng.integers(1_000_000))


def unchanged(x: Any, rng: np.random.Generator) -> Any:
    return x


class Rolled:
    """An order of a user: each pass is rolled by as much as its key says."""

    def size(self, below: int | None) -> int | None:
        return below

    def down(self, positions: Any, below: Any, key: int) -> tuple[Any, None]:
        epoch, place = np.divmod(positions, below)
        return epoch * below + (place + key % below) % below, None

    def up(self, positions: Any, below: Any, key: int) -> Any:
        epoch, place = np.divmod(positions, below)
        return epoch * below + (place - key % below) % below

    def describe(self) -> Any:
        return {"order": "rolled"}


class Turned(Rolled):
    """A copy of a function under another name."""


class Keyed(Rolled):
    KEY = "spin"


class Spun(Rolled):
    KEY = "spin"


class Labelled(BatchByTokens):
    """A fold of a user, which notes its key."""


def shown(ds: ps.Dataset) -> list[str]:
    return [repr(x) for x in islice(ps.Loader(ds, lanes=1), 24)]


def test_the_name_of_a_function_is_in_no_random_number() -> None:
    def drawn_elsewhere(x: Any, rng: np.random.Generator) -> Any:
        return x, int(rng.integers(1_000_000))

    class Drawing:
        def __call__(self, x: Any, rng: np.random.Generator) -> Any:
            return drawn(x, rng)

    functions: list[Any] = [drawn_elsewhere, lambda x, rng: drawn(x, rng), Drawing()]
    want = list(numbers().random_map(drawn, seed=1))
    for fn in functions:
        assert list(numbers().random_map(fn, seed=1)) == want
    assert want[:3] == [(0, 206617), (1, 169027), (2, 333406)], (
        "the numbers are pinned: label a change ORDER"
    )


def test_the_name_of_a_class_is_in_no_order_of_a_user() -> None:
    want = [*numbers().reorder(Rolled(), seed=1)]
    assert [*numbers().reorder(Turned(), seed=1)] == want != [*numbers()]
    assert [*numbers().reorder(Keyed(), seed=1)] == [*numbers().reorder(Spun(), seed=1)] != want


STEPS: dict[str, Step] = {
    "random_map": lambda ds, **name: ds.random_map(drawn, seed=1, **name),
    "shuffle": lambda ds, **name: ds.shuffle(seed=1, **name),
    "block": lambda ds, **name: ds.shuffle(seed=1, block=(2, 3), **name),
    "buckets": lambda ds, **name: ds.shuffle(seed=1, buckets=3, **name),
    "window": lambda ds, **name: ds.shuffle(seed=1, window=5, **name),
    "shuffle_buffer": lambda ds, **name: ds.shuffle_buffer(6, seed=1, **name),
    "stream window": lambda ds, **name: ds.filter(at_all).shuffle(seed=1, window=5, **name),
    "reorder": lambda ds, **name: ds.reorder(Rolled(), seed=1, **name),
}


def at_all(x: Any) -> bool:
    return True


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_is_keyed_by_its_number_or_by_its_name(kind: str) -> None:
    step = STEPS[kind]
    assert shown(step(numbers())) == shown(step(numbers()))
    assert (
        shown(step(numbers(), name="x"))
        == shown(step(numbers(), name="x"))
        != shown(step(numbers(), name="y"))
    )
    assert shown(step(numbers(), name="x")) != shown(step(numbers()))
    assert shown(step(numbers(), name="1")) != shown(step(numbers())), (
        "a name of digits is no number"
    )


def random_part(ds: ps.Dataset) -> list[int]:
    return [x[1] for x in ds]


def test_a_named_step_that_is_inserted_changes_nothing() -> None:
    want = random_part(numbers().random_map(drawn, seed=1))
    below = numbers().random_map(unchanged, seed=1, name="mine")
    assert random_part(below.random_map(drawn, seed=1)) == want
    assert random_part(below.random_map(drawn, seed=1, name="x")) == random_part(
        numbers().random_map(drawn, seed=1, name="x")
    )
    shuffles = numbers().shuffle(seed=1, name="mine").plan.at(slice(0, 30))
    twice = numbers().shuffle(seed=1, name="mine").shuffle(seed=1)
    alone = [x.index for x in numbers().shuffle(seed=1).plan.at(slice(0, 30))]
    assert [x.index for x in twice.plan.at(slice(0, 30))] == [
        [x.index for x in shuffles][i] for i in alone
    ]


def run(ds: ps.Dataset, steps: int, state: Any = None, **options: Any) -> tuple[list[Any], Any]:
    """The next items of a loader with their keys, and the state after them."""
    with ps.Loader(ds, **options) as loader:
        if state is not None:
            loader.load_state_dict(state, on_mismatch="adopt")
        items = [(plain(x), loader.keys()) for x in islice(loader, steps)]
        return items, loader.state_dict()


@examples(80)
@given(
    tree=st.one_of(described(), streams()),
    number=st.integers(0, 20),
    rank=st.sampled_from([(0, 1), (1, 2), (2, 3)]),
    lanes=st.sampled_from([1, 3, 6]),
    at=st.integers(0, 5),
)
def test_a_named_step_that_is_inserted_anywhere_changes_nothing(
    tree: Tree, number: int, rank: tuple[int, int], lanes: int, at: int
) -> None:
    more = inserted(
        tree, number, lambda part: ("random_map", part, (unchanged,), (("name", "inserted"),))
    )
    note(f"{show(tree)}\n{show(more)}")
    assume("unit='tokens'" not in show(tree))  # lengths are not known above a function
    before = build(tree)
    try:
        after = build(more)
    except (ConfigError, IndexedError):
        reject()  # such as a slice of packed documents whose lengths are no longer known
    assume((before.tree.reason_not_indexed is None) == (after.tree.reason_not_indexed is None))
    options: Any = {"rank": rank[0], "world_size": rank[1], "remainder": "keep", "lanes": lanes}
    want = answer(lambda: run(before, FEW, **options)[0])
    assert answer(lambda: run(after, FEW, **options)[0]) == want
    if not isinstance(want, str):
        state = run(before, at, **options)[1]
        with suppress(StateError):  # it cannot be adopted
            rest = run(after, FEW, state, **options)[0]
            assert rest == run(before, FEW, state, **options)[0]


def test_an_unnamed_step_that_is_inserted_or_named_changes_the_later_unnamed_ones_of_its_kind() -> (
    None
):
    first = random_part(numbers().random_map(drawn, seed=1))
    second = random_part(numbers().random_map(unchanged, seed=1).random_map(drawn, seed=1))
    assert first != second
    assert (
        random_part(numbers().random_map(unchanged, seed=1, name="now").random_map(drawn, seed=1))
        == first
    )
    other_kind = numbers().shuffle(seed=1).shuffle(seed=1, window=4)
    assert sorted(other_kind.random_map(drawn, seed=1)) == [*enumerate(first)]
    on_top = numbers().random_map(drawn, seed=1).random_map(unchanged, seed=1)
    assert random_part(on_top) == first, "what comes later changes nothing below"


def test_orders_without_randomness_are_not_counted() -> None:
    order = [*numbers(10).repeat(3).reorder(Rolled(), seed=1)]
    assert order == [*ps.from_sequence([*range(10)] * 3, name="a").reorder(Rolled(), seed=1)]
    assert [*numbers(40)[:30].skip(0).reorder(Rolled(), seed=1)] == [
        *numbers(30).reorder(Rolled(), seed=1)
    ]


def test_above_a_mixture_counting_restarts() -> None:
    def mixed(step: Step) -> ps.Dataset:
        return ps.mix({"a": step(numbers()), "b": numbers(20, "b")}, seed=2, stop="all_exhausted")

    plain, more = (
        mixed(lambda ds: ds),
        mixed(lambda ds: ds.random_map(unchanged).random_map(unchanged)),
    )
    assert [*plain.random_map(drawn)] == [*more.random_map(drawn)]
    named = mixed(lambda ds: ds.random_map(unchanged, name="x"))
    assert [*named.random_map(drawn, name="x")], "a name inside a mixture is free above it"


def test_concat_zip_and_limit_change_nothing_in_what_they_hold() -> None:
    def held(n: int) -> ps.Dataset:
        return numbers(n).random_map(drawn, seed=1)

    want = [*held(30)]
    assert (
        [*held(30).concat(numbers(3, "b"))][:30]
        == want
        == [x for x, _ in held(30).zip(numbers(30, "b"))]
    )
    assert [*held(30).limit(9)] == want[:9]
    both = numbers().random_map(unchanged, seed=1).concat(numbers(3, "b"))
    assert [*both.random_map(drawn, seed=1)][:30] == [
        *numbers().random_map(unchanged, seed=1).random_map(drawn, seed=1)
    ]


def test_two_equal_names_in_one_chain_are_refused() -> None:
    for kind, step in STEPS.items():
        named = numbers().random_map(drawn, name="x").map(str)
        with pytest.raises(ConfigError, match=r"name='x'\): an earlier step has this name already"):
            step(named, name="x")
        with pytest.raises(ConfigError, match="a name has at least one character"):
            step(numbers(), name="")
        assert shown(step(named, name="y")), kind
    branch = numbers().random_map(drawn, name="x")
    with pytest.raises(ConfigError, match="has this name already"):
        branch.zip(numbers(5, "b")).random_map(drawn, name="x")
    assert len(branch.zip(numbers(5, "b").random_map(drawn, name="x"))) == 5, (
        "two chains may use one name"
    )


def test_packs_and_folds_have_names_too() -> None:
    offsets = np.concatenate([[0], np.cumsum(1 + np.arange(200) * 37 % 60)])
    store = ps.from_tokens(np.arange(int(offsets[-1])) % 99, offsets, name="store")
    rows = [shown(store.pack(64, "best_fit", rows=8, name=name)) for name in (None, "x", "y", "x")]
    assert rows[1] == rows[3] and len({str(row) for row in rows}) == 3
    with pytest.raises(ConfigError, match="has this name already"):
        store.shuffle(name="x").pack(64, name="x")
    folded = numbers().fold(Labelled(9), size=at_all, name="x")
    assert "step" in str(folded.compiled.description) and shown(folded)


def test_the_name_of_a_step_is_a_part_of_the_pipeline() -> None:
    named = numbers().shuffle(seed=1, name="first")
    assert repr(named) == "Dataset of 30 items: a (30 rows) -> shuffle(seed=1, name='first')"
    assert [*pickle.loads(pickle.dumps(named))] == [*named] == [*named.seed(5)]
    state = ps.Loader(named).state_dict()
    ps.Loader(numbers().shuffle(seed=1, name="first")).load_state_dict(state)
    for other in (numbers().shuffle(seed=1), numbers().shuffle(seed=1, name="second")):
        with pytest.raises(StateError, match=r"step: "):
            ps.Loader(other).load_state_dict(state)


class Sorted:
    """A fold of a user: pairs of samples, the larger or the smaller one first, as the key of the pass says."""

    def init(self, key: int, /) -> Any:
        return {"falls": bool(key & 1), "held": []}

    def step(self, carry: Any, item: Item, /) -> tuple[Any, list[list[Item]]]:
        pair = sorted([*carry["held"], item], key=lambda one: one.number, reverse=carry["falls"])
        return {**carry, "held": pair if len(pair) < 2 else []}, [pair] if len(pair) == 2 else []

    def flush(self, carry: Any, /) -> list[list[Item]]:
        return [carry["held"]] if carry["held"] else []

    def describe(self) -> Any:
        return {"fold": "sorted"}


def documents(name: str) -> ps.Dataset:
    offsets = np.concatenate([[0], np.cumsum(1 + np.arange(200) * 37 % 60)])
    return ps.from_tokens(np.arange(int(offsets[-1])) % 99, offsets, name=name)


SEEDED: dict[str, tuple[ps.Dataset, Callable[[ps.Dataset], ps.Dataset]]] = {
    "best_fit": (documents("a"), lambda ds: ds.pack(64, "best_fit", rows=8)),
    "group_by": (
        documents("a").concat(documents("b")),
        lambda ds: ds.pack(64, group_by="__source__", rows=128),
    ),
    "fold": (numbers(), lambda ds: ds.fold(Sorted(), size=at_all)),
    "fold of a stream": (numbers().filter(at_all), lambda ds: ds.fold(Sorted(), size=at_all)),
}


@pytest.mark.parametrize("kind", SEEDED)
def test_the_seed_of_a_dataset_reaches_packs_and_folds(kind: str) -> None:
    source, step = SEEDED[kind]
    orders = [shown(step(source).seed(seed)) for seed in range(9)]
    assert len({str(order) for order in orders}) > 1
    assert [shown(step(source.seed(seed))) for seed in range(9)] == orders, (
        "of steps before and after"
    )
    assert shown(step(source)) == orders[0], "the seed is 0 without one"


def test_packing_without_randomness_has_no_seed() -> None:
    for ds in (
        documents("a").pack(64),
        documents("a").pack(64, "first_fit"),
        numbers().batch(4).rebatch(3),
    ):
        assert ds.seed(5).compiled.description == ds.compiled.description


def test_a_slice_of_packed_rows_is_the_same_in_a_mixture() -> None:
    rows = documents("a").pack(64, "best_fit", rows=8)[3:20]
    mixed = ps.mix(
        {"rows": rows, "other": documents("b").pack(64)}, {"rows": 1, "other": 0}, seed=7
    )
    assert shown(mixed.limit(17)) == shown(rows)
