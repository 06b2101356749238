"""A dataset that was used, and then extended, is the one that is built fresh: items, states, plans, on any ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import numbers
from penstock.testing import pipelines
from penstock.testing import show as show_recipe
from trees import Tree, build, described, documents, noisy, show, streams, tokens
from usage import USES, Use, answers, built, leave


def batched(ds: ps.Dataset) -> ps.Dataset:
    return ds.batch(2, collate=list)


def texts(ds: ps.Dataset) -> ps.Dataset:
    return ds.map(str)


def jittered(ds: ps.Dataset) -> ps.Dataset:
    return ds.random_map(noisy)


def first(ds: ps.Dataset) -> ps.Dataset:
    return ds.limit(7)


uses = st.lists(st.sampled_from(USES), min_size=1, max_size=4)
worlds = st.integers(1, 3)
lanes = st.sampled_from([3, 6, 6, None])
tops = st.sampled_from(
    [(), (batched,), (batched, texts), (texts, batched, jittered), (batched, first, batched, texts)]
)


def check_use(
    make: Callable[[Callable[[ps.Dataset], ps.Dataset]], ps.Dataset],
    turns: Any,
    world: int,
    many: Any,
) -> None:
    """Build one dataset, using all others on the way, and another one untouched."""
    use, untouched = Use(turns), Use([leave])
    used, fresh = make(use), make(leave)
    assert answers(used, world, many) == answers(fresh, world, many)
    make(untouched)
    assert use.rest() == untouched.rest(), "iterators that were begun before go on otherwise"


def topped(ds: ps.Dataset, top: Any, use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
    """The dataset with the last steps of a run on it, each after a use."""
    for step in top:
        ds = step(use(ds))
    return ds


@examples(120)
@given(tree=described(), turns=uses, top=tops, world=worlds)
def test_an_indexed_dataset_that_was_used_is_extended_like_a_fresh_one(
    tree: Tree, turns: Any, top: Any, world: int
) -> None:
    note(show(tree))
    check_use(lambda use: topped(build(tree, use), top, use), turns, world, None)


@examples(120)
@given(tree=streams(), turns=uses, top=tops, world=worlds, many=lanes)
def test_a_stream_that_was_used_is_extended_like_a_fresh_one(
    tree: Tree, turns: Any, top: Any, world: int, many: Any
) -> None:
    note(show(tree))
    check_use(lambda use: topped(build(tree, use), top, use), turns, world, many)


@examples(60)
@given(recipe=pipelines(4), turns=uses, top=tops, world=worlds, many=lanes)
def test_a_recipe_that_was_used_on_the_way_is_built_like_a_fresh_one(
    recipe: Any, turns: Any, top: Any, world: int, many: Any
) -> None:
    note(show_recipe(recipe))
    check_use(lambda use: topped(built(recipe, use), top, use), turns, world, many)


# ---------------------------------------------------------------- one by one


def odd(x: int) -> bool:
    return x % 7 > 0


def five(x: int) -> list[int]:
    return [x] * 5


def pair(i: int, x: Any) -> tuple[int, Any]:
    return i, x


def swapped(i: int, x: Any) -> Any:
    return x


def of_mixture(use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
    mixture = use(ps.mix({"a": numbers(500).shuffle(), "b": numbers(500).shuffle()}))
    return use(use(mixture.filter(odd)).batch(4, collate=list)).map(str)


def repeated(use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
    return use(
        use(use(numbers(1000).shuffle(seed=1).filter(odd)).repeat()).batch(4, collate=list)
    ).map(str)


def packed(use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
    return use(use(use(ps.mix({"a": numbers(500).map(five)})).pack(8)).batch(1, collate=list)).map(
        str
    )


def interleaved(use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
    both = use(use(numbers(90)).interleave(use(numbers(50, "b").filter(odd)), width=2))
    return use(use(both.shuffle_buffer(5)).batch(3, collate=list)).map(str)


MADE = [of_mixture, repeated, packed, interleaved]


@pytest.mark.parametrize(("number", "turn"), [*enumerate(USES)])
def test_a_streamed_batch_of_a_used_dataset_is_that_of_a_fresh_one(number: int, turn: Any) -> None:
    for i in range(2):
        check_use(MADE[(number + i) % 4], [turn], 1 + (number + i) % 3, 6)


def test_one_description_in_two_trees_is_that_of_each() -> None:
    base = numbers(40).shuffle(seed=1).filter(odd).batch(2, collate=list)
    next(iter(base))
    left, right = base.map(str), base.repeat().batch(3, collate=list).map(str)
    want = [numbers(40).shuffle(seed=1).filter(odd).batch(2, collate=list) for _ in range(2)]
    assert answers(right, 2, 6) == answers(want[0].repeat().batch(3, collate=list).map(str), 2, 6)
    assert answers(left, 2, 6) == answers(want[1].map(str), 2, 6)


def test_the_same_node_twice_in_a_tree_is_two_nodes() -> None:
    def twice(use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
        base = use(numbers(12).shuffle(seed=1).map_with_index(pair))
        return use(base.concat(base).zip(base).filter(bool)).batch(2, collate=list).map(str)

    for turn in USES:
        check_use(twice, [turn], 2, 6)


def test_rows_packed_above_others_are_told_apart_in_any_tree() -> None:
    """Numbers of marks are those of the tree, not of the order in which its parts were compiled."""

    def mixed(use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
        a, b = (
            use(documents(9, name).map_with_index(swapped).map(tokens).shuffle(seed=1))
            for name in "ab"
        )
        both = use(
            ps.mix(
                {"a": use(documents(9, "a").pack(5)), "b": documents(9, "b").pack(7)},
                stop="all_exhausted",
            )
        )
        return use(use(both.zip(use(a.concat(b)))).batch(2, collate=list)).map(str)

    for turn in USES:
        check_use(mixed, [turn], 1, None)
