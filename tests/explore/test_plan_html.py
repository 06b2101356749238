"""A plan in a notebook: what each source gives, as a picture and a table."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

import penstock as ps


def numbers(count: int) -> ps.Dataset:
    return ps.from_sequence(range(count)).shuffle()


def html(value: Any) -> str:
    return value._repr_html_()


def mixed() -> ps.Dataset:
    inputs = {"code": numbers(60), "text": numbers(200), "<b>math": numbers(20)}
    weights = {"code": 3, "text": 5, "<b>math": 2}
    return ps.mix(inputs, weights, seed=1, block_size=10, max_epochs={"<b>math": 2}).batch(4)


def test_a_plan_shows_its_picture_and_its_table() -> None:
    plan = mixed().plan
    shown = html(plan)
    assert shown.count("<svg") == shown.count("<table>") == 1 and "<b>" not in shown
    cells = ["&lt;b&gt;math", "20", "10.00%", "40", "2.00", "27", "50"]
    assert "".join(f"<td>{cell}</td>" for cell in cells) in shown
    assert shown == html(pickle.loads(pickle.dumps(plan))) and len(shown) < 40_000
    with ps.Loader(mixed()) as loader:
        for _ in range(20):
            next(iter(loader))
        state = loader.state_dict()
    assert "position of the run" in html(mixed().plan.for_state(state))
    one_pass = html(numbers(500).plan)
    assert "500 positions, one pass" in one_pass and "<td>100.00%</td><td>500</td>" in one_pass


def test_packed_rows_show_their_sources() -> None:
    store = ps.from_tokens(np.arange(9_000), np.arange(0, 9_001, 9))
    packed = (
        ps.mix({"a": store.shuffle(), "b": store.shuffle()}, {"a": 1, "b": 1}).pack(64).batch(2)
    )
    assert "<svg" in html(packed.plan) and "50.00%" in html(packed.plan)


def test_a_plan_never_shows_an_error_or_counts_for_long() -> None:
    large = {name: ps.from_sequence(range(10**6)) for name in "ab"}
    many = {f"source {number}": numbers(20 + number) for number in range(150)}
    for plan in (
        ps.mix(large, stop="all_exhausted").shuffle().plan,
        ps.mix(many).plan,
        ps.from_sequence([]).plan,
    ):
        assert html(plan).startswith("Plan") and "<svg" not in html(plan)
    huge = {name: ps.from_sequence(range(10**12)).shuffle() for name in "ab"}
    assert "<svg" in html(ps.mix(huge).plan)
    wide = {f"source {number}": numbers(20 + number) for number in range(90)}
    assert "<svg" in html(ps.mix(wide).plan) and len(html(ps.mix(wide).plan)) < 200_000
