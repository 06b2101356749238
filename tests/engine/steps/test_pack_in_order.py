"""Rows cut from documents end to end: any row, of any pass, is what a run from the start has there."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.steps import block_totals
from penstock.engine.steps.compiled import Compiled
from penstock.engine.steps.op import Op
from penstock.engine.steps.pack_windows import WindowPackOp
from penstock.engine.steps.seek import Metered
from penstock.engine.steps.tokens import Lengths
from trees import Grown, assert_plan_tells_packs, build, show, woven

DOCUMENTS = 60


def store(sizes: Any, name: str) -> ps.Dataset:
    """Documents of these sizes, all tokens different."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return ps.from_tokens(np.arange(offsets[-1]), offsets, name=name)


def op_of(ds: ps.Dataset) -> Op:
    return Compiled(ds.tree).op


def cut_of(ds: ps.Dataset) -> WindowPackOp:
    (found,) = [op for op in (op_of(ds), *op_of(ds).inputs) if isinstance(op, WindowPackOp)]
    return found


@st.composite
def known(draw: Any) -> Grown:
    """Any tree of documents whose lengths are known, repeated for ever or not."""
    flow = woven(draw, "", "documents", kinds=("mix", "mix", "concat"))
    return flow.then("repeat") if flow.ds._size and draw(st.booleans()) else flow


@examples(200)
@given(known())
def test_tokens_before_a_position_are_the_sum_of_those_that_lie_there(flow: Grown) -> None:
    note(show(flow.tree))
    packed = cut_of(flow.ds.pack(8)) if flow.ds._size is None else None
    op = op_of(flow.ds)
    lengths = packed.lengths if packed else cut_of(flow.ds.repeat().pack(8)).lengths
    many = min(2 * (flow.ds._size or DOCUMENTS), DOCUMENTS) + 1
    positions = np.arange(many)
    rows = op.locate(positions)
    want = np.zeros(len(lengths.by_leaf), np.int64)
    for position, leaf, size in zip(range(many), rows.leaf, lengths.of(rows), strict=True):
        found = np.zeros_like(want)
        op.tokens(position, lengths, found)
        assert found.tolist() == want.tolist(), f"before {position}"
        want[leaf] += size


@examples(200)
@given(known(), st.integers(1, 12), st.sampled_from([None, 0]), st.randoms())
def test_any_row_is_what_a_run_has_there(
    flow: Grown, length: int, eos: int | None, random: Any
) -> None:
    note(show(flow.tree))
    flow = flow if flow.ds._size is None else flow.then("repeat")
    ds = flow.ds.pack(length, eos=eos)
    documents = [
        list(document) + [eos] * (eos is not None) for document in islice(flow.ds, DOCUMENTS)
    ]
    stream = [token for document in documents for token in document]
    want = [stream[at : at + length] for at in range(0, len(stream) - length + 1, length)]
    order = list(range(len(want)))
    random.shuffle(order)
    again = build(flow.tree).pack(length, eos=eos)
    assert {row: again[row]["tokens"].tolist() for row in order} == dict(enumerate(want))
    assert [row["tokens"].tolist() for row in islice(ds, len(want))] == want
    at_once = again[: len(want)] if want else []
    assert [row["tokens"].tolist() for row in at_once] == want


@examples(100)
@given(known(), st.integers(1, 12))
def test_the_plan_counts_and_finds_what_rows_hold(flow: Grown, length: int) -> None:
    note(show(flow.tree))
    plan = flow.ds.pack(length).plan
    rows = min(plan.size * 2, 20) if plan.size is not None else 20
    try:
        assert_plan_tells_packs(plan, rows)
    except (
        ps.DataError
    ) as refused:  # a mixture that ends with its first input may give other documents in each pass
        assert "pack passes that hold the same documents" in str(refused)


def test_documents_without_tokens_are_in_no_row_and_in_no_count() -> None:
    ds = store([0, 3, 0, 0, 5, 0], "some").shuffle(seed=1).repeat().pack(4)
    keys = [sample for row in range(20) for sample in ds.plan.at(row)]
    assert {sample.index for sample in keys} == {1, 4}
    assert ds.plan.counts(20) == {"some": sum(sample.start == 0 for sample in keys)} == {"some": 20}
    assert ds.plan.find("some", 2, within=range(20)) == []


def test_what_never_ends_and_has_no_token_is_refused() -> None:
    with pytest.raises(ps.DataError, match="no document of 'none' has a token"):
        next(iter(store([0, 0], "none").repeat().pack(4)))
    assert list(store([0, 0], "none").pack(4)) == []


def test_a_row_far_away_takes_a_few_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = np.random.default_rng(1).lognormal(4, 1.5, 5000).astype(np.int64) + 1
    flows = {
        name: store(np.roll(sizes, 7 * i), name).shuffle(seed=i) for i, name in enumerate("abc")
    }
    ds = ps.mix(flows, {"a": 5, "b": 3, "c": 1}, seed=3).pack(2048)
    cut, calls = cut_of(ds), 0
    cut.locate(np.zeros(1, np.int64))
    tokens = Metered.by_leaf

    def counted(self: Metered, document: int, lengths: Lengths | None = None) -> Any:
        nonlocal calls
        calls += lengths in (None, cut.lengths)
        return tokens(self, document, lengths)

    monkeypatch.setattr(Metered, "by_leaf", counted)
    far = 10**12
    cut.locate(np.asarray([far]))
    assert calls <= 2
    assert sum(s.stop - s.start for s in ds.plan.at(far)) == 2048  # pyright: ignore[reportOperatorIssue]


def test_lengths_that_are_nothing_like_their_mean_are_found_as_well() -> None:
    sizes = [1] * 30_000 + [50_000] * 3 + [1] * 30_000
    ds = store(sizes, "odd").repeat().pack(1000)
    total = sum(sizes)
    for row in (0, 29, 30, 31, 100, 180, 209, 210, total // 1000, 10**9):
        token = row * 1000 % total
        assert ds[row]["tokens"].tolist() == [(token + i) % total for i in range(1000)]


def test_cached_sums_of_lengths_are_told_apart_by_what_packing_makes_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows with `pad_to_multiple` were cut by the cached sums of lengths without padding."""
    monkeypatch.setattr(block_totals, "MIN_CACHED_SAMPLES", 100)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    sizes = np.random.default_rng(0).integers(1, 6, 4000)
    np.save(tmp_path / "tokens.npy", np.zeros(int(sizes.sum()), np.uint16))
    np.save(tmp_path / "offsets.npy", np.concatenate([[0], np.cumsum(sizes)]))
    tokens, offsets = (
        np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("tokens", "offsets")
    )
    ds = ps.from_tokens(tokens, offsets, name="a").shuffle(seed=1)
    assert len(ds.pack(64)) == -(-int(sizes.sum()) // 64)
    padded = int((-(-sizes // 8) * 8).sum())
    assert len(ds.pack(64, pad_to_multiple=8)) == -(-padded // 64)
    assert len(ds.pack(64, eos=0)) == -(-int((sizes + 1).sum()) // 64)
