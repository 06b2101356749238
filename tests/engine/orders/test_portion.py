"""Two parts of a dataset: nothing in both, nothing in neither, whatever the share, the order and the length."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.orders import Portion
from penstock.testing import assert_resumes

SHARES = st.fractions(0, 1, max_denominator=40).filter(lambda share: 0 < share < 1)
SIZES = st.integers(0, 300)


def both(share: Fraction, seed: int) -> tuple[Portion, Portion]:
    one = Portion(share.numerator, share.denominator, seed)
    return one, one.complement()


@examples(200)
@given(SHARES, SIZES, st.integers(0, 3))
def test_every_place_is_in_one_part(share: Fraction, n: int, seed: int) -> None:
    places = [part.down(np.arange(part.size(n) or 0), n, 0)[0] for part in both(share, seed)]
    assert np.array_equal(np.sort(np.concatenate(places)), np.arange(n))
    for part, found in zip(both(share, seed), places, strict=True):
        assert np.array_equal(np.sort(found), found), "in their order"
        up = part.up(np.arange(-3, n + 3), n, 0)
        assert np.array_equal(np.flatnonzero(up >= 0) - 3, found)
        assert np.array_equal(up[up >= 0], np.arange(len(found)))


@examples(200)
@given(SHARES, SIZES, st.integers(0, 50))
def test_any_prefix_has_its_share_and_growth_changes_nothing(
    share: Fraction, n: int, more: int
) -> None:
    order, _ = both(share, 1)
    here = order.down(np.arange(order.size(n) or 0), n, 0)[0]
    grown = order.down(np.arange(order.size(n + more) or 0), n + more, 0)[0]
    assert np.array_equal(grown[grown < n], here)
    assert abs(len(here) - n * share) < 1


def test_far_out_it_is_the_same_arithmetic() -> None:
    train, held_out = ps.from_sequence(range(10**12)).split("0.5%")
    assert (len(train), len(held_out)) == (995 * 10**9, 5 * 10**9)
    for part in (train, held_out):
        places = np.asarray([0, 10**9, len(part) - 1])
        flow: Any = part.tree
        assert (
            flow.order.up(np.asarray(part[places.tolist()]), 10**12, 0).tolist() == places.tolist()
        )


def test_a_split_is_asked_and_edited_like_anything_else() -> None:
    train, held_out = ps.from_sequence(range(40), name="a").shuffle(seed=3).split("25%")
    assert sorted([*train, *held_out]) == list(range(40))
    run = train.shuffle(seed=1).batch(4, collate=list)
    for index in range(40):
        seen = [step for step in range(8) if index in run[step]]
        assert run.plan.find("a", index) == seen
    gone = train[0]
    assert gone not in [x for row in run.plan.exclude([("a", gone)]).dataset for x in row]
    assert run.plan.epochs(8) == {"a": 1.0} and run.plan.epochs(4) == {"a": 16 / 30}
    assert list(train.repeat(2)) == [*train, *train], "a fixed set, in every pass the same"
    assert_resumes(lambda: train.shuffle(seed=1).batch(4, collate=list), at_most=12)


def test_by_position_the_last_ones_are_held_out() -> None:
    train, held_out = ps.from_sequence(range(10)).split(3, by="position")
    assert (list(train), list(held_out)) == ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert [len(part) for part in ps.from_sequence(range(10)).split(3)] == [7, 3]
    assert set(ps.from_sequence(range(100)).split(0.1, seed=1)[1]) != set(
        ps.from_sequence(range(100)).split(0.1)[1]
    )


def test_a_set_of_its_own_wherever_it_is_put() -> None:
    train, held_out = ps.from_sequence(range(60), name="x").shuffle().split("20%")
    mixed = ps.mix({"a": train, "b": held_out}, seed=9, stop="all_exhausted")
    assert sorted(mixed) == list(range(60))


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Two files in which the same 50 sites come up, and some rows without."""
    for name in ("one", "two"):
        rows = [{"i": i, "site": None if i % 9 == 0 else f"site {i % 50}"} for i in range(200)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_equal_keys_go_to_one_side_also_of_other_sources(pages: Path) -> None:
    halves = [
        ps.read(pages / f"{name}.jsonl").split("20%", column="site") for name in ("one", "two")
    ]
    trained, held = ({row["site"] for half in halves for row in half[side]} for side in (0, 1))
    assert not trained & held and len(trained | held) == 51
    assert all(len(train) + len(held_out) == 200 for train, held_out in halves)
    few = ps.read(pages / "one.jsonl", where={"i": {"max": 99}}).split(0.2, column="site")
    assert sorted(row["i"] for half in few for row in half) == list(range(100))


REFUSED: list[tuple[Any, str]] = [
    (lambda ds: ds.split("0%"), "a share between 0 and 1"),
    (lambda ds: ds.split(1.0), "a share between 0 and 1"),
    (lambda ds: ds.split("much"), "a share between 0 and 1"),
    (lambda ds: ds.split(9), "hold out between 1 and 8"),
    (lambda ds: ds.split(True), "a whole number"),
    (lambda ds: ds.split("0.00000001%"), "at most six digits"),
    (lambda ds: ds.split(0.1, by="luck"), "split.by='luck'"),
    (lambda ds: ds.split(0.1, column="x"), "no sample has 'x'; they have"),
    (lambda ds: ds.split(0.1, column=[]), "give at least one column"),
    (lambda ds: ds.repeat().split(0.1, column="x"), "the dataset is endless"),
    (lambda ds: ds.filter(bool).split(0.1, column="x"), "split before that step"),
    (lambda ds: ds.split(3, column="x"), "give a share"),
    (lambda ds: ds.split(0.1, column="x", seed=3), "its values decide alone"),
    (lambda ds: ds.repeat().split(0.1), "the dataset is endless"),
    (lambda ds: ds.filter(bool).split(0.1), "split before that step"),
]


@pytest.mark.parametrize(("ask", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_split_says_why(ask: Any, said: str) -> None:
    with pytest.raises((ps.ConfigError, ps.IndexedError), match=said):
        ask(ps.from_sequence(range(9)))


def test_of_nothing_there_is_nothing() -> None:
    assert [len(part) for part in ps.from_sequence([]).split("10%")] == [0, 0]


def test_a_state_knows_the_fraction_of_a_split() -> None:
    """The description lost a part of it, so the state of `split("10%")` was loaded for 5%."""

    def make(share: str) -> ps.Dataset:
        return ps.from_sequence(range(1000), name="a").split(share)[1].repeat()

    with ps.Loader(make("10%")) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with ps.Loader(make("5%")) as loader, pytest.raises(ps.StateError, match="out_of: saved 10"):
        loader.load_state_dict(state)


def test_an_order_does_not_describe_itself_by_the_key_of_its_input() -> None:
    class Backwards:
        def size(self, below: int | None, /) -> int | None:
            return below

        def down(self, positions: Any, below: int | None, key: int, /) -> Any:
            assert below is not None
            return below - 1 - positions % below, positions // below

        def up(self, positions: Any, below: int | None, key: int, /) -> Any:
            assert below is not None
            return below - 1 - positions

        def describe(self) -> Any:
            return {"order": "backwards", "of": 7}

    with pytest.raises(ps.ConfigError, match="has the key 'of'"):
        ps.Loader(ps.from_sequence(range(9)).reorder(Backwards())).state_dict()
