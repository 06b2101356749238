"""Documents kept whole in windows: any row, of any pass, with nothing lost and next to nothing split."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.packing import BestFit, Packing
from penstock.engine.steps.compiled import Compiled
from penstock.engine.steps.pack_windows import WindowPackOp
from trees import Grown, assert_plan_tells_packs, build, show, woven

ROWS = 12


def store(sizes: Any, name: str) -> ps.Dataset:
    """Documents of these sizes, all tokens different."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return ps.from_tokens(np.arange(offsets[-1]), offsets, name=name)


def fit_of(ds: ps.Dataset) -> WindowPackOp:
    op = Compiled(ds.tree).op
    (found,) = [each for each in (op, *op.inputs) if isinstance(each, WindowPackOp)]
    return found


def lognormal(mean: float, sigma: float, many: int, most: int | None = None) -> Any:
    found = (
        np.random.default_rng(3)
        .lognormal(np.log(mean) - sigma**2 / 2, sigma, many)
        .astype(np.int64)
        + 1
    )
    return np.minimum(found, most) if most else found


@st.composite
def known(draw: Any) -> Grown:
    """Any tree of documents whose lengths are known, repeated for ever or not."""
    flow = woven(draw, "", "documents", kinds=("mix", "mix", "concat"))
    alike = flow.ds._size is not None and Compiled(flow.ds.tree).op.repeats
    return flow.then("repeat") if flow.ds._size and not (alike and draw(st.booleans())) else flow


@examples(100)
@given(known(), st.integers(1, 12), st.integers(4, 9), st.sampled_from([None, 0]), st.randoms())
def test_any_row_is_what_a_run_has_there(
    flow: Grown, length: int, rows: int, eos: int | None, random: Any
) -> None:
    note(show(flow.tree))
    ds = flow.ds.pack(length, "best_fit", rows=rows, eos=eos)
    many = min(2 * (ds.plan.size if ds.plan.size is not None else ROWS), 2 * ROWS)
    run = list(islice(ds.repeat() if ds.plan.size else ds, many))
    assert all(0 < np.count_nonzero(row["segment_ids"]) <= length for row in run), "no row is empty"
    order = list(range(many))
    random.shuffle(order)
    again = build(flow.tree).pack(length, "best_fit", rows=rows, eos=eos)
    again = again.repeat() if again.plan.size else again
    for row in order:
        assert again[row]["tokens"].tolist() == run[row]["tokens"].tolist()


@examples(100)
@given(known(), st.integers(1, 12), st.integers(4, 9))
def test_every_pass_has_every_token_once_and_as_many_rows(
    flow: Grown, length: int, rows: int
) -> None:
    note(show(flow.tree))
    ds = flow.ds.pack(length, "best_fit", rows=rows)
    if (size := ds.plan.size) is None or not isinstance(
        Compiled(ds.tree).op.inputs[0], WindowPackOp
    ):
        return
    for epoch in range(2):
        documents = (
            islice(flow.ds.repeat(), epoch * len(flow.ds), (epoch + 1) * len(flow.ds))
            if len(flow.ds)
            else []
        )
        want = Counter(int(token) for document in documents for token in document)
        given_ = islice(ds.repeat(), epoch * size, (epoch + 1) * size) if size else []
        assert (
            Counter(int(token) for row in given_ for token in row["tokens"][row["segment_ids"] > 0])
            == want
        )


@examples(100)
@given(known(), st.integers(1, 12), st.integers(4, 9))
def test_the_plan_counts_and_finds_what_rows_hold(flow: Grown, length: int, rows: int) -> None:
    note(show(flow.tree))
    plan = flow.ds.pack(length, "best_fit", rows=rows).plan
    many = min(plan.size * 2, ROWS) if plan.size is not None else ROWS
    assert_plan_tells_packs(plan, many)


@pytest.mark.parametrize(
    ("length", "sizes", "fill", "split"),
    [
        (2048, lognormal(600, 1, 40_000), 0.995, 0.001),
        (8192, lognormal(600, 1, 120_000), 0.998, 0.001),
        (2048, lognormal(600, 2, 40_000), 0.995, 0.001),
    ],
    ids=["2048", "8192", "2048, documents over a row"],
)
def test_rows_are_full_and_next_to_nothing_is_split(
    length: int, sizes: Any, fill: float, split: float
) -> None:
    op = fit_of(store(sizes, "some").shuffle(seed=1).repeat().pack(length, "best_fit"))
    made = [op._window(0, number).layout for number in range(5)]
    tokens = sum(int((layout.stop - layout.start).sum()) for layout in made)
    assert tokens / sum(len(layout) * length for layout in made) >= fill
    parts = documents = 0
    for number, layout in enumerate(made):
        window = op._window(0, number)
        whole = op.lengths.of(window.documents)[layout.item]
        pieces = np.minimum(
            whole - layout.start // length * length, length
        )  # as documents over a row are cut
        parts += int(
            np.count_nonzero((layout.stop - layout.start < pieces) & (layout.start % length == 0))
        )
        documents += len(np.unique(layout.item))
    assert parts / documents < split


def test_rows_come_in_no_order_of_lengths() -> None:
    op = fit_of(store(lognormal(600, 1, 20_000), "some").repeat().pack(2048, "best_fit"))
    layout = op._window(0, 0).layout
    longest = np.maximum.reduceat(layout.stop - layout.start, layout.bounds[:-1])
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.25
    assert (
        np.diff(layout.item)[np.setdiff1d(np.arange(len(layout.item) - 1), layout.bounds[1:-1] - 1)]
        >= 0
    ).all()


def test_no_row_is_empty_where_documents_are_tiny() -> None:
    op = fit_of(store(np.full(5000, 1), "ones").repeat().pack(16, "best_fit", rows=8))
    for number in range(40):
        assert (np.diff(op._window(0, number).layout.bounds) > 0).all()


def test_a_row_far_away_takes_a_few_sums_and_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    flows = {
        name: store(np.roll(lognormal(90, 1.5, 5000), 7 * i), name).shuffle(seed=i)
        for i, name in enumerate("abc")
    }
    ds = ps.mix(flows, {"a": 5, "b": 3, "c": 1}, seed=3).pack(2048, "best_fit")
    fit, packed = fit_of(ds), list[Any]()
    inner = fit._pack
    monkeypatch.setattr(fit, "_pack", lambda *which: packed.append(which) or inner(*which))
    fit.locate(np.arange(10**12, 10**12 + 3))
    assert packed == [(0, 10**12 // 256, 10**12 // 256 + 1)]


def test_long_documents_are_refused_or_cut_where_asked() -> None:
    sizes = [3, 40, 5, 9]
    with pytest.raises(ps.DataError, match="40 tokens, more than a row of 16"):
        store(sizes, "some").pack(16, "best_fit", long="error")[0]
    rows = list(store(sizes, "some").pack(16, "best_fit", long="truncate", eos=-1))
    given_ = Counter(int(token) for row in rows for token in row["tokens"][row["segment_ids"] > 0])
    assert given_ == Counter([*range(3), *range(3, 19), *range(43, 57), -1, -1, -1])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"method": "first_fit", "overflow": "split"},
            "overflow is for best_fit, not for first_fit",
        ),
        ({"rows": 8}, "rows is for best_fit, not for concat_split"),
        ({"method": "best_fit", "rows": 3}, "rows must be a whole number of at least 4"),
        ({"method": "best_fit", "rows": 8, "window": 3}, "window is for overflow='never'"),
        ({"method": "best_fit", "rows": 8, "overflow": "never"}, "rows is for overflow='split'"),
        ({"method": "best_fit", "overflow": "sometimes"}, "choose 'split', 'never' or 'crop'"),
    ],
)
def test_options_that_cannot_work_together_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ps.ConfigError, match=why):
        store([3], "some").pack(16, **options)


def test_what_goes_with_labels_is_not_split_unless_asked() -> None:
    def overflow(**options: Any) -> str:
        fold = Packing(8, "best_fit", **options).fold()
        assert isinstance(fold, BestFit)
        return fold.overflow

    assert overflow() == overflow(features=("ids",)) == "split"
    assert overflow(features=("ids", "mask")) == overflow(window=9) == "never"
    assert (
        overflow(features=("ids", "mask"), rows=9)
        == overflow(features=("a", "b"), overflow="split")
        == "split"
    )
