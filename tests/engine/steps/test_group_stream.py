"""Folds at run time: carries as JSON, a fold of one's own, and how small a cursor stays."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples, rounds
from penstock.engine.steps.group_stream import decode, encode, numbers
from penstock.testing import assert_covers, assert_resumes, recipes
from penstock.types import Item, Part

ITEMS = st.integers(0, 30).map(lambda number: Item(number, 20 + number % 7, f"value {number}"))
PARTS = st.builds(Part, ITEMS, st.integers(0, 9), st.integers(10, 19))
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 60), 1 << 60), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5), ITEMS, PARTS,
)  # fmt: skip
KEYS = st.one_of(
    st.text(max_size=3), st.sampled_from(["@", "(", "[", "{", "(@", "[@"]), st.integers(0, 9)
)
CARRIES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.lists(ITEMS, max_size=4),
        st.lists(ITEMS, max_size=4).map(tuple),
    ),
    max_leaves=15,
)


def exactly(tree: Any) -> Any:
    """A tree with the type of every node, so that a list is no tuple and 1 no True."""
    if isinstance(tree, Item | Part):
        return type(tree).__name__, repr(tree)
    if isinstance(tree, list | tuple):
        return type(tree).__name__, [exactly(entry) for entry in tree]
    if isinstance(tree, dict):
        return "dict", [(exactly(key), exactly(value)) for key, value in tree.items()]
    return type(tree).__name__, tree


def items_of(tree: Any) -> dict[int, Item]:
    if isinstance(tree, Item):
        return {tree.number: tree}
    if isinstance(tree, Part):
        return {tree.item.number: tree.item}
    children = (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    )
    return {number: item for child in children for number, item in items_of(child).items()}


# ---------------------------------------------------------------- carries


@examples(150)
@given(CARRIES)
def test_a_carry_comes_back_through_json_exactly(carry: Any) -> None:
    text = json.dumps(encode(carry), allow_nan=False)
    assert "value " not in text, "no data in a cursor"
    held = items_of(carry)
    assert exactly(decode(json.loads(text), held)) == exactly(carry)
    assert set(numbers(carry)) == set(held)


@pytest.mark.parametrize(
    "thing",
    [np.zeros(3), np.int64(3), {1, 2}, b"bytes", object()],
    ids=lambda thing: type(thing).__name__,
)
def test_what_json_cannot_hold_is_refused_by_its_type(thing: Any) -> None:
    for carry in (thing, [thing], {"a": (1, thing)}):
        with pytest.raises(
            TypeError, match=f"has a {type(thing).__name__} in its carry.*items, parts, tuples"
        ):
            encode(carry)


@pytest.mark.parametrize(
    "saved",
    [
        {"@": 99},
        {"?": 1},
        {"@": [1]},
        {"@": [0, 2, 1]},
        {"@": None},
        {"(@": 3},
        {"{": [[1]]},
        {"a": 1, "b": 2},
        {},
        {"(": None},
    ],
    ids=str,
)
def test_a_damaged_carry_is_a_state_error(saved: Any) -> None:
    with pytest.raises(ps.StateError):
        decode(saved, {0: Item(0, 1, "x")})


# ---------------------------------------------------------------- a fold of one's own


@dataclass(frozen=True)
class Sorted:
    """Windows of `n` neighbours, each sorted by size, longest first."""

    n: int

    def init(self, key: int, /) -> list[Item]:
        return []

    def step(self, carry: list[Item], item: Item, /) -> tuple[list[Item], Sequence[Sequence[Item]]]:
        window = [*carry, item]
        return ([], self.flush(window)) if len(window) == self.n else (window, [])

    def flush(self, carry: list[Item], /) -> Sequence[Sequence[Item]]:
        return [[item] for item in sorted(carry, key=lambda item: -item.size)]

    def describe(self) -> Any:
        return {"fold": "sorted", "n": self.n}


def first(values: list[Any]) -> Any:
    return values[0]


def words(n: int) -> ps.Dataset:
    return ps.from_sequence(["x" * (i * 7 % 11) + str(i) for i in range(n)])


@pytest.mark.parametrize("n", [1, 4, 100])
def test_a_fold_of_ones_own_gives_what_it_says(n: int) -> None:
    plain = list(words(23))
    want = [
        word
        for at in range(0, 23, n)
        for word in sorted(plain[at : at + n], key=lambda word: -len(word))
    ]
    assert list(words(23).fold(Sorted(n), build=first)) == want


@pytest.mark.parametrize("n,workers", [(1, 2), (4, 0), (4, 2), (30, 0)])
def test_a_fold_of_ones_own_resumes_at_every_position(n: int, workers: int) -> None:
    def make() -> ps.Dataset:
        return words(23).shuffle(seed=1).fold(Sorted(n), build=first)

    if not workers:
        assert_resumes(make, at_most=rounds(5, 64))
        rows = lambda: make().filter(lambda word: "3" not in word).batch(3, collate=list)  # noqa: E731
        assert_resumes(rows, at_most=rounds(5, 64))
    loaders = list[ps.Loader]()

    def loader() -> ps.Loader:
        loaders.append(ps.Loader(make(), workers=workers))
        return loaders[-1]

    assert_resumes(loader, at_most=rounds(3, 24))
    for each in loaders:
        each.close()


@dataclass(frozen=True)
class Averaging(Sorted):
    """Keeps an array in its carry, from the third item on."""

    def init(self, key: int, /) -> Any:
        return {"held": [], "mean": 0.0}

    def step(self, carry: Any, item: Item, /) -> Any:
        held = [*carry["held"], item]
        mean = (
            np.asarray([each.size for each in held]).mean(keepdims=True)
            if item.number >= 2
            else carry["mean"]
        )
        if len(held) < self.n:
            return {"held": held, "mean": mean}, []
        return {"held": [], "mean": mean}, self.flush({"held": held})

    def flush(self, carry: Any, /) -> Any:
        return super().flush(carry["held"])


def test_a_fold_that_keeps_an_array_is_refused_when_a_cursor_is_asked_for() -> None:
    it = iter(words(10).fold(Averaging(2), build=first))
    next(it)
    it.state_dict()  # nothing wrong so far
    with pytest.raises(
        TypeError, match=r"has a ndarray in its carry.*saved as JSON.*plain numbers or strings"
    ):
        for _ in it:
            it.state_dict()


def test_a_fold_that_keeps_a_nan_is_refused_with_its_name() -> None:
    with pytest.raises((TypeError, ps.PenstockError), match="carry"):
        encode({"mean": float("nan")})


# ---------------------------------------------------------------- what a cursor holds


def state_sizes(ds: ps.Dataset, every: int) -> list[int]:
    it, sizes = iter(ds), list[int]()
    while True:
        sizes.append(len(json.dumps(it.state_dict())))
        if sum(1 for _ in islice(it, every)) < every:
            return [*sizes, len(json.dumps(it.state_dict()))]


def document(i: int) -> np.ndarray[Any, Any]:
    return np.arange(1 + i * 7919 % 600)


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_cursor_of_a_shuffle_buffer_is_small_and_does_not_grow(shuffled: bool) -> None:
    source = ps.from_sequence(range(5000))
    ds = (source.shuffle(seed=1) if shuffled else source).shuffle_buffer(1000)
    sizes = state_sizes(ds, 250)
    assert max(sizes) > 2000, "it does hold a thousand numbers"
    middle = sizes[: len(sizes) * 3 // 4]
    assert max(middle) < 8 * 1024
    assert max(sizes) < 16 * 1024, "the flushed groups are waiting"


def test_the_cursor_of_a_flushed_shuffle_buffer_is_small() -> None:
    assert max(state_sizes(ps.from_sequence(range(5000)).shuffle_buffer(1000), 250)) < 8 * 1024


@pytest.mark.parametrize(
    "method,options", [("best_fit", {"window": 1000}), ("first_fit", {}), ("concat_split", {})]
)
def test_the_cursor_of_packing_is_small(method: Any, options: Any) -> None:
    ds = ps.from_sequence(range(4000)).shuffle(seed=1).map(document).pack(2048, method, **options)
    assert max(state_sizes(ds, 40)) < 20 * 1024


def test_the_state_of_an_indexed_pipeline_is_tiny_wherever_it_stands() -> None:
    ds = ps.from_sequence(range(1 << 40)).shuffle(seed=1).map(recipes.double).batch(32)
    sizes = state_sizes(ds.limit(1000), 100)
    assert max(sizes) < 1024
    # The first state has no last item, and no digest of its keys; at the end of a pass a source has two digests.
    assert max(sizes[:-2]) - min(sizes[1:-2]) < 8, "only digits of a position"
    assert sizes[-3] < sizes[-1] == sizes[-2] < sizes[-3] + 16
    assert len(json.dumps(iter(ds.limit(1 << 30)).state_dict())) < 1024


def test_data_never_gets_into_a_state() -> None:
    marked = ps.from_sequence([f"secret {i}" for i in range(50)])
    for ds in (
        marked.shuffle_buffer(9),
        marked.batch(7, collate=list),
        marked.bucket_by_length([9], 3, collate=list),
    ):
        it = iter(ds)
        for _ in islice(it, 3):
            assert "secret" not in json.dumps(it.state_dict())


def test_restoring_pulls_only_what_is_still_held() -> None:
    read = list[int]()

    class Noting:
        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    ds = (
        ps.from_sequence(Noting())
        .map(recipes.double)
        .batch_by_tokens(20, size=lambda x: 1, collate=list)
    )
    it = iter(ds)
    want = list(islice(it, 400))[-1][-1]
    state = it.state_dict()
    read.clear()
    again = iter(ds)
    again.load_state_dict(state)
    assert next(again)[0] == want + 2
    assert len(read) < 500, "the 8,000 samples before are not read again"


def test_a_fold_covers_every_sample_once_over_two_passes() -> None:
    with ps.Loader(
        ps.from_sequence(range(57)).fold(Sorted(10), size=lambda x: x % 5, build=first)
    ) as loader:
        assert_covers([*loader, *loader], range(57), times=2)


def test_the_way_back_to_items_that_are_gone_is_forgotten() -> None:
    ds = (
        ps.from_sequence(range(1 << 30))
        .shuffle(seed=1)
        .fold(Sorted(4), size=lambda x: x % 5, build=first)
    )
    it = iter(ds)
    tracemalloc.start()
    try:
        sizes = list[int]()
        for _ in range(3):
            for _ in islice(it, 4000):
                pass
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        it.close()
    assert sizes[2] - sizes[1] < 200_000, f"memory grows with the samples that were given: {sizes}"


def test_more_items_held_than_the_log_keeps() -> None:
    # While a state was loaded, the way back to items was forgotten before the carry that holds them was there.
    assert_resumes(lambda: ps.from_sequence(range(300)).filter(bool).shuffle_buffer(100), every=29)


@pytest.mark.parametrize("step", ["batch_by_tokens", "bucket_by_length"])
def test_keys_of_a_mapping_are_not_its_size(step: str) -> None:
    texts = ps.from_sequence([{"id": n, "ids": [1] * n} for n in (3, 9, 2, 7)])
    arguments: tuple[Any, ...] = (10,) if step == "batch_by_tokens" else ([5], 2)
    for ds in (texts, texts.map(dict)):
        with pytest.raises(
            ps.ConfigError, match=rf"{step}\(\): .*'id', 'ids'.*size=lambda x: len\(x\['ids'\]\)"
        ):
            list(getattr(ds, step)(*arguments, collate=list))
        groups = list(getattr(ds, step)(*arguments, size=lambda x: len(x["ids"]), collate=list))
        assert sorted(x["id"] for group in groups for x in group) == [2, 3, 7, 9]
