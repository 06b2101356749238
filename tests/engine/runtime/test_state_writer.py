"""States at every step: they stay as they were, and a lane that did not move costs nothing."""

from __future__ import annotations

from copy import deepcopy
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json
from penstock.engine.runtime import state_writer
from penstock.sources.digests import digest_lists, digest_memory

LANES = 8


def is_kept(x: int) -> bool:
    return x % 3 != 0


def dataset(limit: bool = False) -> ps.Dataset:
    flows = {"a": ps.from_sequence(range(200)).shuffle(), "b": ps.from_sequence(range(90))}
    rows = ps.mix(flows, {"a": 3, "b": 1}, stop="all_exhausted").filter(is_kept).shuffle_buffer(16)
    return (rows.limit(50) if limit else rows).batch(3, collate=list)


@pytest.mark.parametrize("limit", [False, True])
def test_a_state_of_every_step_stays_as_it_was_and_resumes(limit: bool) -> None:
    loader = ps.Loader(dataset(limit), lanes=LANES)
    states, copies, items = [loader.state_dict()], list[Any](), list[Any]()
    copies.append(deepcopy(states[0]))
    for item in loader:
        items.append(item)
        states.append(loader.state_dict())
        copies.append(deepcopy(states[-1]))
    assert states == copies
    for step, state in enumerate(states[:-1]):
        again = ps.Loader(dataset(limit), lanes=LANES)
        again.load_state_dict(through_json(state))
        assert list(again) == items[step:], step


def test_a_state_that_was_taken_alone_equals_one_of_many() -> None:
    loader = ps.Loader(dataset(), lanes=LANES)
    every = [loader.state_dict() for _ in islice(loader, 12)]
    for step, state in enumerate(every, 1):
        alone = ps.Loader(dataset(), lanes=LANES)
        list(islice(alone, step))
        assert alone.state_dict() == state


def test_the_caller_may_change_a_state() -> None:
    loader = ps.Loader(dataset(), lanes=LANES)
    list(islice(loader, 5))
    state, copy = loader.state_dict(), loader.state_dict()
    for part in (state["at"], state["pipeline"], state["data"], state["last"]):
        part.clear()
    assert loader.state_dict() == copy


def test_only_lanes_that_moved_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = list[Any]()
    encode = state_writer._encode  # pyright: ignore[reportPrivateUsage]

    def count(cursor: Any) -> str | None:
        encoded.append(cursor)
        return encode(cursor)

    monkeypatch.setattr(state_writer, "_encode", count)
    loader = ps.Loader(dataset(), lanes=LANES)
    loader.state_dict()
    assert len(encoded) == LANES
    for _ in islice(loader, 20):
        encoded.clear()
        loader.state_dict()
        assert len(encoded) == 3, "a batch of three rows moves three lanes"
        loader.state_dict()
        assert len(encoded) == 3, "and a second state moves none"


@examples(100)
@given(
    st.lists(
        st.lists(st.text(), max_size=40) | st.lists(st.integers(), max_size=40),
        min_size=1,
        max_size=5,
    )
)
def test_lists_have_the_digest_of_data_in_memory(lists: list[Any]) -> None:
    assert digest_lists(lists) == digest_memory(lists)
