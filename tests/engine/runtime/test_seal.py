"""States as messages: round trips, entries that were changed, states that make no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json
from penstock.engine.base.random import RANDOM_VERSION as ORDER
from penstock.engine.runtime.seal import VERSION, seal, unseal

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 60), 1 << 60),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OWN = {"penstock", "version", "order", "check"}


def dataset() -> ps.Dataset:
    flows = {"a": ps.from_sequence(range(40)).shuffle(), "b": ps.from_sequence(range(30))}
    return (
        ps.mix(flows, {"a": 3, "b": 1}, stop="all_exhausted")
        .shuffle_buffer(5)
        .batch(3, collate=list)
    )


def state_at(n: int) -> dict[str, Any]:
    it = iter(dataset())
    list(islice(it, n))
    return it.state_dict()


OLD = state_at(2)


# ---------------------------------------------------------------- in memory


@examples(100)
@given(st.dictionaries(st.text().filter(lambda name: name not in OWN), JSON, max_size=5))
def test_what_is_sealed_comes_back_through_json(body: dict[str, Any]) -> None:
    state = through_json(seal(body))
    assert unseal(state) == {"penstock": "state", "version": VERSION, "order": ORDER, **body}
    assert state == seal(body), "unsealing does not change the state it is given"


@examples(100)
@given(st.data())
def test_any_changed_entry_is_refused(data: st.DataObject) -> None:
    state = through_json(OLD)
    name = data.draw(st.sampled_from(sorted(state)))
    was = json.dumps(state[name], sort_keys=True)
    value = data.draw(JSON.filter(lambda value: json.dumps(value, sort_keys=True) != was))
    with pytest.raises(ps.StateError):
        unseal({**state, name: value})


@pytest.mark.parametrize("name", sorted(OLD))
def test_a_missing_entry_is_refused(name: str) -> None:
    with pytest.raises(ps.StateError):
        unseal({key: value for key, value in OLD.items() if key != name})


def test_an_entry_that_was_added_is_refused() -> None:
    with pytest.raises(ps.StateError, match=r"damaged.*use an earlier one"):
        unseal({**OLD, "more": 1})


@pytest.mark.parametrize("what", ["version", "order"])
@pytest.mark.parametrize("value", [0, -1, 99, None, "1", 1.5])
def test_an_older_or_newer_version_is_refused_even_when_it_is_whole(what: str, value: Any) -> None:
    with pytest.raises(
        ps.StateError, match=rf"{what} {value!r}.*resume with the release that wrote it"
    ):
        unseal(seal({what: value}))


@pytest.mark.parametrize(
    "thing",
    [None, 3, "a state", b"{}", [], [OLD], iter([])],
    ids=lambda thing: type(thing).__name__,
)
def test_what_is_no_mapping_is_refused(thing: Any) -> None:
    with pytest.raises(ps.StateError, match=f"a mapping, not a {type(thing).__name__}.*state_dict"):
        unseal(thing)


def test_a_foreign_state_is_refused_with_what_it_holds() -> None:
    with pytest.raises(ps.StateError, match=r"not a state of Penstock.*checkpoint.*_snapshot"):
        unseal({"_snapshot": {"_snapshot_step": 3}})
    with pytest.raises(ps.StateError, match="holds nothing"):
        unseal({})


def test_what_is_not_json_is_refused() -> None:
    for value in ({1, 2}, object(), float("nan"), float("inf")):
        with pytest.raises(ps.StateError, match="damaged"):
            unseal({**OLD, "at": value})


@pytest.mark.parametrize(
    "changes",
    [{"at": "x"}, {"at": {}}, {"at": []}, {"epoch": "x"}, {"epoch": None}, {"epoch": -1}, {"lanes": "x"},
     {"turn": "x"}, {"turn": None}, {"changes": 3}, {"changes": [{}]}, {"changes": [3]}, {"journal": "x"},
     {"ended": 3}, {"at": {"0": "x"}}, {"at": {"0": []}}, {"at": {"7": None}},
     {"at": None},
     {"journal": [{}]},
     {"at": {"x": None}}],
    ids=str,
)  # fmt: skip
def test_a_whole_state_that_makes_no_sense_is_refused_and_nothing_moves(
    changes: dict[str, Any],
) -> None:
    """Somebody sealed it, but not this release: a `StateError`, and the run stays where it was."""
    body = {name: value for name, value in OLD.items() if name not in OWN}
    it, want = iter(dataset()), list(islice(iter(dataset()), 2, 6))
    list(islice(it, 2))
    with pytest.raises(ps.StateError):
        it.load_state_dict(seal({**body, **changes}))
    assert list(islice(it, 4)) == want


def two(step: int = 0) -> ps.Loader:
    names = {"a": ps.from_sequence(range(100)), "b": ps.from_sequence(range(30))}
    loader = ps.Loader(
        ps.mix(names, {"a": 3, "b": 1}, seed=3).filter(lambda x: x % 3).shuffle_buffer(9)
    )
    rows = iter(loader)
    for _ in range(step):
        next(rows)
    return loader


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": 10**30},
        {"turn": 1 << 62},
        {"at": {"0": [10**30, 0, 0, None, []]}},
        {"changes": [{"path": [], "before": 0}]},
    ],
    ids=str,
)
def test_a_state_that_was_sealed_anew_with_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    state = two(5).state_dict()
    loader = two(2)
    before = loader.state_dict()
    with pytest.raises(ps.StateError):
        loader.load_state_dict(seal({**unseal(state), **wrong}))
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    "at, weights",
    [(-1, {"a": 1, "b": 1}), (10**30, {"a": 1, "b": 1}), (1000, {"a": 1}), (1000, {})],
)
def test_a_change_in_a_state_that_fits_no_mixture_is_a_state_error(
    at: int, weights: dict[str, float]
) -> None:
    changed = two(5)
    changed.set_weights({"a": 1, "b": 1}, at=1000)
    body = through_json(unseal(changed.state_dict()))
    body["changes"][0]["event"] |= {"at": at, "weights": weights}
    loader = two(2)
    before = loader.state_dict()
    with pytest.raises(ps.StateError, match="changes in the state do not fit"):
        loader.load_state_dict(seal(body))
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    "groups", [None, 3, "x", [[]], [None], [[1]], {"1": None}, {"1": [10**9]}], ids=str
)
def test_groups_in_a_state_that_are_none_are_refused(groups: Any) -> None:
    body = through_json(unseal(two(5).state_dict()))
    body["at"]["0"][4] = groups
    loader = two(2)
    before = loader.state_dict()
    with pytest.raises(ps.StateError):
        loader.load_state_dict(seal(body))
    assert loader.state_dict() == before


def plain(step: int = 0) -> ps.Loader:
    loader = ps.Loader(
        ps.mix({"a": ps.from_sequence(range(100)), "b": ps.from_sequence(range(30))}).batch(2)
    )
    list(islice(iter(loader), step))
    return loader


@pytest.mark.parametrize("make", [two, plain], ids=["lanes", "indexed"])
def test_a14_a_state_without_any_one_of_its_entries_is_refused(
    make: Callable[[int], ps.Loader],
) -> None:
    body = unseal(make(5).state_dict())
    loader = make(2)
    before = loader.state_dict()
    for name in sorted(set(body) - OWN - {"records", "drawn", "passes"}):
        with pytest.raises(ps.StateError):
            loader.load_state_dict(seal({key: value for key, value in body.items() if key != name}))
        assert loader.state_dict() == before, name


@pytest.mark.parametrize("at", [10**6, -1, 1.5, True, "3", [3], None, 10**30])
def test_a15_an_odd_position_under_a_right_checksum_is_a_state_error(at: Any) -> None:
    body = unseal(plain(5).state_dict())
    loader = ps.Loader(ps.from_sequence(range(10)).batch(2))
    state = {**unseal(loader.state_dict()), "at": at}
    with pytest.raises(ps.StateError):
        loader.load_state_dict(seal(state))
    if not isinstance(at, int) or isinstance(at, bool) or at < 0 or at > 2**60:
        with pytest.raises(ps.StateError):
            plain(2).load_state_dict(seal({**body, "at": at}))


def test_a_state_of_500_sources_is_small() -> None:
    sources = {
        f"source{i:03}": ps.from_sequence(range(1_000 + i)).shuffle().map(abs) for i in range(500)
    }
    ds = ps.mix(sources, {name: 1 + i % 9 for i, name in enumerate(sources)}, seed=1).batch(8)
    it = iter(ds)
    given = [next(it).tolist() for _ in range(5)]
    text = json.dumps(it.state_dict())
    assert len(text) < 40_000, "names and functions are written once"
    again = iter(ds)
    again.load_state_dict(json.loads(text))
    assert given and next(again).tolist() == next(it).tolist()
