"""Windows of documents: into exactly so many rows, whole where they fit, and the same rows as any one of them alone."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.base.random import derive_pass_key
from penstock.engine.packing import (
    BestFit,
    GroupLayout,
    Packing,
    PieceColumns,
    PlannedPieces,
    WindowPlanner,
    plan_groups,
)
from penstock.engine.packing.window import count_needed_rows, fill_rows
from penstock.engine.steps.compiled import Compiled
from penstock.engine.steps.pack_windows import WindowPackOp
from penstock.errors import DataError

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=150)


def groups(made: GroupLayout) -> list[list[tuple[int, int, int]]]:
    columns = zip(made.item.tolist(), made.start.tolist(), made.stop.tolist(), strict=True)
    parts = list(columns)
    return [parts[a:b] for a, b in pairwise(made.bounds.tolist())]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(9, 14), st.integers(0, 9))
def test_pieces_fill_so_many_rows_and_are_whole_where_they_fit(
    sizes: list[int], length: int, more: int
) -> None:
    rows = -(-sum(sizes) // length) + more
    assume(rows <= sum(sizes))
    made = groups(fill_rows(np.asarray(sizes), length, rows))
    assert len(made) == rows
    assert all(0 < sum(stop - start for _, start, stop in row) <= length for row in made)
    tokens = Counter(
        (item, token) for row in made for item, start, stop in row for token in range(start, stop)
    )
    assert tokens == Counter(
        (item, token) for item, size in enumerate(sizes) for token in range(size)
    )
    assert all([item for item, *_ in row] == sorted(item for item, *_ in row) for row in made)
    if count_needed_rows(np.asarray(sizes), length) <= rows <= len(sizes):
        assert sum(map(len, made)) == len(sizes), "nothing is split where all fit"


@given(
    SIZES,
    st.integers(1, 12),
    st.integers(4, 9),
    st.sampled_from(["split", "truncate"]),
    st.integers(0, 99),
)
def test_a_plan_of_all_windows_is_every_window_alone(
    sizes: list[int], length: int, rows: int, long: str, seed: int
) -> None:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    store = ps.from_tokens(np.arange(offsets[-1]), offsets, name="some")
    ds = store.shuffle(seed=seed).pack(length, "best_fit", rows=rows, long=long)  # pyright: ignore[reportArgumentType]
    (op,) = Compiled(ds.tree).op.inputs
    assert isinstance(op, WindowPackOp)
    fold = BestFit(length, overflow="split", rows=rows, long=long)  # pyright: ignore[reportArgumentType]
    shuffled = op.input.locate(np.arange(len(sizes))).index
    made = plan_groups(fold, np.asarray(sizes)[shuffled], derive_pass_key(op.key, 0))
    assert len(made) == op.size
    found = [[(s.index, s.start, s.stop) for s in ds.plan.at(row)] for row in range(len(made))]
    assert found == [[(int(shuffled[item]), a, b) for item, a, b in row] for row in groups(made)]


@given(SIZES, st.integers(1, 12), st.integers(4, 9))
def test_so_many_documents_decide_on_so_many_rows(sizes: list[int], length: int, rows: int) -> None:
    windows = WindowPlanner(BestFit(length, overflow="split", rows=rows))
    whole = groups(windows.planned(np.asarray(sizes), 5))
    for count in range(1, len(whole) + 1):
        seen = windows.count_settled(np.asarray(sizes), count)
        assert max(item for row in whole[:count] for item, *_ in row) < seen <= len(sizes)


@given(
    SIZES,
    st.integers(1, 12),
    st.sampled_from([0, 7, -1, 300, 1.5]),
    st.sampled_from(["uint8", "int32", "float32"]),
    st.sampled_from([None, "int64", "float64"]),
)
def test_rows_built_together_are_those_built_one_by_one(
    sizes: list[int], length: int, pad: float, kind: str, dtype: str | None
) -> None:
    documents = [np.arange(size).astype(kind) for size in sizes]
    packing = Packing(length, "best_fit", pad=pad, dtype=dtype)
    made = plan_groups(packing.fold(), sizes)
    columns = PieceColumns([documents[i] for i in made.item.tolist()], made.start, made.stop)
    rows = [PlannedPieces(columns, a, b) for a, b in pairwise(made.bounds.tolist())]
    want, wrong = list[Any](), ""
    try:
        want = [packing.build(row) for row in rows]
    except DataError as error:
        wrong = str(error)
    if wrong:
        with pytest.raises(DataError, match=re.escape(wrong[:30])):
            packing.many(list(rows))
        return
    for found, row in zip(packing.many(list(rows)), want, strict=True):
        assert found.keys() == row.keys()
        for name, column in row.items():
            assert found[name].dtype == column.dtype and found[name].tolist() == column.tolist()
