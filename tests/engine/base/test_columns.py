"""Large mappings by columns: nothing is lost, names are written once, damage is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from helpers import through_json
from penstock.engine.base.columns import MIN_ENCODED_ENTRIES, decode_columns, encode_columns
from penstock.errors import StateError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
)
NAMES = st.integers(MIN_ENCODED_ENTRIES - 2, MIN_ENCODED_ENTRIES + 2).map(
    lambda n: [*map(str, range(n))]
) | st.lists(st.text(max_size=3) | st.just("@names"), max_size=4, unique=True)


@st.composite
def alike(draw: st.DrawFn) -> dict[str, Any]:
    """A mapping of entries with the same fields, some of them all equal."""
    names = draw(NAMES)
    fields = draw(st.lists(st.sampled_from(["rows", "of", "@names", "each"]), unique=True))
    same = draw(SCALARS)
    return {
        name: {field: same if draw(st.booleans()) else draw(SCALARS) for field in fields}
        for name in names
    }


TREES = st.recursive(
    SCALARS | alike() | NAMES,
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(st.text(max_size=2) | st.just("@names"), below, max_size=3)
        | st.builds(lambda names, tree: dict.fromkeys(names, tree), NAMES, below)
    ),
    max_leaves=12,
)


def spelled(tree: Any) -> str:
    return json.dumps(tree)  # tells True from 1, and keeps the order of names


@examples(40)
@given(TREES)
def test_nothing_is_lost(tree: Any) -> None:
    tables = list[list[str]]()
    held, kept = through_json([encode_columns(tree, tables), tables])
    assert spelled(decode_columns(held, kept)) == spelled(tree)


def test_names_are_written_once() -> None:
    names = [f"source{i:03}" for i in range(500)]
    tables = list[list[str]]()
    held = encode_columns(
        [dict.fromkeys(names, 1), {name: {"of": name} for name in names}, names], tables
    )
    assert tables == [names]
    assert len(json.dumps(held)) < 120


@pytest.mark.parametrize(
    "tree",
    [
        {"@names": 3},
        {"@names": "x"},
        {"@names": 0, "each": [1]},
        {"@names": 0, "all": [1, 2]},
        {"@names": 0, "other": 1},
        {"@names": 0, "all": 1, "each": [1, 2]},
        {"@names": 0, "fields": {"a": "b"}},
    ],
    ids=range(7),
)
def test_damage_is_refused(tree: Any) -> None:
    with pytest.raises(StateError, match="damaged"):
        decode_columns(tree, [["a", "b"]])


def test_more_values_than_a_state_can_have_are_damage() -> None:
    names = [str(i) for i in range(1 << 11)]
    tree = {"@names": 0, "fields": {name: {"all": 1} for name in names}}
    with pytest.raises(StateError, match="damaged"):
        decode_columns(tree, [names])
    assert decode_columns(tree, [names[:3]]) == {
        name: dict.fromkeys(names, 1) for name in names[:3]
    }
